"""Reads how far a job is and where it can resume: the one entry of this room.

What the job reports itself counts first, then its log, then its checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.progress import Progress, ProgressUnit
from gpu_scheduler.core.progress.checkpoint_names import step_in
from gpu_scheduler.core.progress.eta import JobProgress, remaining_s, work_before
from gpu_scheduler.core.progress.log_progress import first_readings, progress_of_log
from gpu_scheduler.core.progress.run_options import RunOptions
from gpu_scheduler.progress.checkpoint_scan import (
    FoundCheckpoint,
    newest_complete,
    path_in_program_folder,
    scan_checkpoints,
)
from gpu_scheduler.progress.log_reader import LogReader
from gpu_scheduler.progress.progress_file import ReportedProgress, first_report, read_progress_file

#: Minimum number of seconds between two searches for the checkpoints of a job.
SCAN_INTERVAL_S = 15.0


@dataclass(frozen=True)
class ProgressSource:
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
