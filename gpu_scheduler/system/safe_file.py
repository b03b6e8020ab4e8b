"""Reads and writes files that other programs or users may write, and tells on which file system they are.

Reads only regular files up to a size limit, and never blocks. `check_status` decides whether a file may be
used, from the type, size, owner and permissions of its open descriptor. `check_folder_status` does the same
for a folder. A store is not safe on a file system that several hosts share (`kind_of`, `is_shared`). This
module also names users and the folders in which their programs keep their state.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

#: The size limit for JSON files (the state file, llm_config.json and the file with the name of a host).
MAX_JSON_BYTES = 16 * 1024 * 1024
#: Number of bytes to read at a time.
_CHUNK_BYTES = 256 * 1024


class ProblemKind(Enum):
    """The reason why a file cannot be used. The value is a predicate for messages."""

    MISSING = "does not exist"
    NOT_REGULAR = "is not a regular file"
    TOO_LARGE = "is larger than {}"
    UNREADABLE = "cannot be read: {}"
    LINK = "is a link"
    NOT_A_FOLDER = "is not a folder"
    OTHER_OWNER = "belongs to another user (uid {})"
    OTHER_OWNER_LINK = "is a link that belongs to another user (uid {})"
    WORLD_WRITABLE = "is writable by everyone"
    WRONG_CONTENT = "{}"


_ERRNOS = {
    ProblemKind.MISSING: errno.ENOENT,
    ProblemKind.TOO_LARGE: errno.EFBIG,
    ProblemKind.LINK: errno.ELOOP,
    ProblemKind.NOT_A_FOLDER: errno.ENOTDIR,
    ProblemKind.OTHER_OWNER: errno.EPERM,
    ProblemKind.OTHER_OWNER_LINK: errno.EPERM,
    ProblemKind.WORLD_WRITABLE: errno.EPERM,
}
#: Remedies for files that are not used because other users could change them.
_REMEDIES = {
    ProblemKind.OTHER_OWNER: "use a file that you own, or `start --trust-files`",
    ProblemKind.OTHER_OWNER_LINK: "use a file that you own, or `start --trust-files`",
    ProblemKind.WORLD_WRITABLE: "`chmod o-w` it, or `start --trust-files`",
    ProblemKind.LINK: "remove it",
}


class FileProblem(Struct, frozen=True):
    """The problem with an unusable file or folder. detail: the limit, uid or error in the kind's text."""

    kind: ProblemKind
    detail: str = ""
    errno: int = errno.EIO

    @property
    def description(self) -> str:
        """Returns the problem as a predicate, without a remedy."""
        return self.kind.value.format(self.detail)

    @property
    def remedy(self) -> str:
        """Returns the remedy if it is the same for every file, otherwise ""."""
        return _REMEDIES.get(self.kind, "")

    def __str__(self) -> str:
        return f"{self.description}; {self.remedy}" if self.remedy else self.description

    def as_error(self, path: Path) -> OSError:
        """Returns the problem as an OSError, for callers that report system errors."""
        if self.kind is ProblemKind.UNREADABLE:
            return OSError(self.errno, self.detail, str(path))
        return OSError(_ERRNOS.get(self.kind, errno.EINVAL), str(self), str(path))


class Content(Struct, frozen=True):
    """The content of a file. status: the file's status before the first byte was read."""

    data: bytes
    status: os.stat_result


def read(path: str | Path, max_bytes: int = MAX_JSON_BYTES, *, trust: bool = False) -> Content | FileProblem:
    """Returns the content of a file, or the reason why it must not be used. Follows links.

    Never blocks on a FIFO or a device. trust: read the file regardless of its owner and mode.
    """
    try:
        allowed = None if trust else trusted_owners(path)
        if (problem := _check_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            problem = check_status(status, max_bytes, allowed)
            data = read_descriptor(fd, max_bytes) if problem is None else problem
        finally:
            os.close(fd)
    except OSError as error:
        return problem_from_error(error)
    return data if isinstance(data, FileProblem) else Content(data, status)


def inspect(
    path: str | Path, max_bytes: int | None, *, trust: bool = False, follow_links: bool = True
) -> os.stat_result | FileProblem:
    """Returns the status of a file, or the reason why it must not be used. Does not read the file."""
    try:
        allowed = None if trust else trusted_owners(path)
        if follow_links and (problem := _check_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW))
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return check_status(status, max_bytes, allowed) or status
    except OSError as error:
        return problem_from_error(error)


def trusted_owners(path: str | Path) -> frozenset[int]:
    """Returns the users who may own a file at this path: ourselves and root.

    If we are root, even if only in a container, the owner of the folder may also own the file, unless other
    users can write to the folder. A group whose id equals the owner's uid is taken for the owner's private
    group, which Linux distributions create for each user.
    """
    me = os.geteuid()
    if me != 0:
        return frozenset((me, 0))
    folder = os.stat(os.path.dirname(path) or ".")
    others = stat.S_IWOTH if folder.st_gid == folder.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return frozenset((0, *(() if folder.st_mode & others else (folder.st_uid,))))


def check_status(
    status: os.stat_result, max_bytes: int | None, allowed_owners: Collection[int] | None = None
) -> FileProblem | None:
    """Returns the reason why a file must not be used; None if it may be used.

    status: the status of the open descriptor. max_bytes: the size limit; None for no limit. allowed_owners:
    the file's `trusted_owners`; with None, any user may own the file and write to it.
    """
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(ProblemKind.LINK)
    if not stat.S_ISREG(status.st_mode):
        return FileProblem(ProblemKind.NOT_REGULAR)
    if max_bytes is not None and status.st_size > max_bytes:
        return _too_large(max_bytes)
    if allowed_owners is None:
        return None
    if status.st_uid not in allowed_owners:
        return FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
    return FileProblem(ProblemKind.WORLD_WRITABLE) if status.st_mode & stat.S_IWOTH else None


def check_folder_status(status: os.stat_result, allowed_owners: Collection[int | None]) -> FileProblem | None:
    """Returns why a folder with this status from `lstat` cannot be our private folder; None if it can."""
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(ProblemKind.LINK)
    if not stat.S_ISDIR(status.st_mode):
        return FileProblem(ProblemKind.NOT_A_FOLDER)
    return (
        None if status.st_uid in allowed_owners else FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
    )


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Returns a value that changes whenever the content, the owner or the permissions of a file change."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def writable_by_others(status: os.stat_result) -> bool:
    """Returns whether the group or everyone may write to a file with this status."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _check_link(path: str | Path, allowed_owners: Collection[int] | None) -> FileProblem | None:
    """Returns a problem if the path is a link, even a dangling one, that belongs to another user.

    Such a link could make us read any of our files, or create a file anywhere.
    """
    if allowed_owners is None:
        return None
    status = os.lstat(path)
    is_foreign = stat.S_ISLNK(status.st_mode) and status.st_uid not in allowed_owners
    return FileProblem(ProblemKind.OTHER_OWNER_LINK, str(status.st_uid)) if is_foreign else None


def read_descriptor(fd: int, max_bytes: int) -> bytes | FileProblem:
    """Reads all bytes from a descriptor. Raises OSError.

    Returns a TOO_LARGE problem if there are more than `max_bytes`. Checks the limit while it reads, because
    the file may grow after it was opened.
    """
    pieces: list[bytes] = []
    size = 0
    while size <= max_bytes:
        piece = os.read(fd, min(_CHUNK_BYTES, max_bytes + 1 - size))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return _too_large(max_bytes)


def read_json_bytes(path: Path, *, trust: bool) -> bytes:
    """Returns the bytes of a JSON file. trust: see `read`. Raises OSError, also for any FileProblem."""
    found = read(path, trust=trust)
    if isinstance(found, FileProblem):
        raise found.as_error(path)
    return found.data


def problem_from_error(error: OSError) -> FileProblem:
    """Returns the problem for an OSError that opening or reading a file raised."""
    if error.errno == errno.ENOENT:
        return FileProblem(ProblemKind.MISSING)
    if error.errno == errno.ENXIO:  # the file is a socket, or a device without a driver
        return FileProblem(ProblemKind.NOT_REGULAR)
    return FileProblem(ProblemKind.UNREADABLE, error.strerror or str(error), error.errno or errno.EIO)


def _too_large(max_bytes: int) -> FileProblem:
    return FileProblem(ProblemKind.TOO_LARGE, f"{max_bytes / 1024**2:g} MiB")


# Writes files atomically: writes a new file in the same folder, then renames it.
#
# Some files need more than this and are written elsewhere: a runner's files (`runner/folder.py`, which
# reserves space for them), the state file (exchanged with the old one, in order to notice an edit), and
# backups (written by SQLite).


def replace_file(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Writes a file of mode 0600 with this data; replaces an existing file or link.

    synced: write the data to the disk before the rename. Raises OSError and then leaves the path unchanged.
    """
    # The name is random instead of containing a pid, because hosts that share the folder may have the same
    # pids.
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    create_file(fresh, data, synced=synced)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def create_file(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Creates a file. Removes it again if it cannot be written completely.

    synced: write the data to the disk before returning. Raises OSError; this is FileExistsError if the path
    already exists.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if synced:
                os.fsync(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@lru_cache
def name_of_user(uid: int) -> str:
    """Returns the name of the user with this uid; the uid as text if the user has no name.

    Looks up each uid only once, because a look-up may ask a directory server.
    """
    import pwd  # imported here, because a global import would slow down the start of front ends

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_state_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Returns `$XDG_STATE_HOME` if it is an absolute path, or `~/.local/state`."""
    named = env.get("XDG_STATE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~"), ".local", "state")


# The file system of a path. A database needs locks and shared memory, which a network file system does not
# share reliably between hosts.

_MOUNTINFO = "/proc/self/mountinfo"
_OCTAL = re.compile(rb"\\([0-7]{3})")

#: File system types on which other hosts may have the same files open.
_SHARED_KINDS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "dvs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
})  # fmt: skip
#: FUSE types that are local, such as the root of rootless containers. (fuseblk is always a local disk.)
_LOCAL_FUSE_KINDS = frozenset({"fuse.fuse-overlayfs"})


class Mount(Struct, frozen=True):
    """A mount that mountinfo lists. device: "major:minor"; kind: the file system type."""

    device: str
    point: str
    kind: str


def parse_mountinfo(lines: Iterable[bytes]) -> tuple[Mount, ...]:
    """Returns the mounts in the order in which they were made. Ignores lines that do not describe a mount."""
    mounts = []
    for line in lines:
        before, _, behind = line.partition(b" - ")
        fields, kind = before.split(b" "), behind.split(b" ")[0]
        if len(fields) >= 6 and kind:
            point = _OCTAL.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), fields[4])
            mounts.append(Mount(fields[2].decode("ascii", "replace"), os.fsdecode(point), os.fsdecode(kind)))
    return tuple(mounts)


def kind_at(path: str, device: str, mounts: Sequence[Mount]) -> str | None:
    """Returns the file system type of an existing path that contains no links.

    device: the path's device as "major:minor". The mount with this device counts, because the mount point can
    be misleading after a bind mount. If no mount has this device (as on a btrfs subvolume), the longest mount
    point above the path counts. If several mounts have that mount point, the last one counts, because it
    hides the others.
    """
    above = [mount for mount in mounts if mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")]
    same = [mount for mount in mounts if mount.device == device]
    if same:
        return same[-1].kind
    return max(reversed(above), key=lambda mount: len(mount.point)).kind if above else None


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Returns the file system type that a path has or would have, or None if the type is unknown."""
    at = os.path.realpath(path)
    while True:
        try:
            device = os.stat(at).st_dev
            break
        except OSError:
            if at == os.path.dirname(at):
                return None
            at = os.path.dirname(at)
    try:
        with open(_MOUNTINFO, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    # On container hosts, mountinfo has thousands of lines, and parsing one of them is usually enough.
    likely = parse_mountinfo([line for line in lines if f" {number} ".encode() in line])
    known = any(mount.device == number for mount in likely)
    return kind_at(at, number, likely if known else parse_mountinfo(lines))


def is_shared(kind: str | None) -> bool:
    """Returns whether this type is a network file system or non-local FUSE, where a store is unsafe."""
    if kind is None or kind in _LOCAL_FUSE_KINDS:
        return False
    return kind in _SHARED_KINDS or kind == "fuse" or kind.startswith("fuse.")


def is_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Returns whether both paths exist and lead to the same file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
