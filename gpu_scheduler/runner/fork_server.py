"""The fork server: a process that has the runner's modules loaded and forks a runner for each request.

A request on descriptor 0 is a token and the absolute path of a folder, ended by a null byte. The answer on
descriptor 1, after READY, is the byte FORKED, or REFUSED and the errno as a byte. The process ends at the end
of its input; its runners keep running.

/proc shows a forked process with the environment and the arguments of its parent, whatever `setenv` changes.
The fork server is therefore started with room for a token in its environment and for a path in its arguments,
and a runner first writes its own there, so that a sweep finds it like any other.
"""

from __future__ import annotations

import _ctypes  # noqa: F401 - loaded here for the runners, like `leftovers`
import gc
import os
import sys

from . import leftovers, pending_signals, supervise  # noqa: F401
from .folder import START, TOKEN, close_inherited, read_proc, stat_fields
from .fork_protocol import FORKED, NO_TOKEN, READY, REFUSED, TITLE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal


def main() -> None:
    """Serves requests until the end of descriptor 0; never returns."""
    os.chdir("/")
    close_inherited()
    # The kernel collects the runners. Each of them restores the default before it has children.
    _signal.signal(pending_signals.CHLD, _signal.SIG_IGN)
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
    _signal.signal(pending_signals.CHLD, _signal.SIG_DFL)
    sys.orig_argv = command = [sys.executable, "-I", "-S", START, path]
    os.environ[TOKEN] = token
    try:
        process_title.set_token(token)
        process_title.set_title(command)
    except OSError:
        os.execve(sys.executable, command, os.environ)
    supervise.main(path)


class ProcessTitle:
    """The memory of this process from which /proc reads its environment and its arguments.

    Raises OSError if it cannot be found or written.
    """

    def __init__(self) -> None:
        fields = stat_fields(read_proc("self", "stat"))
        self._arguments, arguments_end, environment = (int(fields[n]) for n in (45, 46, 47))
        self._size = arguments_end - self._arguments
        mark = f"{TOKEN}={NO_TOKEN}\0".encode("ascii")
        at = read_proc("self", "environ").find(mark)
        if at < 0 or self._size < TITLE_BYTES:
            raise OSError("no room for a token")
        self._token = environment + at + len(TOKEN) + 1
        self.set_token("0" * len(NO_TOKEN))
        if mark in read_proc("self", "environ"):
            raise OSError("the environment cannot be written")
        self.set_token(NO_TOKEN)

    def set_token(self, token: str) -> None:
        """Sets the token that /proc shows in the environment."""
        self._write({self._token: token.encode("ascii")})

    def set_title(self, command: list[str]) -> None:
        """Sets the command line that /proc shows, cut to the available room."""
        shown = os.fsencode(" ".join(command))[: self._size - 2] + b"\0"
        # A last byte other than null makes the kernel show one string up to its null byte.
        self._write({self._arguments: shown, self._arguments + self._size - 1: b"."})

    def _write(self, texts: dict[int, bytes]) -> None:
        memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for address, text in texts.items():
                os.pwrite(memory, text, address)
        finally:
            os.close(memory)
