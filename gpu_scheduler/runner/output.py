"""Copies the command's output to the log and the runner's terminal, and keystrokes to the command.

The log receives every byte for which the disk has space; lost bytes are counted. The terminal receives only
the bytes that it accepts without blocking. Nothing here blocks the command.
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
#: Longest wait in one call of poll, in seconds. The call takes its timeout in milliseconds as a C int.
_MAX_POLL_S = 1e6
#: Maximum number of bytes buffered for the terminal. Further output appears only in the log.
_MIRROR_BUFFER = 256 * 1024
_KEYS_BUFFER = 4096
#: The size of a terminal without a window, as four 16-bit integers: 24 rows, 80 columns, 0, 0.
_DEFAULT_SIZE = b"\x18\0P\0\0\0\0\0"
_LOWEST_FD = 10
#: The line that replaces the middle of a log. Its length is the same for every number of bytes.
_GAP = "\n--- {:20,} bytes of output were left out here (start --log-limit)\n"


def move_fd_up(fd: int) -> int:
    """Moves an open file to a descriptor number above those that the command's redirections may use."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    os.close(fd)
    return moved


class Poller:
    """Waits on several descriptors at once and calls the handler of each that is ready."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Starts watching a descriptor. `wait` calls `handler` with the events that occur on it."""
        self._poll.register(fd, events)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stops watching a descriptor."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for at most `timeout_s` seconds, calls the handlers, and returns whether any was due."""
        wait = None if timeout_s is None else max(0, -int(-min(timeout_s, _MAX_POLL_S) * 1000 // 1))
        ready = self._poll.poll(wait)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        return bool(ready)


class LogWriter:
    """Writes the job's log, which the scheduler created. lost_bytes: the number of bytes not written.

    limit: the largest size of the log in bytes, None for any size. A log that grows larger keeps its first
    half and its end, at least a quarter of the limit.
    """

    def __init__(self, path: str | None, limit: int | None = None) -> None:
        self.lost_bytes = 0
        self.problem: str | None = None
        self._fd: int | None = None
        self._limit = limit
        self._size = 0
        self._left_out = 0
        self._line_open = False
        if path is None:
            return
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
            self._fd = move_fd_up(os.open(path, flags))
        except OSError as error:
            self.problem = f"the log {path} cannot be opened: {error.strerror}"

    def write(self, data: bytes) -> None:
        """Appends output. Never raises; counts the bytes that could not be written."""
        if self._fd is None or not data:
            return
        self._line_open = not data.endswith(b"\n")
        while data:
            try:
                written = os.write(self._fd, data)
            except OSError:
                self.lost_bytes += len(data)
                return
            self._size += written
            data = data[written:]
        if self._limit is not None and self._size > self._limit:
            try:
                self._size = self._without_middle(self._fd, self._limit)
            except OSError:
                self._limit = None

    def _without_middle(self, log: int, limit: int) -> int:
        """Moves the end of a log that exceeds `limit` to the middle of the limit; returns the log's size.

        Whoever reads the log meanwhile finds some of its end twice, but never less of it.
        """
        size = os.fstat(log).st_size
        if size <= limit:
            return size  # somebody has truncated it
        fd = os.open(f"/proc/self/fd/{log}", os.O_RDWR | os.O_CLOEXEC)  # pwrite ignores offsets with O_APPEND
        try:
            start = size - limit // 4
            start += os.pread(fd, _CHUNK, start).find(b"\n") + 1
            at = limit // 2
            gap_bytes = len(_GAP.format(0))
            self._left_out += start - at - (gap_bytes if self._left_out else 0)
            at += os.pwrite(fd, _GAP.format(self._left_out).encode(), at)
            while data := os.pread(fd, _CHUNK, start):
                at += os.pwrite(fd, data, at)
                start += len(data)
            os.ftruncate(fd, at)
        finally:
            os.close(fd)
        return at

    def write_line(self, text: str) -> None:
        """Appends a line that the runner itself writes."""
        start = "\n" if self._line_open else ""
        self.write(f"{start}{text}\n".encode("utf-8", "surrogateescape"))


class TerminalMirror:
    """Shows output on the runner's own terminal, if it has one.

    The terminal is in raw mode, is written to without blocking, and is closed on hangup.
    """

    def __init__(self, poller: Poller, on_keys: Callable[[bytes], None]) -> None:
        self.fd: int | None = None
        self._poller = poller
        self._on_keys = on_keys
        self._unsent = bytearray()
        self._saved_mode: list[int | list[bytes | int]] | None = None
        try:
            # Open the terminal again, because O_NONBLOCK on an inherited descriptor would affect every
            # process that shares it.
            fd = move_fd_up(os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return
        self.fd = fd

    def size(self) -> bytes:
        """Returns the size of the terminal in the kernel's format."""
        if self.fd is None:
            return _DEFAULT_SIZE
        try:
            size = fcntl.ioctl(self.fd, termios.TIOCGWINSZ, b"\0" * 8)
        except OSError:
            return _DEFAULT_SIZE
        return size if any(size[:4]) else _DEFAULT_SIZE

    def open(self) -> None:
        """Sets raw mode, so that every key reaches the command as a byte, and watches the terminal."""
        if self.fd is None:
            return
        try:
            mode = termios.tcgetattr(self.fd)
            self._saved_mode = list(mode)
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
        self._poller.watch(self.fd, select.POLLIN, self._ready)

    def write(self, data: bytes) -> None:
        """Shows output, or drops it if the terminal does not accept it."""
        if self.fd is None or len(self._unsent) + len(data) > _MIRROR_BUFFER:
            return
        self._unsent += data
        self._flush()

    def restore(self) -> None:
        """Restores the terminal's mode."""
        if self.fd is not None and self._saved_mode is not None:
            try:
                # TCSADRAIN would block on a frozen window.
                termios.tcsetattr(self.fd, termios.TCSANOW, self._saved_mode)
            except termios.error:
                pass

    def close(self) -> None:
        """Closes the terminal and stops mirroring."""
        if self.fd is not None:
            self._poller.unwatch(self.fd)
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
            self._on_keys(keys)
        else:
            self.close()

    def _flush(self) -> None:
        assert self.fd is not None
        if not _send(self.fd, self._unsent):
            self.close()
            return
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poller.watch(self.fd, wanted, self._ready)


class Output:
    """The command's output: a pipe, or a pseudo-terminal that the runner creates."""

    def __init__(self, poller: Poller, log: LogWriter, terminal: bool) -> None:
        self._poller = poller
        self._log = log
        self._pending_keys = bytearray()
        self.mirror: TerminalMirror | None = None
        self.ended = False
        if terminal:
            master, slave = os.openpty()
            self._fd, self.command_fd = move_fd_up(master), move_fd_up(slave)
            self.terminal_name: str | None = os.ttyname(self.command_fd)
            self.mirror = TerminalMirror(poller, self._queue_keys)
            _make_byte_exact(self.command_fd)
            self.resize()
        else:
            reader, writer = os.pipe()
            self._fd, self.command_fd = move_fd_up(reader), move_fd_up(writer)
            self.terminal_name = None
        os.set_blocking(self._fd, False)

    def start(self) -> None:
        """Starts copying. Closes the runner's copy of the pipe end to which the command writes."""
        self._poller.watch(self._fd, select.POLLIN, self._ready)
        if self.terminal_name is None:
            os.close(self.command_fd)
            self.command_fd = -1
        if self.mirror is not None:
            self.mirror.open()

    def resize(self) -> None:
        """Gives the command's terminal the size of the window."""
        if self.mirror is not None:
            try:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, self.mirror.size())
            except OSError:
                pass

    def close_command_end(self) -> None:
        """Closes the runner's copy of the command's end, so that the end of the output can be recognised.

        Call this after the command has ended. If the copy were closed earlier and the command closed its own
        output, every poll would return at once.
        """
        if self.command_fd >= 0:
            os.close(self.command_fd)
            self.command_fd = -1

    def _queue_keys(self, keys: bytes) -> None:
        if len(self._pending_keys) + len(keys) <= _KEYS_BUFFER:
            self._pending_keys += keys
        self._send_keys()

    def _send_keys(self) -> None:
        if not _send(self._fd, self._pending_keys):
            self._pending_keys.clear()
        if not self.ended:
            wanted = select.POLLIN | (select.POLLOUT if self._pending_keys else 0)
            self._poller.watch(self._fd, wanted, self._ready)

    def _ready(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send_keys()
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
            self._poller.unwatch(self._fd)
            return
        self._log.write(data)
        if self.mirror is not None:
            self.mirror.write(data)


def _send(fd: int, data: bytearray) -> bool:
    """Writes what a file accepts without blocking, and removes it from `data`; returns False on an error."""
    try:
        del data[: os.write(fd, data)]
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def _make_byte_exact(terminal: int) -> None:
    """Disables Ctrl-S and output processing, so that the log contains exactly what the command wrote."""
    mode = termios.tcgetattr(terminal)
    mode[0] &= ~termios.IXON
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
