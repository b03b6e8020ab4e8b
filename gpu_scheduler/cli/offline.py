"""Commands while no scheduler is up: end jobs, and bring the state file up to date.

A job is ended by `stop` in its attempt's folder, and by a sweep where no runner is left. The wish that is
recorded beside it lets the next scheduler know it as cancelled.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection
from pathlib import Path

from gpu_scheduler.core.sighting import Sighting
from gpu_scheduler.core.states import JobState
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.protocol import request_stop, sweep
from gpu_scheduler.sight import look_at, over, runner_of, sight
from gpu_scheduler.store import statefile
from gpu_scheduler.store.identity import refuse_copy
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.jobs import Context, shown
from gpu_scheduler.views.words import outcome_words

#: What a runner may take over the grace until its job is over, in seconds (docs/design.md, Reconciling).
LATE_S = 10.0
LEFT = "does not end: some of its processes are left"
UNLOCKED = "not ended: its runner is alive but does not hold the claim in this folder; `why` tells more"
#: What became of a job that was to be ended, and was not.
NOT_ENDED = frozenset({LEFT, UNLOCKED})
_LOOK_EVERY_S = 0.02


def ended(store: Store, job: sqlite3.Row) -> str | None:
    """What became of a job that is open on the record and whose folder has a result; None if it has none."""
    from gpu_scheduler.clock import Clock

    rows = (row for row in store.unsettled() if row["job_id"] == job["id"] and row["outcome"] is None)
    attempt = next(rows, None)
    if attempt is None:
        return None
    fact = look_at(store, attempt)
    if fact.sighting.result is None:
        return None
    said = shown(job, attempt, Context(Clock().now(), open={attempt["id"]: fact}))
    return outcome_words(said.outcome or "ended", said.exit_code, said.signal)


def open_attempts(store: Store) -> list[sqlite3.Row]:
    """The attempts that are open on the record and have no result in their folder either."""
    rows = [row for row in store.unsettled() if row["outcome"] is None]
    return [row for row in rows if _seen(store, row).result is None]


def end_jobs(store: Store, jobs: Collection[int], grace_s: float) -> dict[int, str]:
    """End the open attempts of these jobs; waits until they are over. Job -> what came of it.

    Jobs without an open attempt are left out. Raises SchedulerError where a folder cannot be written, or the
    record is a copy, whose attempts are those of its original.
    """
    refuse_copy(store)
    attempts = [row for row in store.unsettled() if row["outcome"] is None and row["job_id"] in jobs]
    for row in attempts:
        folder = _folder(store, row)
        try:
            request_stop(folder, row["token"], "cancelled", grace_s, "kill", runner_of(row))
        except OSError as error:
            raise SchedulerError(
                f"job {row['job_id']} cannot be told to end: {folder}: {error.strerror}"
            ) from None
    end = time.monotonic() + grace_s + LATE_S
    return {row["job_id"]: _over(store, row, grace_s, end) for row in attempts}


def refresh_state_file(store: Store) -> list[float] | None:
    """Write into the state file which shares are given away now, where jobs have ended since the last
    scheduler wrote it. The record of the jobs stays as it is: the next scheduler finds their ends in their
    folders.

    Returns the new shares; None: nothing was to be changed, or the file is not ours to write (a scheduler is
    up, it was deleted, it is broken, the older scheduler wrote it last).
    """
    from gpu_scheduler.clock import Clock
    from gpu_scheduler.intake.statewatch import StateWatch
    from gpu_scheduler.store.instance import InstanceLock

    path = store.home.state_file
    # One that starts meanwhile is refused for this moment, rather than writing beside us.
    lock = InstanceLock(store.home.lock)
    try:
        trust = started_with(store).trust_files
        before = _shares(path, trust) if lock.acquire() else None
        if before is None:
            return None
        now = Clock().now().boot
        watch = StateWatch(store, over(store), trust=trust)
        watch.begin(now)
        watch.write(now, at_once=True)
        after = _shares(path, trust)
        return after if after != before else None
    finally:
        lock.release()


def _shares(path: Path, trust: bool) -> list[float] | None:
    """Returns the shares in a state file of ours; None for any other file."""
    try:
        state = statefile.parse(statefile.read(path, trust=trust) or b"")
    except (OSError, ValueError):
        return None
    shares = state.get("gpu_status")
    return shares if isinstance(shares, list) and not statefile.is_older(state) else None


def _over(store: Store, row: sqlite3.Row, grace_s: float, end: float) -> str:
    token = row["token"]
    while (seen := _seen(store, row)).claim in ("live", "unclaimed") and seen.result is None:
        if time.monotonic() >= end:
            return LEFT
        time.sleep(_LOOK_EVERY_S)
    if seen.result is not None:
        if seen.result.cause == "cancelled":
            return "cancelled"
        return "had ended by itself; the scheduler records it when it starts"
    if seen.claim == "unlocked":
        return UNLOCKED
    if seen.claim == "dead":
        left = sweep(_folder(store, row), token, grace_s, grace_s + LATE_S)
        return LEFT if left else "cancelled; its runner was gone already"
    if seen.claim == "void" or (seen.claim == "none" and row["job_state"] == JobState.STARTING.value):
        return "cancelled before it began"
    return LEFT if sweep(_folder(store, row), token, grace_s, grace_s + LATE_S) else "cancelled"


def _seen(store: Store, row: sqlite3.Row) -> Sighting:
    try:
        return sight(store, row)
    except OSError as error:
        raise SchedulerError(f"{_folder(store, row)} cannot be read: {error.strerror}") from None


def _folder(store: Store, row: sqlite3.Row) -> Path:
    return store.home.attempt(row["job_id"], row["number"], row["token"])
