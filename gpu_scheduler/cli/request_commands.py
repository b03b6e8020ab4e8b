"""The commands that request changes to jobs, GPUs or the scheduler, and print the answers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.cli import program
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.control.requests import ALL_JOBS, Answer, AnswerKind, answer_text
from gpu_scheduler.errors import UsageError

if TYPE_CHECKING:
    from gpu_scheduler.control.job_requests import SetResult
    from gpu_scheduler.show.job_refs import JobRef

#: Up to this many jobs with the same answer get a line each. If there are more, they share one line.
MAX_LINES = 20


def cancel(options: Namespace) -> int:
    """Cancels queued or running jobs, even without a running scheduler."""
    from gpu_scheduler.control.job_requests import cancel as request

    jobs = _jobs_unless(options.all, "--all", options)
    answers = request(location_of(options), jobs, options.grace)
    return _print_job_answers(options, answers, "no jobs to cancel")


def retry(options: Namespace) -> int:
    """Queues finished or held jobs again; with --set, changes attributes of them first."""
    from gpu_scheduler.control.job_requests import retry as request

    jobs = _jobs_unless(options.failed, "--failed", options)
    return _print_set_result(options, request(location_of(options), jobs, options.set), "no job has failed")


def _change(options: Namespace) -> int:
    """Holds or releases the named jobs, or clears these or all finished jobs."""
    from gpu_scheduler.control.job_requests import change_jobs

    answers = change_jobs(location_of(options), options.command, options.jobs or None)
    return _print_job_answers(options, answers)


hold = release = clear = _change


def recover(options: Namespace) -> int:
    """Queues interrupted jobs again."""
    options.jobs = [*options.jobs, *options.listed_jobs]
    _jobs_unless(options.all, "--all", options)
    return _change(options)


def priority(options: Namespace) -> int:
    """Changes the priority of waiting jobs."""
    from gpu_scheduler.control.job_requests import set_priority

    return _print_job_answers(options, set_priority(location_of(options), options.jobs, options.number))


def set(options: Namespace) -> int:
    """Changes attributes of a waiting job that has no line in a jobs file."""
    from gpu_scheduler.control.job_requests import set_attributes as request

    return _print_set_result(options, request(location_of(options), options.job, options.changes))


def _print_set_result(options: Namespace, result: SetResult, if_none: str = "") -> int:
    if result.notes:
        from gpu_scheduler.control.line_note import line_note_text

        for note in result.notes:
            print_message(f"warning: {line_note_text(note)}")
    return _print_job_answers(options, result.answers, if_none)


def _jobs_unless(is_for_all: bool, flag: str, options: Namespace) -> Sequence[JobRef] | None:
    """Returns the named jobs, or None if the flag was given instead.

    Raises UsageError if both or neither were given.
    """
    if is_for_all == bool(options.jobs):
        raise UsageError(f"give either the jobs to {options.command} or {flag}\n`status` lists the jobs")
    return None if is_for_all else options.jobs


def _print_job_answers(options: Namespace, answers: Collection[Answer], if_none: str = "") -> int:
    """Prints the answers; many jobs with the same answer share one line. Returns 1 if a request failed.

    if_none: the text to print if there are no answers.
    """
    if not answers:
        print(if_none)
    folder = str(location_of(options).resolve().folder)
    jobs_by_text: dict[str, list[int]] = {}
    for answer in answers:
        text = answer_text(answer, folder)
        if answer.kind is AnswerKind.REFUSED:
            print_message(text)
        else:
            jobs_by_text.setdefault(text, []).append(answer.target)
    for text, jobs in jobs_by_text.items():
        if len(jobs) > MAX_LINES:
            program.print_done(f"{len(jobs):,} jobs: {text}")
        else:
            for job_id in jobs:
                program.print_done(text if job_id == ALL_JOBS else f"job {job_id}: {text}")
    return int(any(answer.has_failed for answer in answers))


def pause(options: Namespace) -> int:
    """Keeps new jobs off these GPUs."""
    return _set_paused(options, paused=True)


def resume(options: Namespace) -> int:
    """Resumes the given GPUs, or the job given with --job. Returns 1 if the job cannot be resumed."""
    if (options.job is None) != bool(options.ids):
        raise UsageError("give either the GPUs to resume, as in `resume 0`, or a job, as in `resume --job 3`")
    from gpu_scheduler.control.preempt import preempted_jobs, resume_job, resume_text

    if options.job is None:
        if options.from_path is not None:
            raise UsageError("--from names the checkpoint of a job; write `resume --job JOB --from PATH`")
        _set_paused(options, paused=False)
        numbers = {gpu for given in options.ids if given is not None for gpu in given}
        for job_id in preempted_jobs(location_of(options), numbers):
            print_message(f"note: job {job_id} is preempted; `resume --job {job_id}` continues it")
        return 0
    location = location_of(options)
    result = resume_job(location, options.job, options.from_path)
    text = resume_text(result, str(location.resolve().folder))
    if result.answer.has_failed:
        print_message(text)
        return 1
    program.print_done(text)
    return 0


def _set_paused(options: Namespace, *, paused: bool) -> int:
    """Pauses or resumes the given or all GPUs. Raises UsageError if none are given."""
    from gpu_scheduler.control.requests import gpu_answer_text, set_paused

    if not options.ids:
        raise UsageError(f"name the GPUs to {options.command}, as in `{options.command} 0`, or give `all`")
    gpus = None if None in options.ids else {gpu for given in options.ids for gpu in given}
    location = location_of(options)
    for answer in set_paused(location, gpus, paused=paused):
        text = gpu_answer_text(answer, location.resolve(), paused=paused)
        program.print_done(f"GPU {answer.target}: {text}")
    return 0


def preempt(options: Namespace) -> int:
    """Preempts a job. Returns 1 if the job cannot be preempted, or if it has not ended in time."""
    from gpu_scheduler.control import preempt as app

    location, waits = location_of(options), list[app.PreemptWait]()

    def print_wait(wait: app.PreemptWait) -> None:
        waits.append(wait)
        _print_progress(app.wait_text(wait))

    try:
        report = app.preempt(location, options.job, options.timeout, force=options.force, on_wait=print_wait)
    except KeyboardInterrupt:
        for wait in waits:
            print_message(app.interrupted_text(wait))
        raise
    failure = app.failure_text(report, waits[0] if waits else None, str(location.resolve().folder))
    if failure is not None:
        print_message(failure)
        return 1
    program.print_done(app.preempt_text(report).rstrip("\n"))
    return 0


def stop(options: Namespace) -> int:
    """Asks the scheduler to end; with --jobs, cancels the running jobs first."""
    from gpu_scheduler.control import stop as app

    report = app.stop(
        location_of(options),
        end_jobs=options.jobs,
        grace_s=options.grace,
        on_wait=lambda wait: _print_progress(app.stop_wait_text(wait)),
    )
    program.print_done(app.stop_text(report, with_jobs=options.jobs).rstrip("\n"))
    return int(report.has_failed)


def _print_progress(text: str) -> None:
    """Prints what a command waits for. If this cannot be written, the command must still go on."""
    try:
        print(text, flush=True)
    except OSError:
        program.discard_output()
