"""Writes the status board to status.txt by replacing the whole file, at most twice a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpu_scheduler.app import gpu_views, job_views
from gpu_scheduler.app.status_report import StatusReport
from gpu_scheduler.attempts.job_progress import RunningProgress
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import attempt_memory
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.store.job_lists import cleared_count, finished_jobs, open_jobs, parents_of, state_counts
from gpu_scheduler.store.pending_groups import (
    queue_reservation_record,
    reserved_gpus,
    victims_by_job,
    wait_reasons,
)
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import ForeignClaims
from gpu_scheduler.system.safe_file import replace_file
from gpu_scheduler.views import status_text as board

#: Minimum number of seconds between two writes.
MIN_INTERVAL_S = 0.5
#: Minimum number of seconds between two writes if only the times have changed.
TIMES_INTERVAL_S = 4.0


class StatusBoardFile:
    """The file with the status board of a store.

    folder: returns the file's folder and creates it if it is missing; may raise OSError. limits: the
    scheduler's limits. next_write_at: when a postponed write is due, in seconds since boot; None if no write
    is postponed.
    """

    name = "status.txt"

    def __init__(
        self,
        store: Store,
        folder: Callable[[], Path],
        clock: Clock,
        limits: Limits,
        progress: RunningProgress,
    ) -> None:
        self.next_write_at: float | None = None
        self._store = store
        self._folder = folder
        self._clock = clock
        self._limits = limits
        self._written_state: object = None
        self._written_samples: object = None
        self._written_at = float("-inf")
        self._foreign = ForeignClaims()
        self._stops: Mapping[int, job_views.OpenStop] = {}
        self._progress = progress

    def write(self, facts: Facts, newest_id: int) -> None:
        """Updates the file after a new event, a new sample, or `mark_outdated`.

        newest_id: the id of the newest event. A sample with unchanged values changes only the times on the
        board, and such an update may wait. Raises OSError or sqlite3.OperationalError; the caller then
        retries.
        """
        shown = (
            newest_id,
            *((gpu.uuid, gpu.sample, gpu.claims, gpu.claims_problem) for gpu in facts.gpus),
        )
        samples = [gpu.sampled_boot for gpu in facts.gpus]
        now = self._clock.now().boot
        if shown == self._written_state and (
            samples == self._written_samples or now < self._written_at + TIMES_INTERVAL_S
        ):
            self.next_write_at = None
            return
        if now < self._written_at + MIN_INTERVAL_S:
            self.next_write_at = self._written_at + MIN_INTERVAL_S
            return
        self.next_write_at = None
        self._written_at = now
        self._foreign = _foreign_claims(facts)
        self._stops = job_views.open_stops(facts.attempts, facts.now)
        self._replace_file(self._build(os.getpid(), _memory_used(facts)))
        self._written_state, self._written_samples = shown, samples

    def mark_outdated(self) -> None:
        """Makes the next `write` update the file, even without a new event or sample."""
        self._written_state = None

    def end(self) -> None:
        """Writes the board for a stopped scheduler, whose running jobs continue."""
        self._replace_file(self._build(None, {}))

    def _build(self, pid: int | None, memory_used: Mapping[int, Mapping[int, int]]) -> StatusReport:
        store, now = self._store, self._clock.now()
        with store.snapshot():
            running = open_jobs(store, tuple(ACTIVE))
            waiting = open_jobs(store, (JobState.QUEUED,), board.MAX_WAITING)
            # Each query selects one state, so that SQLite can use the order of the index.
            waiting += open_jobs(store, (JobState.HELD,), board.MAX_WAITING - len(waiting))
            finished = finished_jobs(store, board.MAX_FINISHED)
            jobs = [*running, *waiting, *finished]
            attempts = store.newest_attempts(job.id for job in jobs)
            unsettled, managed = store.active_attempts(), store.gpus()
            context = job_views.ViewContext(
                now,
                wait_reasons=wait_reasons(store),
                parents=parents_of(store, (job.id for job in jobs)),
                indices=store.gpu_indices(),
                victims=victims_by_job(store),
                reservation=queue_reservation_record(store),
                stops=self._stops,
            )
            reserved = reserved_gpus(store)
            counts, hidden_count = state_counts(store), cleared_count(store)
        views = [job_views.job_view(job, attempts.get(job.id), context) for job in jobs]
        progress = self._read_progress(unsettled) if pid is not None else {}
        paused = {gpu.uuid: gpu.paused for gpu in managed}
        return StatusReport(
            now=now.wall,
            pid=pid,
            state_file=str(store.data_dir.state_file),
            data_dir=str(store.data_dir.folder),
            gpus=gpu_views.gpu_views(managed, unsettled, paused, self._limits, self._foreign, reserved),
            jobs=tuple(
                view._replace(
                    memory_used=memory_used.get(view.record.id, view.memory_used),
                    progress=progress.get(view.record.id),
                )
                if view.record.state in ACTIVE
                else view
                for view in views
            ),
            counts=counts,
            hidden_count=hidden_count,
        )

    def _read_progress(self, active: Iterable[ActiveAttempt]) -> dict[int, JobProgress]:
        """Returns the progress of running jobs as last read, by job id."""
        running = [one for one in active if one.state.is_open]
        known = self._progress.read(running)
        return {one.job_id: known[one.id] for one in running if one.id in known}

    def _replace_file(self, report: StatusReport) -> None:
        replace_file(self._folder() / self.name, board.board_text(report).encode("utf-8", "backslashreplace"))


def _foreign_claims(facts: Facts) -> ForeignClaims:
    return ForeignClaims(
        {gpu.uuid: gpu.claims for gpu in facts.gpus if gpu.claims},
        {gpu.uuid: gpu.claims_problem for gpu in facts.gpus if gpu.claims_problem is not None},
    )


def _memory_used(facts: Facts) -> dict[int, dict[int, int]]:
    """Returns the MiB that each running job uses in the newest sample, by job id and GPU index."""
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    found: dict[int, dict[int, int]] = {}
    for attempt in facts.attempts:
        for gpu in (known[uuid] for uuid in attempt.gpus if uuid in known):
            mib = attempt_memory(attempt, gpu) if attempt.state.is_open else None
            if mib is not None:
                found.setdefault(attempt.job_id, {})[gpu.index] = mib
    return found
