"""Recognises a store that was moved or copied, before the scheduler signals a process that the store names.

The store records a random id and the real path of its data directory. A file in that directory contains the
same id. If the recorded directory still exists at another path, this one is a copy, and must not be mistaken
for its original, whose processes carry the same tokens. Otherwise it was moved: the paths
in the store are updated, and the scheduler continues.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.safe_file import Content, is_same_file, read, replace_file

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import JobSpec

#: The key in the table `meta` of the data directory as recorded in the store.
FOLDER_KEY = "folder"
_ID_FILE = "id"
#: Maximum number of bytes to read from the id file; ids are shorter.
_MAX_ID_BYTES = 256


class RecordedFolder(NamedTuple):
    """The data directory as recorded in the store: its random id and its real path."""

    id: str
    path: str


def recorded_location(store: Store) -> RecordedFolder | None:
    """Returns the recorded folder of the store, or None if the store is new."""
    return _parse(store.db.meta(FOLDER_KEY))


def original_of_copy(store: Store) -> str | None:
    """Returns the original's folder if this store is a copy whose original still exists, otherwise None."""
    return copied_from(store.data_dir, store.db.meta(FOLDER_KEY))


def copied_from(data_dir: DataDir, recorded: str | None) -> str | None:
    """Returns the original's folder if a data directory is a copy whose original still exists, or None.

    recorded: the value of FOLDER_KEY in its store. A folder at the recorded path that cannot be read counts
    as the original.
    """
    known = _parse(recorded)
    if known is None or is_same_file(data_dir.folder, known.path):
        return None
    return known.path if _may_contain(known) else None


def refuse_copy(store: Store) -> None:
    """Raises SchedulerError, with the remedy, if the store is a copy and its original still exists."""
    of = original_of_copy(store)
    if of is not None:
        raise SchedulerError(copy_refusal(store.data_dir, of))


def copy_refusal(data_dir: DataDir, original: str) -> str:
    """Returns why a copy of this original can only be read, and on the next line the remedy."""
    return (
        f"{data_dir.folder} is a copy of {original}, which still exists; the original's jobs must not be"
        " ended or run again from here\n"
        "`start --fresh` forgets all jobs in the copy, so that the lines of its jobs file count as new"
    )


def refuse_hard_link(store: Store, original: str) -> None:
    """Raises SchedulerError if the databases of a copy and its original folder are hard links to one file."""
    database = store.data_dir.database
    other = os.path.join(original, database.name)
    if is_same_file(database, other):
        raise SchedulerError(
            f"{database} and {other} are one file (a hard link), so a write to one would change the other\n"
            "remove this copy and make one without links, with `cp -r`"
        )


def adopt_folder(store: Store, *, new_id: bool = False) -> None:
    """Records the current folder of the store, in the caller's transaction if there is one.

    new_id: give the store a new id, because it is a copy, whose jobs were forgotten. Only the scheduler that
    holds the locks may call this function. Raises SchedulerError if the folder cannot be read or written.
    """
    folder, recorded = store.data_dir.folder, recorded_location(store)
    known = None if new_id else recorded
    if known is not None:
        _follow_move(store, known.path)
    elif new_id:
        store.db.write("DELETE FROM jobs_file")  # lines would run in the folders of the original
    here = RecordedFolder(os.urandom(16).hex() if known is None else known.id, os.path.realpath(folder))
    try:
        if _read_id(folder) != here.id:
            replace_file(folder / _ID_FILE, f"{here.id}\n".encode("ascii"), synced=True)
    except OSError as error:
        raise SchedulerError(f"{error.filename or folder}: {error.strerror}") from None
    if here != recorded:
        _record(store, here)


def assume_folder(store: Store, path: str) -> None:
    """Records this path as the store's folder, with the current folder's id, in the caller's transaction.

    Use this for a store that was restored from attempt folders, which contain only the path.
    """
    _record(store, RecordedFolder(_read_id(store.data_dir.folder) or os.urandom(16).hex(), path))


def owner_elsewhere(db: sqlite3.Connection, data_dir: DataDir) -> str | None:
    """Returns the folder recorded in a database if its id differs from this folder's id, otherwise None."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (FOLDER_KEY,)).fetchone()
    known = None if row is None else _parse(row[0])
    return None if known is None or _read_id(data_dir.folder) in (None, known.id) else known.path


def _follow_move(store: Store, before: str) -> None:
    """Updates the paths in the store if its folder and project were moved from the path `before`."""
    data_dir = store.data_dir
    if not is_same_file(before, data_dir.folder):
        import logging

        logging.getLogger(__name__).warning("this store was moved here from %s", before)
    old, new = os.path.dirname(before), os.path.dirname(os.path.realpath(data_dir.folder))
    if old != new and data_dir.folder.parent == data_dir.state_file.parent:
        relocate(store, Relocation(old, new))


def _may_contain(known: RecordedFolder) -> bool:
    """Returns whether the folder at the recorded path contains the store, or cannot be read."""
    try:
        os.lstat(os.path.join(known.path, "scheduler.db"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return _read_id(Path(known.path)) in (known.id, None)


def _read_id(folder: Path) -> str | None:
    """Returns the id in a data directory; None if it is missing or cannot be read."""
    found = read(folder / _ID_FILE, _MAX_ID_BYTES, trust=True)
    return found.data.decode("ascii", "replace").strip() or None if isinstance(found, Content) else None


def _parse(value: str | None) -> RecordedFolder | None:
    found = None if value is None else json.loads(value)
    return None if found is None else RecordedFolder(found["id"], found["path"])


def _record(store: Store, folder: RecordedFolder) -> None:
    store.db.set_meta(FOLDER_KEY, json.dumps(folder._asdict()))


# Updates the paths in a store after its project folder was moved.
#
# Without this, every line of a jobs file would count as new, and queued jobs would run in a folder that no
# longer exists.


class Relocation:
    """Maps paths in an old folder to paths in a new one."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old.rstrip("/"), new.rstrip("/")
        self._new_paths: dict[str, str] = {}

    def new_path(self, path: str) -> str:
        """Returns the current path of a file or folder, which is different if it was moved."""
        if path not in self._new_paths:
            self._new_paths[path] = self._find_new_path(path)
        return self._new_paths[path]

    def relocated_spec(self, spec: JobSpec) -> JobSpec:
        """Returns the job specification with the paths in the new folder."""
        script, venv = (path and self.new_path(path) for path in (spec.script, spec.venv))
        return replace(spec, cwd=self.new_path(spec.cwd), script=script, venv=venv)

    def _find_new_path(self, path: str) -> str:
        if path != self._old and not path.startswith(f"{self._old}/"):
            return path
        moved = self._new + path[len(self._old) :]
        is_here = os.path.lexists(moved) and (not os.path.lexists(path) or is_same_file(moved, path))
        return moved if is_here else path

    def assume_folder_moved(self) -> None:
        """Treats the folder itself as moved, regardless of what is at the old path now."""
        self._new_paths[self._old] = self._new

    def has_moved(self, file: str) -> bool:
        """Returns whether the file was directly in the old folder and is now in the new folder."""
        return os.path.dirname(file) == self._old and self.new_path(file) != file


def relocate(store: Store, to: Relocation) -> None:
    """Changes the paths of jobs, jobs files and logs, in the caller's transaction if there is one."""
    from gpu_scheduler.core.model.job_spec import JobSpec
    from gpu_scheduler.core.model.states import WAITING

    with store.db.transaction() as db:
        if any(to.has_moved(row["path"]) for row in store.db.rows("SELECT path FROM jobs_file")):
            to.assume_folder_moved()  # lines run in the folder of their file
        lines = _reparse_lines(store, to)
        for row in store.db.rows("SELECT id, spec, identity, source, state FROM job"):
            before = JobSpec.from_json(row["spec"])
            line = lines.get(row["id"])
            spec = to.relocated_spec(before)
            source = row["source"]
            if source.startswith("file:"):
                source = f"file:{to.new_path(source[len('file:') :])}"
            # A waiting job gets the identity of its line. Any other job gets the identity of its new paths,
            # so that it does not run again when the user changes the line to those paths.
            identity = (line if line is not None and row["state"] in WAITING else spec).identity
            if (spec, identity, source) != (before, row["identity"], row["source"]):
                sql = "UPDATE job SET spec = ?, identity = ?, source = ? WHERE id = ?"
                db.execute(sql, (spec.to_json(), identity, source, row["id"]))
        for row in store.db.rows("SELECT path, cwd, problem FROM jobs_file"):
            path, cwd = to.new_path(row["path"]), to.new_path(row["cwd"])
            db.execute("INSERT OR REPLACE INTO jobs_file VALUES (?, ?, ?)", (path, cwd, row["problem"]))
            if path != row["path"]:
                # Delete any reading from an earlier time at which the file was at this path.
                db.execute("DELETE FROM line WHERE path = ?", (path,))
                db.execute("UPDATE line SET path = ? WHERE path = ?", (path, row["path"]))
                db.execute("DELETE FROM jobs_file WHERE path = ?", (row["path"],))
        for row in store.db.rows("SELECT id, log FROM attempt WHERE log IS NOT NULL"):
            log = to.new_path(row["log"])
            if log != row["log"]:
                db.execute("UPDATE attempt SET log = ? WHERE id = ?", (log, row["id"]))


def _reparse_lines(store: Store, to: Relocation) -> dict[int, JobSpec]:
    """Parses the recorded lines again in the new working directory of their file. Returns specs by job id.

    A line with unchanged text therefore does not count as changed. An absolute path in it still names the old
    folder.
    """
    from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line

    found = {}
    home = os.path.expanduser("~")
    for file in store.db.rows("SELECT path, cwd FROM jobs_file"):
        cwd = to.new_path(file["cwd"])
        sql = "SELECT position, raw, job_id FROM line WHERE path = ? AND identity IS NOT NULL"
        changed = []
        for row in store.db.rows(sql, file["path"]):
            parsed = parse_line(row["raw"], cwd, home)
            if isinstance(parsed, ParsedJob):
                changed.append((parsed.spec.identity, file["path"], row["position"]))
                if row["job_id"] is not None:
                    found[row["job_id"]] = parsed.spec
        store.db.connection.executemany(
            "UPDATE line SET identity = ? WHERE path = ? AND position = ?", changed
        )
    return found
