"""What `start --fresh` may forget: nothing while a process of a job is left, or may still begin."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.clock import Clock
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.protocol import take_claim, tokens_alive
from gpu_scheduler.sight import sight
from gpu_scheduler.store.forget import forgetting
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds that a runner which has published its result may take to end.
END_S = 2.0
_LOOK_EVERY_S = 0.02


@contextmanager
def forgotten(store: Store, *, copied: bool = False) -> Iterator[None]:
    """Inside, no job is on the record; for good when the block ends well. For the one scheduler.

    copied: what is active belongs to the original of this record. Else raises SchedulerError while a job is
    active; then nothing is changed.
    """
    if not copied:
        refuse_active(store, take=True)
    with forgetting(store) as jobs:
        yield
    log.info("forgot %d job%s", jobs, "s" * (jobs != 1))


def refuse_active(store: Store, *, take: bool = False) -> None:
    """Raises SchedulerError, with the remedy, while a job is active, whatever the record says of it.

    take: attempts that nobody has claimed are claimed, so that none of them begins any more.
    """
    end = time.monotonic() + END_S
    while (left := _left(store, take)) and all(left.values()) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    if left:
        which = f"job {min(left)} is" if len(left) == 1 else f"jobs {', '.join(map(str, sorted(left)))} are"
        raise SchedulerError(
            f"{which} active; --fresh forgets nothing meanwhile\n"
            "`stop --jobs` ends what runs; `start` without --fresh goes on with it"
        )


def _left(store: Store, take: bool) -> dict[int, bool]:
    """The active jobs; and of each whether its command is over, and only processes of it are left."""
    boot_id = Clock().boot_id
    rows = [row for row in store.unsettled() if row["boot_id"] == boot_id]
    alive = tokens_alive([row["token"] for row in rows]) if rows else {}
    over = {row["token"]: _over(store, row, take) for row in rows}
    return {
        row["job_id"]: over[row["token"]] for row in rows if row["token"] in alive or not over[row["token"]]
    }


def _over(store: Store, row: sqlite3.Row, take: bool) -> bool:
    """Whether the command of an attempt is over, or will never begin. Processes of it may be left."""
    if row["outcome"] is not None:
        return True
    folder = store.home.attempt(row["job_id"], row["number"], row["token"])
    try:
        seen = sight(store, row)
        if seen.result is None and seen.claim == "none":
            return not take or take_claim(folder, row["token"])
    except OSError as error:
        raise SchedulerError(f"{folder}: {error.strerror}; nothing is forgotten") from None
    # Whether anything of an attempt with an invalid claim runs, its processes tell.
    return seen.result is not None or seen.claim in ("dead", "void", "invalid")
