"""The scheduler's side of the state file: taking in edits, and keeping it up to date without losing one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gpu_scheduler.intake.filelook import being_written
from gpu_scheduler.intake.pauses import resume_all, summary, take_in
from gpu_scheduler.store import statefile
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds for which broken JSON must stay unchanged before it is set aside, and between two writings.
BROKEN_S = 2.0
WRITE_EVERY_S = 1.0


class StateWatch:
    """Examines each version of the file once; writes it when what it says changes. Times: boot seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path: Path = store.home.state_file
        self._seen: os.stat_result | None = None
        self._broken_since: tuple[str, float] | None = None
        self._written_at = float("-inf")
        self._shown: object = None
        self.again_at: float | None = None

    def begin(self, now: float) -> None:
        """At the start: a version that was replaced but not examined, then the file, or its absence."""
        spare = statefile.displaced(self._path)
        if spare.exists():
            self._take_in(spare.read_bytes(), self._path.with_name(f"{self._path.name}.bad"))
            statefile.forget(self._path)
        if self._path.exists():
            self.look(now)
        elif self._store.db.meta("statefile_written") == "1":
            log.info("%s is gone: all GPUs resumed", self._path)
            resume_all(self._store)

    def look(self, now: float) -> None:
        """Examine the file if it has changed."""
        try:
            status = os.stat(self._path)
            if self._broken_since is None and self._seen is not None and _same(status, self._seen):
                return
            content = self._path.read_bytes()
        except OSError:
            self._seen = self._broken_since = None
            return
        self._seen, self._shown = status, None
        try:
            for text in take_in(self._store, content):
                log.info("%s", text)
            self._broken_since = None
        except ValueError as error:
            self._broken(content, str(error), now)

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Bring the file up to date: when its content changes, never over an edit, and at most once a second
        (at_once: for the last time, without waiting)."""
        self.again_at = self._broken_since[1] + BROKEN_S if self._broken_since else None
        if self._broken_since is not None:
            return
        shown = summary(self._store)
        if shown == self._shown and self.is_as_seen():
            return
        if now < self._written_at + WRITE_EVERY_S and not at_once:
            self.again_at = self._written_at + WRITE_EVERY_S
            return
        try:
            there = self._path.exists()
            if there and being_written(self._path):
                self.again_at = now + WRITE_EVERY_S
                return
            now_there = self._path.read_bytes() if there else b""
            content = statefile.render(statefile.parse(now_there) if there else {}, *shown)
            if content != now_there:
                self._exchange(content)
            self._shown = shown
        except ValueError:
            self.look(now)
        except OSError as error:
            log.error("%s cannot be written: %s; jobs go on", self._path, error.strerror)
        self._written_at = now

    def is_as_seen(self) -> bool:
        """Whether the file is the version that was examined or written last."""
        try:
            return self._seen is not None and _same(os.stat(self._path), self._seen)
        except OSError:
            return False

    def _exchange(self, content: bytes) -> None:
        before = statefile.exchange(self._path, content)
        self._seen = os.stat(self._path)
        if before is not None:
            self._take_in(before, self._path.with_name(f"{self._path.name}.bad"))
        with self._store.db.transaction():
            self._store.db.set_meta("statefile_examined", statefile.digest(content))
            self._store.db.set_meta("statefile_written", "1")
        statefile.forget(self._path)

    def _take_in(self, content: bytes, aside: Path) -> None:
        try:
            for text in take_in(self._store, content):
                log.info("%s", text)
        except ValueError as error:
            aside.write_bytes(content)
            log.warning("a version of %s that was %s lies in %s", self._path, error, aside)

    def _broken(self, content: bytes, why: str, now: float) -> None:
        version = statefile.digest(content)
        if self._broken_since is None or self._broken_since[0] != version:
            self._broken_since = (version, now)
            return
        if now < self._broken_since[1] + BROKEN_S:
            return
        aside = self._path.with_name(f"{self._path.name}.bad")
        os.replace(self._path, aside)
        self._broken_since = self._seen = None
        log.error("%s was %s; set aside as %s and written anew from the record", self._path, why, aside.name)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_ino, one.st_mtime_ns, one.st_size) == (other.st_ino, other.st_mtime_ns, other.st_size)
