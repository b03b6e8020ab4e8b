"""Decides whether a data directory is the recorded one, was moved, or is a copy. Accesses no files.

A copy must not be mistaken for its original, whose processes carry the same tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: "same": the recorded folder, perhaps under another name. "moved": the recorded folder is no longer at its
#: old path. "copied": the original is still at the old path.
FolderRelation = Literal["same", "moved", "copied"]


class RecordedFolder(NamedTuple):
    """The data directory as recorded in the store: its random id, its real path and its inode.

    The device number is not recorded, because a reboot can change it.
    """

    id: str
    path: str
    inode: int


class ObservedFolder(NamedTuple):
    """The current state of a folder. id: the content of its id file; None if missing or unreadable."""

    path: str
    device: int
    inode: int
    id: str | None


class UnreadableFolder:
    """Stands for something at the recorded path that cannot be read."""


def compare_folders(
    recorded: RecordedFolder | None,
    current: ObservedFolder,
    at_recorded_path: ObservedFolder | UnreadableFolder | None,
) -> FolderRelation:
    """Compares the folder `current` with the recorded one.

    at_recorded_path: the folder that is now at the recorded path; None if nothing is there.

    The inode alone is not conclusive: a restore changes it, and the same number can occur on two file
    systems. Therefore, the folder that is now at the recorded path counts too.
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
    # The folder was renamed and a copy was put at its old path, unless the inodes are equal by chance.
    return (
        "same"
        if isinstance(at_recorded_path, ObservedFolder) and at_recorded_path.inode != recorded.inode
        else "copied"
    )
