"""The runner: claims an attempt, starts its command once or watches its process, and publishes the result.

The order of these steps is part of the protocol. Only the runner supervises the attempt's processes, and it
uses nothing but the attempt folder. Modules that are slow to import are imported after the command has
started.
"""

from __future__ import annotations

import os
import sys
import time

from . import folder as files
from . import pending_signals
from .attempt_supervisor import AttemptSupervisor
from .child import Child
from .output import LogWriter, Poller
from .spec import invalid_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .leftovers import Leftovers
    from .watch import Descendants

pending_signals.block()

#: Seconds for which a runner tries to claim its attempt during a shortage of processes, memory or open files,
#: and seconds between two tries. The loop launches the attempt again after about the same time.
_CLAIM_RETRY_S, _CLAIM_RETRY_EVERY_S = 10.0, 0.1


def main(path: str) -> None:
    """Runs the attempt in this folder; never returns."""
    os.umask(0o077)
    try:
        attempt = _claim_with_retries(path)
        status = 0
        if isinstance(attempt, AttemptSupervisor):
            attempt.run()
        else:
            status = attempt
    except BaseException:  # noqa: BLE001 - any fault of the runner must leave a trace
        _write_traceback(path)
        status = 70
    os._exit(status)


def _claim_with_retries(path: str) -> AttemptSupervisor | int:
    """Returns the claimed attempt, or the exit status if it cannot be claimed. Retries during a shortage."""
    end = time.monotonic() + _CLAIM_RETRY_S
    while True:
        try:
            files.close_inherited()
            return _claim(path)
        except OSError as error:
            if error.errno not in files.SHORTAGE or time.monotonic() >= end:
                raise
        time.sleep(_CLAIM_RETRY_EVERY_S)


def _claim(path: str) -> AttemptSupervisor | int:
    folder = files.open_folder(path)
    if files.exists(folder, "claim"):
        return 0
    spec = files.load(folder, "spec.json")
    if not isinstance(spec, dict) or invalid_spec(spec):
        return 1
    if spec["boot_id"] != files.boot_id():
        return 1
    if os.environ.get(files.TOKEN) != spec["token"]:
        # Somebody started this runner by hand. A sweep must find it too, but /proc shows only variables that
        # were passed to exec.
        os.execve(sys.executable, sys.orig_argv, {**os.environ, files.TOKEN: spec["token"]})
    files.set_mark(spec["token"])
    attempt = _supervisor(path, folder, spec)
    return attempt if attempt.claim() else 0


def _supervisor(path: str, folder: int, spec: dict[str, Any]) -> AttemptSupervisor:
    is_command = spec.get("watch") is None
    return CommandSupervisor(path, folder, spec) if is_command else WatchSupervisor(folder, spec)


def _write_traceback(path: str) -> None:
    import traceback

    try:
        with open(os.path.join(path, "runner.err"), "a") as file:
            traceback.print_exc(file=file)
    except OSError:
        pass


class CommandSupervisor(AttemptSupervisor):
    """Supervises one attempt that runs a command, from the claim to the result."""

    def __init__(self, path: str, folder: int, spec: dict[str, Any]) -> None:
        poller = Poller()
        log = LogWriter(spec["log"], spec.get("log_limit"))
        self._command = Child(path, spec, poller)
        super().__init__(folder, spec, poller, log, self._command)

    def _begin(self) -> bool:
        """Starts the command; returns False if it must not be started."""
        stop = self._stops.read()
        if stop is not None:
            self._cause = stop["cause"]
        elif self._claim_gpus():
            self._signals.listen()
            record = files.reserve_command(self._folder, self._spec["token"], self._spec["boot_id"])
            self._command.spawn(self._output.command_fd, self._output.terminal_name, record)
            self._log.write(self._spec["header"].encode("utf-8", "surrogateescape"))
            return True
        return False

    def _shut_down(self) -> None:
        """Ends the command, because the machine or the session is shutting down."""
        self._terminate("machine", self._spec["term_grace_s"], "kill")

    def _find_leftovers(self, since: float) -> Leftovers | None:
        """Returns the processes that the ended command may have left running; None if there are none."""
        command = self._command
        if not command.may_have_left_processes:
            return None
        spec = self._spec
        try:
            from .leftovers import Leftovers
            from .process_scan import read_recorded_command

            recorded = read_recorded_command(self._folder, spec["token"])
        except (ImportError, OSError):
            return None  # out of file descriptors; the scheduler will end the attempt's processes
        asked = None if self._cause is None else command.group
        return Leftovers(spec["token"], recorded, spec["term_grace_s"], since, asked)


class WatchSupervisor(AttemptSupervisor):
    """Supervises one attempt that watches a process, from the claim to the result."""

    def __init__(self, folder: int, spec: dict[str, Any]) -> None:
        from .watch import WatchedProcess

        poller = Poller()
        self._process = WatchedProcess(spec["watch"], poller)
        # The log is the process's own file.
        super().__init__(folder, spec, poller, LogWriter(None), self._process)

    def _begin(self) -> bool:
        # The process already uses its GPUs, so it is watched even if they cannot be claimed. A `stop` that
        # exists already is read as soon as the process is watched.
        self._claim_gpus()
        self._signals.listen()
        self._process.watch()
        return True

    def _shut_down(self) -> None:
        """Ends this watcher, unless it carries out a request to stop."""
        if self._termination.cause is None:
            self._result.discard()
            os._exit(0)

    def _find_leftovers(self, since: float) -> Descendants | None:
        """Returns the descendants that a stopped process has left; None if it was not stopped."""
        from .watch import Descendants

        return Descendants(self._process) if self._termination.cause is not None else None
