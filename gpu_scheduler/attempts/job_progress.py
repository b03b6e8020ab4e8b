"""Reads how far a job is, where it can resume and, at its end, what it has saved.

What the job reports itself counts first, then its log, then its checkpoints. The progress of running attempts
is read in a thread, because the folders of jobs may not respond.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import current_log, log_of_process, regular_file
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.command.shell_words import has_place, program_folder, stands_in
from gpu_scheduler.core.explain.log_progress import (
    MAX_LINES,
    LogWindow,
    Mark,
    first_readings,
    progress_of_log,
)
from gpu_scheduler.core.explain.progress import (
    CheckpointKind,
    CheckpointName,
    JobProgress,
    RunOptions,
    matched_name,
    output_option,
    parse_name,
    remaining_s,
    step_in,
    work_before,
)
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    Attempt,
    AttemptStatus,
    Checkpoint,
    Job,
    Progress,
    ProgressUnit,
    SavedWork,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.text.parsing import mark_expansions, parse_json
from gpu_scheduler.runner.folder import boot_id, is_alive
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.own_process import start_thread, within

# Finds the checkpoints of a job in its output folder, and those that match its attribute `checkpoints`.
#
# No other folder is searched, because it may contain those of other runs, and nothing that is older than the
# first attempt of the job counts. A folder that cannot be read counts as empty.


#: The folders in an output folder in which TRL and PyTorch Lightning save.
_INNER_FOLDERS = ("completions", "checkpoints", "lightning_logs/version_*/checkpoints")
#: Maximum number of names to examine in a folder, and of files that match a pattern.
_MAX_NAMES = 10_000
#: The file that the Hugging Face Trainer writes last into a checkpoint.
_TRAINER_STATE = "trainer_state.json"
#: Seconds by which the kernel's clock for file times may lag the wall clock: one tick at 100 Hz, doubled.
_FILE_CLOCK_LAG_S = 0.02
_MAX_STEPS = re.compile(rb'"max_steps": (\d{1,15})\b')


class FoundCheckpoint(NamedTuple):
    """A checkpoint. path: absolute; saved_at: in wall seconds; total: the number of steps of the whole run,
    None if it does not say; is_whole: whether its own content shows that it is complete.
    """

    path: str
    name: CheckpointName
    saved_at: float
    total: float | None
    is_whole: bool


def scan_checkpoints(spec: JobSpec, since_wall: float | None) -> list[FoundCheckpoint]:
    """Returns the checkpoints that were saved at or after this time, oldest first. None means all."""
    candidates = dict(_named_in_output(spec))
    candidates.update(_matching(spec))
    found = (_examine(path, name) for path, name in candidates.items())
    since = float("-inf") if since_wall is None else since_wall - _FILE_CLOCK_LAG_S
    recent = (one for one in found if one is not None and one.saved_at >= since)
    return sorted(recent, key=lambda one: (one.saved_at, one.name.step or 0.0, one.path))


def newest_complete(found: list[FoundCheckpoint]) -> FoundCheckpoint | None:
    """Returns the newest complete checkpoint from which a job can resume; None if there is none.

    found: oldest first. A checkpoint is complete if its content shows it or a newer one of its kind exists.
    """
    newer_kinds: set[CheckpointKind] = set()
    for one in reversed(found):
        if one.name.kind is CheckpointKind.COMPLETIONS:
            continue
        if one.is_whole or one.name.kind in newer_kinds:
            return one
        newer_kinds.add(one.name.kind)
    return None


def _named_in_output(spec: JobSpec) -> Iterator[tuple[str, CheckpointName]]:
    command = None if spec.command is None else mark_expansions(spec.command)
    written = output_option(replace(spec, command=command))[1]
    if not written or "\0" in written:
        return  # only a shell knows which folder this is
    folder = path_in_program_folder(spec, written)
    if folder is None:
        return
    inner = (glob.iglob(os.path.join(glob.escape(folder), each)) for each in _INNER_FOLDERS)
    for each in (folder, *(path for paths in inner for path in paths)):
        try:
            with os.scandir(each) as entries:
                for entry in islice(entries, _MAX_NAMES):
                    name = parse_name(entry.name)
                    if name is not None:
                        yield os.path.normpath(entry.path), name
        except OSError:
            continue


def path_in_program_folder(spec: JobSpec, path: str) -> str | None:
    """Returns a path of the job's program as an absolute path; None if its folder is not known."""
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    folder = program_folder(spec)
    return None if folder is None else os.path.join(os.path.expanduser(folder), path)


def _matching(spec: JobSpec) -> Iterator[tuple[str, CheckpointName]]:
    pattern = spec.checkpoints
    if not pattern or "\0" in pattern:
        return
    for path in islice(_expand(os.path.join(glob.escape(spec.cwd), os.path.expanduser(pattern))), _MAX_NAMES):
        whole = os.path.normpath(path)
        yield whole, matched_name(os.path.basename(whole))


def _expand(pattern: str) -> Iterator[str]:
    """Yields the paths that match a pattern.

    The first `**` stands for a folder and the folders in it, up to _MAX_NAMES names. Unlike that of `glob`,
    it follows no links, because they may form endless loops. Any other `**` is the same as `*`.
    """
    base, recursive, rest = pattern.partition("/**/")
    if not recursive:
        yield from glob.iglob(pattern)
        return
    names = 0
    for root in glob.iglob(base + "/"):
        for folder, folders, files in os.walk(root):
            names += len(folders) + len(files)
            if names > _MAX_NAMES:
                return
            folders[:] = [name for name in folders if not name.startswith(".")]
            yield from glob.iglob(os.path.join(glob.escape(folder), rest))


def _examine(path: str, name: CheckpointName) -> FoundCheckpoint | None:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return _examine_folder(path, name, status.st_mtime)
        if not stat.S_ISREG(status.st_mode) or name.kind is CheckpointKind.TRAINER:
            return None
        return FoundCheckpoint(path, name, status.st_mtime, None, _is_whole_zip(path))
    except OSError:
        return None


def _examine_folder(path: str, name: CheckpointName, modified_at: float) -> FoundCheckpoint | None:
    if name.kind not in (CheckpointKind.TRAINER, CheckpointKind.PATTERN):
        return None
    try:
        with regular_file(os.path.join(path, _TRAINER_STATE), follow=True) as (fd, status):
            end = os.pread(fd, 4096, max(0, status.st_size - 4096)).rstrip()
    except OSError:
        return FoundCheckpoint(path, name, modified_at, None, False)
    totals = _MAX_STEPS.findall(end)
    total = float(totals[-1]) if totals and int(totals[-1]) else None
    return FoundCheckpoint(path, name, status.st_mtime, total, end.endswith(b"}"))


def _is_whole_zip(path: str) -> bool:
    """Returns whether a file is a ZIP file with a directory at its end, as `torch.save` writes."""
    import zipfile  # only jobs with such checkpoints need it

    with regular_file(path, follow=True) as (fd, _), open(fd, "rb", closefd=False) as file:
        return file.read(4) == b"PK\x03\x04" and zipfile.is_zipfile(file)


# Reads the end of a log, and later only what has been added to it.


#: Number of bytes that are read at first. More are read only if they have too few lines.
_FIRST_BYTES = 64 * 1024
#: Maximum number of bytes to read at a time. A bar that is drawn ten times a second fills them in an hour.
_MAX_BYTES = 4 * 1024 * 1024
#: Number of bytes at the beginning of a log in which the first progress of an attempt is looked for.
_HEAD_BYTES = 128 * 1024
#: Seconds of CPU time that one reading may take, and seconds for which a log that takes longer is not read.
_BUDGET_S, _PAUSE_S = 0.25, 60.0


class LogReader:
    """The end of one log, and its beginning.

    modified_at: when the log was last written, in wall seconds; None if unknown. head: its first bytes.
    """

    def __init__(self) -> None:
        self.head = b""
        self.modified_at: float | None = None
        self._file: tuple[int, int] | None = None
        self._end = 0
        self._window = LogWindow()
        self._paused_until = float("-inf")

    def read(self, path: str) -> bool:
        """Reads what is new; returns whether anything is. A log that cannot be read has no progress.

        Follows no link in the last part of the path and reads only regular files. A log that takes too long
        shows no progress for a minute.
        """
        if time.monotonic() < self._paused_until:
            return False
        try:
            with regular_file(path) as (fd, status):
                return self._read(fd, status)
        except OSError:
            return self._forget()

    def marks(self) -> Sequence[Mark]:
        """Returns what the last lines show, oldest first."""
        return self._window.marks()

    def _read(self, fd: int, status: os.stat_result) -> bool:
        file, size = (status.st_dev, status.st_ino), status.st_size
        self.modified_at = status.st_mtime
        if file == self._file and size == self._end:
            return False
        if file != self._file or not 0 <= size - self._end <= _MAX_BYTES:
            self._window = LogWindow()
            data = _read_end(fd, size)
            self.head = data[:_HEAD_BYTES] if len(data) == size else os.pread(fd, _HEAD_BYTES, 0)
        else:
            data = os.pread(fd, size - self._end, self._end)
            size = self._end + len(data)
            self.head += data[: max(0, _HEAD_BYTES - len(self.head))]
        end = time.thread_time() + _BUDGET_S
        if not self._window.feed(data, lambda: time.thread_time() > end):
            self._paused_until = time.monotonic() + _PAUSE_S
            self._forget()
            return True
        self._file, self._end = file, size
        return True

    def _forget(self) -> bool:
        was_known = self._file is not None
        self.modified_at, self._file, self._end, self._window = None, None, 0, LogWindow()
        self.head = b""
        return was_known


def _read_end(fd: int, size: int) -> bytes:
    """Returns the last bytes of a file, beginning with a whole line if they contain one."""
    count = _FIRST_BYTES
    while True:
        start = max(0, size - count)
        data = os.pread(fd, size - start, start)
        if start == 0:
            return data
        if count >= _MAX_BYTES or _line_count(data) > MAX_LINES:
            _, newline, rest = data.partition(b"\n")
            return rest if newline else data
        count *= 4


def _line_count(data: bytes) -> int:
    """Returns the number of lines, without those that are only frames of an enclosed bar."""
    return data.count(b"\n") - data.count(b"\x1b[A\n")


# Reads the file in which a job reports its own progress, named by $GPU_SCHEDULER_PROGRESS.
#
# The last line that is a whole JSON object counts, such as
# {"step": 50, "total": 300, "checkpoint": "out/checkpoint-50"}. A value of another type is ignored.


#: The name of the file in the attempt folder.
PROGRESS_FILE = "progress"
#: Number of bytes to read from the end of the file.
_MAX_FILE_BYTES = 16 * 1024


class ReportedProgress(Struct, frozen=True):
    """The progress that a job reports. Values are None if they are missing.

    at: when it was written, in wall seconds.
    """

    step: float | None = None
    total: float | None = None
    checkpoint: str | None = None
    at: float | None = None


def read_progress_file(path: str | None) -> ReportedProgress | None:
    """Returns what a job reports; None if there is no such file or no usable line in it."""
    if path is None:
        return None
    try:
        with regular_file(path) as (fd, status):
            data = os.pread(fd, _MAX_FILE_BYTES, max(0, status.st_size - _MAX_FILE_BYTES))
    except OSError:
        return None
    for line in reversed(data.split(b"\n")):
        value = _object(line)
        if value is not None:
            return ReportedProgress(
                _number(value.get("step")), _number(value.get("total")), _path(value), status.st_mtime
            )
    return None


def first_report(path: str, reported: ReportedProgress) -> ReportedProgress:
    """Returns the first report that anybody has read, which is kept beside the file, or this one.

    A job may write each report over the one before it.
    """
    kept = f"{path}.first"
    first = read_progress_file(kept)
    if first is None and reported.step is not None and reported.at is not None:
        try:
            with open(kept, "x", encoding="ascii") as file:
                file.write(f'{{"step": {reported.step}}}\n')
            os.utime(kept, (reported.at, reported.at))
        except OSError:
            pass  # the folder cannot be written, or another reader is faster
    return first or reported


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line.strip())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else None


def _path(value: dict[str, Any]) -> str | None:
    path = value.get("checkpoint")
    return path if isinstance(path, str) and path and "\0" not in path else None


#: Minimum number of seconds between two searches for the checkpoints of a job.
SCAN_INTERVAL_S = 15.0


class ProgressSource(Struct, frozen=True):
    """Where the progress of an attempt can be read.

    key: the id of the attempt. log, progress_file: paths, None if there are none. since_wall: when the first
    attempt of the job was created; older checkpoints are those of other runs. started_at: when this attempt
    started. resumed_from: the checkpoint with which the scheduler resumed the job, None if it did not.
    """

    key: int
    spec: JobSpec
    log: str | None = None
    progress_file: str | None = None
    since_wall: float | None = None
    started_at: float | None = None
    resumed_from: Checkpoint | None = None


class ProgressReader:
    """Reads the progress of attempts. It remembers what it has read, so that the next reading is cheap."""

    def __init__(self) -> None:
        self._attempts: dict[int, _AttemptReader] = {}

    def read(self, source: ProgressSource, now: float, *, with_checkpoint: bool = True) -> JobProgress:
        """Returns the progress of an attempt. What cannot be read is not known.

        now: in wall seconds. with_checkpoint: whether to look for checkpoints even if the progress is known
        without them.
        """
        reader = self._attempts.setdefault(source.key, _AttemptReader())
        return reader.read(source, now, with_checkpoint=with_checkpoint)

    def keep_only(self, keys: Collection[int]) -> None:
        """Forgets all other attempts."""
        self._attempts = {key: one for key, one in self._attempts.items() if key in keys}


def find_checkpoint(
    spec: JobSpec, since_wall: float | None, progress_file: str | None = None
) -> Checkpoint | None:
    """Returns the newest complete checkpoint of a job; None if there is none.

    since_wall: when the first attempt of the job was created, in wall seconds. progress_file: the file in
    which the job reports its progress; a checkpoint that it names counts before all others.
    """
    found = scan_checkpoints(spec, since_wall)
    return _checkpoint(spec, read_progress_file(progress_file), newest_complete(found))


def _checkpoint(
    spec: JobSpec, reported: ReportedProgress | None, found: FoundCheckpoint | None
) -> Checkpoint | None:
    written = None if reported is None else reported.checkpoint
    whole = None if written is None else path_in_program_folder(spec, written)
    if reported is not None and whole is not None:
        path = os.path.normpath(whole)
        try:
            saved_at = os.stat(path).st_mtime
        except (OSError, ValueError):
            pass
        else:
            step = step_in(path)
            return Checkpoint(path, reported.step if step is None else step, saved_at)
    return None if found is None else Checkpoint(found.path, found.name.step, found.saved_at)


class _AttemptReader:
    def __init__(self) -> None:
        self._log = LogReader()
        self._of_log: Progress | None = None
        self._found: list[FoundCheckpoint] = []
        self._scanned_at = float("-inf")
        #: What the first readings of the log were found for, and these.
        self._first: tuple[object, list[float]] = None, []

    def read(self, source: ProgressSource, now: float, *, with_checkpoint: bool) -> JobProgress:
        options = RunOptions.of(source.spec)
        reported = read_progress_file(source.progress_file)
        if source.log is not None and self._log.read(source.log):
            self._of_log = progress_of_log(self._log.marks(), options)
        progress, first = self._of_output(source, reported, options)
        checkpoint = None
        if with_checkpoint or progress is None:
            if not 0 <= now - self._scanned_at < SCAN_INTERVAL_S:
                self._found, self._scanned_at = scan_checkpoints(source.spec, source.since_wall), now
            checkpoint = _checkpoint(source.spec, reported, newest_complete(self._found))
        if progress is None:
            progress = _of_checkpoints(self._own_checkpoints(source), options)
            since = source.started_at or 0.0
            first = _of_checkpoints([one for one in self._found if one.saved_at >= since][:1], options)
        if progress is None:
            return JobProgress(None, checkpoint)
        resumed_at = _resumed_at(source, progress, options)
        if resumed_at is not None:
            first = replace(progress, current=resumed_at, at=None)
        left = remaining_s(progress, first, started_at=source.started_at, now=now)
        return JobProgress(progress, checkpoint, left, None if left is None else now + left)

    def _own_checkpoints(self, source: ProgressSource) -> list[FoundCheckpoint]:
        """Returns the checkpoints that show how far the attempt is; after a start from zero, only its own."""
        if _resumed_step(source) != 0.0 or source.started_at is None:
            return self._found
        return [one for one in self._found if one.saved_at >= source.started_at]

    def _of_output(
        self, source: ProgressSource, reported: ReportedProgress | None, options: RunOptions
    ) -> tuple[Progress | None, Progress | None]:
        """Returns what the job reports itself or else what its log shows, and its first reading."""
        of_job = None
        if reported is not None and reported.step is not None and source.progress_file is not None:
            total = reported.total or options.max_steps
            is_valid = total is None or reported.step <= total
            of_job = Progress(reported.step, total if is_valid else None, ProgressUnit.STEP, reported.at)
            if of_job.total is not None:
                first = first_report(source.progress_file, reported)
                return of_job, replace(of_job, current=first.step or 0.0, at=first.at)
        if self._of_log is None:
            return of_job, None
        shown = replace(self._of_log, at=self._log.modified_at)
        of = len(self._log.head), shown.unit, shown.total
        if of != self._first[0]:
            self._first = of, first_readings(self._log.head, shown, options)
        before = work_before(self._first[1], shown.total or 0.0)
        return shown, replace(shown, current=shown.current if before is None else before, at=None)


def _resumed_at(source: ProgressSource, progress: Progress, options: RunOptions) -> float | None:
    """Returns what was done where the scheduler or the command resumed the job, in the unit of its progress.

    None if unknown: a program may also look for its last checkpoint by itself.
    """
    step = _resumed_step(source)
    if not step or progress.unit in (ProgressUnit.STEP, ProgressUnit.CHECKPOINT):
        return step or None
    if options.max_steps is None or progress.total is None:
        return None
    return step / options.max_steps * progress.total


def _resumed_step(source: ProgressSource) -> float | None:
    """Returns the step from which an attempt resumed, 0 if it did not; None if unknown."""
    if source.resumed_from is not None:
        step = source.resumed_from.step
        return step_in(source.resumed_from.path) if step is None else step
    given = source.spec.option((source.spec.resume_flag or "resume_from_checkpoint").lstrip("-"))
    return 0.0 if given is None or given.lower() in ("false", "none", "") else step_in(given)


def _of_checkpoints(found: list[FoundCheckpoint], options: RunOptions) -> Progress | None:
    """Returns the progress that the newest checkpoint shows, complete or not."""
    if not found:
        return None
    newest = found[-1]
    step, epoch = newest.name.step, newest.name.epoch
    total = options.max_steps or newest.total
    if step is not None and total is not None and step <= total:
        return Progress(step, total, ProgressUnit.CHECKPOINT, newest.saved_at)
    if epoch is not None and options.epochs is not None and epoch < options.epochs:
        return Progress(epoch + 1, options.epochs, ProgressUnit.EPOCH, newest.saved_at)
    return None if step is None else Progress(step, None, ProgressUnit.CHECKPOINT, newest.saved_at)


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
