"""Reads new output from the log of a running job, as lines that are safe to print on a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.core.text.progress_frames import FrameFilter
from gpu_scheduler.core.text.sanitize import sanitized
from gpu_scheduler.system.shortages import reraise_shortage

#: Maximum number of bytes read from a log at a time.
_READ_BYTES = 1 << 20
#: Maximum number of bytes of a line that are printed.
_MAX_LINE_BYTES = 4096
#: Maximum number of bytes of a job's output that may wait to be printed. Beyond it, only the end is read.
_MAX_BACKLOG_BYTES = 8 << 20
#: Maximum number of header lines, which begin with "# " and are not part of the job's output.
_HEADER_LINES = 4
_RESET_COLOUR = "\x1b[0m"


class JobOutputReader:
    """Reads the new lines of a job log. Reads at most one update of a progress bar per second.

    include_runner_line: include the last line of the log, which the runner writes.
    """

    def __init__(self, job_id: int, number: int, path: Path, *, include_runner_line: bool) -> None:
        self.attempt = (job_id, number)
        self._prefix = f"[job {job_id}] "
        self._path = path
        self._at = 0
        self._frames = FrameFilter(update_interval_s=1.0)
        self._header_left = _HEADER_LINES
        self._is_mid_line = False  # the last printed line was truncated, and its rest follows in the log
        self._include_runner_line = include_runner_line
        self._pending: list[str] = []
        self.has_ended = False
        self.is_exhausted = False

    def read(self) -> list[str]:
        """Returns the new lines; sets `is_exhausted` at the end of an ended attempt's log.

        Raises OSError if a shortage prevents opening the log. No output is lost then.
        """
        ended = self.has_ended
        try:
            with open(self._path, "rb") as file:
                self._pending += self._catch_up(os.fstat(file.fileno()).st_size)
                file.seek(self._at)
                data = file.read(_READ_BYTES)
        except OSError as error:
            reraise_shortage(error)
            self.is_exhausted = True
            return self._pending
        self._at += len(data)
        self.is_exhausted = ended and len(data) < _READ_BYTES
        text = self._frames.feed(data, time.monotonic())
        lines = [*self._pending, *self._lines(text + self._frames.flush() if self.is_exhausted else text)]
        # The runner's last line has the same content as the scheduler's log line about the end of the job.
        end = lines[-1:] if lines and lines[-1].startswith(f"{self._prefix}--- ") else []
        self._pending = end if not self.is_exhausted else []
        return lines if self.is_exhausted and self._include_runner_line else lines[: len(lines) - len(end)]

    def _catch_up(self, size: int) -> list[str]:
        """Skips output if there is too much to print; returns a line that says so."""
        skipped = size - _READ_BYTES - self._at
        if skipped + _READ_BYTES <= _MAX_BACKLOG_BYTES:
            return []
        self._at += skipped
        self._frames, self._is_mid_line = FrameFilter(update_interval_s=1.0), True
        return [f"{self._prefix}… {skipped:,} bytes omitted; `logs {self.attempt[0]}` shows them"]

    def _lines(self, text: bytes) -> Iterator[str]:
        *lines, rest = text.split(b"\n")
        for line in lines:
            if not self._is_mid_line:
                yield from self._line(line)
            self._is_mid_line = False
        if rest and not self._is_mid_line:
            yield from self._line(rest, is_whole=self.is_exhausted)
            self._is_mid_line = True

    def _line(self, line: bytes, *, is_whole: bool = True) -> Iterator[str]:
        if self._header_left and line.startswith(b"# "):
            self._header_left -= 1
        else:
            self._header_left = 0
            # Colours are reset at the end of each line, so that they do not affect the next line.
            shown = sanitized(line[:_MAX_LINE_BYTES]).decode("utf-8", "replace")
            end = "" if is_whole and len(line) <= _MAX_LINE_BYTES else "…"
            is_coloured = "\x1b" in shown and not shown.endswith(_RESET_COLOUR)
            yield f"{self._prefix}{shown}{end}{_RESET_COLOUR if is_coloured else ''}"
