"""`cancel`, `retry`, `hold`, `release` and `priority`: record requests about jobs and print the answers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping

from gpu_scheduler.app import without_scheduler
from gpu_scheduler.app.job_refs import resolve_jobs
from gpu_scheduler.app.predicted_state import COMMAND_NAMES, RETRYABLE, predicted_state, refusal
from gpu_scheduler.app.store_access import (
    open_store,
    requested_verbs,
    scheduler_pid_of,
    unanswered_message,
    wake_and_wait,
)
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.program import print_error
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: Up to this many jobs with the same answer get a line each; more share one line.
MAX_LINES = 20


def retry(options: Namespace) -> int:
    """Queues finished or held jobs again."""
    if options.failed == bool(options.jobs):
        raise UsageError("name the jobs to retry or use --failed, not both\n`status` lists the jobs")
    return _request_for_jobs(options, "retry", _failed_jobs if options.failed else None)


def hold(options: Namespace) -> int:
    """Keeps queued jobs from starting."""
    return _request_for_jobs(options, "hold")


def release(options: Namespace) -> int:
    """Returns held jobs to the queue."""
    return _request_for_jobs(options, "release")


def priority(options: Namespace) -> int:
    """Changes the priority of waiting jobs."""
    return _request_for_jobs(options, "set", None, name="priority", value=options.number)


def cancel(options: Namespace) -> int:
    """Cancels queued or running jobs, even without a running scheduler."""
    if options.all == bool(options.jobs):
        raise UsageError("name the jobs to cancel or use --all, not both\n`status` lists the jobs")
    with open_store(location_of(options)) as store:
        if options.all:
            open_states = [state for state in JobState if state is not JobState.FINISHED]
            rows = sorted(store.open_jobs(open_states), key=lambda row: int(row["id"]))
            jobs = [row["id"] for row in rows if _unrecorded_outcome(store, row) is None]
            if not jobs:
                print("no jobs to cancel")
                return 0
        else:
            jobs = resolve_jobs(store, options.jobs)
        return _cancel(store, jobs, options.grace)


def _cancel(store: Store, jobs: Iterable[int], grace_s: float) -> int:
    refuse_copy(store)
    wishes, refused = record_requests(store, "cancel", jobs, grace_s=grace_s)
    answers = wake_and_wait(store, wishes)
    open_ones = {wishes[made] for made, answer in answers.items() if answer is None}
    running: dict[int, str] = {}
    if open_ones and scheduler_pid_of(store) is None:
        running = without_scheduler.end_jobs(store, open_ones, grace_s)
    refused += _print_answers(store, wishes, answers, running)
    return 1 if refused or without_scheduler.NOT_ENDED.intersection(running.values()) else 0


def record_requests(
    store: Store, verb: str, jobs: Iterable[int], **args: object
) -> tuple[dict[int, int], int]:
    """Records a request for each job that allows it, all in one transaction.

    Returns request -> job, and the number of refused jobs; the reasons are printed on stderr.
    """
    made: dict[int, int] = {}
    refused = 0
    up = scheduler_pid_of(store) is not None
    with store.db.transaction():
        pending = requested_verbs(store)
        for job_id in jobs:
            why = _rejection_reason(store, verb, job_id, pending.get(job_id, ()), up)
            if why is None:
                made[store.add_request(verb, str(job_id), "cli", **args)] = job_id
            else:
                refused += 1
                print_error(why)
    return made, refused


def _rejection_reason(
    store: Store, verb: str, job_id: int, pending: Iterable[str], is_up: bool
) -> str | None:
    row = store.job(job_id)
    if row is None:
        return f"there is no job {job_id} in {store.data_dir.folder}; `status --all` lists them"
    if is_up:
        return None  # the scheduler judges by the job's state at that moment
    state = JobState(row["state"])
    ended = _unrecorded_outcome(store, row)
    if ended is not None and verb == "cancel":
        return f"job {job_id} is already finished ({ended}, not recorded yet)"
    if ended is not None:
        return (
            f"job {job_id} has ended ({ended}), but this is not recorded yet\n"
            f"start the scheduler, then run `{COMMAND_NAMES.get(verb, verb)} {job_id}`"
        )
    after = predicted_state(state, pending)
    if verb == "cancel":
        finished = state is after is JobState.FINISHED
        return f"job {job_id} is already finished ({row['outcome']})" if finished else None
    return refusal(verb, job_id, after)


def _unrecorded_outcome(store: Store, row: JobRecord) -> str | None:
    return without_scheduler.unrecorded_outcome(store, row) if JobState(row["state"]) in ACTIVE else None


def _failed_jobs(store: Store) -> list[int]:
    """Returns the failed jobs without an open request to queue them again, oldest first."""
    from gpu_scheduler.cli.status import failed_jobs

    pending = requested_verbs(store)
    return sorted(
        job.id
        for job in failed_jobs(store)
        if predicted_state(JobState.FINISHED, pending.get(job.id, ())) in RETRYABLE
    )


def _request_for_jobs(
    options: Namespace, verb: str, select_jobs: Callable[[Store], list[int]] | None = None, **args: object
) -> int:
    """Sends a request about each named job; `chosen` selects the jobs if none are named."""
    with open_store(location_of(options)) as store:
        jobs = resolve_jobs(store, options.jobs) if select_jobs is None else select_jobs(store)
        if not jobs:
            print("no job has failed")
            return 0
        wishes, refused = record_requests(store, verb, jobs, **args)
        refused += _print_answers(store, wishes, wake_and_wait(store, wishes), {})
    return 1 if refused else 0


def _print_answers(
    store: Store,
    requests: Mapping[int, int],
    answers: Mapping[int, str | None],
    stop_results: Mapping[int, str],
) -> int:
    """Prints the answer to each request, long lists with the same answer in one line.

    Returns the number of refused requests.
    """
    refused = 0
    told: dict[str, list[int]] = {}
    waiting = unanswered_message(store)
    for made, answer in answers.items():
        if answer is not None and _is_refusal(answer):
            refused += 1
            print_error(answer)
        else:
            told.setdefault(answer or stop_results.get(requests[made]) or waiting, []).append(requests[made])
    for text, jobs in told.items():
        if len(jobs) > MAX_LINES:
            print(f"{len(jobs):,} jobs: {safe_text(text)}")
        else:
            for job_id in jobs:
                print(f"job {job_id}: {safe_text(text)}")
    return refused


def _is_refusal(answer: str) -> bool:
    """Returns whether an answer refuses the request: only those begin with the job."""
    return answer.startswith(("job ", "no job "))
