"""`cancel`, `retry`, `hold`, `release` and `priority`: print the answer for each job."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from gpu_scheduler.app import job_requests
from gpu_scheduler.app.answers import Answer, AnswerKind
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.program import print_error
from gpu_scheduler.errors import UsageError
from gpu_scheduler.views.answers import answer_text

#: Up to this many jobs with the same answer get a line each; more share one line.
MAX_LINES = 20


def cancel(options: Namespace) -> int:
    """Cancels queued or running jobs, even without a running scheduler."""
    if options.all == bool(options.jobs):
        raise UsageError("name the jobs to cancel or use --all, not both\n`status` lists the jobs")
    jobs = None if options.all else options.jobs
    return _print_answers(job_requests.cancel(location_of(options), jobs, options.grace), "no jobs to cancel")


def retry(options: Namespace) -> int:
    """Queues finished or held jobs again."""
    if options.failed == bool(options.jobs):
        raise UsageError("name the jobs to retry or use --failed, not both\n`status` lists the jobs")
    jobs = None if options.failed else options.jobs
    return _print_answers(job_requests.retry(location_of(options), jobs), "no job has failed")


def hold(options: Namespace) -> int:
    """Keeps queued jobs from starting."""
    return _print_answers(job_requests.hold(location_of(options), options.jobs))


def release(options: Namespace) -> int:
    """Returns held jobs to the queue."""
    return _print_answers(job_requests.release(location_of(options), options.jobs))


def priority(options: Namespace) -> int:
    """Changes the priority of waiting jobs."""
    return _print_answers(job_requests.set_priority(location_of(options), options.jobs, options.number))


def _print_answers(answers: Iterable[Answer], if_none: str = "") -> int:
    """Prints the answers, long lists with the same one in one line; returns 1 if one failed."""
    answers = list(answers)
    if not answers:
        print(if_none)
    jobs_by_text: dict[str, list[int]] = {}
    for answer in answers:
        if answer.kind is AnswerKind.REFUSED:
            print_error(answer_text(answer))
        else:
            jobs_by_text.setdefault(answer_text(answer), []).append(answer.target)
    for text, jobs in jobs_by_text.items():
        if len(jobs) > MAX_LINES:
            print(f"{len(jobs):,} jobs: {text}")
        else:
            for job_id in jobs:
                print(f"job {job_id}: {text}")
    return int(any(answer.has_failed for answer in answers))
