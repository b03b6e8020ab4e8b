"""`status`: prints the status as text or JSON, or redraws it in place on the terminal's alternate screen."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import termios
import time
from argparse import Namespace
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_scheduler.cli.program import location_of, no_store_message, stdout_screen
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError, UsageError
from gpu_scheduler.show import status as app
from gpu_scheduler.show.job_views import new_reader
from gpu_scheduler.show.status import StatusQuery

if TYPE_CHECKING:
    from gpu_scheduler.show.job_views import StatusReport
    from gpu_scheduler.show.layout import Viewport
    from gpu_scheduler.show.status import ProgressReader

#: Number of finished jobs shown, unless --all is given or the terminal has more rows.
DEFAULT_FINISHED = 20
#: Maximum number of queued jobs, and of held jobs, that are read for the text. Similar jobs share a row.
MAX_GROUPED = 1000


def status(options: Namespace) -> int:
    """Prints the status; changes nothing."""
    if options.watch is not None:
        return _watch(options)
    gc.disable()  # the collector would search 100,000 jobs for cycles again and again, and there are none
    try:
        if options.json:
            _print_json(options)
        else:
            _print_text(options)
    except StoreNotFoundError:
        print(safe_text(no_store_message(location_of(options)), keep_line_breaks=True))
    finally:
        gc.enable()
    return 0


def _print_json(options: Namespace) -> None:
    finished = None if options.all else DEFAULT_FINISHED
    query = StatusQuery(
        max_finished=finished,
        only_failed=options.failed,
        with_cleared=options.all,
        progress=True,
        checkpoints=True,
        jobs=tuple(options.jobs),
    )
    try:
        report = app.status(location_of(options), query)
    except StoreNotFoundError:
        report = app.empty_status(location_of(options))
    from gpu_scheduler.show.status_json import to_json

    sys.stdout.write(to_json(report))


def _print_text(options: Namespace) -> None:
    screen = stdout_screen()
    report = _report_for_screen(options, screen)
    from gpu_scheduler.show.status_text import to_text

    # If the user asked for the full output, it may scroll. One row is left for the shell's prompt.
    has_no_end = options.all or options.verbose or screen.rows is None
    fitted = replace(screen, rows=None if has_no_end else (screen.rows or 0) - 1)
    sys.stdout.write(to_text(report, fitted, show_all=options.all, verbose=options.verbose))


def _report_for_screen(
    options: Namespace, screen: Viewport, progress_reader: ProgressReader | None = None
) -> StatusReport:
    """Returns the report with as many jobs as a text on this screen can show.

    progress_reader: the reader of the last report, which makes this one cheaper.
    """
    query = StatusQuery(
        max_queued=None if options.all else MAX_GROUPED,
        max_finished=None if options.all else max(DEFAULT_FINISHED, screen.rows or 0),
        only_failed=options.failed,
        with_cleared=options.all,
        last_lines=True,
        progress=True,
        jobs=tuple(options.jobs),
    )
    return app.status(location_of(options), query, progress_reader)


# Redraws the status.


#: The control sequences that switch to the alternate screen and hide the cursor, and those that undo this.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_CURSOR_HOME, _CLEAR_TO_LINE_END, _CLEAR_TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
#: Signals that, by default, end this process without restoring the terminal.
_TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def _watch(options: Namespace) -> int:
    """Shows the status until Ctrl-C or q. Raises UsageError without a suitable terminal."""
    is_terminal = sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM") == "dumb":
        this = "TERM is dumb" if is_terminal else "the output is not a terminal"
        raise UsageError(
            f"`status --watch` needs a terminal on which it can draw, but {this}; leave out --watch or use"
            " `status --json`"
        )
    reader = new_reader()
    frame = _frame(options, reader)  # an error here is printed before the screen changes
    screen = _AlternateScreen()
    try:
        while True:
            screen.draw(frame)
            if screen.wait(options.watch):
                return 0
            try:
                frame = _frame(options, reader)
            except SchedulerError as error:
                frame = "\n".join(_wrapped_message(str(error)))
    except KeyboardInterrupt:
        return 0
    finally:
        screen.close()


def _frame(options: Namespace, reader: ProgressReader) -> str:
    from gpu_scheduler.show.status_text import to_text

    screen = stdout_screen()
    # The last column stays free, because clearing to the end of the line would erase a character there.
    screen = replace(screen, width=None if screen.width is None else screen.width - 1)
    try:
        report = _report_for_screen(options, screen, reader)
    except StoreNotFoundError:
        return "\n".join(_wrapped_message(no_store_message(location_of(options))))
    clock = time.strftime("%H:%M:%S", time.localtime(report.now))
    text = to_text(report, screen, show_all=options.all, verbose=options.verbose, clock=clock)
    return "\n".join(text.splitlines()[: screen.rows])


def _wrapped_message(text: str) -> list[str]:
    from gpu_scheduler.show.layout import wrap_text

    width = stdout_screen().width
    lines = safe_text(text, keep_line_breaks=True).split("\n")
    return lines if width is None else [part for line in lines for part in wrap_text(line, width - 1)]


class _AlternateScreen:
    """The terminal's alternate screen, which is shown until `close`.

    If a signal ends or suspends this process, the terminal is restored first.
    """

    def __init__(self) -> None:
        self._saved_terminal: list[Any] | None = None
        self._wake_read_fd, wake = os.pipe()
        os.set_blocking(wake, False)
        self._wake_write_fd = wake
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, _ignore_signal)
        signal.signal(signal.SIGTSTP, self._suspend)
        for number in _TERMINATING_SIGNALS:
            signal.signal(number, self._terminate)
        self._enter()

    def draw(self, frame: str) -> None:
        """Draws a frame over the previous frame, in a single write."""
        lines = "\n".join(f"{line}{_CLEAR_TO_LINE_END}" for line in frame.split("\n"))
        _write(f"{_CURSOR_HOME}{lines}{_CLEAR_TO_SCREEN_END}")

    def wait(self, seconds: float) -> bool:
        """Waits until the next frame is due or the terminal was resized; returns True if q was pressed."""
        fds = [self._wake_read_fd] if self._saved_terminal is None else [self._wake_read_fd, 0]
        ready, _, _ = select.select(fds, [], [], seconds)
        if self._wake_read_fd in ready:
            os.read(self._wake_read_fd, 4096)
        return 0 in ready and os.read(0, 4096) in (b"q", b"Q", b"")

    def close(self) -> None:
        """Restores the terminal. Ignores SIGINT while doing so."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._leave()
        for number in (signal.SIGWINCH, signal.SIGTSTP, *_TERMINATING_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self._wake_read_fd)
        os.close(self._wake_write_fd)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _enter(self) -> None:
        self._saved_terminal = None  # the terminal of a background process must not be changed or read
        if os.isatty(0) and not _is_in_background():
            self._saved_terminal = termios.tcgetattr(0)
            quiet = termios.tcgetattr(0)
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(0, termios.TCSADRAIN, quiet)
        _write(_ENTER)

    def _leave(self) -> None:
        _write(_LEAVE)
        if self._saved_terminal is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved_terminal)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Handles Ctrl-Z: restores the terminal for the shell, and switches back after `fg`."""
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._enter()

    def _terminate(self, number: int, _: FrameType | None) -> None:
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _is_in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # this is not the controlling terminal, so nothing stops a process that uses it
        return False


def _ignore_signal(_: int, __: FrameType | None) -> None:
    """Handles a signal whose only purpose is to wake the process."""


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except RuntimeError:  # a signal handler interrupted a write to the same buffer
        os.write(1, text.encode("utf-8", "backslashreplace"))
