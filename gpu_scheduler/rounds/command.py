"""Runs the rounds of a command while no scheduler is running (docs/design.md, Commands without a scheduler).

Only rounds change jobs. A command that finds no scheduler takes its lock and runs rounds with placing off, so
that its request is carried out by the same code. If the command dies, it leaves what a scheduler that dies
at this point leaves.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gpu_scheduler.attempts.executor import LOCAL_EXECUTORS, Executors
from gpu_scheduler.attempts.observe import attempts_without_processes
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer
from gpu_scheduler.core.scheduling.actions import AnswerRequest
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.plan import plan_for_command
from gpu_scheduler.errors import NotOwnerError
from gpu_scheduler.executors.local import DirectExecutor
from gpu_scheduler.executors.screen import ScreenExecutor
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.rounds.loop import Loop
from gpu_scheduler.runner.process_scan import shows_own_pids
from gpu_scheduler.store import state_file
from gpu_scheduler.store.database import newest_schema_version
from gpu_scheduler.store.inspection import inspect_store
from gpu_scheduler.store.location import location_verdict
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import CommandLock
from gpu_scheduler.store.store import Store

# A command has no log. Without a handler, Python would print the warnings of the rounds to stderr.
logging.getLogger("gpu_scheduler").addHandler(logging.NullHandler())

#: Seconds for which a `start` waits for a command that has not announced when it ends.
_SHORT_S = 5.0


def failpoint(step: str) -> None:
    """Is called at each step of a round. Tests replace it to end the process there."""


def may_run_rounds(store: Store) -> bool:
    """Returns whether a command may run rounds here: whether `start` would continue this store as it is.

    It must see the processes of the runners, and the store must be in its folder, on its host, complete, and
    of this version's schema.
    """
    home = store.data_dir
    return (
        shows_own_pids()
        and home.other_host() is None
        and store.db.schema_version == newest_schema_version()
        and location_verdict(store) == "same"
        and not inspect_store(home, thorough=False).is_lost
    )


class CommandRounds:
    """The rounds of one command. The command holds the lock until `close`."""

    def __init__(self, store: Store, lock: CommandLock) -> None:
        self._store, self._lock, self._clock = store, lock, Clock()
        self._options = replace(store.recorded_options(), recover=False)
        executors = Executors(DirectExecutor(), ScreenExecutor())
        self._loop = Loop(
            store, GpuWatch(), _refuse_launch, executors, self._options, self._clock,
            failpoint=lambda step: failpoint(step), decide=plan_for_command,
        )  # fmt: skip
        self._loop.placing = False
        self._loop.check_owner = self._check_owner
        self._facts: Facts | None = None
        self.announce_end(_SHORT_S)
        self._answer_old_stops()

    @classmethod
    def begin(cls, store: Store) -> CommandRounds | None:
        """Takes the lock; returns None if a scheduler or another command holds it. Raises OSError."""
        lock = CommandLock(store.data_dir.folder)
        try:
            if lock.acquire():
                return cls(store, lock)
        except BaseException:
            lock.release()
            raise
        lock.release()
        return None

    def announce_end(self, in_s: float) -> None:
        """Tells a `start` that waits for the lock that this command ends within these seconds."""
        self._lock.announce_end(self._clock.now().boot + in_s)

    def advance(self) -> None:
        """Runs rounds until one changes nothing. Raises OSError, sqlite3.Error and NotOwnerError."""
        while (facts := self._loop.tick()) is None:
            pass
        self._facts = facts

    def is_ending(self, job_id: int) -> bool:
        """Returns whether an attempt of the job still has processes that these rounds will end."""
        return self._facts is not None and any(
            attempt.job_id == job_id
            and attempt.state.holds_gpus
            and attempt.executor in LOCAL_EXECUTORS
            # The processes of such an attempt cannot be observed, so a round leaves them alone.
            and attempt.status.claim not in ("unknown", "unlocked")
            for attempt in self._facts.attempts
        )

    def close(self) -> list[float] | None:
        """Updates the state file and releases the lock.

        Returns the new shares; None if they did not change.
        """
        try:
            return self._update_state_file()
        finally:
            self._lock.release()

    def _answer_old_stops(self) -> None:
        """Answers the requests that were meant for a scheduler that has ended."""
        ended = RequestAnswer(AnswerCode.SCHEDULER_ENDED)
        late = [request for request in open_requests(self._store) if request.verb == "stop"]
        if late:
            answers = [AnswerRequest(request.request_id, ended) for request in late]
            self._loop.recorder.record(answers, self._clock.now())

    def _check_owner(self) -> None:
        if not self._lock.locks_folder():
            raise NotOwnerError(f"{self._store.data_dir.folder} was removed or replaced")

    def _update_state_file(self) -> list[float] | None:
        path, trust = self._store.data_dir.state_file, self._options.trust_files
        before = _shares_in(path, trust)
        if before is None:
            return None
        now = self._clock.now().boot
        watch = StateFileWatcher(self._store, attempts_without_processes(self._store), trust=trust)
        watch.start(now)
        watch.write(now, at_once=True)
        after = _shares_in(path, trust)
        return after if after != before else None


def _refuse_launch(attempt_id: int) -> NoReturn:
    raise AssertionError(f"a round of a command launches attempt {attempt_id}")


def _shares_in(path: Path, trust: bool) -> list[float] | None:
    """Returns the shares in a state file that this program wrote; None for any other file."""
    try:
        state = state_file.parse(state_file.read(path, trust=trust) or b"")
    except (OSError, ValueError):
        return None
    shares = state.get("gpu_status")
    return shares if isinstance(shares, list) and not state_file.is_from_older_scheduler(state) else None
