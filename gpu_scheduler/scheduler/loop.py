"""Runs the scheduler one round at a time: observe, plan, record, perform.

The loop has no state of its own that a restart would lose. After a restart, it simply runs the next round.
"""

from __future__ import annotations

import logging
import signal
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from gpu_scheduler.attempts.executor import AttemptRef, Executor, Executors, LaunchError
from gpu_scheduler.attempts.observe import attempt_ref
from gpu_scheduler.attempts.running_progress import RunningProgress
from gpu_scheduler.attempts.saved_work import with_saved_times
from gpu_scheduler.attempts.sweep import sweep_once
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.health.storage_monitor import StorageMonitor
from gpu_scheduler.scheduler.first_forecasts import FirstForecasts
from gpu_scheduler.scheduler.read_facts import read_facts
from gpu_scheduler.scheduler.turns import QueueTurns
from gpu_scheduler.store.attempt_history import GpuHistoryReader, QueueStartsReader
from gpu_scheduler.store.measurements import LearnedNeedsReader
from gpu_scheduler.store.pending_groups_reader import PendingGroupsReader
from gpu_scheduler.store.run_times import RunTimesReader
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

log = logging.getLogger(__name__)

_PERFORMED_ON_ATTEMPT = (act.VoidClaim, act.RequestStop, act.WakeRunner, act.KillRunner, act.Sweep)


#: Actions after which no other round is needed at once.
_WITHOUT_CONSEQUENCES = (act.SetWaitReason, act.RecordGpuTime, act.RecordForecasts)


def _with_claims(facts: Facts, claims: Mapping[str, GpuClaim]) -> Facts:
    """Returns the facts with one more claim on each of these GPUs, by UUID."""
    if not claims:
        return facts
    gpus = ((gpu, claims.get(gpu.uuid)) for gpu in facts.gpus)
    return replace(
        facts, gpus=tuple(replace(gpu, claims=(*gpu.claims, new)) if new else gpu for gpu, new in gpus)
    )


def _begins_preemption(action: act.Action) -> bool:
    return isinstance(action, act.Reserve) or (
        isinstance(action, act.RecordStop) and action.stop.preemptor is not None
    )


class Loop:
    """Runs the rounds of one scheduler.

    launch: launches the attempt with a given id; see Launcher.launch. failpoint: called with the name of each
    step that a round has completed, so that tests can end the process there.
    """

    def __init__(
        self,
        store: Store,
        watch: GpuWatch,
        launch: Callable[[int], None],
        executors: Executors,
        settings: Settings,
        clock: Clock,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.store = store
        self.watch = watch
        self.settings = settings
        self.clock = clock
        self.config = LlmConfig()
        self.recorder = StoreWriter(store, settings, executors.default.name)
        self.progress = RunningProgress(store, clock)
        self.on_action: Callable[[act.Action], None] = lambda action: None
        self.storage: StorageMonitor | None = None
        self.check_owner: Callable[[], None] = lambda: None
        self.turns: QueueTurns | None = None
        self.placing = True
        self.stop_requested = False
        self.sample_wanted = False
        self._starts = QueueStartsReader(store)
        self._history = GpuHistoryReader(store)
        self._run_times = RunTimesReader(store)
        self._groups = PendingGroupsReader(store)
        self._forecasts = FirstForecasts(store)
        self._learned = LearnedNeedsReader(store, settings.spike_buffer)
        self._logged: set[str] = set()
        self._line_waits: Mapping[int, WaitReason] | None = None
        self._launch_attempt = launch
        self._executors = executors
        self._failpoint = failpoint

    def tick(self) -> Facts | None:
        """Runs one round.

        Returns None if the round changed anything; the caller should then run another round at once. If it
        changed nothing except wait reasons, the count of GPU time and forecasts, returns the facts. If an
        action cannot be performed, performs the other actions first and then raises its error. Calls
        `check_owner` after observing and before recording, and raises its errors.
        """
        now = self.clock.now()
        issue = self.storage.issue() if self.storage is not None else None
        facts = read_facts(
            self.store, self.watch, self._executors, self.config, self.settings, now, issue,
            placing=self.placing, learned=self._learned if self.store.learning else None,
            starts=self._starts, run_times=self._run_times, groups=self._groups, progress=self.progress,
            lock_folder=self.turns.folder if self.turns is not None else None, history=self._history,
        )  # fmt: skip
        # If this scheduler no longer owns the folder, it must not record what it observed there.
        self.check_owner()
        self._log_anomalies(facts)
        facts, actions = self._plan_in_turn(facts)
        if not actions and self.placing:
            actions = [*self._forecasts.due(facts)]
        if not actions:
            return facts
        self._failpoint("planned")
        opened = self.recorder.record(actions, now)
        self._groups.accept(actions)
        self._history.accept(actions)
        self._failpoint("recorded")
        failed: OSError | sqlite3.OperationalError | None = None
        for action in actions:
            self.on_action(action)
            try:
                self._perform(action, opened, facts)
            except (OSError, sqlite3.OperationalError) as error:
                failed = failed or error
            self._failpoint(f"performed {type(action).__name__}")
        if failed is not None:
            raise failed
        return facts if all(isinstance(action, _WITHOUT_CONSEQUENCES) for action in actions) else None

    def _plan_in_turn(self, facts: Facts) -> tuple[Facts, list[act.Action]]:
        """Returns the actions of this round as `_plan` does, and takes the holds on GPUs that they need.

        A start that is refused costs no attempt: the program ahead counts as a claim, and the round is
        planned again. It does not begin a preemption then, because that program soon takes its GPU.
        """
        if self.turns is None:
            return self._plan(facts)
        facts, actions = self._plan(_with_claims(facts, self.turns.begin_round(facts)))
        for _ in facts.gpus:
            refused = self.turns.refusals(facts, actions)
            if not refused:
                break
            facts, actions = self._plan(_with_claims(facts, refused))
            actions = [one for one in actions if not _begins_preemption(one)]
        self.turns.end_round(facts, actions)
        return facts, actions

    def _plan(self, facts: Facts) -> tuple[Facts, list[act.Action]]:
        """Returns the actions of this round, and the facts from which they were planned.

        Before others are preempted, looks for their checkpoints, and plans again. Checks the storage again
        before a launch. Before an attempt is given up, checks by a trial whether processes can be started. If
        a check has a new result, plans again.
        """
        actions = plan(facts)
        if any(isinstance(action, act.Reserve) for action in actions):
            facts = replace(facts, attempts=with_saved_times(self.store, facts.attempts))
            actions = plan(facts)
        launches = any(isinstance(action, (act.Start, act.Relaunch)) for action in actions)
        gives_up = any(isinstance(action, act.VoidClaim) and action.gives_up for action in actions)
        if (launches or gives_up) and self.storage is not None:
            # Use the result of the trial for this whole round, however long the storage check takes.
            shortage = self.storage.check_processes() if gives_up else None
            issue = shortage or self.storage.issue(fresh=True)
            if issue != facts.storage_issue:
                facts = replace(facts, storage_issue=issue)
                actions = plan(facts)
        return facts, actions

    def set_line_waits(self, waits: Mapping[int, WaitReason]) -> None:
        """Prevents exactly these jobs from starting, because of the state of their lines in the jobs file."""
        if waits != self._line_waits:
            self.recorder.set_line_waits(waits)
            self._line_waits = waits

    def _log_anomalies(self, facts: Facts) -> None:
        for attempt in facts.attempts:
            for text in attempt.status.anomalies:
                self._log_once(f"job {attempt.job_id}: {text}")

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            log.warning("%s", text)
            self._logged.add(text)

    def _perform(self, action: act.Action, opened: Mapping[int, int], facts: Facts) -> None:
        if isinstance(action, act.Start):
            self._launch(opened[action.job_id])
        elif isinstance(action, act.Relaunch):
            self._launch(action.attempt_id)
        elif isinstance(action, _PERFORMED_ON_ATTEMPT):
            self._perform_on_attempt(action, facts)
        elif isinstance(action, act.ReleaseAllocation):
            self.sample_wanted = True
        elif (
            isinstance(action, act.FinishAttempt) and action.shortage is not None and self.storage is not None
        ):
            self.storage.record_shortage(action.shortage)
        elif isinstance(action, act.EndScheduler):
            self.stop_requested = True

    def _launch(self, attempt_id: int) -> None:
        self.check_owner()
        try:
            self._launch_attempt(attempt_id)
        except LaunchError as error:
            if self.storage is not None and self.storage.is_cause_of(error.__cause__):
                # The job has not failed: the loop launches the attempt again when the shortage is over.
                with suppress(OSError, sqlite3.OperationalError):
                    self.recorder.record_shortage(attempt_id)
                return
            log.warning("%s", error)
            self.recorder.record_launch_error(attempt_id, str(error))

    def _perform_on_attempt(self, action: act.AttemptAction, facts: Facts) -> None:
        attempt = next(one for one in facts.attempts if one.attempt_id == action.attempt_id)
        ref = attempt_ref(self.store, attempt)
        executor = self._executors.of(ref)
        if isinstance(action, act.VoidClaim):
            self._cancel_launch(ref, executor)
        elif isinstance(action, act.RequestStop):
            executor.request_stop(ref, action.stop)
        elif isinstance(action, act.WakeRunner):
            executor.repeat_stop(ref)
        elif isinstance(action, act.KillRunner):
            executor.kill(ref)
        elif isinstance(action, act.Sweep):
            sweep_once(ref.folder, ref.token, signal.SIGKILL if action.kill else signal.SIGTERM)

    def _cancel_launch(self, attempt: AttemptRef, executor: Executor) -> None:
        # An error affects only this attempt: its GPUs stay allocated, and the next round tries again.
        try:
            executor.cancel_launch(attempt)
        except OSError as error:
            self._log_once(
                f"job {attempt.job_id} cannot be reconciled: {error}; check {attempt.folder};"
                " retrying every second"
            )
