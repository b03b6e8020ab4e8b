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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.attempts.job_progress import RunningProgress
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt
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
from gpu_scheduler.core.scheduling.gpu_use import attempt_memory
from gpu_scheduler.core.scheduling.pending_queue import drained_exit_code, job_exit_code
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.health.storage import STORAGE_ERRORS
from gpu_scheduler.show import gpu_views, job_views
from gpu_scheduler.show import status_text as board
from gpu_scheduler.show.events import message_of, more_changes_text, to_json
from gpu_scheduler.show.job_findings import unfinished_text
from gpu_scheduler.show.job_views import JobView, StatusReport, ViewContext, job_view
from gpu_scheduler.store import events
from gpu_scheduler.store.job_lists import (
    cleared_count,
    finished_jobs,
    jobs_of_file,
    open_jobs,
    parents_of,
    state_counts,
)
from gpu_scheduler.store.jobs_files import malformed_lines
from gpu_scheduler.store.pending_groups import reserved_gpus, wait_reasons
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import ForeignClaims
from gpu_scheduler.system.safe_file import replace_file

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
        with suppress(*STORAGE_ERRORS):  # the next round logs these events
            self._log_new_events()
            for one in changed if self._verbose else ():
                if one.new.measured_boot != one.old.measured_boot:
                    self._log_usage(one.new)

    def update(self, facts: Facts | None) -> None:
        """Updates the log, the journal and the status board after a round.

        facts: the facts of the round; None after a signal, which leaves the status board unchanged.
        """
        now = self._clock.now().boot
        with suppress(*STORAGE_ERRORS):
            self._log_new_events()
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


#: Minimum number of seconds between two writes.
MIN_INTERVAL_S = 0.5
#: Minimum number of seconds between two writes if only the times have changed.
TIMES_INTERVAL_S = 4.0


class StatusBoardFile:
    """The file status.txt with the status board of a store. Replaces the whole file, at most twice a second.

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
            context = job_views.stored_context(store, (job.id for job in jobs), now)
            context = replace(context, stops=self._stops)
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
