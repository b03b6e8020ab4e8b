"""Reads the progress of running jobs in a separate thread, because the folders of jobs may not respond."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.progress.eta import JobProgress
from gpu_scheduler.progress.job_progress import ProgressReader, ProgressSource

#: Minimum number of seconds between two readings.
MIN_INTERVAL_S = 2.0
#: Seconds after which a reading is outdated.
_OUTDATED_S = 60.0


class ProgressWatch:
    """The progress of running jobs as last read. The thread starts with the first job."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._wanted: Sequence[ProgressSource] | None = None
        self._known: Mapping[int, JobProgress] = {}
        self._read_at = self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def update(self, sources: Sequence[ProgressSource]) -> Mapping[int, JobProgress]:
        """Returns what was last read, by attempt id, and asks for another reading if one is due."""
        now = self._clock.now().boot
        with self._changed:
            if sources and now >= self._asked_at + MIN_INTERVAL_S and self._wanted is None and self._start():
                self._wanted, self._asked_at = sources, now
                self._changed.notify()
            return self._known if now < self._read_at + _OUTDATED_S else {}

    def close(self) -> None:
        """Ends the thread, which is not waited for."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def _start(self) -> bool:
        """Starts the thread if it does not run; returns False while too many threads run."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="progress", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        reader = ProgressReader()
        while True:
            with self._changed:
                while self._wanted is None and not self._is_closing:
                    self._changed.wait()
                if self._is_closing or self._wanted is None:
                    return
                sources = self._wanted
            wall = self._clock.now().wall
            known = {source.key: reader.read(source, wall, with_checkpoint=False) for source in sources}
            reader.keep_only(known)
            with self._changed:
                self._known, self._wanted, self._read_at = known, None, self._clock.now().boot
