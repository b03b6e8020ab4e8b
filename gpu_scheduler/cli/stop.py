"""`stop`: asks the scheduler to end, and leaves no request behind that would end the next one."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.app import without_scheduler
from gpu_scheduler.app.store_access import POLL_INTERVAL_S, open_store, scheduler_pid_of
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.failure.outcome_text import outcome_text
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import query_read_only
from gpu_scheduler.store.location import original_of_copy, refuse_copy
from gpu_scheduler.store.lock import scheduler_pid
from gpu_scheduler.store.store import Store

#: Seconds that the scheduler may take to end.
END_TIMEOUT_S = 15.0


def stop(options: Namespace) -> int:
    """Asks the scheduler to end; with --jobs it cancels the running jobs first."""
    _wait_for_store(location_of(options).resolve())
    with open_store(location_of(options)) as store:
        pid = scheduler_pid_of(store)
        running = _running_jobs(store)
        code = 0
        if pid is not None:
            _end_scheduler(store, pid, options)
        elif not (running and options.jobs):
            print(f"no scheduler is running on {store.data_dir.state_file}")
        if options.jobs:
            code = _end_jobs(store, running, options.grace)
        else:
            _print_running(running, original_of_copy(store) if running else None)
        shares = without_scheduler.refresh_state_file(store)
        if shares is not None:
            print(f"{store.data_dir.state_file.name} updated: gpu_status {shares}")
        return code


def _wait_for_store(data_dir: DataDir) -> None:
    """Waits until a first scheduler, which holds the lock before its database exists, has created it."""
    end = time.monotonic() + END_TIMEOUT_S
    while not _store_exists(data_dir) and scheduler_pid(data_dir.lock) is not None and time.monotonic() < end:
        time.sleep(POLL_INTERVAL_S)


def _store_exists(data_dir: DataDir) -> bool:
    return query_read_only(data_dir.database, "SELECT 1 FROM meta LIMIT 1") is not None


def _end_scheduler(store: Store, pid: int, options: Namespace) -> None:
    # One request for both, so that no round sees the GPUs free and starts queued jobs.
    args: dict[str, Any] = {"jobs": True, "grace_s": options.grace} if options.jobs else {}
    _request_stop_and_wait(
        store,
        pid,
        args,
        END_TIMEOUT_S + (options.grace + without_scheduler.STOP_MARGIN_S if options.jobs else 0.0),
    )
    print(f"the scheduler ({pid_text(pid)}) has ended")


def _print_running(running: list[int], copied_from: str | None) -> None:
    if running:
        which = "job " + str(running[0]) if len(running) == 1 else f"jobs {', '.join(map(str, running))}"
        how = "`cancel JOB` ends one; the next `start` continues to manage them"
        if copied_from is not None:
            how = f"this store is a copy of {copied_from}, to which they belong"
        print(f"running jobs continue: {which}; {how}")


def _running_jobs(store: Store) -> list[int]:
    """Returns the jobs with an attempt that is not over, as far as the store and the folders tell."""
    return sorted(row["job_id"] for row in without_scheduler.open_attempts(store))


def _request_stop_and_wait(store: Store, pid: int, args: Mapping[str, Any], limit_s: float) -> None:
    wish: int | None = None
    end = time.monotonic() + limit_s
    try:
        while scheduler_pid_of(store) == pid:
            if time.monotonic() >= end:
                how = f"`kill {pid}` also ends it" if pid else "end it in its container"
                raise SchedulerError(
                    f"the scheduler ({pid_text(pid)}) has not ended within {limit_s:g} s\n"
                    f"{how}; running jobs continue"
                )
            # A scheduler that is starting answers the requests that it finds as meant for an earlier one, and
            # with --fresh it forgets them: repeat the request as long as it runs.
            if all(row["id"] != wish for row in store.open_requests()):
                wish = store.add_request("stop", **args)
                store.data_dir.ring_doorbell()
            time.sleep(POLL_INTERVAL_S)
    finally:
        # It may have ended by itself, or this was interrupted: the next scheduler must not obey the request.
        if wish is not None:
            store.withdraw_request(wish)


def _end_jobs(store: Store, running_before: list[int], grace_s: float) -> int:
    """Cancels the jobs that still run because no scheduler is running or it died, and prints all results."""
    refuse_copy(store)
    running = _running_jobs(store)
    with store.db.transaction():
        for job_id in running:
            job = store.job(job_id)
            if job is not None and job["cancel_cause"] is None:
                store.add_request("cancel", str(job_id), grace_s=grace_s)
    results = without_scheduler.end_jobs(store, running, grace_s)
    for job_id in running_before:
        job = store.job(job_id)
        if job_id not in results and job is not None and job["outcome"] is not None:
            results[job_id] = outcome_text(job["outcome"], job["exit_code"], job["signal"])
    for job_id, text in sorted(results.items()):
        print(f"job {job_id}: {text}")
    return 1 if without_scheduler.NOT_ENDED.intersection(results.values()) else 0
