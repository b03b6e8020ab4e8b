"""Where everything of one state file lies, and which host it belongs to. Nothing is made but by `create` and
`own`."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.safefile import Kind, judge_folder
from gpu_scheduler.store import private
from gpu_scheduler.store.filesystem import is_shared, kind_of
from gpu_scheduler.store.host import Host, claim_host, named_host, read_host, this_host, write_host


@dataclass(frozen=True)
class Home:
    """The folder of ours that belongs to a state file.

    moved    the folder is not beside the state file, which lies on a network file system.
    problem  why no record can be made in the folder, with the remedy.
    """

    state_file: Path
    folder: Path
    moved: bool = False
    problem: str | None = None

    @classmethod
    def of(cls, state_file: str, data_dir: str | None = None) -> Home:
        """`data_dir`; else `X.d` beside the state file `X.json`, or, where that would lie on a network file
        system, a folder of this host."""
        path = Path(os.path.abspath(state_file))
        if data_dir:
            return cls(path, Path(os.path.abspath(data_dir)))
        beside = path.parent / f"{_stem(path)}.d"
        kind = kind_of(beside)
        return cls(path, beside) if not is_shared(kind) else cls._moved(path, beside, kind)

    @classmethod
    def _moved(cls, state_file: Path, beside: Path, kind: str | None) -> Home:
        import hashlib

        # One name for every way to write the path of the file.
        name = os.path.join(os.path.realpath(state_file.parent), state_file.name)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        folder = _state_home() / "gpu_scheduler" / digest
        problem = None
        if (beside / "scheduler.db").exists() and not (folder / "scheduler.db").exists():
            problem = (
                f"a record lies in {beside}, on {kind}, where a database is not safe; move that folder to"
                f" {folder}, or name it with --data-dir to go on there at your own risk"
            )
        elif is_shared(kind_of(folder)):
            problem = (
                f"neither {state_file.parent} ({kind}) nor {folder} ({kind_of(folder)}) is on a local disk,"
                " which a record needs; name a folder that is: --data-dir /local/folder"
            )
        return cls(state_file, folder, moved=True, problem=problem)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "scheduler.db"

    @property
    def runs(self) -> Path:
        """Parent of all attempt folders."""
        return self.folder / "runs"

    @property
    def backups(self) -> Path:
        """Folder of the backups of the database."""
        return self.folder / "backups"

    @property
    def doorbell(self) -> Path:
        """The file that a front end touches after its commit."""
        return self.folder / "doorbell"

    @property
    def lock(self) -> Path:
        """The file that the one scheduler keeps locked."""
        return self.folder / "lock"

    @property
    def host(self) -> Path:
        """The file that names the host of the record: known before the database is opened, and where the
        record is not beside the state file, to every host that shares that."""
        return (
            self.state_file.with_name(f"{_stem(self.state_file)}.host")
            if self.moved
            else self.folder / "host"
        )

    @property
    def simulation(self) -> Path:
        """Where simulated jobs say what they use."""
        return self.folder / "sim"

    @property
    def log(self) -> Path:
        """The main log, beside the state file."""
        return self.state_file.parent / "gpu_scheduler.log"

    def attempt(self, job_id: int, number: int, token: str) -> Path:
        """The folder of one attempt."""
        return self.runs / str(job_id) / f"{number}-{token[:8]}"

    def check_access(self) -> None:
        """Raises SchedulerError, naming whose the folder is, if it is not ours, is a link, or may not be
        entered. One that is not there passes."""
        try:
            status = os.lstat(self.folder)
        except OSError:
            return  # its absence, and what lies above it, is told where it is needed
        problem = judge_folder(status, private.owners(self.folder))
        if problem is None:
            if os.access(self.folder, os.R_OK | os.X_OK, effective_ids=True):
                return
            raise SchedulerError(
                f"{self.folder} may not be entered: chmod u+rwx {shlex.quote(str(self.folder))}"
            )
        if problem.kind is not Kind.FOREIGN:
            remedy = "remove it, or name that folder with --data-dir"
            target = Path(os.path.realpath(self.folder))
            if problem.kind is Kind.LINK and status.st_uid == os.geteuid() and private.is_ours(target):
                # Once it is removed alone, every line of the jobs file counts as new.
                there, here = shlex.quote(str(target)), shlex.quote(str(self.folder))
                remedy = (
                    f"go on with the record that it leads to: --data-dir {there} for every command, or once"
                    f" `rm {here} && mv {there} {here}`"
                )
            raise SchedulerError(
                f"{self.folder} {problem.says}, where the folder of the record should be; {remedy}"
            )
        owner = status.st_uid
        if owner != 0:
            raise SchedulerError(
                f"{self.folder} is the record of user {_user(owner)}, not yours; name a state file of yours"
                " with --state-file"
            )
        paths = shlex.join(map(str, (self.folder, self.state_file, self.log)))
        raise SchedulerError(
            f"{self.folder} is the record of root: a `start` with sudo made it\n"
            f"use sudo for every command, or end it (`stop --jobs` with sudo) and take it over:"
            f" sudo chown -R {os.geteuid()} {paths}"
        )

    def foreign(self) -> Host | None:
        """The host to which the record belongs, where that is another one."""
        owner = read_host(self.host)
        return None if owner is None or owner.is_same(this_host()) else owner

    def refusal(self, owner: Host) -> str:
        """Why nothing can be written here while the record belongs to another host, with the remedy."""
        there = owner.record or self.folder
        return (
            f"the record of {self.state_file} belongs to host {owner.name} (there: {there}); this is host"
            f" {this_host().name}\n"
            f"do it on {owner.name}; if that is gone, or was this host's name: `start --take-over`"
        )

    def check_owner(self, *, take_over: bool) -> None:
        """Raises SchedulerError if the record is that of another host, or may be, and is not taken over."""
        if take_over:
            return
        try:
            self._owner()
        except OSError as error:
            raise SchedulerError(
                f"{self.host} cannot be read ({error.strerror}), which names the host that schedules here:"
                " look at its permissions"
            ) from None

    def own(self, *, take_over: bool = False) -> None:
        """Note this host as the one whose record it is. Raises as `check_owner` does, and OSError."""
        mine = this_host(str(self.folder) if self.moved else None)
        owner = None if take_over else self._owner()
        if owner is None and not take_over:
            claim_host(self.host, mine)
            owner = self._owner()  # another host may have been first
        if owner != mine:
            write_host(self.host, mine)

    def disown(self) -> None:
        """Take back what `own` noted beside the state file: no record was made."""
        if self.moved and self.foreign() is None:
            self.host.unlink(missing_ok=True)

    def _owner(self) -> Host | None:
        """This host as it was noted, None: nobody was. Raises SchedulerError if it is not this one."""
        try:
            owner = named_host(self.host)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            raise SchedulerError(
                f"{self.host} does not name the host that schedules on {self.state_file}; if none does, go on"
                " with `start --take-over`"
            ) from None
        if not owner.is_same(this_host()):
            raise SchedulerError(self.refusal(owner))
        return owner

    def create(self) -> list[private.Opened]:
        """Make the folders, private to the user; returns what others could write and is closed to them now.

        Raises SchedulerError if that cannot be, or something there is not ours.
        """
        if self.problem is not None:
            raise SchedulerError(self.problem)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check_access()
            fd = private.open_folder(self.folder)
            try:
                opened = private.close_to_others(fd, self.folder)
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

    def ring(self) -> None:
        """Wake the scheduler, if one is up, after a commit."""
        try:
            os.utime(self.doorbell)
            with open(self.doorbell, "ab"):
                pass
        except OSError:
            pass  # it looks by itself within its intervals


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _stem(path: Path) -> str:
    return path.name[: -len(".json")] if path.name.endswith(".json") else path.name


def _state_home() -> Path:
    """`$XDG_STATE_HOME`; one that is not absolute does not count."""
    named = os.environ.get("XDG_STATE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~"), ".local", "state")
