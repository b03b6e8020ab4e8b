"""Tells the folder of a record from one that was moved and from a copy, by values: it looks at nothing.

A copy must not be taken for its original, whose processes carry the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: "same": also under another name. "moved": the old place is gone. "copied": it is still there.
Verdict = Literal["same", "moved", "copied"]


@dataclass(frozen=True)
class Recorded:
    """The folder that a record knows as its own: a random id, its real path, its inode. A reboot changes the
    number of the device."""

    id: str
    path: str
    inode: int


@dataclass(frozen=True)
class Place:
    """A folder as it is now. id: what its file says; None = it has none, or it cannot be read."""

    path: str
    device: int
    inode: int
    id: str | None


@dataclass(frozen=True)
class Unknown:
    """Something is at the old path, and cannot be looked at."""


def judge(recorded: Recorded | None, here: Place, there: Place | Unknown | None) -> Verdict:
    """Tells what the folder `here` is. there: what is at the recorded path now; None = it is gone.

    An inode that differs says little alone (a restore changes it), nor does one that is equal (those of two
    file systems can be): the folder at the recorded path decides, if it has the same id.
    """
    if recorded is None or here.path == recorded.path:
        return "same"
    if isinstance(there, Place) and (there.device, there.inode) == (here.device, here.inode):
        return "same"
    if there is None or (isinstance(there, Place) and there.id not in (recorded.id, None)):
        return "same" if here.inode == recorded.inode else "moved"
    if here.inode != recorded.inode:
        return "copied"
    # Renamed, with a copy put in its place; unless the inode is the same by chance.
    return "same" if isinstance(there, Place) and there.inode != recorded.inode else "copied"
