"""Creates the store of a state file. Only `start` and commands that submit jobs do this."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.location import adopt_folder
from gpu_scheduler.store.scheduler_lock import no_scheduler_starts
from gpu_scheduler.store.store import Store


def check_state_file(path: str) -> None:
    """Raises UsageError if this path cannot be that of a new state file."""
    if os.path.isdir(path) or path.endswith("/"):
        raise UsageError(
            f"--state-file {path}: is a folder; name a file in it, such as gpu_scheduler_state.json"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--state-file {path}: the folder {folder} does not exist; create it first")


def check_encoding(paths: Mapping[str, str | None]) -> None:
    """Raises UsageError for a path that is not valid UTF-8, because the store cannot contain it.

    paths: the paths by the option or the words that name them.
    """
    for what, path in paths.items():
        try:
            (path or "").encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{what} {path}: the path is not valid UTF-8, so the store cannot record it; rename it"
            ) from None


def create_store(data_dir: DataDir) -> bool:
    """Creates an empty store. Returns False if another program, such as `start`, is creating it.

    Raises SchedulerError, and OSError or sqlite3.OperationalError if the files cannot be created.
    """
    data_dir.check_access()
    data_dir.check_owner(take_over=False)
    is_new = not data_dir.folder.exists()
    data_dir.create()
    with no_scheduler_starts(data_dir.folder) as is_locked:
        if not is_locked:
            return False
        with removed_if_new(data_dir, is_new=is_new):
            data_dir.take_ownership()
            with closing(Store(data_dir, create=True)) as store:
                adopt_folder(store)
    return True


@contextmanager
def removed_if_new(data_dir: DataDir, *, is_new: bool) -> Iterator[None]:
    """Removes the data directory if this process created it and the block fails. It has no job yet."""
    try:
        yield
    except (SchedulerError, sqlite3.OperationalError):
        if is_new:
            shutil.rmtree(data_dir.folder, ignore_errors=True)
            data_dir.drop_ownership()
        raise
