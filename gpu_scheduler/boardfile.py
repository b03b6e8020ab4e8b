"""Writes the status board to status.txt: replaces the whole file, at most twice a second."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.measuring import used_by
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.states import ACTIVE, JobState
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import board, gpus, jobs
from gpu_scheduler.views.board import Board, Use

#: Minimum number of seconds between two writes.
WRITE_EVERY_S = 0.5


class BoardFile:
    """The status board of a store. folder: returns its folder, creating it if missing; may raise OSError.

    limits: those of the scheduler; next_write_at: boot seconds at which a postponed write is due, None = no
    write is.
    """

    name = "status.txt"

    def __init__(self, store: Store, folder: Callable[[], Path], clock: Clock, limits: Limits) -> None:
        self.again_at: float | None = None
        self._store = store
        self._folder = folder
        self._clock = clock
        self._limits = limits
        self._shown: object = None
        self._written_at = float("-inf")

    def write(self, facts: Facts, newest: int) -> None:
        """Updates the file after a new event (newest_id: of the last one) or a new sample.

        Raises OSError, sqlite3.OperationalError; the caller then retries.
        """
        shown = (newest, *((gpu.uuid, gpu.sampled_at) for gpu in facts.gpus))
        if shown == self._shown:
            return
        now = self._clock.now().boot
        if now < self._written_at + WRITE_EVERY_S:
            self.again_at = self._written_at + WRITE_EVERY_S
            return
        self.again_at = None
        self._written_at = now
        self._replace(self._board(os.getpid(), _uses(facts)))
        self._shown = shown

    def end(self) -> None:
        """Writes the board of a stopped scheduler, whose running jobs continue."""
        self._replace(self._board(None, {}))

    def _board(self, pid: int | None, use: dict[int, Use]) -> Board:
        store, now = self._store, self._clock.now()
        with store.one_moment():
            running = store.open_jobs(tuple(ACTIVE))
            waiting = store.open_jobs((JobState.QUEUED,), board.WAITING)
            # Queries one state at a time, so that each uses the order of its index.
            waiting += store.open_jobs((JobState.HELD,), board.WAITING - len(waiting))
            finished = store.finished_jobs(board.FINISHED)
            rows = [*running, *waiting, *finished]
            attempts = store.newest_attempts(row["id"] for row in rows)
            unsettled, managed = store.unsettled(), store.gpus()
            context = jobs.Context(
                now, reasons=store.waiting(), infeasible=store.infeasible(), indices=store.indices()
            )
            again = store.db.rows(
                "SELECT id FROM job WHERE oom_used > 0 AND id IN (SELECT value FROM json_each(?))",
                json.dumps([row["id"] for row in waiting]),
            )
            counts = store.counts()
        shown = [jobs.shown(row, attempts.get(row["id"]), context) for row in rows]
        waits, ends = len(running), len(running) + len(waiting)
        paused = {row["uuid"]: bool(row["paused"]) for row in managed}
        return Board(
            at=now.wall,
            pid=pid,
            gpus=gpus.shown(managed, unsettled, paused, self._limits),
            running=shown[:waits],
            waiting=shown[waits:ends],
            finished=shown[ends:],
            use=use,
            again=frozenset(row["id"] for row in again),
            counts=counts,
        )

    def _replace(self, shown: Board) -> None:
        path = self._folder() / self.name
        spare = path.with_name(f".{self.name}.new")
        # Whatever is there, such as a link, is removed and never written through.
        spare.unlink(missing_ok=True)
        fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(board.to_text(shown))
        os.replace(spare, path)


def _uses(facts: Facts) -> dict[int, Use]:
    """Returns the memory use of running jobs from the newest samples, by job id."""
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    return {
        attempt.job_id: _use(attempt, [known[uuid] for uuid in attempt.gpus if uuid in known])
        for attempt in facts.attempts
        if attempt.outcome is None
    }


def _use(attempt: Attempt, own: list[Gpu]) -> Use:
    return Use(
        gpus=tuple(gpu.index for gpu in own),
        now=tuple(used_by(attempt, gpu) for gpu in own),
        peaks=tuple(attempt.peaks.get(gpu.uuid) for gpu in own),
        declared=attempt.vram if attempt.budgets else None,
        share=attempt.share if attempt.budgets else 0,
    )
