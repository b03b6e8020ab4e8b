"""`stop`: asks the scheduler to end, and leaves no wish behind that would end the next one."""

from __future__ import annotations

import time
from argparse import Namespace

from gpu_scheduler.cli import offline
from gpu_scheduler.cli.record import LOOK_EVERY_S, opened, pid_of
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.store import Store

#: Seconds that the scheduler has to end.
END_S = 15.0


def stop(options: Namespace) -> int:
    """Ask the scheduler to end; with --jobs the running jobs are cancelled too."""
    with opened(options) as store:
        pid = pid_of(store)
        running = _running(store) if options.jobs else []
        if pid is None and not running:
            print(f"no scheduler is running on {store.home.state_file}")
            return 0
        with store.db.transaction():
            # In one transaction: no round sees the GPUs free and starts what is queued.
            for job_id in running:
                store.wish("cancel", str(job_id), grace_s=options.grace)
            wish = None if pid is None else store.wish("stop")
        if pid is not None and wish is not None:
            _wait_for_end(store, pid, wish)
            print(f"the scheduler (pid {pid}) has ended")
        return _end_jobs(store, options.grace) if options.jobs else 0


def _running(store: Store) -> list[int]:
    """The jobs with an attempt that is not over, whether that is on the record or not."""
    return sorted(row["job_id"] for row in offline.open_attempts(store))


def _wait_for_end(store: Store, pid: int, wish: int) -> None:
    store.home.ring()
    end = time.monotonic() + END_S
    try:
        while pid_of(store) == pid:
            if time.monotonic() >= end:
                raise SchedulerError(
                    f"the scheduler (pid {pid}) has not ended within {END_S:g} s\n"
                    f"`kill {pid}` ends it as well; running jobs go on"
                )
            time.sleep(LOOK_EVERY_S)
    finally:
        # It may have ended by itself, or we were interrupted: the next one must not obey this wish.
        store.withdraw(wish)


def _end_jobs(store: Store, grace_s: float) -> int:
    """Cancel what still runs, also what started in the scheduler's last round."""
    running = _running(store)
    wished = {row["target"] for row in store.open_wishes() if row["verb"] == "cancel"}
    with store.db.transaction():
        for job_id in running:
            job = store.job(job_id)
            if str(job_id) not in wished and job is not None and job["cancel_cause"] is None:
                store.wish("cancel", str(job_id), grace_s=grace_s)
    results = offline.end_jobs(store, running, grace_s)
    for job_id, text in results.items():
        print(f"job {job_id}: {text}")
    return 1 if offline.LEFT in results.values() else 0
