"""Updates the paths in a store after its project folder was moved.

Without this, every line of a jobs file would count as new, and queued jobs would run in a folder that no
longer exists.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import WAITING
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.filesystem import is_same_file


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
