"""Writes the actions of a round to the store, all of them in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import write_attempts, write_gpus, write_jobs
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.write_context import WriteContext


def _record_nothing(context: WriteContext, action: act.EndScheduler) -> None:
    """Records nothing: the end of the scheduler needs no entry."""


#: Action -> the function that records it.
_RECORD: Mapping[type[act.Action], Callable[[WriteContext, Any], int | None]] = {
    act.Start: write_attempts.start,
    act.Relaunch: write_attempts.relaunch,
    act.ResetLaunchCount: write_attempts.reset_launch_count,
    act.VoidClaim: write_attempts.record_signal,
    act.Transition: write_attempts.record_transition,
    act.RequestStop: write_attempts.record_signal,
    act.WakeRunner: write_attempts.record_signal,
    act.KillRunner: write_attempts.record_runner_kill,
    act.RecordRunner: write_attempts.record_runner,
    act.RecordRunnerDeath: write_attempts.record_runner_death,
    act.RecordMisplacedProcess: write_attempts.record_misplaced_process,
    act.RecordWindowClosed: write_attempts.record_window_closed,
    act.RecordUsage: write_attempts.record_usage,
    act.RecordOveruse: write_attempts.record_overuse,
    act.Sweep: write_attempts.record_sweep,
    act.FinishAttempt: write_attempts.finish_attempt,
    act.ReleaseAllocation: write_attempts.release_allocation,
    act.RecordMemoryReleased: write_attempts.record_memory_released,
    act.RecordForeignLoad: write_gpus.record_foreign_load,
    act.RecordForeignPeaks: write_gpus.record_foreign_peaks,
    act.SetPaused: write_gpus.set_paused,
    act.FinishJob: write_jobs.finish_job,
    act.HoldJob: write_jobs.hold_job,
    act.RequeueJob: write_jobs.requeue_job,
    act.RecordCancel: write_jobs.record_cancel,
    act.SetAttribute: write_jobs.set_attribute,
    act.SetQueuePositions: write_jobs.set_queue_positions,
    act.SetWaitReason: write_jobs.set_wait_reason,
    act.RecordBypassed: write_jobs.record_bypassed,
    act.AnswerRequest: write_jobs.answer_request,
    act.EndScheduler: _record_nothing,
}

#: Actions that a power cut may undo: the folders have them too, or they concern processes that it ends.
_REPEATABLE = (
    act.RecordUsage, act.RecordForeignLoad, act.RecordForeignPeaks, act.RecordRunner, act.Transition,
    act.ReleaseAllocation, act.RecordMemoryReleased, act.SetWaitReason, act.RecordBypassed, act.EndScheduler,
)  # fmt: skip


class StoreWriter:
    """Changes jobs, attempts, GPUs and requests. Only the scheduler's loop has one.

    executor: the name of the one that launches new attempts.
    """

    def __init__(self, store: Store, settings: Settings, executor: str = "direct") -> None:
        self._store = store
        self._settings = settings
        self._executor = executor

    def record(self, actions: Iterable[act.Action], now: Now) -> dict[int, int]:
        """Records a whole round. Returns job id -> attempt id for each attempt that a Start opened."""
        opened: dict[int, int] = {}
        actions = list(actions)
        synced = not all(isinstance(action, _REPEATABLE) for action in actions)
        with self._store.db.transaction(synced=synced) as db:
            context = WriteContext(self._store, db, self._settings, now, self._executor)
            for action in actions:
                attempt_id = _RECORD[type(action)](context, action)
                if isinstance(action, act.Start) and attempt_id is not None:
                    opened[action.job_id] = attempt_id
        return opened

    def record_launch_error(self, attempt_id: int, text: str) -> None:
        """Records that a launch failed immediately, which ends the attempt's deadline."""
        with self._store.db.transaction() as db:
            db.execute(
                "UPDATE attempt SET launch_error = ?, launch_deadline_boot = 0 WHERE id = ?",
                (text, attempt_id),
            )

    def record_shortage(self, attempt_id: int) -> None:
        """Records that a shortage prevented a launch: it does not count, and the next launch is due."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE attempt SET launch_count = max(launch_count - 1, 0), launch_deadline_boot = 0"
                " WHERE id = ?",
                (attempt_id,),
            )

    def record_log(self, attempt_id: int, log: str | None, session: str | None) -> None:
        """Records the attempt's log and session, which are known once its folder exists."""
        with self._store.db.transaction(synced=False) as db:
            db.execute("UPDATE attempt SET log = ?, session = ? WHERE id = ?", (log, session, attempt_id))

    def record_gpus(self, samples: Iterable[GpuSample], managed: Collection[str] | None, now: Now) -> None:
        """Records the newest sample. managed: UUIDs of the GPUs that this run manages, None = as before."""
        with self._store.db.transaction(synced=False) as db:
            write_gpus.record_samples(db, samples, managed, now.wall)

    def record_probe_failure(self, cause: str) -> None:
        """Records that the GPUs cannot be read."""
        with self._store.db.transaction(synced=False) as db:
            write_gpus.record_probe_failure(db, cause)

    def forget_wait_reasons(self) -> None:
        """Deletes the wait reasons of resource specs without queued jobs."""
        with self._store.db.transaction() as db:
            db.execute(
                "DELETE FROM pending_group WHERE NOT EXISTS"
                " (SELECT 1 FROM job WHERE state = 'queued' AND job.spec_key = pending_group.spec_key)"
            )

    def set_line_waits(self, waits: Mapping[int, WaitReason]) -> None:
        """Replaces the set of jobs that must not start because of their lines, with the reasons."""
        with self._store.db.transaction() as db:
            db.execute("UPDATE job SET source_missing = 0, line_wait = NULL WHERE source_missing")
            db.executemany(
                "UPDATE job SET source_missing = 1, line_wait = ? WHERE id = ?",
                [(wait.to_json(), job_id) for job_id, wait in waits.items()],
            )
