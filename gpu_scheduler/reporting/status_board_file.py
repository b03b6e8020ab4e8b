"""Writes the status board to status.txt: replaces the whole file, at most twice a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.app import gpu_views, job_views
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.core.scheduling.usage import attempt_memory
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import status_board as board
from gpu_scheduler.views.status_board import MemoryUse, StatusBoard

#: Minimum number of seconds between two writes.
MIN_INTERVAL_S = 0.5


class StatusBoardFile:
    """The status board of a store. folder: returns its folder, creating it if missing; may raise OSError.

    limits: those of the scheduler; next_write_at: boot seconds at which a postponed write is due, None = no
    write is.
    """

    name = "status.txt"

    def __init__(self, store: Store, folder: Callable[[], Path], clock: Clock, limits: Limits) -> None:
        self.next_write_at: float | None = None
        self._store = store
        self._folder = folder
        self._clock = clock
        self._limits = limits
        self._written_state: object = None
        self._written_at = float("-inf")

    def write(self, facts: Facts, newest_id: int) -> None:
        """Updates the file after a new event (newest_id: of the last one) or a new sample.

        Raises OSError, sqlite3.OperationalError; the caller then retries.
        """
        shown = (newest_id, *((gpu.uuid, gpu.sampled_at) for gpu in facts.gpus))
        if shown == self._written_state:
            return
        now = self._clock.now().boot
        if now < self._written_at + MIN_INTERVAL_S:
            self.next_write_at = self._written_at + MIN_INTERVAL_S
            return
        self.next_write_at = None
        self._written_at = now
        self._replace_file(self._build(os.getpid(), _memory_use_by_job(facts)))
        self._written_state = shown

    def end(self) -> None:
        """Writes the board of a stopped scheduler, whose running jobs continue."""
        self._replace_file(self._build(None, {}))

    def _build(self, pid: int | None, memory_use: dict[int, MemoryUse]) -> StatusBoard:
        store, now = self._store, self._clock.now()
        with store.snapshot():
            running = store.open_jobs(tuple(ACTIVE))
            waiting = store.open_jobs((JobState.QUEUED,), board.MAX_WAITING)
            # Queries one state at a time, so that each uses the order of its index.
            waiting += store.open_jobs((JobState.HELD,), board.MAX_WAITING - len(waiting))
            finished = store.finished_jobs(board.MAX_FINISHED)
            jobs = [*running, *waiting, *finished]
            attempts = store.newest_attempts(job.id for job in jobs)
            unsettled, managed = store.active_attempts(), store.gpus()
            context = job_views.ViewContext(
                now,
                wait_reasons=store.wait_reasons(),
                indices=store.gpu_indices(),
            )
            counts = store.state_counts()
        shown = [job_views.job_view(job, attempts.get(job.id), context) for job in jobs]
        waits, ends = len(running), len(running) + len(waiting)
        paused = {gpu.uuid: gpu.paused for gpu in managed}
        return StatusBoard(
            at=now.wall,
            pid=pid,
            gpus=gpu_views.gpu_views(managed, unsettled, paused, self._limits),
            running=shown[:waits],
            waiting=shown[waits:ends],
            finished=shown[ends:],
            memory_use=memory_use,
            retrying_after_oom=frozenset(job.id for job in waiting if job.oom_retries_used),
            counts=counts,
        )

    def _replace_file(self, status_board: StatusBoard) -> None:
        path = self._folder() / self.name
        spare = path.with_name(f".{self.name}.new")
        # Whatever is there, such as a link, is removed and never written through.
        spare.unlink(missing_ok=True)
        fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(board.to_text(status_board))
        os.replace(spare, path)


def _memory_use_by_job(facts: Facts) -> dict[int, MemoryUse]:
    """Returns the memory use of running jobs from the newest samples, by job id."""
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    return {
        attempt.job_id: _memory_use(attempt, [known[uuid] for uuid in attempt.gpus if uuid in known])
        for attempt in facts.attempts
        if attempt.outcome is None
    }


def _memory_use(attempt: Attempt, own_gpus: list[Gpu]) -> MemoryUse:
    return MemoryUse(
        gpus=tuple(gpu.index for gpu in own_gpus),
        current_mib=tuple(attempt_memory(attempt, gpu) for gpu in own_gpus),
        peaks_mib=tuple(attempt.peaks.get(gpu.uuid) for gpu in own_gpus),
        declared_mib=attempt.vram if attempt.budgets else None,
        share=attempt.share if attempt.budgets else 0,
    )
