"""Forgets all jobs for `start --fresh`, unless a process of a job is left or may still begin."""

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

#: Seconds that a runner may take to exit after it has published its result.
END_S = 2.0
_LOOK_EVERY_S = 0.02
_UNRECORDED = "`start --restore` adds what runs to the store again; then `stop --jobs` ends it"


@contextmanager
def forgotten(store: Store, *, copied: bool = False) -> Iterator[None]:
    """Removes all jobs from the store for the block, and for good if the block succeeds.

    The caller must hold the locks. Raises SchedulerError, having changed nothing, while a job is active.
    copied: do not check that, since the active jobs belong to the original of this store.
    """
    if not copied:
        refuse_active(store, take=True)
    with forgetting(store) as jobs:
        # No id in a folder or a backup is used again, even if the store was lost.
        imports.raise_numbers(store.db.connection, told_numbers(store.home))
        yield
    log.info("forgot %d job%s", jobs, "s" * (jobs != 1))


def refuse_active(store: Store, *, take: bool = False) -> None:
    """Raises SchedulerError, with the remedy, while a job is active, whatever its state in the store.

    void_claims: void the claims of attempts that nobody has claimed, so that none of them begins any more.
    """
    _refuse(
        lambda: _left(store, take),
        "`stop --jobs` ends what runs; `start` without --fresh keeps it",
    )


def refuse_unrecorded(folders: Iterable[AttemptFolder]) -> None:
    """Raises SchedulerError while one of these attempts, which the store does not know, is active."""
    attempts = _unknown(folders)
    _refuse(lambda: _left_of(attempts, take=False), _UNRECORDED)


def _refuse(look: Callable[[], dict[int, bool]], remedy: str) -> None:
    end = time.monotonic() + END_S
    while (left := look()) and all(left.values()) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    if left:
        which = f"job {min(left)} is" if len(left) == 1 else f"jobs {', '.join(map(str, sorted(left)))} are"
        raise SchedulerError(f"{which} active; --fresh forgets nothing while jobs are active\n{remedy}")


@dataclass(frozen=True)
class _Open:
    """An attempt that may be active.

    runner: its runner process, if the store has it. has_ended: the store has its end, but processes of it may
    be left.
    """

    job_id: int
    token: str
    folder: Path
    runner: Runner | None = None
    has_ended: bool = False


def _left(store: Store, take: bool) -> dict[int, bool]:
    """Returns active job id -> whether its command is over and only other processes of it are left."""
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
    """Returns the attempts in these folders; one without a token is left out, since it never begins."""
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
    """Returns whether the command of an attempt is over or will never begin. Processes of it may be left."""
    if attempt.has_ended:
        return True
    folder, token = attempt.folder, attempt.token
    try:
        status = observe(folder, token, attempt.runner)
        if status.result is None and status.claim == "none":
            return not take or take_claim(folder, token)
    except OSError as error:
        raise SchedulerError(f"{folder}: {error.strerror}; nothing is forgotten") from None
    # An attempt with an invalid claim counts as active only by its processes.
    return status.result is not None or status.claim in ("dead", "void", "invalid")
