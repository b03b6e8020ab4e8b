"""Reports events to the log, the journal and the status board, and the outcome of a scheduler that drains.

An event is in the store before it is reported. The store also keeps the ids of the last reported events, so
that a restarted scheduler continues after them. Output that cannot be written never delays a job.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.app.job_views import ViewContext, job_view
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.attempts.job_progress import RunningProgress
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind
from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.model.values import share_text
from gpu_scheduler.core.scheduling.actions import (
    Action,
    AttemptChanged,
    ClearFinished,
    JobChanged,
    SetWaitReason,
)
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.pending_queue import drained_exit_code, job_exit_code
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.daemon.status_board_file import StatusBoardFile
from gpu_scheduler.health.storage import STORAGE_ERRORS
from gpu_scheduler.store import events
from gpu_scheduler.store.job_lists import jobs_of_file, open_jobs, parents_of, state_counts
from gpu_scheduler.store.jobs_files import malformed_lines
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.event_messages import message_of, more_changes_text, to_json
from gpu_scheduler.views.job_findings import unfinished_text

log = logging.getLogger(__name__)

# Appends events to journal.jsonl, one JSON line per event, for tools that follow the file.
#
# The journal is derived from the store. It contains only complete lines. If an event cannot be appended, the
# scheduler appends it later.


FILE_NAME = "journal.jsonl"
#: When the journal has reached this size in bytes, it is renamed to journal.jsonl.1.
MAX_BYTES = 50 * 1024 * 1024
#: Maximum number of events appended at a time, so that the scheduler can do other work in between.
BATCH_SIZE = 2000
#: Number of bytes at the end of the file that are searched for its last line.
_TAIL_BYTES = 1 << 20


class Journal:
    """The journal of a store.

    folder: returns the journal's folder and creates it if it is missing; may raise OSError. last_id: the id
    of the last event in the journal. has_more: whether the last `write` may have left events to append.
    """

    def __init__(self, store: Store, folder: Callable[[], Path], last_id: int) -> None:
        self._store = store
        self._folder = folder
        self.last_id = last_id
        self.has_more = False
        self._is_positioned = False

    def write(self) -> None:
        """Appends at most BATCH_SIZE new events.

        Raises OSError or sqlite3.OperationalError; the caller then retries.
        """
        self.has_more = False
        if not self._is_positioned:
            self._find_position()
        new = events.events_after(self._store, self.last_id, BATCH_SIZE)
        if new:
            self._append(new)
            self.has_more = len(new) == BATCH_SIZE

    def _find_position(self) -> None:
        """Sets `last_id` to the event in the last complete line, if that event is in this store.

        The saved position may be older than that line, and a power cut may have lost appended lines.
        """
        path = self._folder() / FILE_NAME
        if path.exists():
            fd = _open(path)
            try:
                last = _last_line(fd)
            finally:
                os.close(fd)
            found = None if last is None else _event_id(self._store, last)
            self.last_id = self.last_id if found is None else found
        self._is_positioned = True

    def _append(self, new: Sequence[Event]) -> None:
        path = self._folder() / FILE_NAME
        fd = _open(path)
        try:
            size = os.fstat(fd).st_size
            if size >= MAX_BYTES:
                os.replace(path, path.with_name(f"{FILE_NAME}.1"))
                os.close(fd)
                fd, size = _open(path), 0
            for event in new:
                size += _append_line(fd, f"{to_json(event)}\n".encode("ascii"), size)
                self.last_id = event.id
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd


def _append_line(fd: int, line: bytes, size: int) -> int:
    """Appends a line completely or not at all. size: the current size of the file. Raises OSError."""
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def _last_line(fd: int) -> bytes | None:
    """Returns the last complete line; removes the partial line that a killed writer left after it."""
    size = os.fstat(fd).st_size
    start = max(0, size - _TAIL_BYTES)
    end = os.pread(fd, size - start, start)
    whole = end.rfind(b"\n") + 1
    if whole < len(end) and (whole or start == 0):
        os.ftruncate(fd, start + whole)
    lines = end[:whole].splitlines()
    return lines[-1] if lines else None


def _event_id(store: Store, line: bytes) -> int | None:
    """Returns the id of the event that a line describes; None if it is not an event of this store."""
    try:
        value = json.loads(line)
        at = datetime.fromisoformat(value["at"]).timestamp()
        known = events.is_event(store, int(value["id"]), at, value["event"], value["job"] or 0)
    except (ValueError, TypeError, KeyError):
        return None
    return int(value["id"]) if known else None


#: Maximum number of lines for the jobs that one report says were skipped, and for those queued again, because
#: the end or the retry of one job may change the state of thousands of others.
MAX_LINES = 20
_DERIVED = (ReasonKind.PARENT_FAILED, ReasonKind.PARENT_RETRIED)
#: The key under which the store keeps the ids of the last events in the log and in the journal.
_POSITIONS_KEY = "reported_events"
#: The name of these ids in messages about failed writes.
_POSITIONS = "log position"
#: Actions that have no event but change more than the times on the status board.
_SHOWN_ON_BOARD = (SetWaitReason, JobChanged, ClearFinished)
#: Seconds after which a failed write is retried.
RETRY_S = 5.0


class EventReporter:
    """Reports new events, beginning after the last reported event. Only the scheduler process has a reporter.

    logs: the folder of `--log-dir`; None means that the journal and the status board are in the data
    directory. progress: that of the running attempts, for the status board. verbose: log each new peak of a
    job's memory use. on_attempt_end: called with the job id and the attempt number before the end of an
    attempt is logged.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: Settings,
        logs: LogFolder | None,
        progress: RunningProgress,
        *,
        verbose: bool = False,
        on_attempt_end: Callable[[int, int], None] = lambda job_id, number: None,
    ) -> None:
        self._on_attempt_end = on_attempt_end
        self._store = store
        self._clock = clock
        self._tolerance = settings.tolerance
        self._verbose = verbose
        newest = events.newest_event_id(store)
        # A power cut may have lost reported events, so the position is limited to the newest event.
        positions = [
            min(id, newest) for id in json.loads(store.db.meta(_POSITIONS_KEY) or f"[{newest}, {newest}]")
        ]
        self._logged_id, journaled = positions
        self._saved_positions = positions
        self._run = _RunCounter(store, newest)
        self._peaks = {
            (attempt.id, uuid): mib
            for attempt in store.active_attempts()
            for uuid, mib in attempt.peaks.items()
        }

        def folder() -> Path:
            return logs.create() if logs is not None else store.data_dir.folder

        self._journal = Journal(store, folder, journaled)
        self._board = StatusBoardFile(store, folder, clock, settings, progress)
        self._outputs = {name: _Output() for name in (FILE_NAME, self._board.name, _POSITIONS)}

    @property
    def next_write_at(self) -> float | None:
        """When the next write is due, in seconds since boot; None if no write is pending."""
        if self._journal.has_more:
            return self._clock.now().boot
        times = [part.retry_at for part in self._outputs.values()] + [self._board.next_write_at]
        return min((at for at in times if at is not None), default=None)

    def actions_recorded(self, actions: Iterable[Action]) -> None:
        """Logs the new events after the scheduler recorded the actions of a round."""
        changed = [action for action in actions if isinstance(action, AttemptChanged)]
        has_left = any(one.is_release or one.is_closed for one in changed)
        if has_left or any(isinstance(action, _SHOWN_ON_BOARD) for action in actions):
            self._board.mark_outdated()
        try:
            self._log_new_events()
            for one in changed if self._verbose else ():
                if one.new.measured_boot != one.old.measured_boot:
                    self._log_usage(one.new)
        except STORAGE_ERRORS:
            pass  # the next round logs these events

    def update(self, facts: Facts | None) -> None:
        """Updates the log, the journal and the status board after a round.

        facts: the facts of the round; None after a signal, which leaves the status board unchanged.
        """
        now = self._clock.now().boot
        try:
            self._log_new_events()
        except STORAGE_ERRORS:
            pass
        self._try_write(FILE_NAME, self._journal.write, now)
        self._try_write(_POSITIONS, self._save_positions, now)
        if facts is not None:
            self._try_write(self._board.name, lambda: self._board.write(facts, self._logged_id), now)

    def close(self) -> None:
        """Writes all remaining output when the scheduler stops."""
        for part in self._outputs.values():
            part.retry_at = None
        self.update(None)
        while self._journal.has_more:
            self.update(None)
        self._try_write(self._board.name, self._board.end, self._clock.now().boot)

    def _log_new_events(self) -> None:
        new, newest = events.notable_events(self._store, self._logged_id)
        derived = Counter[ReasonKind]()
        for event, dispatched in zip(new, self._run.dispatch_counts(new), strict=True):
            if isinstance(event.details, AttemptEnded):
                self._on_attempt_end(event.job_id, event.details.attempt)
            if isinstance(event.reason, StateReason) and event.reason.kind in _DERIVED:
                derived[event.reason.kind] += 1
                if derived[event.reason.kind] > MAX_LINES:
                    continue
            one = message_of(event, self._tolerance, dispatched)
            log.log(one.level, "%s", one.full_text, extra={"event": event, "event_message": one})
        for kind, count in derived.items():
            if count > MAX_LINES:
                log.info("%s", more_changes_text(kind, count - MAX_LINES))
        self._logged_id = newest

    def _log_usage(self, attempt: Attempt) -> None:
        index = self._store.gpu_indices()
        for uuid, mib in attempt.peaks.items():
            key = (attempt.id, uuid)
            if mib > self._peaks.get(key, 0):
                self._peaks[key] = mib
                gpu, declared = index.get(uuid, -1), _declaration_text(attempt, uuid)
                log.info("job %d gpu%d %d MiB (peak so far%s)", attempt.job_id, gpu, mib, declared)

    def _save_positions(self) -> None:
        positions = [self._logged_id, self._journal.last_id]
        if positions == self._saved_positions:
            return
        # If a power cut loses this write, the journal's last line still shows which event was appended last.
        self._store.db.set_meta(_POSITIONS_KEY, json.dumps(positions), synced=False)
        self._saved_positions = positions

    def _try_write(self, name: str, write: Callable[[], None], now: float) -> None:
        """Writes an output unless its retry is not due yet; logs each problem once."""
        part = self._outputs[name]
        if part.retry_at is not None and now < part.retry_at:
            return
        try:
            write()
            if part.problem is not None:
                log.info("%s can be written again", name)
            part.problem = part.retry_at = None
        except STORAGE_ERRORS as error:
            part.retry_at = now + RETRY_S
            problem = getattr(error, "strerror", None) or str(error)
            if problem != part.problem:
                log.error("%s cannot be written: %s; jobs continue; retrying", name, problem)
            part.problem = problem


def _declaration_text(attempt: Attempt | None, uuid: str) -> str:
    """Returns what an attempt declared for a GPU, as text to append to its memory use on that GPU."""
    if attempt is None or uuid not in attempt.budgets:
        return ""
    mib = attempt.budgets[uuid]
    if attempt.vram is not None or mib is None:
        return f"; declared {attempt.vram or share_text(attempt.share, None)}"
    return f"; declared {mib} by {share_text(attempt.share, None)}"


class _Output(Struct):
    """The state of an output.

    problem: why the last write failed, None if it succeeded; retry_at: when the next retry is
    due, in seconds since boot.
    """

    problem: str | None = None
    retry_at: float | None = None


class _RunCounter:
    """Counts the jobs of this run: all jobs except those that had finished before the run began.

    A job counts as dispatched from its first start or, if it never started, from its end. first_id: the id of
    the newest event when the run began.
    """

    def __init__(self, store: Store, first_id: int) -> None:
        self._store = store
        self._first_id = first_id
        counts = state_counts(store)
        self._finished_before = counts.get(JobState.FINISHED, 0)
        self._active = {job.id for job in open_jobs(store, tuple(ACTIVE))}
        self._dispatched = len(self._active)

    def dispatch_counts(self, new: Sequence[Event]) -> list[tuple[int, int]]:
        """Returns, for each new event, the number of jobs dispatched so far and the total number of jobs."""
        if not new:
            return []
        before, dispatched = self._finished_before, self._dispatched
        steps = []
        for event in new:
            before -= self._rejoins(event)
            dispatched += self._is_dispatched(event)
            steps.append(dispatched)
        self._finished_before, self._dispatched = before, dispatched
        total = sum(state_counts(self._store).values()) - before
        return [(step, total) for step in steps]

    def _rejoins(self, event: Event) -> bool:
        """Returns whether this event puts a job that had finished before this run back into the queue."""
        if event.kind != EventKind.QUEUED or event.is_new_job or event.id <= self._first_id:
            return False
        finished = events.finish_event_before(self._store, event)
        return finished is not None and finished <= self._first_id

    def _is_dispatched(self, event: Event) -> bool:
        """Returns whether this event makes a job count as dispatched for the first time."""
        ended = event.kind == EventKind.FINISHED and not isinstance(event.details, AttemptEnded)
        if event.kind != EventKind.STARTING and not ended:
            return False
        if event.id <= self._first_id or event.job_id in self._active:
            return False
        return not events.has_changed_since(self._store, event, self._first_id)


class DrainReport:
    """Reports the jobs of this run, all unfinished jobs, and those with a line in the jobs file.

    The run begins when this object is created.
    """

    def __init__(self, store: Store, jobs_file: str, clock: Clock) -> None:
        self._store = store
        self._jobs_file = jobs_file
        self._clock = clock
        self._begin = events.newest_event_id(store)

    def report(self) -> int:
        """Logs the unfinished jobs and returns the exit code."""
        run = events.jobs_run_after(self._store, self._begin)
        jobs = self._jobs(run)
        malformed = [line for line in malformed_lines(self._store) if line.path == self._jobs_file]
        left = unfinished_text(malformed, [job for job in jobs if job.record.state is not JobState.FINISHED])
        if left:
            log.warning("unfinished: %s", left)
        code = drained_exit_code(map(_exit_code_of, jobs), has_malformed_line=bool(malformed))
        done = sum(job.record.outcome is Outcome.COMPLETED for job in jobs)
        if not run and code:
            log.info("no job was run; `retry JOB` runs a job again, and `start --fresh` runs all jobs again")
        skipped = sum(job.record.outcome is Outcome.SKIPPED for job in jobs)
        more = [f"{skipped:,} skipped"] * bool(skipped)
        more += [count_noun(len(malformed), "malformed line")] * bool(malformed)
        log.info(
            "drained: %s; exit code %d", ", ".join([f"{done} of {len(jobs)} jobs completed", *more]), code
        )
        return code

    def _jobs(self, run: Set[int]) -> list[JobView]:
        """Returns the jobs that the report covers, sorted by id. run: those that started or finished."""
        known = {job.id: job for job in jobs_of_file(self._store, self._jobs_file)}
        for job_id in run - known.keys():
            job = self._store.job(job_id)
            if job is not None:
                known[job_id] = job
        context = ViewContext(
            self._clock.now(), wait_reasons=wait_reasons(self._store), parents=parents_of(self._store, known)
        )
        return [job_view(job, None, context) for _, job in sorted(known.items())]


def _exit_code_of(job: JobView) -> int:
    record = job.record
    return job_exit_code(record.state, record.outcome, record.exit_code, record.signal, job.wait)
