"""A jobs file for tests, with a watcher that reads it and a scheduler that runs its jobs."""

from __future__ import annotations

import os

from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from tests.loop.rig import Rig


class WatchedFile:
    """A jobs file with a watcher and a scheduler. The test runs the scheduler's rounds."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.path = rig.folder / "jobs.txt"
        self.lines: list[str] = []
        self.now = 1000.0
        self.watch = self._watch()

    def _watch(self) -> JobsFileWatcher:
        return JobsFileWatcher(self.rig.store, str(self.path), frozenset(range(self.rig.gpus)))

    def restart(self) -> None:
        """Replaces the scheduler and the watcher with new ones."""
        self.rig = Rig(self.rig.folder)
        self.watch = self._watch()

    def save(self, text: str | bytes, quiet_s: float = 30.0) -> None:
        """Saves the file, reads it at once, and reads it again `quiet_s` seconds later."""
        self._replace(text.encode() if isinstance(text, str) else text)
        self.wait(quiet_s)

    def save_lines(self) -> None:
        """Saves `lines`, without reading the file."""
        self._replace("".join(self.lines).encode())

    def _replace(self, data: bytes) -> None:
        spare = self.path.with_suffix(".new")
        spare.write_bytes(data)
        os.replace(spare, self.path)

    def read(self, later: float = 0.0) -> None:
        """Reads the file `later` seconds after the last read, and then until every batch is loaded."""
        self.now += later
        self.watch.check(self.now)
        while self.watch.loading:
            self.watch.check(self.now)

    def wait(self, seconds: float) -> None:
        """Reads the file and runs rounds, now and again after this many seconds."""
        for step in (0.0, seconds):
            self.now += step
            self.watch.check(self.now)
            self.rig.loop.set_line_waits(self.watch.waits)
            self.rig.tick()

    def states(self) -> dict[int, str]:
        """Returns, by job id, each job's outcome or, if it has none yet, its state."""
        rows = self.rig.store.db.rows("SELECT id, state, outcome FROM job ORDER BY id")
        return {row["id"]: row["outcome"] or row["state"] for row in rows}

    def queued(self) -> list[str]:
        """Returns the queued commands in queue order."""
        rows = self.rig.store.db.rows(
            "SELECT text FROM job WHERE state = 'queued' ORDER BY priority, position, id"
        )
        return [row["text"] for row in rows]

    def problems(self) -> list[tuple[int, str]]:
        """Returns the number and the problem of each malformed line, as recorded for `status`."""
        rows = self.rig.store.db.rows("SELECT number, problem FROM line WHERE problem IS NOT NULL")
        return [(row["number"], row["problem"]) for row in rows]
