"""What `start --fresh` may forget: nothing while a process of a job is left, or may still begin."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clock import Clock
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.protocol import Runner, observe, processes_of, take_claim
from gpu_scheduler.sight import runner_of
from gpu_scheduler.store import imports
from gpu_scheduler.store.attemptfolders import AttemptFolder, in_runs, read, token_of, unknown
from gpu_scheduler.store.condition import told_numbers
from gpu_scheduler.store.forget import forgetting
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds that a runner which has published its result may take to end.
END_S = 2.0
_LOOK_EVERY_S = 0.02
_UNRECORDED = "`start --restore` puts what runs on the record again; `stop --jobs` ends it then"


@contextmanager
def forgotten(store: Store, *, copied: bool = False) -> Iterator[None]:
    """Inside, no job is on the record; for good when the block ends well. For the one scheduler.

    copied: what is active belongs to the original of this record. Else raises SchedulerError while a job is
    active; then nothing is changed.
    """
    if not copied:
        refuse_active(store, take=True)
    with forgetting(store) as jobs:
        # No number that a folder or a backup tells of is used again, also where the record was lost.
        imports.raise_numbers(store.db.connection, told_numbers(store.home))
        yield
    log.info("forgot %d job%s", jobs, "s" * (jobs != 1))


def refuse_active(store: Store, *, take: bool = False) -> None:
    """Raises SchedulerError, with the remedy, while a job is active, whatever the record says of it.

    take: attempts that nobody has claimed are claimed, so that none of them begins any more.
    """
    _refuse(
        lambda: _left(store, take),
        "`stop --jobs` ends what runs; `start` without --fresh goes on with it",
    )


def refuse_unrecorded(folders: Iterable[AttemptFolder]) -> None:
    """The same where there is no record of any of these attempts."""
    attempts = _unknown(folders)
    _refuse(lambda: _left_of(attempts, take=False), _UNRECORDED)


def _refuse(look: Callable[[], dict[int, bool]], remedy: str) -> None:
    end = time.monotonic() + END_S
    while (left := look()) and all(left.values()) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    if left:
        which = f"job {min(left)} is" if len(left) == 1 else f"jobs {', '.join(map(str, sorted(left)))} are"
        raise SchedulerError(f"{which} active; --fresh forgets nothing meanwhile\n{remedy}")


@dataclass(frozen=True)
class _Open:
    """An attempt that may be active. runner: the process that the record knows to run it. has_ended: on the
    record, which says nothing of its processes."""

    job_id: int
    token: str
    folder: Path
    runner: Runner | None = None
    has_ended: bool = False


def _left(store: Store, take: bool) -> dict[int, bool]:
    """The active jobs; and of each whether its command is over, and only processes of it are left."""
    boot_id = Clock().boot_id
    attempts = [
        _Open(row["job_id"], row["token"], store.home.attempt(row["job_id"], row["number"], row["token"]),
              runner_of(row), row["outcome"] is not None)
        for row in store.unsettled()
        if row["boot_id"] == boot_id
    ]  # fmt: skip
    attempts += _unknown(unknown(in_runs(store.home), store.db.connection))
    return _left_of(attempts, take=take)


def _unknown(folders: Iterable[AttemptFolder]) -> list[_Open]:
    """Attempts that the record does not know. One that has no token never begins."""
    boot_id, found = Clock().boot_id, []
    for folder in folders:
        token, origin = token_of(folder), read(folder)
        if token is not None and (origin is None or origin.boot_id == boot_id):
            found.append(_Open(folder.job_id, token, folder.path))
    return found


def _left_of(attempts: Collection[_Open], *, take: bool) -> dict[int, bool]:
    folders = {one.token: one.folder for one in attempts}
    alive = processes_of(folders, sure=folders) if folders else {}
    over = {one.token: _over(one, take) for one in attempts}
    return {one.job_id: over[one.token] for one in attempts if one.token in alive or not over[one.token]}


def _over(attempt: _Open, take: bool) -> bool:
    """Whether the command of an attempt is over, or will never begin. Processes of it may be left."""
    if attempt.has_ended:
        return True
    folder, token = attempt.folder, attempt.token
    try:
        seen = observe(folder, token, attempt.runner)
        if seen.result is None and seen.claim == "none":
            return not take or take_claim(folder, token)
    except OSError as error:
        raise SchedulerError(f"{folder}: {error.strerror}; nothing is forgotten") from None
    # Whether anything of an attempt with an invalid claim runs, its processes tell.
    return seen.result is not None or seen.claim in ("dead", "void", "invalid")
