"""Output on its way from the command to the log and to the runner's own terminal, and keys on their way back.

The log gets every byte that the disk takes, and counts the others; the terminal gets what it takes at once.
Nothing here blocks the command or knows why it ends.
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
#: The longest wait of one poll, in seconds: the kernel takes milliseconds as a C int.
_LONGEST_S = 1e6
#: What the terminal has not taken yet, in bytes; beyond that it is dropped (the log has it).
_WINDOW_BUFFER = 256 * 1024
_KEYS_BUFFER = 4096
#: Rows, columns and two unused shorts of a terminal that nobody looks at: 24 x 80.
_NO_WINDOW = b"\x18\0P\0\0\0\0\0"
_HIGH = 10


def high(fd: int) -> int:
    """The same open file under a number that no redirection of the command can hit."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return moved


class Loop:
    """One wait over a handful of descriptors."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._on: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the events that a descriptor shows."""
        self._poll.register(fd, events)
        self._on[fd] = handler

    def drop(self, fd: int) -> None:
        """Watch a descriptor no longer."""
        if self._on.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, timeout_s: float | None) -> bool:
        """Wait at most so long, and serve what is ready. False: nothing was."""
        wait = None if timeout_s is None else max(0, -int(-min(timeout_s, _LONGEST_S) * 1000 // 1))
        ready = self._poll.poll(wait)
        for fd, events in ready:
            handler = self._on.get(fd)
            if handler is not None:
                handler(events)
        return bool(ready)


class Log:
    """The job's log, opened by the runner and created by the scheduler. `lost` counts bytes not written."""

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
        """Append output. Never raises; what does not fit is counted."""
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
        """Append a line of our own."""
        start = "\n" if self._line_open else ""
        self.write(f"{start}{text}\n".encode("utf-8", "surrogateescape"))


class Window:
    """The runner's own terminal, if it has one: raw, never waited for, and given up at its end."""

    def __init__(self, loop: Loop, keys: Callable[[bytes], None]) -> None:
        self.fd: int | None = None
        self._loop = loop
        self._keys = keys
        self._waiting = bytearray()
        self._before: list[int | list[bytes | int]] | None = None
        try:
            # A file description of its own: O_NONBLOCK on an inherited one would reach whoever shares it.
            fd = high(os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return
        self.fd = fd

    def size(self) -> bytes:
        """The window's size as the kernel holds it."""
        if self.fd is None:
            return _NO_WINDOW
        try:
            size = fcntl.ioctl(self.fd, termios.TIOCGWINSZ, b"\0" * 8)
        except OSError:
            return _NO_WINDOW
        return size if any(size[:4]) else _NO_WINDOW

    def open(self) -> None:
        """Make it raw, so that every key is a byte for the command, and watch it."""
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
        """Show output, or drop it where the window does not take it."""
        if self.fd is None or len(self._waiting) + len(data) > _WINDOW_BUFFER:
            return
        self._waiting += data
        self._flush()

    def restore(self) -> None:
        """Give the terminal back as it was."""
        if self.fd is not None and self._before is not None:
            try:
                # TCSADRAIN would wait for a window that may be frozen.
                termios.tcsetattr(self.fd, termios.TCSANOW, self._before)
            except termios.error:
                pass

    def close(self) -> None:
        """Mirror no longer."""
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
    """Where the command writes: a pipe, or a terminal of the runner's own making."""

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
        """Begin to pump. A pipe's inner end is the command's alone from here on."""
        self._loop.watch(self._fd, select.POLLIN, self._ready)
        if self.name is None:
            os.close(self.inner)
            self.inner = -1
        if self.window is not None:
            self.window.open()

    def resize(self) -> None:
        """Give the command's terminal the size of the window."""
        if self.window is not None:
            try:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, self.window.size())
            except OSError:
                pass

    def release(self) -> None:
        """The command has ended: from here on a terminal shows its end.

        Until now the own inner end had to stay open: a command that closes its output made the wait spin.
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
    """No output processing, so that the log has the command's own bytes, and no Ctrl-S that could stop it."""
    mode = termios.tcgetattr(terminal)
    mode[0] &= ~termios.IXON
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
