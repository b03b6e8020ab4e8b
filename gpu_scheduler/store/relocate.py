"""Lets a record name the files of its project folder where they are now, after that was moved or copied: else
every line of a jobs file would count as new, and queued jobs would look for a folder that is gone."""

from __future__ import annotations

import os
from dataclasses import replace

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.store.store import Store


class Relocation:
    """From one folder to another. copied: the files are in both."""

    def __init__(self, old: str, new: str, *, copied: bool) -> None:
        self._old, self._new = old.rstrip("/"), new.rstrip("/")
        self._copied = copied
        self._known: dict[str, str] = {}

    def path(self, path: str) -> str:
        """Where a file or folder is now: only what came along has another place."""
        if path not in self._known:
            self._known[path] = self._looked_up(path)
        return self._known[path]

    def spec(self, spec: JobSpec) -> JobSpec:
        """A job that runs the same in the new place."""
        script = None if spec.script is None else self.path(spec.script)
        venv = None if spec.venv is None else self.path(spec.venv)
        return replace(spec, cwd=self.path(spec.cwd), script=script, venv=venv)

    def _looked_up(self, path: str) -> str:
        if path != self._old and not path.startswith(f"{self._old}/"):
            return path
        moved = self._new + path[len(self._old) :]
        here, there = os.path.lexists(moved), os.path.lexists(path)
        return moved if here and (self._copied or not there) else path


def relocate(store: Store, to: Relocation) -> None:
    """Change the paths of jobs, jobs files and logs, in the caller's transaction if there is one."""
    with store.db.transaction() as db:
        identities = {}
        for row in store.db.rows("SELECT id, spec, identity, source FROM job"):
            before = JobSpec.from_json(row["spec"])
            spec = to.spec(before)
            source = row["source"]
            if source.startswith("file:"):
                source = f"file:{to.path(source[len('file:') :])}"
            if spec == before and source == row["source"]:
                continue
            identities[row["identity"]] = spec.identity
            sql = "UPDATE job SET spec = ?, identity = ?, source = ? WHERE id = ?"
            db.execute(sql, (spec.to_json(), spec.identity, source, row["id"]))
        lines = [(new, old) for old, new in identities.items() if new != old]
        db.executemany("UPDATE line SET identity = ? WHERE identity = ?", lines)
        for row in store.db.rows("SELECT path, cwd, problem FROM jobs_file"):
            path, cwd = to.path(row["path"]), to.path(row["cwd"])
            db.execute("INSERT OR REPLACE INTO jobs_file VALUES (?, ?, ?)", (path, cwd, row["problem"]))
            if path != row["path"]:
                db.execute("UPDATE line SET path = ? WHERE path = ?", (path, row["path"]))
                db.execute("DELETE FROM jobs_file WHERE path = ?", (row["path"],))
        for row in store.db.rows("SELECT id, log FROM attempt WHERE log IS NOT NULL"):
            log = to.path(row["log"])
            if log != row["log"]:
                db.execute("UPDATE attempt SET log = ? WHERE id = ?", (log, row["id"]))
