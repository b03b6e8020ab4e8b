"""Reads the progress of running attempts in a thread, because the folders of jobs may not respond."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import current_log, log_of_process
from gpu_scheduler.attempts.job_progress import PROGRESS_FILE, ProgressReader, ProgressSource, find_checkpoint
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.command.shell_words import has_place, stands_in
from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, AttemptStatus, Checkpoint, Job, SavedWork
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.runner.folder import boot_id, is_alive
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.deadline import start_thread, within

# Names the places where the progress of an attempt can be read.


def progress_source(store: Store, spec: JobSpec, attempt: Attempt) -> ProgressSource:
    """Returns where to read the progress of an attempt. spec: that of its job."""
    return ProgressSource(
        attempt.id,
        spec,
        current_log(attempt),
        str(store.data_dir.attempt_folder(attempt) / PROGRESS_FILE),
        _since(store, attempt),
        attempt.started_at,
        attempt.resumed_from,
    )


def adopted_source(job: Job) -> ProgressSource | None:
    """Returns where to read the progress of an adopted process that no runner watches; None if it has ended.

    Its key is the negative id of the job.
    """
    one = job.adopted
    if one is None or one.boot_id != boot_id() or not is_alive(one.pid, one.start_ticks):
        return None
    log = log_of_process(one.pid, one.start_ticks, one.log)
    return ProgressSource(-job.id, job.spec, log, None, one.started_at, one.started_at)


def start_of(attempt: Attempt) -> float:
    """Returns when an attempt began, in wall seconds. An adopted process started before its attempt."""
    return min(attempt.created_at, attempt.started_at or attempt.created_at)


def _since(store: Store, attempt: Attempt) -> float:
    """Returns when the first attempt of a job began, in wall seconds; older checkpoints are of other runs.

    Of an attempt that resumed from a checkpoint, only its own count, because the user may have chosen an
    older one on purpose.
    """
    is_first = attempt.number == 1 or attempt.resumed_from is not None
    return start_of(attempt if is_first else store.attempts(attempt.job_id)[0])


#: Minimum number of seconds between two readings.
MIN_INTERVAL_S = 2.0
#: Seconds after which a reading is outdated.
_OUTDATED_S = 60.0
#: Maximum number of seconds for which the first `read_now` waits.
FIRST_READING_S = 2.0


class RunningProgress:
    """The progress of running attempts as last read. The thread starts with the first attempt.

    Only the thread opens files of jobs. The methods are for one other thread, that of the loop.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._sources: dict[int, ProgressSource] = {}
        self._changed = threading.Condition()
        self._wanted: Sequence[ProgressSource] | None = None
        self._known: Mapping[int, JobProgress] = {}
        self._read_at = self._asked_at = float("-inf")
        self._is_running = False
        self._has_waited = False
        self._is_closing = False

    def read(self, attempts: Iterable[ActiveAttempt]) -> Mapping[int, JobProgress]:
        """Returns what was last read, by attempt id, and asks for a new reading if one is due.

        Attempts that have not started, and those of which nothing has been read yet, are missing.
        """
        sources = self._sources_of(attempts)
        now = self._clock.now().boot
        with self._changed:
            is_free = self._wanted is None or not self._is_running
            if sources and now >= self._asked_at + MIN_INTERVAL_S and is_free and self._start():
                self._wanted, self._asked_at = tuple(sources.values()), now
                self._changed.notify_all()
            known = self._known if now < self._read_at + _OUTDATED_S else {}
        return {key: known[key] for key in sources if key in known}

    def read_now(self, attempts: Sequence[ActiveAttempt]) -> Mapping[int, JobProgress]:
        """Returns the same as `read`. The first call waits for the reading, at most 2 s.

        A scheduler that has just started thus decides on the same facts as the one before it.
        """
        known = self.read(attempts)
        with self._changed:
            if self._asked_at == float("-inf") or self._has_waited:
                return known
            self._has_waited = True
            self._changed.wait_for(lambda: self._wanted is None or self._is_closing, FIRST_READING_S)
        return self.read(attempts)

    def close(self) -> None:
        """Ends the thread, which is not waited for."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _sources_of(self, attempts: Iterable[ActiveAttempt]) -> dict[int, ProgressSource]:
        """Returns where to read the progress of the started attempts, by attempt id."""
        sources: dict[int, ProgressSource] = {}
        for attempt in attempts:
            if attempt.started_at is None:
                continue
            source = self._sources.get(attempt.id)
            if source is None or (source.log, source.started_at) != (
                current_log(attempt),
                attempt.started_at,
            ):
                source = progress_source(self._store, JobSpec.from_json(attempt.job.spec_json), attempt)
            sources[attempt.id] = source
        self._sources = sources
        return sources

    def _start(self) -> bool:
        """Starts the thread if it does not run, as after a shortage; returns False if that fails."""
        return self._is_running or start_thread(self._run)

    def _run(self) -> None:
        with self._changed:
            if self._is_running:
                return  # this thread was started late, and another one in its place
            self._is_running = True
        try:
            self._read_requested()
        finally:
            self._is_running = False

    def _read_requested(self) -> None:
        reader = ProgressReader()
        while True:
            with self._changed:
                while self._wanted is None and not self._is_closing:
                    self._changed.wait()
                if self._is_closing or self._wanted is None:
                    return
                sources = self._wanted
            wall = self._clock.now().wall
            known = {source.key: reader.read(source, wall, with_checkpoint=False) for source in sources}
            reader.keep_only(known)
            with self._changed:
                self._known, self._wanted, self._read_at = known, None, self._clock.now().boot
                self._changed.notify_all()


def with_remaining_times(
    attempts: Iterable[ActiveAttempt], known: Mapping[int, JobProgress], now: Now
) -> tuple[ActiveAttempt, ...]:
    """Returns the attempts, the running ones with the time until they finish, if their progress shows it.

    known: the progress by attempt id.
    """

    def remaining_s(attempt: ActiveAttempt) -> float | None:
        progress = known.get(attempt.id)
        if progress is None or progress.finish_at is None or attempt.state is not AttemptState.RUNNING:
            return None
        left = progress.finish_at - now.wall
        return left if left > 0 else None

    return tuple(one.seen(remaining_s=remaining_s(one)) if known else one for one in attempts)


# Finds the work that an attempt has left at its end: the newest checkpoint, and whether it was complete.


#: Seconds after which a folder with checkpoints counts as not responding.
MAX_SEARCH_S = 2.0


def saved_work_of(store: Store, attempt: Attempt, status: AttemptStatus) -> SavedWork:
    """Returns the work that an attempt which has ended has left. status: as observed in its folder."""
    job = store.job(attempt.job_id)
    assert job is not None
    attempts = store.attempts(job.id)
    return SavedWork(
        newest_checkpoint(store, job.spec, attempts),
        _is_complete(store, job.spec, attempt, status),
        stands_in(job.spec),
        has_place(job.spec),
    )


def newest_checkpoint(store: Store, spec: JobSpec, attempts: Sequence[Attempt]) -> Checkpoint | None:
    """Returns the newest complete checkpoint of a job; None if there is none. attempts: all, oldest first.

    If the last attempt resumed from a checkpoint, only those that were saved since then are newer than it,
    because the user may have chosen an older one on purpose. If the folder does not respond, it is the one
    that the store has.
    """
    last = attempts[-1]
    since = start_of(attempts[0] if last.resumed_from is None else last)
    reported = str(store.data_dir.attempt_folder(last) / PROGRESS_FILE)
    job = store.job(last.job_id)
    known = None if job is None else job.checkpoint
    found = within(MAX_SEARCH_S, lambda: find_checkpoint(spec, since, reported), known)
    return found or last.resumed_from


def with_saved_times(store: Store, attempts: Iterable[ActiveAttempt]) -> tuple[ActiveAttempt, ...]:
    """Returns the attempts, the running ones with the time at which they saved their newest checkpoint."""
    return tuple(
        one.seen(saved_at=_saved_at(store, one)) if one.state is AttemptState.RUNNING else one
        for one in attempts
    )


def _saved_at(store: Store, attempt: ActiveAttempt) -> float | None:
    job = store.job(attempt.job_id)
    assert job is not None
    checkpoint = newest_checkpoint(store, job.spec, store.attempts(job.id))
    return None if checkpoint is None else checkpoint.saved_at


def _is_complete(store: Store, spec: JobSpec, attempt: Attempt, status: AttemptStatus) -> bool | None:
    """Returns whether an attempt that was asked to save its work, and exited with code 0, had reached N of N.

    None if its progress is not known, or if the question does not arise.
    """
    result = status.result
    if result is None or result.exit_code != 0:
        return None
    if result.cause != "preempted" and (result.cause is not None or status.withdrawn is None):
        return None
    source = progress_source(store, spec, replace(attempt, log=attempt.log or status.log))
    now = Clock().now().wall
    progress = within(MAX_SEARCH_S, lambda: ProgressReader().read(source, now).progress, None)
    return None if progress is None or progress.total is None else progress.is_complete
