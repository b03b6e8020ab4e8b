"""Finds the folder with the lock files of the GPUs, and checks that claims in it are safe.

All programs that share the GPUs of a machine must use the same folder. It must be on a local disk, because a
network file system may not share locks, and must not be in a folder that the system empties.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.errors import UsageError
from gpu_scheduler.system.safe_file import is_shared, kind_of, name_of_user, user_state_dir

#: The environment variable that names the folder.
VARIABLE = "GPU_SCHEDULER_LOCK_DIR"
#: The folder that an administrator can make for all users of a machine.
SYSTEM_FOLDER = Path("/var/lib/gpu_scheduler/locks")
#: Folders that the system empties, at the latest when it boots or the user logs out.
_EMPTIED = ("/tmp", "/dev/shm", "/run")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FolderProblem(Struct, frozen=True):
    """The reason why a folder cannot hold lock files, as a predicate such as "is on nfs4", and the remedy."""

    text: str
    remedy: str


class LockFolderError(UsageError):
    """The lock folder cannot be used."""

    def __init__(self, folder: Path, problem: FolderProblem) -> None:
        super().__init__(f"the lock folder {folder} {problem.text}\n{problem.remedy}")
        self.folder = folder
        self.problem = problem


def find_lock_folder(env: Mapping[str, str] = os.environ, system_folder: Path = SYSTEM_FOLDER) -> Path:
    """Returns the path of the lock folder, which need not exist yet.

    It is `$GPU_SCHEDULER_LOCK_DIR`, else the system folder if it exists, else a folder in the user's state
    directory if that is suitable, else one in /var/tmp. Raises UsageError if the variable is a relative path
    or not valid UTF-8.
    """
    named = env.get(VARIABLE)
    if named:
        if not os.path.isabs(named):
            raise UsageError(f"{VARIABLE}={_printable(named)} is a relative path; give an absolute path")
        if not _is_utf8(named):
            raise UsageError(f"{VARIABLE}={_printable(named)} is not valid UTF-8; name another folder")
        return Path(named)
    if os.path.lexists(system_folder):
        return system_folder
    own = user_state_dir(env) / "gpu_scheduler" / "locks"
    # The path is relative if this user has no home folder.
    if own.is_absolute() and _is_utf8(str(own)) and location_problem(own) is None:
        return own
    return Path("/var/tmp", f"gpu_scheduler-{os.geteuid()}", "locks")


def _is_utf8(path: str) -> bool:
    """Returns whether the path can be written to spec.json and to the database."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(path: str) -> str:
    """Returns a path with a replacement character for each byte that is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def location_problem(folder: Path) -> FolderProblem | None:
    """Returns why no folder at this path can hold lock files; None if one can. The folder need not exist."""
    real = os.path.realpath(folder)
    remedy = f"set {VARIABLE} to a folder on a local disk, such as one in /var/tmp"
    emptied = next((one for one in _EMPTIED if f"{real}/".startswith(f"{os.path.realpath(one)}/")), None)
    if emptied is not None:
        return FolderProblem(f"is in {emptied}, which the system empties", remedy)
    kind = kind_of(real)
    if is_shared(kind):
        return FolderProblem(f"is on {kind}, which several hosts may share", remedy)
    return None


def folder_problem(folder: Path) -> FolderProblem | None:
    """Returns why a folder cannot hold lock files, or cannot be made; None if all is well. Raises OSError."""
    problem = location_problem(folder)
    if problem is not None:
        return problem
    if os.path.lexists(folder):
        return _parent_problem(folder) or _own_problem(folder)
    above = next(parent for parent in folder.parents if os.path.lexists(parent))
    if not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        text = f"cannot be made, because {above} is not writable for this user"
        return FolderProblem(text, f"set {VARIABLE} to a folder that you can write to")
    return _parent_problem(folder) if above == folder.parent else None


def _parent_problem(folder: Path) -> FolderProblem | None:
    """Returns why other users could replace the folder, which need not exist; None if they cannot."""
    parent = folder.parent
    status, link = os.stat(parent), os.lstat(parent)
    trusted = {0, os.geteuid()}
    with suppress(FileNotFoundError):
        trusted.add(os.lstat(folder).st_uid)
    elsewhere = f"set {VARIABLE} to another folder"
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
        return FolderProblem(f"is behind a link that belongs to {name_of_user(link.st_uid)}", elsewhere)
    if status.st_mode & stat.S_ISVTX:
        return None
    if status.st_uid not in trusted:
        owner = name_of_user(status.st_uid)
        ask = f"ask {owner} to run `install -d -m 1777 {shlex.quote(str(folder))}`"
        return FolderProblem(f"is in a folder of {owner}, who can replace it", f"{ask}, or {elsewhere}")
    if status.st_mode & stat.S_IWOTH:
        mend = f"run `chmod +t {shlex.quote(str(parent))}` as the owner of that folder"
        return FolderProblem(
            "is in a folder without the sticky bit, so every user can replace it", f"{mend}, or {elsewhere}"
        )
    return None


def _own_problem(folder: Path) -> FolderProblem | None:
    """Returns the problem with the type, the owner or the permissions of the folder; None if all is well."""
    status = os.lstat(folder)
    quoted = shlex.quote(str(folder))
    if stat.S_ISLNK(status.st_mode):
        return FolderProblem("is a symbolic link", f"set {VARIABLE} to the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        return FolderProblem("is not a folder", f"remove it, or set {VARIABLE} to another folder")
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if status.st_uid not in (0, os.geteuid()) and not is_sticky:
        owner = name_of_user(status.st_uid)
        return FolderProblem(
            f"belongs to {owner} and does not have the sticky bit, which a folder for several users needs",
            f"ask {owner} to run `chmod 1777 {quoted}`, or set {VARIABLE} to another folder",
        )
    if status.st_mode & _OTHERS_WRITE and not is_sticky:
        return FolderProblem(
            "does not have the sticky bit, so other users can remove the lock files",
            f"run `chmod +t {quoted}` as its owner",
        )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return FolderProblem(
            "is not writable for this user",
            f"run `chmod 1777 {quoted}` as its owner, or set {VARIABLE} to another folder",
        )
    return None


def prepare_lock_folder(folder: Path, *, make: bool = True) -> None:
    """Makes the folder if it does not exist, for this user alone, and checks it.

    make: False to make nothing; a folder that does not exist is then no problem. Raises LockFolderError if
    the folder cannot be used.
    """
    try:
        problem = location_problem(folder)
        if problem is None and make:
            _make(folder.parent)
        if problem is None and (make or os.path.lexists(folder)):
            problem = _parent_problem(folder)
            if problem is None and make:
                _make(folder)
            problem = problem or _own_problem(folder)
    except OSError as error:
        where = "" if error.filename in (None, str(folder)) else f"{error.filename}: "
        remedy = f"set {VARIABLE} to a folder that you can write to"
        problem = FolderProblem(f"cannot be used: {where}{error.strerror}", remedy)
    if problem is not None:
        raise LockFolderError(folder, problem)


def _make(folder: Path) -> None:
    """Makes the folder and its missing parents with mode 0700. Raises OSError."""
    if os.path.lexists(folder):
        return
    _make(folder.parent)
    with suppress(FileExistsError):  # another process was faster
        os.mkdir(folder, 0o700)


def simulated_folder(folder: Path, simulation: str) -> Path:
    """Returns the folder, in the lock folder, for the simulated GPUs of one scheduler.

    simulation: the folder in which simulated jobs write their usage.
    """
    digest = hashlib.sha256(os.path.realpath(simulation).encode("utf-8", "surrogateescape"))
    return folder / f"sim-{digest.hexdigest()[:16]}"


def prepare_simulated_folder(folder: Path, simulation: str) -> Path:
    """Makes and checks the folder for simulated GPUs in a prepared lock folder, and returns its path.

    Users who share the lock folder share this folder too. Raises LockFolderError if it cannot be used.
    """
    inner = simulated_folder(folder, simulation)
    # The folder gets its mode when it is made, because another user may check it immediately afterwards.
    umask = os.umask(0)
    try:
        with suppress(FileExistsError):
            os.mkdir(inner, stat.S_IMODE(os.stat(folder).st_mode))
    except OSError as error:
        problem = FolderProblem(f"cannot be made: {error.strerror}", f"check the permissions of {folder}")
        raise LockFolderError(inner, problem) from None
    finally:
        os.umask(umask)
    prepare_lock_folder(inner)
    return inner


class ClaimFolder(Struct, frozen=True):
    """The folder that contains the lock files of one scheduler's GPUs.

    shared: the lock folder. path: the folder with the lock files, which is in the lock folder if the GPUs are
    simulated. simulation: the folder in which simulated jobs write their usage; None if the GPUs are real.
    """

    shared: Path
    path: Path
    simulation: str | None = None

    @classmethod
    def of(cls, shared: Path, simulation: str | None) -> ClaimFolder:
        """Returns the folder for real or simulated GPUs in a lock folder. Neither folder need exist yet."""
        path = shared if simulation is None else simulated_folder(shared, simulation)
        return cls(shared, path, simulation)

    def check(self) -> None:
        """Checks both folders without making them. Raises LockFolderError if one cannot be used."""
        prepare_lock_folder(self.shared, make=False)
        prepare_lock_folder(self.path, make=False)

    def prepare(self) -> None:
        """Makes and checks the lock folder and the folder in it. Raises LockFolderError."""
        prepare_lock_folder(self.shared)
        if self.simulation is not None:
            prepare_simulated_folder(self.shared, self.simulation)
