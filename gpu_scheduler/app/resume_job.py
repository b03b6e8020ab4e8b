"""Resumes a job from a checkpoint.

Finds the checkpoint, checks that the command of the job has a place for its path, determines the memory that
the job needs, and records the request.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpu_scheduler.app.answers import COMMAND_LINE, Answer
from gpu_scheduler.app.control import control
from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.app.job_requests import request_for_job
from gpu_scheduler.app.job_views import observed_job
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.refusals import early_refusal, refused_answer
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.attempts.running_progress import newest_checkpoint
from gpu_scheduler.core.command.resume import DEFAULT_FLAG, VARIABLE, with_checkpoint
from gpu_scheduler.core.model.attempt_status import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request_answer import ACCEPTED_STATES, AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.progress.run_options import output_option, step_in
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.store.dependencies import failed_ancestors
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store


@dataclass(frozen=True)
class ResumeResult:
    """The answer to the request, with the job as it was before.

    checkpoint: the one from which the job resumes; None if the request was refused at once. min_vram_mib: the
    memory that the job needs because an earlier attempt used it; None if its declaration counts.
    """

    answer: Answer
    job: JobRecord
    checkpoint: Checkpoint | None = None
    min_vram_mib: int | None = None


def resume_job(
    location: Location, ref: JobRef, path: str | None = None, *, by: str = COMMAND_LINE
) -> ResumeResult:
    """Queues a held or finished job again, so that it continues from a checkpoint.

    path: the checkpoint; None for the newest complete one. Raises SchedulerError if the job or the checkpoint
    does not exist, or if the command of the job has no place for the path.
    """
    with control(location) as store_control:
        store = store_control.store
        job_id = resolve_job(store, ref)
        job = observed_job(store, job_record(store, job_id))
        refusal = _refusal(store, job, completed=path is not None)
        if refusal is not None:
            return ResumeResult(refused_answer(store, job_id, refusal), job)
        attempts = store.attempts(job_id)
        checkpoint = _newest(store, job, attempts) if path is None else _named(job.spec, path)
        _check_place(job, checkpoint, has_line=line_of(store, job_id) is not None)
        peak = needed_mib(job, attempts)
        answer = request_for_job(
            store_control,
            "resume_job",
            job_id,
            by,
            checkpoint={"path": checkpoint.path, "step": checkpoint.step, "saved_at": checkpoint.saved_at},
            completed=path is not None,
            min_vram_mib=peak,
        )
        return ResumeResult(answer, job, checkpoint, peak)


def preempted_jobs(location: Location, numbers: Collection[int]) -> list[int]:
    """Returns those of these ids, in order, whose job is held because it was preempted."""
    if not location.resolve().database.exists():
        return []
    with open_store(location, read_only=True) as store:
        found = (store.job(number) for number in sorted(numbers))
        return [job.id for job in found if job is not None and job.held_by == Outcome.PREEMPTED.value]


def _refusal(store: Store, job: JobRecord, *, completed: bool) -> RequestAnswer | None:
    """Returns why the job cannot be resumed, before its checkpoint is looked for."""
    why = early_refusal(store, "resume_job", job.id, {})
    if why is None and job.state not in ACCEPTED_STATES["resume_job"]:
        return wrong_state("resume_job", job.state)
    if why is None and job.outcome is Outcome.COMPLETED and not completed:
        return RequestAnswer(AnswerCode.ALREADY_COMPLETED)
    if why is None and job.failed_parents and job.state is JobState.FINISHED:
        return RequestAnswer(AnswerCode.PARENT_FAILED, parent=failed_ancestors(store, job.id, 1)[0])
    return why


def _newest(store: Store, job: JobRecord, attempts: Sequence[AttemptRecord]) -> Checkpoint:
    """Returns the newest complete checkpoint of the job. Raises SchedulerError if there is none."""
    found = newest_checkpoint(store, job.spec, attempts) if attempts else None
    if found is not None:
        return found
    why = why_no_checkpoint(job.spec) if attempts else "it has never started"
    raise SchedulerError(
        f"job {job.id} has no complete checkpoint: {safe_text(why)}\n"
        f"`retry {job.id}` starts it from its beginning, and `resume --job {job.id} --from PATH`"
        " continues from a checkpoint that you name"
    )


def why_no_checkpoint(spec: JobSpec) -> str:
    """Returns why no complete checkpoint of a job that has run was found."""
    if spec.checkpoints is not None:
        return f"nothing matches checkpoints={spec.checkpoints}"
    option, folder = output_option(spec)
    if folder is not None:
        return f"none was found in its {option} {folder}"
    return f"its command has no {option}, and it has no attribute checkpoints="


def _named(spec: JobSpec, path: str) -> Checkpoint:
    """Returns the checkpoint that the user names. Raises SchedulerError if there is none.

    The path is relative to the current folder or, if nothing has this name there, to the folder of the job.
    """
    expanded = os.path.expanduser(path)
    for folder in (os.getcwd(), spec.cwd):
        whole = os.path.normpath(os.path.join(folder, expanded))
        try:
            return Checkpoint(whole, step_in(whole), os.stat(whole).st_mtime)
        except OSError:
            continue
    raise UsageError(f"--from {safe_text(path)}: there is no such file or folder")


def _check_place(job: JobRecord, checkpoint: Checkpoint, *, has_line: bool) -> None:
    """Raises SchedulerError with the remedy if it is unclear where the command takes the path."""
    if with_checkpoint(job.spec, checkpoint.path) is not None:
        return
    flag = job.spec.resume_flag or DEFAULT_FLAG
    path = safe_text(checkpoint.path)
    remedy = f"add a line with `{flag} {shlex.quote(path)}` where the path belongs"
    if not has_line:
        remedy = f"run `set {job.id} command='…'` with `{flag} \"${VARIABLE}\"` where the path belongs"
    if job.spec.resume_flag is None:
        named = f"put [resume-flag={flag}] before its line"
        named = named if has_line else f"run `set {job.id} resume-flag={flag}`"
        remedy = f"if it runs a shell script that passes its arguments on, {named}; otherwise, {remedy}"
    raise SchedulerError(
        f"job {job.id} cannot resume from {path}: it is unclear where its command takes {flag}\n{remedy}"
    )


def needed_mib(job: JobRecord, attempts: Sequence[AttemptRecord]) -> int | None:
    """Returns the memory that the job needs on each GPU, in MiB; None if its declaration counts.

    It is the peak of the attempts that declared nothing or exceeded their declaration.
    """
    peaks = [max(attempt.peaks.values(), default=0) for attempt in attempts if _is_peak_its_need(attempt)]
    most = max(peaks, default=0)
    return max(most, job.min_vram_mib or 0) if most else None


def _is_peak_its_need(attempt: AttemptRecord) -> bool:
    budgets = attempt.budgets
    if not budgets:
        return True
    return any(budget is not None and attempt.peaks.get(gpu, 0) > budget for gpu, budget in budgets.items())
