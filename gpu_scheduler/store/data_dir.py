"""The paths of one state file's data directory, and the host that owns it.

Only `create` and `take_ownership` create anything.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import permissions
from gpu_scheduler.store.host import Host, claim_host, parse_host_file, read_host, this_host, write_host
from gpu_scheduler.system.filesystem import is_shared, kind_of
from gpu_scheduler.system.users import user_state_dir

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Attempt
    from gpu_scheduler.store.records import AttemptRecord

#: Patterns for the names in an attempt folder's path: the job id, and the attempt number and token prefix.
JOB_FOLDER_NAME = r"[1-9][0-9]{0,17}"
ATTEMPT_FOLDER_NAME = r"([1-9][0-9]{0,8})-([0-9a-f]{8})"


@dataclass(frozen=True)
class DataDir:
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

    def attempt_folder(self, attempt: AttemptRecord | Attempt) -> Path:
        """Returns the folder of an attempt. JOB_FOLDER_NAME and ATTEMPT_FOLDER_NAME match its path."""
        return self.runs / f"{attempt.job_id}/{attempt.number}-{attempt.token[:8]}"

    def check_access(self) -> None:
        """Raises SchedulerError if the folder belongs to another user, is a link or cannot be entered."""
        permissions.check_access(self.folder, (self.state_file, self.main_log))

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

    def create(self) -> list[permissions.ExposedPath]:
        """Creates the folders so that only this user can access them.

        Returns the paths to which other users could write until now. Raises SchedulerError if a folder cannot
        be created or something in it belongs to another user.
        """
        if self.problem is not None:
            raise SchedulerError(self.problem)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check_access()
            fd = permissions.open_folder(self.folder)
            try:
                opened = permissions.close_to_others(fd, self.folder)
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
