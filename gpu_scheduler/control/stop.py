"""Ends the scheduler and, if asked, the running jobs; leaves no stop request for the next scheduler."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from gpu_scheduler.control.requests import STOP_MARGIN_S, AnswerKind, Control, control
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import ACTIVE, Outcome
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import POLL_INTERVAL_S, open_store
from gpu_scheduler.store.requests import add_request, open_requests, withdraw_request
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.store.store import Store

#: Maximum number of seconds that the scheduler may take to end.
END_TIMEOUT_S = 15.0


class StopWait(Struct, frozen=True):
    """The scheduler and the jobs whose end `stop` awaits.

    scheduler_pid: None if no scheduler is running; jobs: the jobs that `stop` cancels; grace_s: the seconds
    after which they get SIGKILL.
    """

    scheduler_pid: int | None
    jobs: tuple[int, ...]
    grace_s: float


class StopReport(Struct, frozen=True):
    """The result of `stop`.

    scheduler_pid: the pid of the scheduler that ended, None if no scheduler was running; running: the jobs
    that were running before; adopted: those of them that are adopted processes, which `stop` leaves alone;
    ended: each job that `stop` was to end, None if it has not ended; shares: the shares that were
    written to the state file, None if the file was not changed.
    """

    state_file: str
    scheduler_pid: int | None
    running: tuple[int, ...] = ()
    adopted: tuple[int, ...] = ()
    ended: Mapping[int, Job | None] = field(default_factory=dict)
    shares: list[float] | None = None

    @property
    def has_failed(self) -> bool:
        """True if a job could not be ended."""
        return None in self.ended.values()


def stop(
    location: Location,
    *,
    end_jobs: bool,
    grace_s: float,
    on_wait: Callable[[StopWait], None] = lambda _: None,
) -> StopReport:
    """Asks the scheduler to end and waits until it has ended.

    end_jobs: also cancel the running jobs, with a grace of `grace_s` seconds; on_wait: called before the
    wait, unless there is nothing to wait for. Raises SchedulerError if the scheduler does not end in time;
    the request is then withdrawn.
    """
    _wait_for_store(location)
    with control(location) as store_control:
        store = store_control.store
        pid = store_control.scheduler_pid
        running, adopted = _running_jobs(store)
        ending = tuple(running) if end_jobs else ()
        if pid is not None or ending:
            on_wait(StopWait(pid, ending, grace_s))
        if pid is not None:
            # One request ends both the jobs and the scheduler, so that no round starts queued jobs on the
            # freed GPUs.
            args: dict[str, Any] = {"jobs": True, "grace_s": grace_s} if end_jobs else {}
            _end_scheduler(store, pid, args, END_TIMEOUT_S + (grace_s + STOP_MARGIN_S if end_jobs else 0.0))
        if ending:
            _end_jobs(store_control, grace_s)
        store_control.catch_up()
        ended = _ends(store_control, ending)
        return StopReport(
            str(store.data_dir.state_file),
            pid,
            tuple(sorted([*running, *adopted])),
            tuple(adopted),
            ended,
            store_control.close(),
        )


def _wait_for_store(location: Location) -> None:
    """Waits until the store exists. The first scheduler holds its lock before it creates the database.

    Raises SchedulerError at once if the store cannot be used, such as that of another user.
    """
    end = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            with open_store(location, read_only=True):
                return
        except StoreNotFoundError:
            if scheduler_pid(location.resolve().lock) is None or time.monotonic() >= end:
                raise
        time.sleep(POLL_INTERVAL_S)


def _running_jobs(store: Store) -> tuple[list[int], list[int]]:
    """Returns the jobs that have an open attempt.

    The second list has the adopted processes, the first one all other jobs.
    """
    attempts = [one for one in store.active_attempts() if one.state.is_open]
    adopted = sorted(one.job_id for one in attempts if one.watched_pid is not None)
    return sorted(one.job_id for one in attempts if one.watched_pid is None), adopted


def _end_scheduler(store: Store, pid: int, args: Mapping[str, Any], limit_s: float) -> None:
    made: int | None = None
    end = time.monotonic() + limit_s
    try:
        while scheduler_pid(store.data_dir.lock) == pid:
            if time.monotonic() >= end:
                how = f"end it with `kill {pid}`" if pid else "end it in its container"
                raise SchedulerError(
                    f"the scheduler ({pid_text(pid)}) has not ended within {limit_s:g} s\n"
                    f"{how}; running jobs continue"
                )
            # A starting scheduler answers existing stop requests without ending, because they were meant for
            # an earlier scheduler. With --fresh, it deletes all requests. A request that is gone is repeated.
            if all(request.request_id != made for request in open_requests(store)):
                made = add_request(store, "stop", **args)
                store.data_dir.ring_doorbell()
            time.sleep(POLL_INTERVAL_S)
    finally:
        # The scheduler may have ended by itself, or the user may have interrupted `stop`. The next scheduler
        # must not carry out the request.
        if made is not None:
            withdraw_request(store, made)


def _end_jobs(store_control: Control, grace_s: float) -> None:
    """Cancels the jobs that no scheduler has ended, and waits for their ends."""
    store_control.catch_up()
    running, _ = _running_jobs(store_control.store)
    if not running:
        return
    with store_control.store.db.transaction():
        cancels = [
            add_request(store_control.store, "cancel", str(job_id), grace_s=grace_s) for job_id in running
        ]
    store_control.carry_out(cancels, running, grace_s)


def _ends(store_control: Control, jobs: Iterable[int]) -> dict[int, Job | None]:
    """Returns these jobs as recorded after their ends, without the jobs that wait again.

    None stands for a job that is active or has processes left.
    """
    ended: dict[int, Job | None] = {}
    for job_id in jobs:
        job = store_control.store.job(job_id)
        if job is not None and (job.state in ACTIVE or store_control.is_ending(job_id)):
            ended[job_id] = None
        elif job is not None and job.outcome is not None:
            ended[job_id] = job
    return ended


def stop_wait_text(wait: StopWait) -> str:
    """Formats the progress message of a waiting `stop`."""
    from gpu_scheduler.core.text.formatting import format_jobs, pid_text

    jobs, kill = format_jobs(wait.jobs), f"SIGKILL after {wait.grace_s:g} s"
    if wait.scheduler_pid is None:
        return f"waiting for {jobs} to end ({kill})"
    scheduler = f"waiting for the scheduler ({pid_text(wait.scheduler_pid)})"
    return f"{scheduler} to cancel {jobs} ({kill}) and end" if wait.jobs else f"{scheduler} to end"


def stop_text(report: StopReport, *, with_jobs: bool) -> str:
    """Formats the report as lines. with_jobs: `stop` was to end the running jobs too."""
    return "".join(f"{line}\n" for line in _stop_lines(report, with_jobs))


def _stop_lines(report: StopReport, with_jobs: bool) -> Iterator[str]:
    from gpu_scheduler.core.text.formatting import format_jobs, pid_text
    from gpu_scheduler.show.job_text import outcome_text

    if report.scheduler_pid is not None:
        yield f"the scheduler ({pid_text(report.scheduler_pid)}) has ended"
    elif not (with_jobs and set(report.running) - set(report.adopted)):
        yield f"no scheduler is running on {report.state_file}"
    continuing = report.adopted if with_jobs else report.running
    if continuing:
        how = "`cancel JOB` ends a job; the next `start` continues to manage them"
        which = "adopted" if with_jobs else "running"
        yield f"{which} jobs continue: {format_jobs(continuing)}; {how}"
    for job_id, end in report.ended.items():
        text = "" if end is None else outcome_text(end.outcome or Outcome.ENDED, end.exit_code, end.signal)
        yield f"job {job_id}: {text or AnswerKind.NOT_ENDED.sentence}"
    if report.shares is not None:
        yield f"{posixpath.basename(report.state_file)} updated: gpu_status {report.shares}"
