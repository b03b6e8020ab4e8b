"""`attach` shows the terminal of a running job, and `logs` prints the log of any job."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from io import FileIO

from gpu_scheduler.cli.program import invocation, location_of, print_message
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.core.text.job_output import CURSOR_UP, FrameFilter, Sanitizer
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.show.job_refs import JobRef
from gpu_scheduler.show.job_text import reason_text
from gpu_scheduler.show.logs import AttachTarget, JobLog, LogProgress, NoLogError, attach_target, open_log

# Prints the last lines of a log and then its new output, either raw or made safe for a terminal.


_CHUNK = 1 << 16
_BEGIN_BYTES = 256


class LogFilter:
    """A filter that keeps the text, colours and progress bars of a log and makes other control codes safe.

    draw_bars: whether to redraw bars in place as the job does, which needs a terminal; otherwise only the
    last frame of each bar is printed, on a line of its own. Bars that move the cursor up, such as nested
    bars, are never redrawn, because the cursor must stay on its line. bar_interval_s: seconds between two
    printed frames of one bar; None prints only the last frame.
    """

    def __init__(self, *, draw_bars: bool, bar_interval_s: float | None = None) -> None:
        self._bar_interval_s = bar_interval_s
        self._frames = None if draw_bars else FrameFilter(bar_interval_s)
        self._sanitizer = Sanitizer()

    def feed(self, data: bytes) -> bytes:
        """Returns the text to print for the next bytes. Empty `data` means that there was no new output."""
        if self._frames is None and CURSOR_UP.search(data):
            self._frames = FrameFilter(self._bar_interval_s)
        if self._frames is not None:
            data = self._frames.feed(data, time.monotonic())
        return self._sanitizer.feed(data)

    def finish(self) -> bytes:
        """Returns the remaining text at the end of the log."""
        left = b"" if self._frames is None else self._frames.flush()
        ended, self._sanitizer = self._sanitizer, Sanitizer()
        return ended.feed(left) + ended.flush()


class LogPrinter:
    """A printer for one log. Raises SchedulerError if the log cannot be read.

    log_filter: None prints every byte.
    """

    def __init__(self, path: str, log_filter: LogFilter | None = None) -> None:
        self._file = _open_log(path)
        self._begin = b""
        self._log_filter = log_filter

    def switch_to(self, path: str) -> None:
        """Continues with another log, from its beginning."""
        self.finish()
        self._file.close()
        self._file = _open_log(path)

    def finish(self) -> None:
        """Prints the rest of the last line, even if it is incomplete."""
        if self._log_filter is not None:
            sys.stdout.buffer.write(self._log_filter.finish())
            sys.stdout.buffer.flush()

    def close(self) -> None:
        """Closes the log."""
        self._file.close()

    def print_last(self, lines: int | None) -> None:
        """Prints the last `lines` lines, or all lines if `lines` is None."""
        self._file.seek(0 if lines is None else self._offset_of_last(lines))
        if lines is None or self._log_filter is None:
            self.print_new()
        else:
            self._print_newest_frames()
            sys.stdout.buffer.flush()

    def print_new(self) -> None:
        """Prints the output appended since the last call.

        Goes on at the end of a log whose middle the runner has left out, and at the beginning of a log that
        somebody has truncated.
        """
        begin = os.pread(self._file.fileno(), _BEGIN_BYTES, 0)
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            is_same = self._begin != b"" and begin.startswith(self._begin)
            self._file.seek(0, os.SEEK_END if is_same else os.SEEK_SET)
        self._begin = begin
        is_new = False
        while data := self._file.read(_CHUNK):
            is_new = True
            self._print(data)
        if not is_new:
            self._print(b"")
        sys.stdout.buffer.flush()

    def _print_newest_frames(self) -> None:
        """Prints the rest of the log; of a line that is a long progress bar, only about the last 64 KiB."""
        line = b""
        while data := self._file.read(_CHUNK):
            begun, newline, rest = data.rpartition(b"\n")
            if newline:
                self._print(line + begun + newline)
                line = rest
                continue
            line += data
            frame = line.find(b"\r", max(0, len(line) - _CHUNK))
            if frame < 0:
                self._print(line)
            line = b"" if frame < 0 else line[frame:]
        if line:
            self._print(line)

    def _print(self, data: bytes) -> None:
        sys.stdout.buffer.write(data if self._log_filter is None else self._log_filter.feed(data))

    def _offset_of_last(self, lines: int) -> int:
        """Returns the offset at which the last `lines` lines begin. A last line without a newline counts."""
        end = at = self._file.seek(0, os.SEEK_END)
        if lines == 0:
            return end
        while at > 0:
            start = max(0, at - _CHUNK)
            self._file.seek(start)
            data = self._file.read(at - start)
            found = len(data)
            while (found := data.rfind(b"\n", 0, found)) >= 0:
                # A newline at the end of the file ends the last line and does not start another one.
                lines -= start + found + 1 < end
                if lines == 0:
                    return start + found + 1
            at = start
        return 0


def _open_log(path: str) -> FileIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise SchedulerError(f"the log {path} cannot be read: {error.strerror}") from None


_POLL_INTERVAL_S = 0.1
#: Seconds between two printed lines of the same progress bar.
_PROGRESS_INTERVAL_S = 1.0


def attach(options: Namespace) -> int:
    """Replaces this process with `screen -x`, which opens the session of a running job."""
    target = target_of(options, options.job)
    os.execve(target.program, [target.program, "-x", target.session], target.environment)


def target_of(options: Namespace, job: JobRef) -> AttachTarget:
    """Returns the session of a running job, once the terminal can show it. Raises SchedulerError."""
    target = attach_target(location_of(options), job)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"`attach` needs a terminal; without a terminal, use `logs {target.job_id} -f`")
    import subprocess  # which `logs` does not need

    tput = os.path.join(os.path.dirname(target.program), "tput")  # it uses the same list of terminals
    if os.access(tput, os.X_OK) and subprocess.run([tput, "clear"], capture_output=True).returncode:
        raise SchedulerError(  # Screen would end with exit code 0
            f"GNU Screen cannot draw on a terminal of the type {os.environ.get('TERM', '')!r} (TERM); run"
            f" `TERM=xterm {invocation()} attach {target.job_id}`"
        )
    if os.environ.get("STY"):
        _print_detach_keys(os.environ["STY"])
    sys.stdout.flush()
    return target


def _print_detach_keys(outer: str) -> None:
    """Prints the keys that detach each of two nested Screen sessions, and waits for Enter.

    It waits so that the user can read the text before the job's session covers it.
    """
    print(f"This terminal is already in a Screen session: {safe_text(outer)}")
    print("With Screen's default keys, Ctrl-A a d detaches the job's session and Ctrl-A d detaches yours.")
    print("Press Enter to open the job's session. ", end="", flush=True)
    sys.stdin.readline()


def logs(options: Namespace) -> int:
    """Prints the log of an attempt of each job (by default, its latest attempt).

    With --follow, it continues until the job, or the attempt given by --attempt, has ended.
    """
    for job in options.jobs:
        with open_log(location_of(options), job, options.attempt) as log:
            printer = _open_printer(log, _log_filter(options))
            if len(options.jobs) > 1:
                print(f"==> job {log.job_id} <==", flush=True)
            printer.print_last(options.lines)
            if options.follow:
                _follow(log, printer)
            printer.finish()
            printer.close()
    return 0


def _log_filter(options: Namespace) -> LogFilter | None:
    """Returns the filter for the log; None if every byte is to be printed."""
    if options.raw:
        return None
    return LogFilter(
        draw_bars=sys.stdout.isatty(), bar_interval_s=_PROGRESS_INTERVAL_S if options.follow else None
    )


def _open_printer(log: JobLog, log_filter: LogFilter | None) -> LogPrinter:
    try:
        return LogPrinter(log.path, log_filter)
    except NoLogError as error:
        if error.reason is None:
            raise
        raise SchedulerError(f"{error}: {reason_text(error.reason)}") from None


def _follow(log: JobLog, printer: LogPrinter) -> None:
    while True:
        # Ask for the progress before reading the log, so that all output before the end is printed.
        progress = log.advance()
        printer.print_new()
        if progress is LogProgress.ENDED:
            return
        if progress in (LogProgress.QUEUED_AGAIN, LogProgress.LEFT_OPEN):
            what = "is queued again" if progress is LogProgress.QUEUED_AGAIN else "has ended"
            print_message(f"job {log.job_id} {what}; no scheduler is running")
            return
        if progress is LogProgress.NEXT_ATTEMPT:
            printer.switch_to(log.path)
        else:
            time.sleep(_POLL_INTERVAL_S)
