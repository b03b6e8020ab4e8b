"""The commands that request changes to jobs, GPUs or the scheduler, and print the answers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.cli import program
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.control.requests import ALL_JOBS, Answer, AnswerKind, answer_text
from gpu_scheduler.errors import UsageError

if TYPE_CHECKING:
    from gpu_scheduler.app.job_refs import JobRef
    from gpu_scheduler.control.job_requests import SetResult

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


def hold(options: Namespace) -> int:
    """Keeps queued jobs from starting."""
    from gpu_scheduler.control.job_requests import hold as request

    return _print_job_answers(options, request(location_of(options), options.jobs))


def release(options: Namespace) -> int:
    """Returns held jobs to the queue."""
    from gpu_scheduler.control.job_requests import release as request

    return _print_job_answers(options, request(location_of(options), options.jobs))


def recover(options: Namespace) -> int:
    """Queues interrupted jobs again."""
    from gpu_scheduler.control import job_requests

    options.jobs = [*options.jobs, *options.listed_jobs]
    jobs = _jobs_unless(options.all, "--all", options)
    return _print_job_answers(options, job_requests.recover(location_of(options), jobs))


def clear(options: Namespace) -> int:
    """Takes finished jobs out of the lists."""
    from gpu_scheduler.control import job_requests

    jobs = options.jobs or None
    return _print_job_answers(options, job_requests.clear(location_of(options), jobs))


def priority(options: Namespace) -> int:
    """Changes the priority of waiting jobs."""
    from gpu_scheduler.control.job_requests import set_priority as request

    return _print_job_answers(options, request(location_of(options), options.jobs, options.number))


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
    from gpu_scheduler.control import gpu_requests

    return _print_gpu_answers(options, gpu_requests.pause(location_of(options), _gpus(options)), "paused")


def resume(options: Namespace) -> int:
    """Resumes the given GPUs, or the job given with --job. Returns 1 if the job cannot be resumed."""
    if (options.job is None) != bool(options.ids):
        raise UsageError("give either the GPUs to resume, as in `resume 0`, or a job, as in `resume --job 3`")
    if options.job is None:
        if options.from_path is not None:
            raise UsageError("--from names the checkpoint of a job; write `resume --job JOB --from PATH`")
        from gpu_scheduler.control.gpu_requests import resume as request

        code = _print_gpu_answers(options, request(location_of(options), _gpus(options)), "resumed")
        _name_preempted_jobs(options)
        return code
    from gpu_scheduler.control.preempt import resume_job, resume_text

    location = location_of(options)
    result = resume_job(location, options.job, options.from_path)
    text = resume_text(result, str(location.resolve().folder))
    if result.answer.has_failed:
        print_message(text)
        return 1
    program.print_done(text)
    return 0


def _name_preempted_jobs(options: Namespace) -> None:
    """Prints a note for each preempted job whose number is that of a GPU that was resumed."""
    from gpu_scheduler.control.preempt import preempted_jobs

    numbers = {gpu for given in options.ids if given is not None for gpu in given}
    for job_id in preempted_jobs(location_of(options), numbers):
        print_message(f"note: job {job_id} is preempted; `resume --job {job_id}` continues it")


def _gpus(options: Namespace) -> Collection[int] | None:
    """Returns the given GPUs; None means all GPUs. Raises UsageError if none are given."""
    if not options.ids:
        raise UsageError(f"name the GPUs to {options.command}, as in `{options.command} 0`, or give `all`")
    return None if None in options.ids else {gpu for given in options.ids for gpu in given}


def _print_gpu_answers(options: Namespace, answers: Iterable[Answer], done: str) -> int:
    for answer in answers:
        program.print_done(f"GPU {answer.target}: {_gpu_answer_text(options, answer, done)}")
    return 0


def _gpu_answer_text(options: Namespace, answer: Answer, done: str) -> str:
    home = location_of(options).resolve()
    if answer.kind is AnswerKind.NOTHING_TO_DO:
        return "not paused, because no scheduler has run here yet"
    if answer.kind is AnswerKind.IN_STATE_FILE:
        from gpu_scheduler.core.text.formatting import safe_text

        return f"{done} in {safe_text(str(home.state_file))}, which the first `start` reads"
    return answer_text(answer, str(home.folder))


def preempt(options: Namespace) -> int:
    """Preempts a job. Returns 1 if the job cannot be preempted, or if it has not ended in time."""
    from gpu_scheduler.control import preempt as app

    location, waits = location_of(options), list[app.PreemptWait]()

    def print_wait(wait: app.PreemptWait) -> None:
        waits.append(wait)
        try:
            print(app.wait_text(wait), flush=True)
        except OSError:  # the output cannot be written, but the job must still be preempted
            program.discard_output()

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

    def print_wait(wait: app.StopWait) -> None:
        try:
            print(app.stop_wait_text(wait), flush=True)
        except OSError:  # the output cannot be written, but the scheduler must still be stopped
            program.discard_output()

    location, grace_s = location_of(options), options.grace
    report = app.stop(location, end_jobs=options.jobs, grace_s=grace_s, on_wait=print_wait)
    program.print_done(app.stop_text(report, with_jobs=options.jobs).rstrip("\n"))
    return int(report.has_failed)
