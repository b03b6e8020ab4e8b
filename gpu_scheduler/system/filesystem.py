"""Determines the file system type of a path and whether a store is safe on it, and compares paths.

A database needs locks and shared memory, which a network file system does not share reliably between hosts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

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
