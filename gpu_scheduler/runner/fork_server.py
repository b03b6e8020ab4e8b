"""The fork server: a process that has the runner's modules loaded and forks a runner for each request.

The server writes READY to descriptor 1 when it can fork. A request on descriptor 0 consists of a token, the
absolute path of a folder and a null byte. The answer on descriptor 1 is the byte FORKED, or the byte REFUSED
followed by the errno as a byte. The server exits at the end of its input; its runners keep running.

For a forked process, /proc shows the environment and arguments of its parent, and `setenv` does not change
that. The fork server is therefore started with placeholders for a token and a path. A new runner first
overwrites them with its own token and path, so that a sweep can find it like any other runner.
"""

from __future__ import annotations

import gc
import os
import sys

from .folder import START, TOKEN, close_inherited, read_proc, stat_fields
from .termination import CHLD, block_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

#: The answers of the fork server, one byte each. An errno follows REFUSED.
READY, FORKED, REFUSED = b"!", b"+", b"-"
#: The two placeholders with which the fork server is started: the token in its environment, and the number of
#: bytes for a command line in its arguments. The kernel shows at most one page (4096 bytes) of a replaced
#: command line.
NO_TOKEN = "-" * 32
TITLE_BYTES = 4096


def main() -> None:
    """Answers requests until the end of the input, then exits."""
    # Loaded here so that the runners need not load them.
    import _ctypes  # noqa: F401
    import resource  # noqa: F401

    from . import leftovers, supervise, watch  # noqa: F401

    block_signals()  # so that a runner loses no signal that it gets right after its fork
    os.chdir("/")
    close_inherited()
    # Make the kernel collect ended runners. Each runner restores the default before it has children.
    _signal.signal(CHLD, _signal.SIG_IGN)
    room = ProcessTitle()
    room.set_title([sys.executable, "-I", "-S", START, "--forks"])
    gc.collect()
    gc.freeze()
    os.write(1, READY)
    rest = b""
    while data := os.read(0, 1 << 16):
        *requests, rest = (rest + data).split(b"\0")
        for request in requests:
            os.write(1, _fork(room, request))
    os._exit(0)


def _fork(process_title: ProcessTitle, request: bytes) -> bytes:
    token, path = request[: len(NO_TOKEN)].decode("ascii"), os.fsdecode(request[len(NO_TOKEN) :])
    try:
        pid = os.fork()
    except OSError as error:
        return REFUSED + bytes([error.errno or 0])
    if pid:
        return FORKED
    try:
        _become_runner(process_title, token, path)
    finally:
        os._exit(70)


def _become_runner(process_title: ProcessTitle, token: str, path: str) -> None:
    os.dup2(2, 0)
    os.dup2(2, 1)
    os.setsid()
    _signal.signal(CHLD, _signal.SIG_DFL)
    sys.orig_argv = command = [sys.executable, "-I", "-S", START, path]
    os.environ[TOKEN] = token
    try:
        process_title.set_token(token)
        process_title.set_title(command)
    except OSError:
        os.execve(sys.executable, command, os.environ)
    from . import supervise

    supervise.main(path)


class ProcessTitle:
    """The memory from which /proc reads the environment and the arguments of this process.

    Raises OSError if this memory cannot be found or written.
    """

    def __init__(self) -> None:
        fields = stat_fields(read_proc("self", "stat"))
        self._arguments, arguments_end, environment = (int(fields[n]) for n in (45, 46, 47))
        self._size = arguments_end - self._arguments
        mark = f"{TOKEN}={NO_TOKEN}\0".encode("ascii")
        at = read_proc("self", "environ").find(mark)
        if at < 0 or self._size < TITLE_BYTES:
            raise OSError("the environment or the arguments are too short to be replaced by a runner's")
        self._token = environment + at + len(TOKEN) + 1
        self.set_token("0" * len(NO_TOKEN))
        if mark in read_proc("self", "environ"):
            raise OSError("the environment cannot be written")
        self.set_token(NO_TOKEN)

    def set_token(self, token: str) -> None:
        """Sets the token that /proc shows in the environment of this process."""
        self._write({self._token: token.encode("ascii")})

    def set_title(self, command: list[str]) -> None:
        """Sets the command line that /proc shows for this process, cut to the available space."""
        shown = os.fsencode(" ".join(command))[: self._size - 2] + b"\0"
        # If the last byte of the arguments is not null, the kernel shows them as one string that ends at the
        # first null byte.
        self._write({self._arguments: shown, self._arguments + self._size - 1: b"."})

    def _write(self, texts: dict[int, bytes]) -> None:
        memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for address, text in texts.items():
                os.pwrite(memory, text, address)
        finally:
            os.close(memory)
