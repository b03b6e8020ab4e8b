"""Installs, shows, restarts and removes the unit of a scheduler, or its line in the crontab.

Each change leaves the old or the new state: if a program fails, the files and settings from before come back.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.sessions import SYSTEMD_RUNTIME, read_settings
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.system.run_program import ProgramResult, run_program
from gpu_scheduler.system.safe_file import name_of_user, replace_file
from gpu_scheduler.unit.unit_file import Unit, read_unit, unit_name, unit_text, variables_text, with_cron_line

#: Where the units of the system are.
SYSTEM_FOLDER = Path("/etc/systemd/system")
#: Seconds for an answer of systemd, and for a start or stop, which may take TimeoutStopSec.
_ANSWER_S, _CHANGE_S = 10.0, 60.0
_LOG_LINES = 10


class Installed(Struct, frozen=True):
    """The result of `install`. has_changed: whether anything was written. user: who runs `install`.

    lingers: whether the user's manager starts at boot; None for a unit of the system. linger_problem: why it
    could not be switched on.
    """

    unit: Unit
    has_changed: bool
    user: str
    lingers: bool | None
    linger_problem: str = ""


class UnitState(Struct, frozen=True):
    """The state of a unit, as far as systemd says it.

    unit: None if none is installed, or if `install` has not written it. properties: those of `systemctl
    show`. lingers: None if unknown, or for a unit of the system. log: the last lines of its journal.
    """

    unit: Unit | None
    properties: Mapping[str, str]
    lingers: bool | None
    log: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        """The pid of the scheduler; 0 if it does not run."""
        return int(self.properties.get("MainPID") or 0)


class Manager:
    """The systemd manager of this user or, for the units of the system, of the machine.

    Raises SchedulerError if systemd does not run here.
    """

    def __init__(self, *, is_system: bool) -> None:
        self.is_system = is_system
        named = os.environ.get("XDG_CONFIG_HOME", "")
        home = named if os.path.isabs(named) else os.path.expanduser("~/.config")
        self.folder = SYSTEM_FOLDER if is_system else Path(home, "systemd", "user")
        self._env = dict(os.environ)
        runtime = f"/run/user/{os.geteuid()}"
        if "XDG_RUNTIME_DIR" not in self._env and os.path.isdir(runtime):  # shells of su and sudo lack it
            self._env["XDG_RUNTIME_DIR"] = runtime

    def files(self, name: str) -> tuple[Path, Path]:
        """Returns the paths of a unit and of its variables."""
        return self.folder / name, self.folder / f"{name.removesuffix('.service')}.env"

    def text(self, name: str) -> str | None:
        """Returns the text of an installed unit; None if there is none."""
        try:
            return self.files(name)[0].read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SchedulerError(f"cannot read {self.files(name)[0]}: {error.strerror}") from None

    def read(self, name: str) -> Unit | None:
        """Returns the installed unit; None if there is none, or if `install` has not written it."""
        return read_unit(self.text(name) or "")

    def call(self, *words: str, timeout_s: float = 0.0) -> ProgramResult:
        """Runs systemctl. timeout_s: 0 for that of an answer."""
        argv = ["systemctl", *([] if self.is_system else ["--user"]), *words]
        return run_program(argv, self._env, timeout_s or _ANSWER_S)

    def change(self, *words: str) -> None:
        """Runs systemctl. Raises SchedulerError with the remedy if it fails."""
        done = self.call(*words, timeout_s=_CHANGE_S)
        if done.succeeded:
            return
        remedy = "`systemctl status` may say more"
        if "connect to" in done.output and "bus" in done.output:
            remedy = (
                "this shell has no user manager (shells of su and sudo have none): log in as"
                f" {user_name()}, or run `sudo loginctl enable-linger {user_name()}`, and try again"
            )
        raise SchedulerError(f"`systemctl {' '.join(words)}` failed: {done.failure_reason()}; {remedy}")

    def state(self, name: str) -> UnitState:
        """Returns the state of a unit."""
        wanted = (
            "LoadState,UnitFileState,ActiveState,MainPID,ActiveEnterTimestamp,ExecMainStatus,ExecMainCode"
        )
        shown = self.call("show", name, f"--property={wanted}")
        pairs = (line.split("=", 1) for line in shown.output.splitlines() if "=" in line)
        argv = ["journalctl", *(["-u"] if self.is_system else ["--user", "-u"]), name]
        log = run_program([*argv, "-n", str(_LOG_LINES), "-o", "cat", "--no-pager", "-q"], self._env)
        lines = tuple(log.output.splitlines()) if log.succeeded else ()
        return UnitState(self.read(name), dict(pairs) if shown.succeeded else {}, self._lingers(), lines)

    def _lingers(self) -> bool | None:
        settings = None if self.is_system else read_settings(user_name())
        return None if settings is None or isinstance(settings, str) else settings.lingers


def user_name() -> str:
    """Returns the name of this process's user, whatever the variables say."""
    return name_of_user(os.geteuid())


def check_as(user: str, argv: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Runs a command that checks options as another user. Returns False, without a check, for this user.

    Raises UsageError with its output if it fails.
    """
    account = account_of(user)
    if account.pw_uid == os.geteuid():
        return False
    env = {**os.environ, **variables, "HOME": account.pw_dir, "USER": user, "LOGNAME": user}
    done = run_program(["runuser", "-u", user, "--", *argv], env, _CHANGE_S)
    if not done.succeeded:
        raise UsageError(f"as {user}: {done.output.strip() or done.failure_reason()}")
    return True


def account_of(user: str) -> pwd.struct_passwd:
    """Returns an account. Raises UsageError if there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"--user {user}: there is no such account") from None


def outside_pid(lock: Path, state_file: str, *, is_system: bool) -> int | None:
    """Returns the pid of a scheduler that runs without the unit; None if there is none. lock: its lock."""
    pid = scheduler_pid(lock)
    return None if pid == Manager(is_system=is_system).state(unit_name(state_file)).pid else pid


def has_systemd() -> bool:
    """Returns whether systemd manages this machine."""
    return SYSTEMD_RUNTIME.exists()


@contextmanager
def _written(files: Mapping[Path, str | None]) -> Iterator[None]:
    """Writes files, or removes those with None, and brings back what was there if the block raises."""
    old: dict[Path, bytes | None] = {}
    for path in files:
        try:
            old[path] = path.read_bytes()
        except FileNotFoundError:
            old[path] = None
    try:
        for path, text in files.items():
            _write(path, None if text is None else text.encode("utf-8", "surrogateescape"))
        yield
    except BaseException:
        for path, data in old.items():
            with suppress(OSError):
                _write(path, data)
        raise


def _write(path: Path, data: bytes | None) -> None:
    try:
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data, synced=True)
    except OSError as error:
        raise SchedulerError(f"cannot write {path}: {error.strerror}") from None


def install(
    wanted: Unit,
    variables: Mapping[str, str],
    *,
    may_change: Callable[[str, str], bool],
    before_start: Callable[[], object] = lambda: None,
) -> Installed | None:
    """Installs, enables and starts a unit. Returns None if another one is installed and may not be changed.

    may_change: called with the old and the new text of the unit. before_start: called when only the start is
    left. Raises SchedulerError if a program fails; then all is as before.
    """
    manager, name = Manager(is_system=wanted.user is not None), wanted.name
    unit_path, variables_path = manager.files(name)
    wanted, values = replace(wanted, variables_file=str(variables_path)), variables_text(variables)
    old_text, old = manager.text(name), manager.read(name)
    has_lingered = old is not None and old.lingers
    new_text = unit_text(replace(wanted, lingers=has_lingered))
    is_same = old is not None and old_text == unit_text(
        replace(wanted, lingers=has_lingered, version=old.version)
    )
    is_same = is_same and _is_text(variables_path, values)
    if old_text is not None and not is_same and not may_change(old_text, new_text):
        return None
    before = manager.state(name)
    lingers, problem = before.lingers, ""
    if lingers is False:
        done = run_program(["loginctl", "enable-linger", user_name()], timeout_s=_ANSWER_S)
        lingers, problem = done.succeeded, "" if done.succeeded else done.failure_reason()
    wanted = replace(wanted, lingers=has_lingered or (before.lingers is False and bool(lingers)))
    is_enabled = before.properties.get("UnitFileState") == "enabled"
    if is_same and before.pid and is_enabled and wanted.lingers == has_lingered:
        return Installed(wanted, has_changed=False, user=user_name(), lingers=lingers, linger_problem=problem)
    try:
        with _written({variables_path: values, unit_path: unit_text(wanted)}):
            try:
                manager.change("daemon-reload")
                manager.change("enable", name)
                before_start()
                manager.change("restart", name)
            except BaseException:
                if not is_enabled:
                    manager.call("disable", name)
                if not before.pid:
                    manager.call("stop", name, timeout_s=_CHANGE_S)
                raise
    except BaseException:
        if wanted.lingers and not has_lingered:
            run_program(["loginctl", "disable-linger", user_name()], timeout_s=_ANSWER_S)
        manager.call("daemon-reload")
        if before.pid:
            manager.call("restart", name, timeout_s=_CHANGE_S)
        raise
    return Installed(wanted, has_changed=True, user=user_name(), lingers=lingers, linger_problem=problem)


def _is_text(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def restart(state_file: str, version: str, *, is_system: bool) -> tuple[str, str]:
    """Restarts the scheduler after an upgrade; jobs go on. Returns the version before, and the one now."""
    manager, name = Manager(is_system=is_system), unit_name(state_file)
    text, unit = manager.text(name), manager.read(name)
    if text is None or unit is None:
        raise SchedulerError(f"there is no unit for {state_file}; `service install` makes one")
    new = re.sub(r"(?m)^Version=.*$", lambda _: f"Version={version}", text)  # the rest may be edited
    with _written({manager.files(name)[0]: new}):
        manager.change("daemon-reload")
        manager.change("restart", name)
    return unit.version, version


def uninstall(state_file: str, *, is_system: bool) -> None:
    """Stops the scheduler and removes its unit; jobs go on. Raises SchedulerError if there is none."""
    manager, name = Manager(is_system=is_system), unit_name(state_file)
    unit = manager.read(name)
    if manager.text(name) is None:
        raise SchedulerError(f"there is no unit for {state_file}; --cron removes a line of the crontab")
    before = manager.state(name)
    try:
        manager.change("disable", "--now", name)
        with _written(dict.fromkeys(manager.files(name))):
            manager.change("daemon-reload")
    except BaseException:
        manager.call("daemon-reload")
        if before.properties.get("UnitFileState") == "enabled":
            manager.call("enable", name)
        if before.pid:
            manager.call("restart", name, timeout_s=_CHANGE_S)
        raise
    if unit is not None and unit.lingers and not _hands_over(manager):
        run_program(["loginctl", "disable-linger", user_name()], timeout_s=_ANSWER_S)


def _hands_over(manager: Manager) -> bool:
    """Leaves it to another unit of the user to switch lingering off. Returns False if there is no other."""
    for path in sorted(manager.folder.glob("gpu-scheduler-*.service")):
        text = manager.text(path.name) or ""
        if read_unit(text) is not None:
            _write(path, re.sub(r"(?m)^Lingers=no$", "Lingers=yes", text).encode("utf-8", "surrogateescape"))
            return True
    return False


def fit_problems(unit: Unit, version: str) -> list[str]:
    """Returns why an installed unit does not fit what is on the disk, as predicates with their subjects."""
    found = [f"{path} does not exist" for path in (unit.folder, unit.program[0]) if not os.path.exists(path)]
    scripts = [one for one in unit.program[1:] if one.startswith("/") and not os.path.exists(one)]
    found += [f"{path} does not exist" for path in scripts]
    if unit.version != version:
        found.append(f"version {unit.version} was installed and this is {version} (`service restart`)")
    return found


def _cron_table() -> str:
    """Returns the crontab, each byte of it that is not UTF-8 as a surrogate. Raises SchedulerError."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["crontab", "-l"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, env=env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SchedulerError(f"`crontab -l` failed: {error}") from None
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "surrogateescape")
    said = done.stderr.decode("utf-8", "replace").strip()
    if "no crontab" in said:
        return ""
    raise SchedulerError(f"`crontab -l` failed: {said}")


def has_cron_line(name: str) -> bool:
    """Returns whether the crontab has the line of a unit; False if there is no cron."""
    try:
        return with_cron_line(table := _cron_table(), name, None) != table
    except SchedulerError:
        return False


def change_cron(name: str, file: str, line: str | None, variables: Mapping[str, str]) -> bool:
    """Sets the line of a unit in the crontab, or removes it if it is None. Returns whether anything changed.

    name: of the unit. file: the path of its variables. Raises SchedulerError if it cannot be changed.
    """
    table, path = _cron_table(), Path(file)
    new = with_cron_line(table, name, line)
    text = None if line is None else variables_text(variables)
    if new == table and (text is None or _is_text(path, text)):
        return False
    with _written({path: text}), tempfile.NamedTemporaryFile() as made:
        made.write(new.encode("utf-8", "surrogateescape"))
        made.flush()
        done = run_program(["crontab", made.name], timeout_s=_ANSWER_S)
        if not done.succeeded:
            raise SchedulerError(f"`crontab` failed: {done.failure_reason()}")
    return True
