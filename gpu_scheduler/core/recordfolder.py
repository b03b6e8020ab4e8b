"""Decides whether a data directory is the recorded one, was moved, or is a copy. Pure.

A copy must not be mistaken for its original, whose processes carry the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: "same": perhaps under another name. "moved": the old path no longer exists. "copied": it still exists.
Verdict = Literal["same", "moved", "copied"]


@dataclass(frozen=True)
class Recorded:
    """The data directory recorded in the store: a random id, its real path, its inode.

    The device number is not part of it, because a reboot changes it.
    """

    id: str
    path: str
    inode: int


@dataclass(frozen=True)
class Place:
    """A folder at present. id: the contents of its id file; None = missing or unreadable."""

    path: str
    device: int
    inode: int
    id: str | None


@dataclass(frozen=True)
class Unknown:
    """Something exists at the recorded path but cannot be read."""


def judge(recorded: Recorded | None, here: Place, there: Place | Unknown | None) -> Verdict:
    """Compares the folder `current` with the recorded one.

    at_recorded_path: the folder that is there now; None = there is none.

    The inode alone is not conclusive: a restore changes it, and two file systems can have the same one. The
    folder at the recorded path decides, if it has the same id.
    """
    if recorded is None or here.path == recorded.path:
        return "same"
    if isinstance(there, Place) and (there.device, there.inode) == (here.device, here.inode):
        return "same"
    if there is None or (isinstance(there, Place) and there.id not in (recorded.id, None)):
        return "same" if here.inode == recorded.inode else "moved"
    if here.inode != recorded.inode:
        return "copied"
    # Renamed, with a copy at the old path, unless the inodes are equal by chance.
    return "same" if isinstance(there, Place) and there.inode != recorded.inode else "copied"
