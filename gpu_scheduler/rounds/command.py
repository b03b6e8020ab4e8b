"""Runs the rounds of a command while no scheduler is running (docs/design.md, Commands without a scheduler).

Only rounds change jobs. A command that finds no scheduler takes its lock and runs rounds with placing off, so
that its request is carried out by the same code. If the command dies, it leaves what a scheduler that dies
at this point leaves.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from gpu_scheduler.attempts.executors import DirectExecutor, Executors, ScreenExecutor
from gpu_scheduler.attempts.folder import LOCAL_EXECUTORS
from gpu_scheduler.attempts.observe import attempts_without_processes
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.scheduling.actions import AnswerRequest
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.plan import is_end_awaited, plan_for_command
from gpu_scheduler.errors import NotOwnerError
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.rounds.loop import Loop
from gpu_scheduler.runner.process_scan import shows_own_pids
from gpu_scheduler.store import state_file
from gpu_scheduler.store.database import damaged_error
from gpu_scheduler.store.inspection import inspect_store
from gpu_scheduler.store.moved_or_copied import recorded_location
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import no_scheduler_starts, scheduler_pid, supports_lock
from gpu_scheduler.store.store import Store

#: Seconds for which a command waits for the lock to write the state file, and between two tries.
_LOCK_WAIT_S, _LOCK_RETRY_S = 2.0, 0.01


def failpoint(step: str) -> None:
    """Is called at each step of a round. Tests replace it to end the process there."""


def may_run_rounds(store: Store) -> bool:
    """Returns whether a command may run rounds here: whether `start` would continue this store as it is.

    The processes of this machine must be visible, and the store must be complete, at its recorded path and on
    a file system with locks. A store of another host or of an older version cannot even be opened. Raises
    DamagedStoreError and OSError.
    """
    folder, recorded = store.data_dir.folder, recorded_location(store)
    is_moved = recorded is not None and os.path.realpath(folder) != recorded.path
    if is_moved or not shows_own_pids() or not supports_lock(folder):
        return False
    condition = inspect_store(store.data_dir, thorough=False)
    if condition.damage:
        raise damaged_error(store.data_dir.database, condition.damage)
    return not condition.is_lost


class CommandRounds:
    """The rounds of one command. It holds the lock during a round only, so a `start` never waits for long.

    named: the jobs that the command ends; problem: why an action of the last round could not be performed.
    """

    def __init__(self, store: Store) -> None:
        self.named: Collection[int] = ()
        self.problem: OSError | None = None
        self._store, self._clock = store, Clock()
        self._options = replace(store.recorded_options(), recover=False)
        self._executors = Executors(DirectExecutor(), ScreenExecutor())
        self._database = os.stat(store.data_dir.database)
        self._facts: Facts | None = None

    def advance(self) -> bool:
        """Runs rounds until one changes nothing; returns False if a scheduler or a command holds the lock.

        If an action cannot be performed, `problem` is its error until a later round can. Raises OSError,
        sqlite3.Error, and NotOwnerError if the data directory was replaced.
        """
        # Another process may have run rounds since the last call, so nothing is kept from it.
        loop, self.problem = self._new_loop(), None
        while True:
            with self._locked() as is_locked:
                if not is_locked:
                    return False
                self._answer_old_stops(loop)
                try:
                    facts = loop.tick()
                except OSError as error:
                    self.problem = error
                    return True
            if facts is not None:
                self._facts = facts
                return True

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Holds the lock for one round, which logs nothing."""
        # Without a handler, Python would print the warnings of the round to stderr.
        log, handler = logging.getLogger("gpu_scheduler"), logging.NullHandler()
        with no_scheduler_starts(self._store.data_dir.folder) as is_locked:
            log.addHandler(handler)
            try:
                yield is_locked
            finally:
                log.removeHandler(handler)

    def ending_jobs(self) -> set[int]:
        """Returns the jobs whose processes these rounds still end, for the command or for a request."""
        if self._facts is None:
            return set()
        facts = self._facts
        return {
            attempt.job_id
            for attempt in facts.attempts
            if (attempt.job_id in self.named or is_end_awaited(attempt, facts))
            and attempt.state.holds_gpus
            and attempt.executor in LOCAL_EXECUTORS
            # The processes of such an attempt cannot be observed, so a round leaves them alone.
            and attempt.status.claim not in ("unknown", "unlocked")
        }

    def update_state_file(self) -> list[float] | None:
        """Brings the state file up to date unless a scheduler does. Returns the shares if they have changed.

        Leaves a file alone that was deleted, is broken, or was last written by the older scheduler.
        """
        end = time.monotonic() + _LOCK_WAIT_S
        while time.monotonic() < end and scheduler_pid(self._store.data_dir.lock) is None:
            with self._locked() as is_locked:
                if is_locked:
                    self._check_owner()
                    return self._written_shares()
            time.sleep(_LOCK_RETRY_S)
        return None

    def _written_shares(self) -> list[float] | None:
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

    def _new_loop(self) -> Loop:
        loop = Loop(
            self._store, GpuWatch(), _refuse_launch, self._executors, self._options, self._clock,
            failpoint=lambda step: failpoint(step), decide=lambda facts: plan_for_command(facts, self.named),
            with_statistics=False,
        )  # fmt: skip
        loop.placing = False
        loop.check_owner = self._check_owner
        return loop

    def _answer_old_stops(self, loop: Loop) -> None:
        """Answers the requests that were meant for a scheduler that has ended."""
        ended = RequestAnswer(AnswerCode.SCHEDULER_ENDED)
        late = [request for request in open_requests(self._store) if request.verb == "stop"]
        if late:
            answers = [AnswerRequest(request.request_id, ended) for request in late]
            loop.recorder.record(answers, self._clock.now())

    def _check_owner(self) -> None:
        database = self._store.data_dir.database
        try:
            is_same = os.path.samestat(os.stat(database), self._database)
        except OSError:
            is_same = False
        if not is_same:
            raise NotOwnerError(f"{database} was removed or replaced")


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
