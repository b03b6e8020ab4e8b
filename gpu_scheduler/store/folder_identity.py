"""Decides whether a data directory is the recorded one, was moved, or is a copy. Pure.

A copy must not be mistaken for its original, whose processes carry the same tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: "same": perhaps under another name. "moved": the old path no longer exists. "copied": it still exists.
FolderRelation = Literal["same", "moved", "copied"]


class RecordedFolder(NamedTuple):
    """The data directory recorded in the store: a random id, its real path, its inode.

    The device number is not part of it, because a reboot changes it.
    """

    id: str
    path: str
    inode: int


class ObservedFolder(NamedTuple):
    """The current state of a folder. id: the contents of its id file; None = missing or unreadable."""

    path: str
    device: int
    inode: int
    id: str | None


class UnreadableFolder:
    """Something exists at the recorded path but cannot be read."""


def compare_folders(
    recorded: RecordedFolder | None,
    current: ObservedFolder,
    at_recorded_path: ObservedFolder | UnreadableFolder | None,
) -> FolderRelation:
    """Compares the folder `current` with the recorded one.

    at_recorded_path: the current folder at the recorded path; None = there is none.

    The inode alone is not conclusive: a restore changes it, and two file systems can have the same one. The
    folder at the recorded path decides, if it has the same id.
    """
    if recorded is None or current.path == recorded.path:
        return "same"
    if isinstance(at_recorded_path, ObservedFolder) and (at_recorded_path.device, at_recorded_path.inode) == (
        current.device,
        current.inode,
    ):
        return "same"
    if at_recorded_path is None or (
        isinstance(at_recorded_path, ObservedFolder) and at_recorded_path.id not in (recorded.id, None)
    ):
        return "same" if current.inode == recorded.inode else "moved"
    if current.inode != recorded.inode:
        return "copied"
    # Renamed, with a copy at the old path, unless the inodes are equal by chance.
    return (
        "same"
        if isinstance(at_recorded_path, ObservedFolder) and at_recorded_path.inode != recorded.inode
        else "copied"
    )
