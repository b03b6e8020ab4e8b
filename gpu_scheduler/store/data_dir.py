"""The paths of one state file's data directory, and the host that owns it.

Only `create` and `take_ownership` create anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from gpu_scheduler.core.text.parsing import parse_json
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import (
    FileProblem,
    ProblemKind,
    check_folder_status,
    is_shared,
    kind_of,
    name_of_user,
    read_json_bytes,
    user_state_dir,
    writable_by_others,
)

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import ActiveAttempt, Attempt


# Keeps the data directory and its content private to the user and free of links.
#
# Once the directory belongs to the user and is closed to others, nobody else can put anything into it. The
# scheduler closes the user's own folders and files to others, and rejects whatever belongs to another user.


_OTHERS_BITS = stat.S_IRWXG | stat.S_IRWXO


class ExposedPath(Struct, frozen=True):
    """A folder or file to which other users could write until now. mode: its previous permissions."""

    path: Path
    mode: int

    def __str__(self) -> str:
        return (
            f"{self.path} was writable by other users (mode {self.mode:o}) and is now private; it is unknown"
            " whether they changed it"
        )


def allowed_owners(folder: Path) -> frozenset[int]:
    """Returns the uids that may own the folder: this user's or, for root, `safe_file.trusted_owners`."""
    me = os.geteuid()
    try:
        return safe_file.trusted_owners(folder) if me == 0 else frozenset((me,))
    except OSError:
        return frozenset((me,))


def is_ours(folder: Path) -> bool:
    """Returns whether the path is a folder that belongs to this user, and not a link."""
    try:
        return check_folder_status(os.lstat(folder), allowed_owners(folder)) is None
    except OSError:
        return False


def open_folder(folder: Path) -> int:
    """Opens a folder that belongs to this user and is not a link. Returns its descriptor. Raises OSError."""
    problem = check_folder_status(os.lstat(folder), allowed_owners(folder))
    if problem is None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        problem = check_folder_status(os.fstat(fd), allowed_owners(folder))
        if problem is None:
            return fd
        os.close(fd)
    raise problem.as_error(folder)


def close_to_others(fd: int, folder: Path) -> list[ExposedPath]:
    """Removes the permissions of other users from the folder and its content.

    Returns the paths to which other users could write. If these include the folder itself, checks its whole
    tree. Raises OSError, and SchedulerError if something belongs to another user or the file system does not
    store permissions.
    """
    status = os.fstat(fd)
    found = [ExposedPath(folder, stat.S_IMODE(status.st_mode))] if writable_by_others(status) else []
    if status.st_mode & _OTHERS_BITS:
        with suppress(PermissionError):  # raised by vfat
            os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_OTHERS_BITS)
        if os.fstat(fd).st_mode & _OTHERS_BITS:
            raise SchedulerError(
                f"{folder} is open to other users and cannot be made private, because its file system"
                " does not store permissions; name a folder on another file system with --data-dir"
            )
    return [*found, *_check_entries(fd, folder, allowed_owners(folder) | {0}, deep=bool(found))]


def check_entries(folder: Path) -> None:
    """Checks the content of the folder without changing it.

    Raises OSError, and SchedulerError if the folder contains a link or a file that belongs to another user.
    """
    fd = open_folder(folder)
    try:
        for _ in _check_entries(fd, folder, allowed_owners(folder) | {0}, deep=False, change=False):
            pass
    finally:
        os.close(fd)


def _check_entries(
    fd: int, folder: Path, allowed: frozenset[int], *, deep: bool, change: bool = True
) -> Iterator[ExposedPath]:
    for name in os.listdir(fd):
        path = folder / name
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except FileNotFoundError:
            continue  # a temporary file that has been renamed
        try:
            status = os.fstat(inner)
            problem = None
            if stat.S_ISLNK(status.st_mode):
                problem = FileProblem(ProblemKind.LINK)
            elif status.st_uid not in allowed:
                problem = FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
            if problem is not None:
                raise SchedulerError(
                    f"{path} {problem.description}, which is not allowed in a data directory; remove it, or"
                    " name another folder with --data-dir"
                )
            if change and status.st_mode & _OTHERS_BITS and os.geteuid() in (0, status.st_uid):
                with suppress(PermissionError):
                    os.chmod(f"/proc/self/fd/{inner}", stat.S_IMODE(status.st_mode) & ~_OTHERS_BITS)
                if writable_by_others(status):
                    yield ExposedPath(path, stat.S_IMODE(status.st_mode))
            if deep and stat.S_ISDIR(status.st_mode):
                below = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=inner)
                try:
                    yield from _check_entries(below, path, allowed, deep=True, change=change)
                finally:
                    os.close(below)
        finally:
            os.close(inner)


# Reads and writes the file that records which host owns a store.
#
# Only that host can check the store's locks and processes, so only that host may write to the store. Readers
# never see an incomplete file. If two hosts create the file at the same moment, exactly one of them succeeds.


_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class Host(Struct, frozen=True):
    """A host.

    name: its host name; machine: a digest of its machine-id, or None if it has no machine-id; data_dir: the
    data directory on that host, or None if the host file is in that directory.
    """

    name: str
    machine: str | None = None
    data_dir: str | None = None

    def is_same_machine(self, other: Host) -> bool:
        """Returns whether the machine-ids are equal or, if one is unknown, whether the host names are equal.

        The machine-id does not change when a host is renamed.
        """
        if self.machine is not None and other.machine is not None:
            return self.machine == other.machine
        return self.name == other.name


def this_host(data_dir: str | None = None) -> Host:
    """Returns the host on which this process runs."""
    return Host(os.uname().nodename, _machine_digest(), data_dir)


def _machine_digest() -> str | None:
    for path in _MACHINE_ID:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text and text != "uninitialized":
            # The id itself must not be published (machine-id(5)).
            return hashlib.sha256(f"gpu_scheduler {text}".encode()).hexdigest()[:32]
    return None


def parse_host_file(path: Path) -> Host:
    """Returns the host that a file names. Raises OSError, and ValueError if the file does not name a host."""
    value = parse_json(read_json_bytes(path, trust=True))
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("the file does not name a host")
    more = [value.get("machine"), value.get("data_dir")]
    if not all(one is None or isinstance(one, str) for one in more):
        raise ValueError("the file does not name a host")
    return Host(value["name"], *more)


def read_host(path: Path) -> Host | None:
    """Returns the host that a file names, or None if the file is missing or invalid."""
    try:
        return parse_host_file(path)
    except (OSError, ValueError):
        return None


def write_host(path: Path, host: Host) -> None:
    """Atomically replaces the file with one that names this host. Raises OSError."""
    from gpu_scheduler.system.safe_file import replace_file  # needed only by `start`

    replace_file(path, _file_text(host), synced=True)


def claim_host(path: Path, host: Host) -> None:
    """Creates the file for this host unless it exists. Raises OSError.

    Read the file afterwards to find out which host it names.
    """
    from gpu_scheduler.system.safe_file import create_file

    # The name is random, because the same pid may occur on several hosts that share the folder.
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    create_file(fresh, _file_text(host), synced=True)
    with suppress(FileExistsError):
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError:  # the file system does not support hard links
            create_file(path, _file_text(host), synced=True)
        finally:
            fresh.unlink(missing_ok=True)


def _file_text(host: Host) -> bytes:
    return f"{json.dumps(asdict(host))}\n".encode()


#: Patterns for the names in an attempt folder's path: the job id, and the attempt number and token prefix.
JOB_FOLDER_NAME = r"[1-9][0-9]{0,17}"
ATTEMPT_FOLDER_NAME = r"([1-9][0-9]{0,8})-([0-9a-f]{8})"


@lru_cache(maxsize=4096)
def _attempt_folder(runs: Path, job_id: int, number: int, token: str) -> Path:
    # A round asks for the folder of each open attempt several times, and paths are slow to build.
    return runs / f"{job_id}/{number}-{token[:8]}"


class DataDir(Struct, frozen=True, dict=True):
    """The data directory of a state file.

    is_fallback  whether the directory is on a local disk instead of beside the state file, because the state
                 file is on a network file system.
    problem      why a store cannot be created in the directory, with the remedy; None if it can.
    """

    state_file: Path
    folder: Path
    is_fallback: bool = False
    problem: str | None = None

    @classmethod
    def of(cls, state_file: str, data_dir: str | None = None) -> DataDir:
        """Returns the data directory: `data_dir` if given, otherwise `X.d` beside the state file `X.json`.

        If `X.d` would be on a network file system, returns a directory on a disk of this host instead.
        """
        path = Path(os.path.abspath(state_file))
        if data_dir:
            return cls(path, Path(os.path.abspath(data_dir)))
        beside = path.parent / f"{_stem(path)}.d"
        kind = kind_of(beside)
        return cls(path, beside) if not is_shared(kind) else cls._fallback(path, beside, kind)

    @classmethod
    def _fallback(cls, state_file: Path, beside: Path, kind: str | None) -> DataDir:
        import hashlib

        # All spellings of a path must have the same digest.
        name = os.path.join(os.path.realpath(state_file.parent), state_file.name)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        folder = user_state_dir() / "gpu_scheduler" / digest
        problem = None
        if (beside / "scheduler.db").exists() and not (folder / "scheduler.db").exists():
            problem = (
                f"the store in {beside} is on {kind}, where a database is not safe; move that folder to"
                f" {folder} or, at your own risk, keep using it with --data-dir"
            )
        elif is_shared(kind_of(folder)):
            problem = (
                f"neither {state_file.parent} ({kind}) nor {folder} ({kind_of(folder)}) is on a local disk,"
                " which a store needs; name a folder on a local disk: --data-dir /local/folder"
            )
        return cls(state_file, folder, is_fallback=True, problem=problem)

    @cached_property
    def database(self) -> Path:
        """The SQLite database."""
        return self.folder / "scheduler.db"

    @cached_property
    def runs(self) -> Path:
        """The parent of all attempt folders."""
        return self.folder / "runs"

    @property
    def backups(self) -> Path:
        """The folder that contains the database backups."""
        return self.folder / "backups"

    @property
    def doorbell(self) -> Path:
        """The file that a front end touches after a commit to wake the scheduler."""
        return self.folder / "doorbell"

    @property
    def lock(self) -> Path:
        """The file that the running scheduler keeps locked."""
        return self.folder / "lock"

    @property
    def host_file(self) -> Path:
        """The file that names the host that owns the store.

        It can be read before the database is opened. It is beside the state file if the data directory is
        not, so that every host that shares the state file can read it.
        """
        return (
            self.state_file.with_name(f"{_stem(self.state_file)}.host")
            if self.is_fallback
            else self.folder / "host"
        )

    @property
    def simulation(self) -> Path:
        """The folder in which simulated jobs report their usage."""
        return self.folder / "sim"

    @property
    def main_log(self) -> Path:
        """The main log, beside the state file."""
        return self.state_file.parent / "gpu_scheduler.log"

    def attempt_folder(self, attempt: Attempt | ActiveAttempt) -> Path:
        """Returns the folder of an attempt. JOB_FOLDER_NAME and ATTEMPT_FOLDER_NAME match its path."""
        return _attempt_folder(self.runs, attempt.job_id, attempt.number, attempt.token)

    def check_access(self) -> None:
        """Checks that the folder belongs to this user, is no link and can be entered. Accepts a missing one.

        Raises SchedulerError with a message that names the owner and the remedy.
        """
        folder = self.folder
        try:
            status = os.lstat(folder)
        except OSError:
            return  # a missing or inaccessible path is reported when it is used
        problem = check_folder_status(status, allowed_owners(folder))
        if problem is None:
            if os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
                return
            raise SchedulerError(f"{folder} cannot be entered; run `chmod u+rwx {shlex.quote(str(folder))}`")
        if problem.kind is not ProblemKind.OTHER_OWNER:
            remedy = "remove it, or name another folder with --data-dir"
            target = Path(os.path.realpath(folder))
            if problem.kind is ProblemKind.LINK and status.st_uid == os.geteuid() and is_ours(target):
                # If the user only removed the link, every line of the jobs file would count as new.
                there, here = shlex.quote(str(target)), shlex.quote(str(folder))
                remedy = (
                    f"to use the store at the link's target, add --data-dir {there} to every command, or run"
                    f" `rm {here} && mv {there} {here}` once"
                )
            raise SchedulerError(
                f"{folder} {problem.description}, but must be the data directory itself; {remedy}"
            )
        owner = status.st_uid
        if owner != 0:
            raise SchedulerError(
                f"{folder} belongs to another user ({name_of_user(owner)}); name your own state file"
                " with --state-file"
            )
        paths = shlex.join(map(str, (folder, self.state_file, self.main_log)))
        raise SchedulerError(
            f"{folder} belongs to root, because a `start` with sudo created it\n"
            "use sudo for every command, or end the scheduler (`stop --jobs` with sudo) and take ownership:"
            f" sudo chown -R {os.geteuid()} {paths}"
        )

    def other_host(self) -> Host | None:
        """Returns the host that owns the store; None if it is this host or no host is recorded."""
        owner = read_host(self.host_file)
        return None if owner is None or owner.is_same_machine(this_host()) else owner

    def refusal(self, owner: Host) -> str:
        """Returns why the store cannot be used here while another host owns it, with the remedy."""
        there = owner.data_dir or self.folder
        return (
            f"the store of {self.state_file} belongs to host {owner.name} (data directory {there}); this is"
            f" host {this_host().name}\n"
            f"run the command on {owner.name}; if that host is gone or is now called {this_host().name},"
            " use `start --take-over`"
        )

    def check_owner(self, *, take_over: bool) -> None:
        """Raises SchedulerError if another host owns or may own the store, unless `take_over` is set."""
        if take_over:
            return
        try:
            self._recorded_owner()
        except OSError as error:
            raise SchedulerError(
                f"cannot read {self.host_file} ({error.strerror}), which names the host that schedules here;"
                " check the permissions of the file"
            ) from None

    def take_ownership(self, *, take_over: bool = False) -> None:
        """Records this host as the owner of the store.

        Raises OSError, and SchedulerError if another host owns or may own the store.
        """
        mine = this_host(str(self.folder) if self.is_fallback else None)
        owner = None if take_over else self._recorded_owner()
        if owner is None and not take_over:
            claim_host(self.host_file, mine)
            owner = self._recorded_owner()  # another host may have created it first
        if owner != mine:
            write_host(self.host_file, mine)

    def drop_ownership(self) -> None:
        """Removes the host file beside the state file. For use if no store was created."""
        if self.is_fallback and self.other_host() is None:
            self.host_file.unlink(missing_ok=True)

    def _recorded_owner(self) -> Host | None:
        """Returns the recorded owner, or None. Raises SchedulerError if the owner is another host."""
        try:
            owner = parse_host_file(self.host_file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            raise SchedulerError(
                f"{self.host_file} does not name the host that schedules on {self.state_file}; if no host"
                " schedules on it, use `start --take-over`"
            ) from None
        if not owner.is_same_machine(this_host()):
            raise SchedulerError(self.refusal(owner))
        return owner

    def create(self) -> list[ExposedPath]:
        """Creates the folders so that only this user can access them.

        Returns the paths to which other users could write until now. Raises SchedulerError if a folder cannot
        be created or something in it belongs to another user.
        """
        if self.problem is not None:
            raise SchedulerError(self.problem)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check_access()
            fd = open_folder(self.folder)
            try:
                opened = close_to_others(fd, self.folder)
                with suppress(FileExistsError):
                    os.mkdir(self.runs.name, 0o700, dir_fd=fd)
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                os.close(os.open(self.doorbell.name, flags, 0o600, dir_fd=fd))
                return opened
            finally:
                os.close(fd)
        except OSError as error:
            raise SchedulerError(
                f"cannot create {self.folder}: {error.strerror}; choose another --state-file or --data-dir"
            ) from None

    def ring_doorbell(self) -> None:
        """Wakes the scheduler after a commit, if one is running."""
        try:
            os.utime(self.doorbell)
            with open(self.doorbell, "ab"):
                pass
        except OSError:
            pass  # the scheduler also checks the store at intervals


def _stem(path: Path) -> str:
    return path.name[: -len(".json")] if path.name.endswith(".json") else path.name
