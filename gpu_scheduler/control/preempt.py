"""Preempts a running job, and resumes a job from a checkpoint.

A preemption asks the job to save its work and to end, and waits until it has ended or continues. To resume a
job, this module finds the checkpoint, checks that the command has a place for its path, determines the memory
that the job needs, and records the request.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.folder import LOCAL_EXECUTORS, recorded_command
from gpu_scheduler.attempts.job_progress import ProgressReader, newest_checkpoint, progress_source
from gpu_scheduler.attempts.observe import readable_status
from gpu_scheduler.control.job_requests import early_refusal, refused_answer, request_for_job
from gpu_scheduler.control.requests import (
    COMMAND_LINE,
    STOP_MARGIN_S,
    Answer,
    AnswerKind,
    Control,
    answer_text,
    control,
)
from gpu_scheduler.core.command.shell_words import (
    CHECKPOINT_VARIABLE,
    DEFAULT_RESUME_FLAG,
    has_place,
    with_checkpoint,
)
from gpu_scheduler.core.explain.progress import JobProgress, output_option, step_in
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, Checkpoint, Job, ProgressUnit, StopRequest
from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL, JobSpec
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer, refusal_to_resume, wrong_state
from gpu_scheduler.core.model.states import ACTIVE, AttemptState, JobState, Outcome
from gpu_scheduler.core.text.formatting import count_noun, format_duration, format_memory, pid_text, safe_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.show.job_text import checkpoint_text, outcome_text, path_in, step_text
from gpu_scheduler.show.job_views import observed_job
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.job_lists import failed_ancestors
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.requests import add_request, request_answer, withdraw_request
from gpu_scheduler.store.store import Store


class PreemptEnd(str, Enum):
    """The end of a preemption, as the command that requested it saw it.

    ended        the attempt has ended, because of the preemption or for another reason
    withdrawn    the job had not ended in time, and continues
    refused      the job cannot be preempted
    pending      the attempt has neither ended nor continued in time; the request stays open
    """

    ENDED = "ended"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"
    PENDING = "pending"


class PreemptWait(Struct, frozen=True):
    """The preemption that the command waits for.

    pid: that of the job's command; None if it is not known. is_repeated: whether the job is being preempted
    already; `stop` is then combined from both requests.
    """

    job_id: int
    pid: int | None
    stop: StopRequest
    is_repeated: bool = False


class PreemptReport(Struct, frozen=True):
    """The result of a preemption.

    refusal: why the job cannot be preempted. job: the job afterwards, in its observed state. outcome,
    exit_code, signal: how the attempt ended. checkpoint: the newest complete one; None if there is none.
    lost_steps: the number of steps after it that the job had done; None if unknown. ended_at: when the
    attempt ended, in wall seconds. scheduler_pid: None if no scheduler is running. request: the id of the
    request, None if none was made.
    """

    job_id: int
    end: PreemptEnd
    job: Job
    refusal: RequestAnswer | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    checkpoint: Checkpoint | None = None
    lost_steps: float | None = None
    ended_at: float | None = None
    scheduler_pid: int | None = None
    request: int | None = None


def preempt(
    location: Location,
    ref: JobRef,
    timeout_s: float,
    *,
    force: bool = False,
    by: str = COMMAND_LINE,
    on_wait: Callable[[PreemptWait], None] = lambda _: None,
    max_wait_s: float = math.inf,
) -> PreemptReport:
    """Preempts a job and waits until its attempt has ended or continues.

    timeout_s: the seconds that the job may take to end. After that, it gets SIGKILL if `force` is set;
    otherwise the request is withdrawn and the job continues. on_wait: called before the wait, which lasts at
    most `max_wait_s` seconds. Raises SchedulerError if the job cannot be identified or its folder cannot be
    used.
    """
    with control(location) as store_control:
        store = store_control.store
        job_id = resolve_job(store, ref)
        job = observed_job(store, job_record(store, job_id))
        found = [one for one in store.active_attempts() if one.job_id == job_id and one.state.is_open]
        attempt = None if job.is_unwatched or not found else found[0]
        refusal = _refusal_to_preempt(job)
        if refusal is None and attempt is None and not job.is_unwatched:
            refusal = wrong_state("preempt", job.state)
        if refusal is not None:
            return PreemptReport(job_id, PreemptEnd.REFUSED, job, refusal)
        stop = StopRequest(
            "preempted",
            timeout_s,
            "kill" if force else "withdraw",
            secrets.token_hex(8),
            job.spec.preempt_signal or DEFAULT_STOP_SIGNAL,
        )
        effective = stop if attempt is None else stop.combined_with(attempt.stop_request)
        is_sent = store_control.may_run or store_control.scheduler_pid is not None
        if attempt is not None and is_sent:
            is_repeated = attempt.stop_request is not None
            on_wait(PreemptWait(job_id, _command_pid(store, attempt), effective, is_repeated))
        args = {"stop_id": stop.stop_id, "grace_s": stop.grace_s, "on_timeout": stop.on_timeout}
        request = add_request(store, "preempt", str(job_id), by, **args)
        if attempt is None:
            # The scheduler first watches the adopted process, then carries out the request.
            store.data_dir.ring_doorbell()
            pid = store_control.scheduler_pid
            return PreemptReport(job_id, PreemptEnd.PENDING, job, scheduler_pid=pid, request=request)
        return _Preemption(store_control, attempt, effective, request).wait(max_wait_s)


def _refusal_to_preempt(job: Job) -> RequestAnswer | None:
    if job.state is JobState.FINISHED:
        return RequestAnswer(
            AnswerCode.ALREADY_FINISHED,
            outcome=job.outcome or Outcome.ENDED,
            exit_code=job.exit_code,
            signal=job.signal,
        )
    if job.state not in ACTIVE and not job.is_unwatched:
        return wrong_state("preempt", job.state)
    is_cancelled = job.stop is not None and job.stop.cause != "preempted"
    return RequestAnswer(AnswerCode.BEING_CANCELLED) if is_cancelled else None


def _command_pid(store: Store, attempt: ActiveAttempt) -> int | None:
    if attempt.watched_pid is not None:
        return attempt.watched_pid
    command = recorded_command(store.data_dir.attempt_folder(attempt), attempt.token)
    return None if command is None else command.pid


def _lost_steps(found: JobProgress) -> float | None:
    progress, checkpoint = found.progress, found.checkpoint
    if progress is None or progress.unit is not ProgressUnit.STEP:
        return None
    if checkpoint is None or checkpoint.step is None:
        return None
    return max(0.0, progress.current - checkpoint.step)


class _Preemption:
    """One preemption that this command has requested. request: the id of the request in the store."""

    def __init__(self, store_control: Control, attempt: Attempt, stop: StopRequest, request: int) -> None:
        self._control, self._store = store_control, store_control.store
        self._attempt, self._stop, self._request = attempt, stop, request
        self._end: PreemptEnd | None = None

    def wait(self, max_wait_s: float) -> PreemptReport:
        """Waits for the end of the preemption and returns its report."""
        limit_s = min(max_wait_s, self._stop.grace_s + 2 * STOP_MARGIN_S)
        self._control.wait(self._is_over, limit_s, [self._attempt.job_id])
        if self._end is PreemptEnd.WITHDRAWN:
            # If no scheduler has answered yet, the next one must not take up the request.
            withdraw_request(self._store, self._request)
        return self._report(self._end or PreemptEnd.PENDING)

    def _is_over(self) -> bool:
        self._end = self._observe()
        is_elsewhere = self._attempt.executor not in LOCAL_EXECUTORS
        return self._end is not None or (is_elsewhere and self._control.scheduler_pid is None)

    def _observe(self) -> PreemptEnd | None:
        """Observes the attempt; returns the end of the preemption, or None if it has none yet."""
        recorded = self._store.attempt(self._attempt.id)
        if recorded is None or not recorded.state.is_open:
            return None if self._is_watched_again() else PreemptEnd.ENDED
        answer = request_answer(self._store, self._request)
        if answer is not None and answer.is_refusal:
            return PreemptEnd.REFUSED
        withdrawn = readable_status(self._store, recorded).withdrawn
        if (withdrawn is not None and withdrawn.stop_id == self._stop.stop_id) or self._is_cleared(answer):
            return PreemptEnd.WITHDRAWN
        return None

    def _is_watched_again(self) -> bool:
        """Returns whether the job is an adopted process whose watcher died; follows the next watcher."""
        job = job_record(self._store, self._attempt.job_id)
        newest = self._store.attempts(job.id)[-1]
        if newest.id != self._attempt.id and newest.watched_pid is not None:
            self._attempt = newest
        # The attempt of the next watcher may have ended since the last look.
        return newest.state.is_open or job.adopted is not None

    def _is_cleared(self, answer: RequestAnswer | None) -> bool:
        """Returns whether the scheduler has carried out the request and the job continues without it."""
        if answer is None:
            return False
        attempt = self._store.attempt(self._attempt.id)
        is_running = attempt is not None and attempt.state is AttemptState.RUNNING
        return is_running and job_record(self._store, self._attempt.job_id).stop is None

    def _report(self, end: PreemptEnd) -> PreemptReport:
        store, job_id = self._store, self._attempt.job_id
        answer = request_answer(store, self._request) if end is PreemptEnd.REFUSED else None
        job = observed_job(store, job_record(store, job_id))
        attempt = store.attempt(self._attempt.id) or self._attempt
        pid = self._control.scheduler_pid
        report = PreemptReport(job_id, end, job, answer, scheduler_pid=pid, request=self._request)
        if end is not PreemptEnd.ENDED:
            return report
        progress = self._progress(job, attempt)
        return replace(
            report,
            outcome=attempt.outcome,
            exit_code=attempt.exit_code,
            signal=attempt.signal,
            checkpoint=progress.checkpoint,
            lost_steps=_lost_steps(progress),
            ended_at=attempt.ended_at,
        )

    def _progress(self, job: Job, attempt: Attempt) -> JobProgress:
        store = self._store
        progress = ProgressReader().read(progress_source(store, job.spec, attempt), time.time())
        # `resume --job` continues with this checkpoint, which may be the one that the attempt started with.
        checkpoint = newest_checkpoint(store, job.spec, store.attempts(job.id))
        return replace(progress, checkpoint=checkpoint)


class ResumeResult(Struct, frozen=True):
    """The answer to the request, with the job as it was before.

    checkpoint: the one from which the job resumes; None if the request was refused at once. min_vram_mib: the
    memory that the job needs because an earlier attempt used it; None if its declaration counts.
    """

    answer: Answer
    job: Job
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
        refusal = _refusal_to_resume(store, job, completed=path is not None)
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


def _refusal_to_resume(store: Store, job: Job, *, completed: bool) -> RequestAnswer | None:
    """Returns why the job cannot be resumed, before its checkpoint is looked for."""
    parent = next(iter(failed_ancestors(store, job.id, 1)), None) if job.failed_parents else None
    refusal = refusal_to_resume(job.state, job.outcome, parent, completed=completed)
    return early_refusal(store, "resume_job", job.id, {}) or refusal


def _newest(store: Store, job: Job, attempts: Sequence[Attempt]) -> Checkpoint:
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
        return f"none matches checkpoints={spec.checkpoints}"
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


def _check_place(job: Job, checkpoint: Checkpoint, *, has_line: bool) -> None:
    """Raises SchedulerError with the remedy if it is unclear where the command takes the path."""
    if with_checkpoint(job.spec, checkpoint.path) is not None:
        return
    flag = job.spec.resume_flag or DEFAULT_RESUME_FLAG
    path = safe_text(checkpoint.path)
    remedy = f"add a line with `{flag} {shlex.quote(path)}` where the path belongs"
    if not has_line:
        remedy = (
            f"run `set {job.id} command='…'` with `{flag} \"${CHECKPOINT_VARIABLE}\"` where the path belongs"
        )
    if job.spec.resume_flag is None:
        named = f"put [resume-flag={flag}] before its line"
        named = named if has_line else f"run `set {job.id} resume-flag={flag}`"
        remedy = f"if it runs a shell script that passes its arguments on, {named}; otherwise, {remedy}"
    raise SchedulerError(
        f"job {job.id} cannot resume from {path}: it is unclear where its command takes {flag}\n{remedy}"
    )


def needed_mib(job: Job, attempts: Sequence[Attempt]) -> int | None:
    """Returns the memory that the job needs on each GPU, in MiB; None if its declaration counts.

    It is the peak of the attempts that declared nothing or exceeded their declaration.
    """
    peaks = [max(attempt.peaks.values(), default=0) for attempt in attempts if _is_peak_its_need(attempt)]
    most = max(peaks, default=0)
    return max(most, job.min_vram_mib or 0) if most else None


def _is_peak_its_need(attempt: Attempt) -> bool:
    budgets = attempt.budgets
    if not budgets:
        return True
    return any(budget is not None and attempt.peaks.get(gpu, 0) > budget for gpu, budget in budgets.items())


#: A checkpoint that was saved at most this many seconds before its attempt ended contains all of its work.
_AT_END_S = 1.0


def wait_text(wait: PreemptWait) -> str:
    """Formats what `preempt` does and how long it waits, as two lines."""
    pid = "" if wait.pid is None else f" (pid {wait.pid})"
    first = f"sending SIG{wait.stop.signal} to job {wait.job_id}{pid}"
    if wait.is_repeated:
        first = f"job {wait.job_id}{pid} is being preempted already"
    return (
        f"{first}\n"
        f"waiting up to {wait.stop.grace_s:g} s for it to save its work and end; {_next_step_text(wait)}"
    )


def interrupted_text(wait: PreemptWait) -> str:
    """Formats what holds after Ctrl-C has ended the wait."""
    return (
        f"no longer waiting; the request stays: job {wait.job_id} has up to {wait.stop.grace_s:g} s to end,"
        f" {_next_step_text(wait)}\n`status` shows its state"
    )


def _next_step_text(wait: PreemptWait) -> str:
    return "then it gets SIGKILL" if wait.stop.on_timeout == "kill" else "otherwise it continues"


def failure_text(report: PreemptReport, wait: PreemptWait | None, data_dir: str) -> str | None:
    """Formats why the job was not preempted, with the remedy; None if it has ended.

    wait: None if the command refused the request at once. data_dir: the path of the store.
    """
    job = report.job_id
    if report.refusal is not None:
        return answer_text(Answer(job, AnswerKind.REFUSED, report.refusal), data_dir)
    if report.end is PreemptEnd.WITHDRAWN:
        longer = (
            "" if wait is None else f"`preempt {job} --timeout {2 * wait.stop.grace_s:g}` waits longer, and "
        )
        return (
            f"job {job} did not end in time, so its preemption was withdrawn and it continues;"
            " it may still end, if it is saving its work\n"
            f"{longer}`preempt {job} --force` ends it with SIGKILL after the timeout"
        )
    if report.end is PreemptEnd.PENDING:
        pid = report.scheduler_pid
        when = (
            "takes effect when the scheduler starts"
            if pid is None
            else f"stays with the scheduler ({pid_text(pid)})"
        )
        return f"job {job} has not ended; the request {when}"
    return None


def preempt_text(report: PreemptReport) -> str:
    """Formats how the job ended, with its newest checkpoint and the command that continues it, as lines."""
    return "".join(f"{safe_text(line)}\n" for line in _lines(report))


def _lines(report: PreemptReport) -> Iterator[str]:
    job, outcome = report.job_id, report.outcome
    if outcome is not Outcome.PREEMPTED:
        end = outcome_text(outcome or Outcome.ENDED, report.exit_code, report.signal)
        yield f"job {job}: {end}; it was not preempted{_state_text(report)}"
        return
    yield f"job {job} preempted{_state_text(report)}"
    if report.checkpoint is None:
        yield f"  no complete checkpoint: {why_no_checkpoint(report.job.spec)}"
    else:
        yield f"  latest checkpoint: {_checkpoint_text(report, report.checkpoint)}"
    if report.job.state is JobState.HELD:
        yield f"  `{_next_command(report)}"


def _next_command(report: PreemptReport) -> str:
    if report.checkpoint is None:
        from_path = f"`resume --job {report.job_id} --from PATH` continues from one that you name"
        return f"retry {report.job_id}` starts it from its beginning, and {from_path}"
    if not has_place(report.job.spec):
        return f"resume --job {report.job_id}` says what its command needs to continue from it"
    return f"resume --job {report.job_id}` continues it"


def _state_text(report: PreemptReport) -> str:
    """Formats the state of the job if it is not the usual one."""
    state = report.job.state
    if state is JobState.QUEUED:
        return " and queued again" if report.outcome is Outcome.PREEMPTED else "; it is queued again"
    return " and cancelled" if report.job.outcome is Outcome.CANCELLED is not report.outcome else ""


def _checkpoint_text(report: PreemptReport, checkpoint: Checkpoint) -> str:
    path = path_in(checkpoint.path, report.job.spec.cwd)
    details = [] if checkpoint.step is None else [step_text(checkpoint.step)]
    if checkpoint.saved_at is not None and report.ended_at is not None:
        before_s = max(0.0, report.ended_at - checkpoint.saved_at)
        is_at_end = before_s <= _AT_END_S if report.lost_steps is None else report.lost_steps == 0
        when = "at its end" if is_at_end else f"{format_duration(before_s)} before its end"
        loss, steps = "", report.lost_steps
        if not is_at_end:
            loss = "; what came after is lost"
            if steps is not None:
                loss = f"; {count_noun(round(steps), 'step')} after it {'is' if steps == 1 else 'are'} lost"
        details.append(f"saved {when}{loss}")
    return path if not details else f"{path} ({', '.join(details)})"


def resume_text(result: ResumeResult, data_dir: str) -> str:
    """Formats the result as text that is safe to print. data_dir: the path of the store."""
    said = answer_text(result.answer, data_dir)
    if result.answer.kind is AnswerKind.REFUSED or result.checkpoint is None:
        return said
    job = result.job
    name = "" if job.name is None else f" ({job.name})"
    where = checkpoint_text(result.checkpoint, job.spec.cwd)
    head = f"job {job.id}{name} {said}"
    if result.answer.kind is not AnswerKind.CARRIED_OUT:
        head = f"job {job.id}{name}: {said}"
    lines = [f"{head}, resuming from {where}"]
    if result.min_vram_mib is not None:
        memory = format_memory(result.min_vram_mib)
        lines.append(f"  it needs {memory} on each GPU, because it has used that much")
    return "\n".join(map(safe_text, lines))
