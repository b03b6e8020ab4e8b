"""Watches and reads the input files of a scheduler: llm_config.json, the jobs file and the state file."""

from __future__ import annotations

from gpu_scheduler.config import StartOptions
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.rounds.loop import Loop
from gpu_scheduler.scheduler.wakeups import Wakeups
from gpu_scheduler.store import state_file
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.wait_text import wait_text


class FileInputs:
    """The input files of one scheduler. Passes their changes on to the loop. Times are in seconds since boot.

    Each file is read after an event for it, and at intervals in case an event was missed. The argument
    `woken` of the methods contains the keys of the events: "config", "jobs" or "state". known_gpus: the
    indices of the GPUs that lines of the jobs file may name; None if unknown.
    """

    def __init__(
        self,
        options: StartOptions,
        store: Store,
        loop: Loop,
        config: LlmConfigFile,
        known_gpus: frozenset[int] | None,
    ) -> None:
        self._options = options
        self._data_dir = store.data_dir
        self._loop = loop
        self._config = config
        self._state = StateFileWatcher(store, trust=options.trust_files)
        self._jobs = (
            JobsFileWatcher(
                store, options.jobs_file, known_gpus, lambda: config.current, trust=options.trust_files,
                wait_text=wait_text,
            )
            if options.jobs_file
            else None
        )  # fmt: skip
        self._state_due_at = self._files_due_at = 0.0

    @property
    def has_pending_lines(self) -> bool:
        """Returns whether the jobs file has a change that is not yet accepted."""
        return self._jobs is not None and self._jobs.recheck_at is not None

    def start(self, wakeups: Wakeups, now: float) -> None:
        """Watches the files, and reads the state file for the first time."""
        wakeups.watch(self._data_dir.state_file, "state")
        wakeups.watch(state_file.link_target(self._data_dir.state_file), "state")
        wakeups.watch(self._config.path, "config")
        if self._jobs is not None:
            wakeups.watch(self._jobs.path, "jobs")
        self._state.start(now)

    def is_state_due(self, woken: set[str], now: float) -> bool:
        """Returns whether it is time to read the state file."""
        again_at = self._state.due_at
        return "state" in woken or now >= self._state_due_at or (again_at is not None and now >= again_at)

    def read(self, woken: set[str], now: float) -> None:
        """Reads the files that are due to be read."""
        if self.is_state_due(woken, now):
            self._state_due_at = now + self._options.state_interval_s
            self._state.check(now)
        if "config" in woken or "jobs" in woken or now >= self._files_due_at:
            self._files_due_at = now + self._options.monitor_interval_s
            if self._config.refresh():
                self._loop.config = self._config.current
            self._read_jobs_file(now)
        elif self._jobs is not None and self._jobs.recheck_at is not None and now >= self._jobs.recheck_at:
            self._read_jobs_file(now)

    def write_state(self, now: float, *, at_once: bool = False) -> None:
        """Writes the state file if its content has changed: now if `at_once`, otherwise when it is due."""
        self._state.write(now, at_once=at_once)

    def is_own_write(self, woken: set[str]) -> bool:
        """Returns whether the only cause of these events is that this scheduler wrote the state file."""
        return woken == {"state"} and self._state.is_unchanged()

    def due_times(self) -> list[float | None]:
        """Returns when each file is next due, in seconds since boot; None for a file that is not due."""
        recheck_at = self._jobs.recheck_at if self._jobs is not None else None
        return [self._state_due_at, self._files_due_at, self._state.due_at, recheck_at]

    def _read_jobs_file(self, now: float) -> None:
        if self._jobs is not None:
            self._jobs.check(now)
            self._loop.set_line_waits(self._jobs.waits)
            self._loop.placing = not self._jobs.loading
