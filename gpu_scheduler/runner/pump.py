"""Copies output from the command to the log and to the runner's terminal, and keys from there to the command.

The log gets every byte that the disk accepts and counts the others; the terminal gets only what it accepts
without blocking. Nothing here blocks the command.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 1 << 16
#: Longest wait of one poll, in seconds: the kernel takes milliseconds as a C int.
_LONGEST_S = 1e6
#: Bytes buffered for the terminal; output beyond that is not shown there (the log has it).
_WINDOW_BUFFER = 256 * 1024
_KEYS_BUFFER = 4096
#: Rows, columns and two unused shorts of a terminal without a window: 24 x 80.
_NO_WINDOW = b"\x18\0P\0\0\0\0\0"
_HIGH = 10


def high(fd: int) -> int:
    """Moves an open file to a descriptor number above those that the command's redirections use."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return moved


class Loop:
    """Waits on several descriptors at once and calls the handler of each that is ready."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._on: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Calls `handler` with the events of a descriptor from now on."""
        self._poll.register(fd, events)
        self._on[fd] = handler

    def drop(self, fd: int) -> None:
        """Stops watching a descriptor."""
        if self._on.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, timeout_s: float | None) -> bool:
        """Waits at most this long and calls the handlers; returns whether any descriptor was ready."""
        wait = None if timeout_s is None else max(0, -int(-min(timeout_s, _LONGEST_S) * 1000 // 1))
        ready = self._poll.poll(wait)
        for fd, events in ready:
            handler = self._on.get(fd)
            if handler is not None:
                handler(events)
        return bool(ready)


class Log:
    """The log of the job, which the scheduler created. lost_bytes: number of bytes that were not written."""

    def __init__(self, path: str | None) -> None:
        self.lost = 0
        self.problem: str | None = None
        self._fd: int | None = None
        self._line_open = False
        if path is None:
            return
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
            self._fd = high(os.open(path, flags))
        except OSError as error:
            self.problem = f"no log: {path}: {error.strerror}"

    def write(self, data: bytes) -> None:
        """Appends output. Never raises; counts the bytes that could not be written."""
        if self._fd is None or not data:
            return
        self._line_open = not data.endswith(b"\n")
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                self.lost += len(data)
                return

    def line(self, text: str) -> None:
        """Appends a line of the runner's own."""
        start = "\n" if self._line_open else ""
        self.write(f"{start}{text}\n".encode("utf-8", "surrogateescape"))


class Window:
    """The runner's own terminal, if it has one: in raw mode, written without blocking, closed on hangup."""

    def __init__(self, loop: Loop, keys: Callable[[bytes], None]) -> None:
        self.fd: int | None = None
        self._loop = loop
        self._keys = keys
        self._waiting = bytearray()
        self._before: list[int | list[bytes | int]] | None = None
        try:
            # Opened anew: O_NONBLOCK on an inherited descriptor would affect all processes that share it.
            fd = high(os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return
        self.fd = fd

    def size(self) -> bytes:
        """Returns the size of the terminal in the format of the kernel."""
        if self.fd is None:
            return _NO_WINDOW
        try:
            size = fcntl.ioctl(self.fd, termios.TIOCGWINSZ, b"\0" * 8)
        except OSError:
            return _NO_WINDOW
        return size if any(size[:4]) else _NO_WINDOW

    def open(self) -> None:
        """Sets raw mode, so that every key reaches the command as a byte, and watches the terminal."""
        if self.fd is None:
            return
        try:
            mode = termios.tcgetattr(self.fd)
            self._before = list(mode)
            mode[0] &= ~(
                termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.IXON
            )
            mode[1] |= termios.OPOST | termios.ONLCR
            mode[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
            mode[6] = list(mode[6])
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self.fd, termios.TCSANOW, mode)
        except termios.error:
            self.close()
            return
        self._loop.watch(self.fd, select.POLLIN, self._ready)

    def show(self, data: bytes) -> None:
        """Shows output, or drops it if the terminal does not accept it."""
        if self.fd is None or len(self._waiting) + len(data) > _WINDOW_BUFFER:
            return
        self._waiting += data
        self._flush()

    def restore(self) -> None:
        """Restores the terminal's mode."""
        if self.fd is not None and self._before is not None:
            try:
                # TCSADRAIN would block on a frozen window.
                termios.tcsetattr(self.fd, termios.TCSANOW, self._before)
            except termios.error:
                pass

    def close(self) -> None:
        """Closes the terminal and stops mirroring."""
        if self.fd is not None:
            self._loop.drop(self.fd)
            os.close(self.fd)
            self.fd = None

    def _ready(self, events: int) -> None:
        if events & select.POLLIN:
            self._read()
        elif events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            self.close()
        if self.fd is not None and events & select.POLLOUT:
            self._flush()

    def _read(self) -> None:
        assert self.fd is not None
        try:
            keys = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            keys = b""
        if keys:
            self._keys(keys)
        else:
            self.close()

    def _flush(self) -> None:
        assert self.fd is not None
        try:
            del self._waiting[: os.write(self.fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        wanted = select.POLLIN | (select.POLLOUT if self._waiting else 0)
        self._loop.watch(self.fd, wanted, self._ready)


class Output:
    """The command's output: a pipe, or a pseudo-terminal that the runner creates."""

    def __init__(self, loop: Loop, log: Log, terminal: bool) -> None:
        self._loop = loop
        self._log = log
        self._typed = bytearray()
        self.window: Window | None = None
        self.ended = False
        if terminal:
            master, slave = os.openpty()
            self._fd, self.inner = high(master), high(slave)
            self.name: str | None = os.ttyname(self.inner)
            self.window = Window(loop, self._type)
            _byte_exact(self.inner)
            self.resize()
        else:
            reader, writer = os.pipe()
            self._fd, self.inner = high(reader), high(writer)
            self.name = None
        os.set_blocking(self._fd, False)

    def start(self) -> None:
        """Starts copying. From here on only the command holds the inner end of a pipe."""
        self._loop.watch(self._fd, select.POLLIN, self._ready)
        if self.name is None:
            os.close(self.inner)
            self.inner = -1
        if self.window is not None:
            self.window.open()

    def resize(self) -> None:
        """Sets the size of the command's terminal to that of the window."""
        if self.window is not None:
            try:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, self.window.size())
            except OSError:
                pass

    def release(self) -> None:
        """Closes the runner's inner end after the command has ended, so that the end of output is seen.

        Until then it must stay open: otherwise a command that closes its output would make the wait spin.
        """
        if self.inner >= 0:
            os.close(self.inner)
            self.inner = -1

    def _type(self, keys: bytes) -> None:
        if len(self._typed) + len(keys) <= _KEYS_BUFFER:
            self._typed += keys
        self._feed()

    def _feed(self) -> None:
        try:
            del self._typed[: os.write(self._fd, self._typed)]
        except BlockingIOError:
            pass
        except OSError:
            self._typed.clear()
        if not self.ended:
            wanted = select.POLLIN | (select.POLLOUT if self._typed else 0)
            self._loop.watch(self._fd, wanted, self._ready)

    def _ready(self, events: int) -> None:
        if events & select.POLLOUT:
            self._feed()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        if not data:
            self.ended = True
            self._loop.drop(self._fd)
            return
        self._log.write(data)
        if self.window is not None:
            self.window.show(data)


def _byte_exact(terminal: int) -> None:
    """Turns off output processing, so that the log has the command's exact bytes, and Ctrl-S, which could
    stop it."""
    mode = termios.tcgetattr(terminal)
    mode[0] &= ~termios.IXON
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
