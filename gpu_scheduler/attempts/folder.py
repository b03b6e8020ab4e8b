"""The folder of an attempt: writes it for the launch, reads its status, and sends requests to its runner."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import read_tail
from gpu_scheduler.core.model.job import (
    AttemptResult,
    AttemptStatus,
    ClaimState,
    EngineStatus,
    RunnerIdentity,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.runner.folder import (
    OLDER_STOP,
    SHORTAGE,
    STOP_FIELDS,
    UnusableFile,
    boot_id,
    invalid_field,
    is_bool,
    is_optional_text,
    is_seconds,
    is_text,
    move_aside,
    open_file,
    open_folder,
    or_null,
    read_object,
    read_spec,
    within,
)
from gpu_scheduler.runner.process_scan import (
    RecordedCommand,
    has_terminal,
    is_running,
    read_recorded_command,
    send_signal,
)
from gpu_scheduler.store.scheduler_lock import lock_holder
from gpu_scheduler.system.safe_file import replace_file, sync

#: The executors whose attempts can be observed through their folders, even by a front end.
LOCAL_EXECUTORS = ("direct", "screen")


class AttemptRef(Struct, frozen=True):
    """Identifies one attempt to its executor.

    token: the random mark by which an executor recognises the attempt. folder: the attempt folder, which
    contains spec.json and command.sh when the attempt is launched; an executor need not use it. runner: the
    attempt's runner process, or None if it is not known. executor: the name of the attempt's executor.
    """

    job_id: int
    number: int
    token: str
    folder: Path
    runner: RunnerIdentity | None = None
    executor: str = "direct"


# Prepares an attempt's folder for the launch: writes spec.json and command.sh, each atomically.


def prepare(folder: Path, spec: Mapping[str, object], command_sh: str) -> None:
    """Makes the folder (mode 0700) with the files that a runner needs, or completes a partly made one.

    Syncs all new parent folders, so that a result survives a power failure. Raises OSError.
    """
    _make_folder(folder)
    write_file(folder, "command.sh", command_sh.encode("utf-8", "surrogateescape"))
    # Written last, so that a folder with a spec is complete.
    write_file(folder, "spec.json", _one_line_per_key(spec).encode("ascii"))


#: The files that a runner needs.
_PREPARED = ("spec.json", "command.sh")


def is_prepared(folder: Path) -> bool:
    """Returns whether the folder has all the files that a runner needs."""
    return all(stat.S_ISREG(_mode(folder / name)) for name in _PREPARED)


def is_usable(folder: Path, token: str) -> bool:
    """Returns whether the folder is complete and its spec belongs to this attempt. Raises OSError."""
    if not is_prepared(folder):
        return False
    try:
        return bool(read_spec(folder)["token"] == token)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise


def _one_line_per_key(value: Mapping[str, object]) -> str:
    """Returns a JSON object as text with one line per key.

    The `indent` of json.dumps would do this too, but it is implemented in Python and ten times slower.
    """
    encode = json.JSONEncoder().encode
    return "{\n" + ",\n".join(f"{encode(key)}: {encode(one)}" for key, one in value.items()) + "\n}\n"


def _mode(path: Path) -> int:
    """Returns the type and mode of a file, without following a link; 0 if it cannot be read."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _make_folder(folder: Path) -> None:
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
    for path in missing:
        sync(path.parent)


def write_file(folder: Path, name: str, data: bytes) -> None:
    """Writes a file of mode 0600 atomically; first renames any folder with that name. Raises OSError."""
    try:
        replace_file(folder / name, data)
    except IsADirectoryError:
        move_aside(str(folder / name))
        replace_file(folder / name, data)


def link_new(folder: Path, name: str, data: bytes) -> None:
    """Makes a file that is complete as soon as it has its name, unless something has that name.

    Raises OSError.
    """
    new = f".{name}.{secrets.token_hex(8)}"
    write_file(folder, new, data)
    try:
        with suppress(FileExistsError):
            os.link(folder / new, folder / name)
    finally:
        (folder / new).unlink()


# Parses the files of an attempt folder strictly. Each parser returns either a value or a problem.


class ClaimFile(Struct, frozen=True):
    """The contents of the file `claim`. void: whether no runner has run the attempt and none ever will.

    reason: why it is void, if its maker knew. cause: "cancelled" if others had cancelled it in its engine.
    """

    void: bool
    runner: RunnerIdentity | None = None
    session: str | None = None
    log: str | None = None
    reason: str | None = None
    cause: str | None = None


def parse_claim(value: dict[str, Any], token: str) -> ClaimFile | UnusableFile:
    """Parses the contents of the file `claim`."""
    if value.get("void") is True:
        texts = {"reason": value.get("reason"), "cause": value.get("cause")}
        problem = _problem({**value, **texts}, token, dict.fromkeys(texts, is_optional_text))
        return problem or ClaimFile(void=True, **texts)
    problem = _problem({"session": None, "log": None, **value}, token, _CLAIM)
    if problem is not None:
        return problem
    runner = RunnerIdentity(value["pid"], value["start_ticks"], value["boot_id"])
    return ClaimFile(False, runner, value.get("session"), value.get("log"))


def parse_stop(value: dict[str, Any], token: str) -> StopRequest | UnusableFile:
    """Parses the contents of the file `stop` or `withdrawn`."""
    value = {**OLDER_STOP, **value}
    problem = _problem(value, token, STOP_FIELDS)
    return problem or StopRequest(
        value["cause"], value["grace_s"], value["follow"], value["id"], value["signal"]
    )


def parse_result(value: dict[str, Any], token: str) -> AttemptResult | UnusableFile:
    """Parses the contents of the file `result`."""
    value = {**_OLDER_RESULT, **value}
    problem = _problem(value, token, _RESULT)
    if problem is not None:
        return problem
    ends = (value["exit_code"] is not None) + (value["signal"] is not None)
    # The kernel does not always tell how a process ended that the runner did not start.
    if ends > 1 or (value["began"] and ends == 0 and not value["watched"]):
        return UnusableFile("does not contain exactly one of 'exit_code' and 'signal'")
    fields = {name: value[name] for name in AttemptResult.__struct_fields__}
    if fields["message"] is not None:  # the store accepts only valid UTF-8
        fields["message"] = fields["message"].encode("utf-8", "replace").decode("utf-8")
    fields["survivors"], fields["left"] = tuple(fields["survivors"]), tuple(fields["left"] or ())
    fields["failure"] = _FAILURES.get(fields["failure"])
    return AttemptResult(**fields)


def _problem(
    value: dict[str, Any], token: str, fields: Mapping[str, Callable[[Any], bool]]
) -> UnusableFile | None:
    if value.get("token") != token:
        return UnusableFile(f"has the wrong token ({str(value.get('token'))[:8]}…)")
    return invalid_field(value, fields)


_is_pid = within(1, 2**31 - 1)

#: The known failure codes. Any other code comes from a command.sh that another version wrote.
_FAILURES: Mapping[str | None, FailureKind] = {kind.value: kind for kind in FailureKind}
_CLAIM = {
    "pid": _is_pid,
    "start_ticks": within(0, 2**63 - 1),
    "boot_id": is_text,
    "session": is_optional_text,
    "log": is_optional_text,
}
_RESULT = {
    "cause": is_optional_text,
    "exit_code": or_null(within(0, 255)),
    "signal": or_null(within(1, 127)),
    "began": is_bool,
    "message": is_optional_text,
    "survivors": lambda value: isinstance(value, list) and all(map(_is_pid, value)),
    "started_at": or_null(is_seconds),
    "ended_at": is_seconds,
    "oom_kills": or_null(within(0, 2**63 - 1)),
    "shortage": or_null(within(1, 4095)),
    "failure": is_optional_text,
    "claimed_gpu": is_optional_text,
    "claimed_by": or_null(_is_pid),
    "watched": or_null(is_bool),
    "left": or_null(lambda value: isinstance(value, list) and all(map(is_text, value))),
    "left_count": or_null(within(1, 2**31 - 1)),
    "verdict": is_optional_text,
}
#: The fields that a runner of an earlier version does not write. The last three are written only if set.
_OLDER_RESULT = dict.fromkeys((
    "oom_kills", "shortage", "failure", "claimed_gpu", "claimed_by", "watched", "left",
    "left_count", "verdict",
))  # fmt: skip


# Reads the status of an attempt from its folder.
#
# A runner is alive if it holds the lock on the claim. Readers ask the kernel which process holds the lock;
# they never take it themselves. A runner is dead if the lock is free and the process that made the claim is
# gone. A free lock alone proves nothing, because the claim in a copied folder has no lock. An unusable file
# is reported and treated as absent. If the claim is unusable, the runner recorded in the store is checked
# instead. If the store does not record a runner, the runner is unknown.


def recorded_command(folder: Path, token: str) -> RecordedCommand | None:
    """Returns the recorded command of an attempt; None if none was recorded since the machine booted.

    Raises OSError for a shortage of open files or memory.
    """
    try:
        fd = open_folder(os.fspath(folder))
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    try:
        return read_recorded_command(fd, token)
    finally:
        os.close(fd)


T = TypeVar("T")

#: Number of bytes to read from the end of `runner.err` in order to find its last line.
_ERROR_TAIL_BYTES = 4096


def observe(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> AttemptStatus:
    """Reads an attempt's status from its folder. recorded_runner: the runner in the store. Raises OSError."""
    status = _read_status(folder, token, recorded_runner)
    if status.claim != "none":
        return status
    if recorded_command(folder, token) is None:
        return replace(status, folder_complete=is_prepared(folder))
    # A runner claims the attempt before it starts the command. The claim was therefore made after the first
    # read, or somebody removed it.
    return replace(_read_status(folder, token, recorded_runner), command_began=True)


def _read_status(folder: Path, token: str, recorded_runner: RunnerIdentity | None) -> AttemptStatus:
    # Read the claim first: if its runner is dead, the other files can no longer change.
    reader = FolderReader(folder, token)
    claim, holder = reader.read_claim()
    state = _claim_state(claim, holder, recorded_runner, folder)
    result = reader.read("result", parse_result)
    stop, withdrawn = reader.read_stops()
    runner = (
        claim.runner if isinstance(claim, ClaimFile) else recorded_runner if state == "unclaimed" else None
    )
    session = claim.session if isinstance(claim, ClaimFile) else None
    anomalies = list(reader.anomalies.values())
    if result is None:
        anomalies += (
            _runner_error(folder) if state == "none" else _claim_anomalies(folder, state, claim, runner)
        )
    shows_window = state == "live" and bool(session) and result is None
    return AttemptStatus(
        claim=state,
        pid=holder or (runner.pid if runner is not None else None),
        session=session,
        stop=stop,
        withdrawn=withdrawn,
        result=result,
        log=claim.log if isinstance(claim, ClaimFile) else None,
        anomalies=tuple(anomalies),
        window_open=has_terminal(holder) if shows_window and holder else None,
        runner=runner if state == "live" and runner is not None and runner.pid == holder else None,
        damage=reader.damage(claim, state),
        folder_exists=state != "none" or stat.S_ISDIR(_mode(folder)),
    )


class FolderReader:
    """Reads the files of one attempt folder. anomalies: the problem with each unusable file, by file name.

    names: the files that it has; None if they were not listed.
    """

    def __init__(self, folder: Path, token: str, names: Collection[str] | None = None) -> None:
        self._folder = str(folder)
        self._token = token
        self._names = names
        self.anomalies: dict[str, str] = {}

    def read(self, name: str, parse: Callable[[dict[str, Any], str], T | UnusableFile]) -> T | None:
        """Returns the content of a file; None if it is absent or unusable. Raises OSError."""
        found = self._load(name, parse)[0]
        if isinstance(found, UnusableFile):
            self.anomalies[name] = f"{name} {found.text}; ignored"
            return None
        return found

    def read_claim(self) -> tuple[ClaimFile | UnusableFile | None, int | None]:
        """Returns the claim or its problem, and the pid of the process that holds the lock on the claim.

        Each of the two is None if it does not exist. Raises OSError.
        """
        return self._load("claim", parse_claim, is_locked=True)

    def read_stops(self) -> tuple[StopRequest | None, StopRequest | None]:
        """Returns the request that is in force, and the one that the runner has withdrawn. Raises OSError."""
        stop, withdrawn = self.read("stop", parse_stop), self.read("withdrawn", parse_stop)
        if stop is None and withdrawn is not None and withdrawn.on_timeout == "kill":
            # A cancel replaced the request that the runner was withdrawing. The runner therefore renamed the
            # cancel instead, but still obeys it.
            return withdrawn, None
        if stop is not None and withdrawn is not None and stop.is_repetition_of(withdrawn):
            stop = None  # written again by somebody who could not know that the runner has withdrawn it
        return stop, withdrawn if withdrawn is not None and withdrawn.on_timeout == "withdraw" else None

    def damage(self, claim: ClaimFile | UnusableFile | None, state: ClaimState) -> str | None:
        """Returns the problem with the claim or the result; None if there is none."""
        if "result" in self.anomalies:
            return f"the file {self.anomalies['result'].removesuffix('; ignored')}"
        if isinstance(claim, UnusableFile):
            return f"the file claim {claim.text}"
        return "the file claim was removed" if claim is None and state != "none" else None

    def _load(
        self, name: str, parse: Callable[[dict[str, Any], str], T | UnusableFile], *, is_locked: bool = False
    ) -> tuple[T | UnusableFile | None, int | None]:
        if self._names is not None and name not in self._names:
            return None, None
        fd = open_file(f"{self._folder}/{name}")
        if not isinstance(fd, int):
            return fd, None
        try:
            holder = lock_holder(fd) if is_locked else None
            value = read_object(fd)
            return (value if isinstance(value, UnusableFile) else parse(value, self._token)), holder
        finally:
            os.close(fd)


def _claim_state(
    claim: ClaimFile | UnusableFile | None,
    holder: int | None,
    recorded_runner: RunnerIdentity | None,
    folder: Path,
) -> ClaimState:
    if isinstance(claim, ClaimFile):
        if claim.void:
            return "void"
        if holder is not None:
            return "live"
        return "unlocked" if is_alive(claim.runner) else "dead"
    if recorded_runner is not None and (claim is not None or stat.S_ISDIR(_mode(folder))):
        return "unclaimed" if is_alive(recorded_runner) else "dead"
    return "none" if claim is None else "invalid"


def _claim_anomalies(
    folder: Path, state: ClaimState, claim: ClaimFile | UnusableFile | None, runner: RunnerIdentity | None
) -> list[str]:
    """Returns warnings about a claim that was removed, damaged or copied."""
    pid = runner.pid if runner is not None else 0
    problem = claim.text if isinstance(claim, UnusableFile) else "was removed"
    warnings: Mapping[ClaimState, str] = {
        "unlocked": f"its runner (pid {pid}) is alive but has no lock on the claim in {folder}, because the"
        " folder was copied or replaced; this scheduler does not signal the job's processes",
        "unclaimed": f"the file claim in {folder} {problem}; its runner (pid {pid}) is alive, and the job"
        " continues",
        "invalid": f"the file claim in {folder} {problem}, so its runner is unknown; the scheduler neither"
        " ends nor restarts the job while any of its processes are left; `cancel` ends them",
    }
    return [warnings[state]] if state in warnings else []


def is_alive(runner: RunnerIdentity | None) -> bool:
    """Returns whether this runner is alive. An exiting runner, which has released its lock, is not."""
    if runner is None or runner.boot_id != boot_id():
        return False
    return is_running(runner.pid, runner.start_ticks)


def _runner_error(folder: Path) -> list[str]:
    """Returns a message with the last error line of a runner that failed before it claimed the attempt."""
    try:
        lines = read_tail(str(folder / "runner.err"), _ERROR_TAIL_BYTES).strip().splitlines()
    except OSError:
        return []
    return [f"the runner failed: {lines[-1]}"] if lines else []


# Reads the status of an attempt on an engine (docs/design.md, Engines).
#
# The agent of the engine copies the runner's files into the local folder, and adds the file `engine`. It
# judges whether the runner lives. Everything that these files say stays true, however old they are.

#: The file in which the agent writes what the engine says, and those with which the loop asks it to void the
#: claim and to end the attempt in the engine.
ENGINE_FILE, GIVE_UP_FILE, KILL_FILE = "engine", "give-up", "kill"


def parse_engine(value: dict[str, Any], token: str) -> EngineStatus | UnusableFile:
    """Parses the contents of the file `engine`."""
    problem = _problem(value, token, dict.fromkeys(EngineStatus.__struct_fields__, is_text))
    return problem or EngineStatus(**{name: value[name] for name in EngineStatus.__struct_fields__})


def observe_on_engine(folder: Path, token: str) -> AttemptStatus:
    """Reads the status of an attempt on an engine from its local folder. Raises OSError."""
    try:
        # An engine may run a thousand attempts, and most of their files are missing most of the time.
        names = frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return AttemptStatus(claim="none", folder_exists=False, folder_complete=False)
    reader = FolderReader(folder, token, names)
    claim = reader.read("claim", parse_claim)
    engine = reader.read(ENGINE_FILE, parse_engine)
    result = reader.read("result", parse_result)
    stop, withdrawn = reader.read_stops()
    is_complete = names.issuperset(_PREPARED)
    state: ClaimState = "none"
    if claim is not None:
        # The runner publishes its result last of all.
        is_dead = result is not None or (engine is not None and engine.state == "dead")
        state = "void" if claim.void else "dead" if is_dead else "live"
    elif is_complete:
        state = "accepted"
    return AttemptStatus(
        claim=state, stop=stop, withdrawn=withdrawn, result=result,
        anomalies=tuple(reader.anomalies.values()), folder_complete=is_complete,
        void_reason=None if claim is None else claim.reason,
        void_cause=None if claim is None else claim.cause, engine=engine,
    )  # fmt: skip


# Sends requests to the runner of an attempt by writing to the attempt folder and sending signals.


def request_stop(
    folder: Path, token: str, stop: StopRequest, recorded_runner: RunnerIdentity | None = None
) -> bool:
    """Writes `stop` and wakes the runner; returns whether a live runner was signalled.

    recorded_runner: the runner in the store. Returns False if the folder is missing or no runner is alive.
    Raises OSError if the file cannot be written.
    """
    earlier = FolderReader(folder, token).read("stop", parse_stop)
    if stop.may_replace(earlier):
        stop = stop.combined_with(earlier)
        text = json.dumps({
            "token": token, "cause": stop.cause, "grace_s": stop.grace_s, "follow": stop.on_timeout,
            "id": stop.stop_id, "signal": stop.signal,
        })  # fmt: skip
        try:
            write_file(folder, "stop", text.encode("ascii"))
        except FileNotFoundError:
            return False
    return wake_runner(folder, token, recorded_runner)


def wake_runner(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> bool:
    """Wakes the runner so that it reads `stop`; returns whether a live runner was signalled."""
    return _signal_runner(folder, token, recorded_runner, signal.SIGUSR1)


def kill_runner(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> bool:
    """Kills the runner and no other process; returns whether a live runner was signalled."""
    return _signal_runner(folder, token, recorded_runner, signal.SIGKILL)


def void_claim(folder: Path, token: str) -> bool:
    """Claims the attempt so that it can never run; returns False if a runner has already claimed it.

    Creates the folder if it is missing.
    """
    _make_folder(folder)
    link_new(folder, "claim", json.dumps({"token": token, "void": True}).encode("ascii"))
    return observe(folder, token).claim == "void"


def _signal_runner(
    folder: Path, token: str, recorded_runner: RunnerIdentity | None, number: signal.Signals
) -> bool:
    fd = open_file(str(folder / "claim"))
    if isinstance(fd, int):
        try:
            value = read_object(fd)
            claim = value if isinstance(value, UnusableFile) else parse_claim(value, token)
            if isinstance(claim, ClaimFile):
                return _signal_holder(fd, number)
        finally:
            os.close(fd)
    return (
        is_alive(recorded_runner)
        and recorded_runner is not None
        and send_signal(recorded_runner.pid, recorded_runner.start_ticks, number)
    )


def _signal_holder(fd: int, number: signal.Signals) -> bool:
    holder = lock_holder(fd)
    if not holder:
        return False
    try:
        process = os.pidfd_open(holder)
    except OSError:
        return False
    try:
        # Check again: if the holder died before the pidfd was opened, its pid may have been reused.
        if lock_holder(fd) != holder:
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
