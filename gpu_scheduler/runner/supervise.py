"""The runner: claims an attempt, starts its command once or watches its process, and publishes the result.

The order of these steps is part of the protocol. Only the runner supervises the attempt's processes, and it
uses nothing but the attempt folder. Modules that are slow to import are imported after the command has
started.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod

from . import folder as files
from .child import Child
from .locks import LockFileError, Refusal, Wanted, claim_gpus, release
from .output import LogWriter, Output, Poller
from .shortage import OomCounter, start_error
from .termination import (
    CHLD,
    KILL,
    STOP_SIGNALS,
    TERM,
    USR1,
    WINCH,
    PendingSignals,
    StopFiles,
    Termination,
    block_signals,
    describe_outcome,
    unblock_signals,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .leftovers import Leftovers
    from .watch import Descendants, WatchedProcess

#: Seconds for which a runner tries to claim its attempt during a shortage of processes, memory or open files,
#: and seconds between two tries. The loop launches the attempt again after about the same time.
_CLAIM_RETRY_S, _CLAIM_RETRY_EVERY_S = 10.0, 0.1
#: When a machine shuts down, the command and the runner receive SIGTERM one after the other, at most this
#: many seconds apart.
_MACHINE_GAP_S = 0.3
#: Number of processes that a command needs in order to start and to activate its environment.
_PROCESSES_NEEDED = 2
_QUIET_S = 0.02
_DRAIN_S = 0.2
#: A command that exits 0 within this many seconds, but leaves processes, has left its work to them.
_AT_ONCE_S = 10.0
#: Seconds between two looks for the processes that the command left. Most ends wake the runner anyway.
_LOOK_AGAIN_S = 1.0
#: Seconds between two looks for `stop` where other machines write it and nothing signals the runner.
_LOOK_FOR_STOP_S = 2.0
#: The code of a failure to use the lock file of a GPU.
CLAIM_FAILURE = "gpu_claim"
#: Number of command lines that the result and the log name, and the exit code after SIGPIPE in a shell.
_MAX_NAMES, _CLOSED_PIPE = 3, 128 + 13


def main(path: str) -> None:
    """Runs the attempt in this folder; never returns."""
    block_signals()
    os.umask(0o077)
    try:
        attempt = _claim_with_retries(path)
        status = 0
        if isinstance(attempt, AttemptSupervisor):
            attempt.run()
        else:
            status = attempt
    except BaseException:  # noqa: BLE001 - any fault of the runner must leave a trace
        files.write_traceback(path)
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
    spec = files.load_spec(folder)
    if not isinstance(spec, dict):
        return 1
    if spec["engine"] is not None:
        spec["boot_id"] = files.boot_id()  # the engine has chosen this machine
    elif spec["boot_id"] != files.boot_id():
        return 1
    if os.environ.get(files.TOKEN) != spec["token"]:
        # Somebody started this runner by hand. A sweep must find it too, but /proc shows only variables that
        # were passed to exec.
        os.execve(sys.executable, sys.orig_argv, {**os.environ, files.TOKEN: spec["token"]})
    files.set_mark(spec["token"])
    attempt = WatchSupervisor(folder, spec) if spec["watch"] else CommandSupervisor(path, folder, spec)
    return attempt if attempt.claim() else 0


class AttemptSupervisor(ABC):
    """Supervises the processes of one attempt, from the claim to the result.

    Its subclasses supervise a command, or a process that was started elsewhere.
    """

    def __init__(
        self, folder: int, spec: dict[str, Any], poller: Poller, log: LogWriter, child: Child | WatchedProcess
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._poller = poller
        self._log = log
        self._child = child
        self._termination = Termination()
        #: Whether an engine has started this runner, through a guard, in a folder that machines share.
        self._on_engine = spec["engine"] is not None
        #: Distinguishes this runner from those of the same attempt on other machines; "" without an engine.
        self._nonce = os.urandom(16).hex() if self._on_engine else ""
        self._look_at = 0.0
        self._stops = StopFiles(folder, spec["token"], self._termination, self._on_engine)
        self._signals = PendingSignals()
        self._output = Output(poller, log, spec["terminal"])
        #: The descriptors through which this process holds the claims on GPUs.
        self._gpu_claims: list[int] = []
        #: The GPU that another program claimed first, and one pid of that program; None if unknown.
        self._claimed_gpu: str | None = None
        self._claimed_by: int | None = None
        self._result = files.ResultWriter(folder, self._nonce)
        self._oom = OomCounter()
        self._cause: str | None = None
        self._survivors: list[int] = []
        #: The processes that the ended command has left, while they have time to end by themselves.
        self._rest: Leftovers | None = None
        self._rest_until = 0.0
        #: Whether these processes do the work of the job, so that requests to stop it concern them.
        self._rest_works = False
        self._left: tuple[str, ...] = ()
        #: The container client that got SIGKILL; "" if none did.
        self._killed_client = ""
        self._lock: int | None = None

    @abstractmethod
    def _begin(self) -> bool:
        """Begins to supervise; returns False if there is nothing to supervise."""

    @abstractmethod
    def _shut_down(self) -> None:
        """Reacts to the shutdown of the machine or the session."""

    @abstractmethod
    def _find_leftovers(self, since: float) -> Leftovers | Descendants | None:
        """Returns the processes that were left running, with time from `since`; None if there are none."""

    def claim(self) -> bool:
        """Claims the attempt; returns whether that succeeded. If it did not, removes the reserved file."""
        spec = self._spec
        session = (os.environ.get("STY") or spec["session"]) if spec["terminal"] else None
        identity = {
            "token": spec["token"],
            "pid": os.getpid(),
            "start_ticks": files.start_ticks(),
            "boot_id": spec["boot_id"],
            "session": session,
            "log": spec["log"],
            **({"host": os.uname().nodename, "nonce": self._nonce} if self._on_engine else {}),
        }
        try:
            self._lock = files.claim(self._folder, identity)
        finally:
            if self._lock is None:
                self._result.discard()
        return self._lock is not None

    def _claim_gpus(self) -> bool:
        """Claims all GPUs or none; returns whether that succeeded. After a failure, the child has the reason.

        Until they are released, this process must not open the lock files: closing one would end its claim.
        """
        claims = self._spec["gpu_claims"]
        if claims is None:
            return True
        wanted = [Wanted(one["name"], one["mib"], one["total_mib"]) for one in claims["gpus"]]
        try:
            answer = claim_gpus(claims["folder"], wanted)
        except OSError as error:
            problem = error.strerror
            if not isinstance(error, LockFileError):
                problem = f"cannot be used: {error.strerror}; `doctor` checks its folder"
            self._child.fail(f"the lock file {error.filename} {problem}", CLAIM_FAILURE, error.errno)
            return False
        if isinstance(answer, Refusal):
            self._claimed_gpu, self._claimed_by = answer.name, answer.pid or None
            by = f"process {answer.pid}" if answer.pid else "another program"
            self._child.fail(f"{answer.name} was claimed by {by} first")
            return False
        self._gpu_claims = answer
        return True

    def run(self) -> None:
        """Supervises the processes until they have ended, and publishes the result."""
        if self._begin():
            self._supervise()
            self._wind_down()
        # Released first, because after the result the loop takes the claims for those of another program.
        release(self._gpu_claims)
        self._publish()

    def _supervise(self) -> None:
        self._output.start()
        self._poller.watch(self._signals.fd, 1, self._signals.drain_wakeup)
        if self._on_engine:
            self._poller.watch(0, 0, self._lose_guard)  # poll reports a hangup although it is not asked to
        unblock_signals()
        if self._child.running:
            self._child.reap()
            self._check_stop_file()
        timeout = self._spec["timeout_s"]
        limit = None if timeout is None else self._child.spawned + timeout
        while self._child.running or self._waits_for_rest():
            now = time.monotonic()
            if limit is not None and now >= limit:
                limit = None
                if self._runs:
                    self._terminate("timed_out", self._spec["term_grace_s"], "kill")
            look_again_s = self._child.check_shells()
            due = self._termination.due(now)
            if due == "kill" and not self._child.running:
                break
            if due == "kill":
                self._killed_client = self._killed_client or _container_client()
                self._child.signal_group(KILL)
            elif due == "withdraw":
                self._withdraw()
            waits = [end - now for end in (limit, self._termination.deadline) if end is not None]
            if self._rest is not None:
                waits.append(min(self._rest_until - now, _LOOK_AGAIN_S))
            if look_again_s is not None:
                waits.append(look_again_s)
            if self._on_engine and self._runs:
                waits.append(max(0.0, self._look_at - now))
            self._poller.wait(min(waits, default=None))
            self._handle_signals()

    @property
    def _runs(self) -> bool:
        """Whether the command runs, or processes that it has left do its work."""
        return self._child.running or self._rest_works

    def _waits_for_rest(self) -> bool:
        """Returns whether the processes that the ended command left still have time to end by themselves."""
        child, background = self._child, self._spec["background"]
        if self._rest is None:
            wait_s = self._spec["leftover_wait_s"]
            if not wait_s or self._termination.cause is not None:
                return False
            # An adopted process has none before it is stopped.
            self._rest = self._find_leftovers(child.ended)  # type: ignore[assignment]
            at_once = child.exit_code == 0 and child.ended - child.spawned < _AT_ONCE_S
            self._rest_works = background == "wait" or (at_once and background is None)
            self._rest_until = float("inf") if background == "wait" else child.ended + wait_s
            self._output.close_command_end()
        if self._rest is None or not self._rest.any_left():
            return False
        if not self._rest_works and self._signals.has(USR1, TERM):
            return False
        if time.monotonic() < self._rest_until:
            return True
        self._left = self._rest.command_lines() if background is None else ()
        return False

    def _handle_signals(self) -> None:
        if self._signals.take(CHLD):
            self._child.reap()
        if self._signals.take(WINCH):
            self._output.resize()
        # If the command has ended by itself and left no work, its own result counts, even if a signal arrives
        # at the same time.
        if self._runs and self._may_find_stop():
            self._check_stop_file()
        if self._runs and self._signals.take(TERM):
            # A scheduler that cannot identify the runner writes `stop` and signals all processes. Read `stop`
            # first, because its cause outranks a machine shutdown.
            self._check_stop_file()
            self._shut_down()

    def _may_find_stop(self) -> bool:
        """Returns whether to look for `stop`: after a signal of its writer, or after a while on an engine."""
        if self._signals.take(USR1):
            return True
        now = time.monotonic()
        if not self._on_engine or now < self._look_at:
            return False
        self._look_at = now + files.scaled(_LOOK_FOR_STOP_S)
        return True

    def _lose_guard(self, _events: int) -> None:
        """Kills the command, because others believe that it has ended once its guard is gone."""
        self._poller.unwatch(0)
        self._termination.expire(time.monotonic())
        self._look_at = float("inf")  # a request could prolong the grace period again

    def _check_stop_file(self) -> None:
        stop = self._stops.read()
        if stop is not None:
            self._obey(stop)

    def _obey(self, stop: dict[str, Any]) -> None:
        self._terminate(stop["cause"], stop["grace_s"], stop["follow"], stop["id"], stop["signal"])

    def _terminate(
        self, cause: str, grace_s: float, on_timeout: str, request_id: str = "", signal: str = "TERM"
    ) -> None:
        name = signal if signal in STOP_SIGNALS else "TERM"
        if self._termination.request(cause, grace_s, on_timeout, time.monotonic(), request_id, name):
            self._child.ask_to_end(STOP_SIGNALS[name])
            if self._rest is not None:
                self._rest.signal(STOP_SIGNALS[name])

    def _withdraw(self) -> None:
        """Withdraws the request in the file `stop`. If a cancel has replaced it, obeys the cancel.

        A newer preemption, if its grace may end in a withdrawal too, is withdrawn together with the older
        one, because the command has not ended within the grace of that one.
        """
        taken = self._stops.withdraw()
        is_obeyed = taken is not None and taken["follow"] != "withdraw"
        self._termination.withdraw("" if taken is None or is_obeyed else taken["id"])
        if taken is not None and is_obeyed:
            self._obey(taken)
        if self._termination.cause is None:
            self._child.continue_shells()

    def _wind_down(self) -> None:
        """Reads the last output, ends leftover processes, and waits briefly for SIGTERM from a shutdown."""
        child = self._child
        self._cause = self._termination.cause
        self._output.close_command_end()
        self._drain()
        # When a machine shuts down, SIGTERM reaches the command and the runner one after the other.
        machine_until = child.ended + _MACHINE_GAP_S
        since = child.ended if self._rest is None or self._cause is not None else time.monotonic()
        may_be_machine = child.exit_code != 0 or self._on_engine
        machine_may_come = may_be_machine and self._cause is None and since < machine_until
        rest = self._find_leftovers(since)
        while True:
            now = time.monotonic()
            if machine_may_come and self._signals.take(TERM):
                self._cause, machine_may_come = "machine", False
            if self._signals.take(CHLD):
                child.reap()
            self._tighten(rest)
            machine_may_come = machine_may_come and now < machine_until
            look_again_s = None if rest is None else rest.step(now)
            waits = [] if look_again_s is None else [look_again_s]
            if machine_may_come:
                waits.append(machine_until - now)
            if not waits:
                break
            self._poller.wait(min(waits))
        if rest is not None:
            self._survivors = rest.survivors
            self._killed_client = self._killed_client or rest.killed_client
            self._drain()
        if self._spec["background"] == "wait" and self._rest is not None:
            child.ended = time.monotonic()
            if child.exit_code == 0 and child.other_failure is not None:
                child.exit_code, child.signal = child.other_failure
        success_counts = not self._on_engine and not self._is_unfinished
        if self._cause == "machine" and child.exit_code == 0 and success_counts:
            # The command succeeded in spite of SIGTERM, so it was not interrupted. On an engine, SIGTERM also
            # asks commands to save their work in the middle, so that nobody knows whether it had finished.
            self._cause = None

    @property
    def _is_unfinished(self) -> bool:
        """Whether the command exited 0 at once and its work was still running when its time was over."""
        by_rest = self._rest_works and self._spec["background"] is None
        return by_rest and (bool(self._left) or self._cause is not None)

    def _tighten(self, rest: Leftovers | Descendants | None) -> None:
        """Gives the processes of a command that was asked to end the rest of its grace period."""
        if self._cause is None:
            return
        if self._may_find_stop():
            self._check_stop_file()
            self._cause = self._termination.cause or self._cause
        if rest is not None and self._termination.deadline is not None:
            rest.kill_at(self._termination.deadline)

    def _drain(self) -> None:
        end = time.monotonic() + _DRAIN_S
        while not self._output.ended and time.monotonic() < end:
            if not self._poller.wait(_QUIET_S):
                return

    def _shortage(self) -> int | None:
        """Returns the errno of the shortage that prevented the command from beginning; None if none did.

        A shell that cannot fork does not report the errno. This method then starts processes to find out.
        """
        child = self._child
        not_tried = self._cause is not None or not child.spawned
        if child.began or not_tried or child.shortage is not None:
            return child.shortage
        number = start_error(_PROCESSES_NEEDED)
        if number is not None:
            detail = f" ({child.message})" if child.message else ""
            child.fail(f"no process could be started: {os.strerror(number)}{detail}", number=number)
        return child.shortage

    def _publish(self) -> None:
        child = self._child
        shortage = self._shortage()
        message = child.message or self._log.problem
        if self._killed_client and not child.message:
            message = (
                f"{self._killed_client} had to be killed, which does not reach its container:"
                f" `{self._killed_client} ps` shows whether it still runs"
            )
        duration_s = child.ended - child.spawned
        ended_ago_s = time.monotonic() - child.ended if child.ended else 0.0
        verdict = "unfinished" if self._is_unfinished else None
        if self._spec["ends_in_pipe"] and child.exit_code == _CLOSED_PIPE:
            verdict = "closed_pipe"
        text = describe_outcome(self._cause, child.began, child.exit_code, child.signal, verdict)
        names = self._left[:_MAX_NAMES]
        if self._left:
            text += f"; left {len(self._left)} running, now ended: {'; '.join(names)}"
        text += f"; {message}" if self._killed_client else ""
        count = self._log.lost_bytes
        lost = f", {count} byte{'' if count == 1 else 's'} of output lost" if count else ""
        left = f", still running: {' '.join(map(str, self._survivors))}" if self._survivors else ""
        if child.message and child.exit_code is None and child.signal is None:
            self._log.write_line(child.message)  # command.sh has already written the message
        self._log.write_line(f"--- {text}, after {duration_s:.1f} s{lost}{left}")
        self._result.publish(
            {
                "token": self._spec["token"],
                "cause": self._cause,
                "exit_code": child.exit_code,
                "signal": child.signal,
                "began": child.began,
                "survivors": self._survivors,
                "started_at": child.started_at,
                "ended_at": time.time() - ended_ago_s,
                "lost_bytes": self._log.lost_bytes,
                "oom_kills": self._oom.kills(),
                "shortage": shortage,
                "message": message,
                "failure": child.failure,
                "claimed_gpu": self._claimed_gpu,
                "claimed_by": self._claimed_by,
                "watched": self._spec["watch"] is not None,
                **({"left": names, "left_count": len(self._left)} if self._left else {}),
                **({"verdict": verdict} if verdict else {}),
            }
        )
        if self._output.mirror is not None:
            self._output.mirror.restore()


class CommandSupervisor(AttemptSupervisor):
    """Supervises one attempt that runs a command, from the claim to the result."""

    def __init__(self, path: str, folder: int, spec: dict[str, Any]) -> None:
        poller = Poller()
        log = LogWriter(spec["log"], spec["log_limit"])
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
            _load_late_modules()
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


def _load_late_modules() -> None:
    """Imports what the end of the command will need, before a newer version can replace the files."""
    try:
        from . import group_signals, leftovers  # noqa: F401
    except (ImportError, OSError):
        pass  # out of file descriptors or memory; imported again when they are needed


def _container_client() -> str:
    """Returns the name of a container client below this process; "" if there is none or it is unknown."""
    try:
        from . import process_scan
    except (ImportError, OSError):
        return ""  # out of file descriptors or memory
    return process_scan.container_client()
