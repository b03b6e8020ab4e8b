"""Runs the scheduler one round at a time: observe, plan, record, perform.

The loop has no state of its own that a restart would lose. After a restart, it simply runs the next round.
"""

from __future__ import annotations

import logging
import math
import signal
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.attempts.executors import Executor, Executors, LaunchError
from gpu_scheduler.attempts.folder import AttemptRef, recorded_command
from gpu_scheduler.attempts.job_progress import RunningProgress, with_remaining_times, with_saved_times
from gpu_scheduler.attempts.observe import attempt_ref, observe_attempt, processes_of, runner_pids, sweep_once
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import Gpu, GpuClaim
from gpu_scheduler.core.model.job import ActiveAttempt, Job
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling import pending_queue as rules
from gpu_scheduler.core.scheduling.actions import Action, Start
from gpu_scheduler.core.scheduling.engine_queue import by_engine
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.history import GpuHistory, Overtakes, RunTimes
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.reconcile_attempt import needs_process_scan
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from gpu_scheduler.gpus.watch import GpuWatch, watched_processes
from gpu_scheduler.health.storage_monitor import StorageMonitor
from gpu_scheduler.runner.locks import Lock
from gpu_scheduler.runner.process_scan import RecordedCommand
from gpu_scheduler.store.attempt_history import (
    GpuHistoryReader,
    LearnedNeedsReader,
    QueueStartsReader,
    RunTimesReader,
    gpu_time,
)
from gpu_scheduler.store.events import history_in_errors
from gpu_scheduler.store.job_lists import interrupted_jobs, is_ancestor, jobs_to_watch, listed_count
from gpu_scheduler.store.pending_groups import (
    PendingGroupsReader,
    engine_state,
    queue_reservation,
    reserved_jobs,
)
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter
from gpu_scheduler.system.gpu_claims import (
    MOVE_EVERY_S,
    TURN_EVERY_S,
    LockReading,
    Turns,
    claims_of,
    lock_problem,
    own_claims,
    read_locks_of,
    turn_claim,
)

log = logging.getLogger(__name__)

# Gathers the facts of a round: the store, the status and processes of open attempts, and the GPUs.


class Readers:
    """The readers that read from the store only what has changed since their last reading."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.starts = QueueStartsReader(store)
        self.history = GpuHistoryReader(store)
        self.run_times = RunTimesReader(store)
        self.groups = PendingGroupsReader(store)
        self.learned = LearnedNeedsReader(store, settings.spike_buffer)


def read_facts(
    store: Store,
    watch: GpuWatch,
    executors: Executors,
    config: LlmConfig,
    settings: Settings,
    now: Now,
    health_issue: str | None = None,
    *,
    readers: Readers | None = None,
    placing: bool = True,
    progress: RunningProgress | None = None,
    lock_folder: Path | None = None,
    with_statistics: bool = True,
) -> Facts:
    """Returns all facts on which the decisions of one round are based.

    readers: those of the earlier rounds; None to read everything. placing: whether jobs may be started.
    progress: that of the running attempts; None if it is not looked for. lock_folder: the folder with the
    lock files of the GPUs; None if there is none. with_statistics: whether the facts contain the starts that
    overtook waiting jobs, the ends on each GPU, the run times and the GPU time.
    """
    readers = readers or Readers(store, settings)
    managed, marks = store.gpus(), store.marks()
    # Read before the folders of the attempts, so that every lock of a runner belongs to one of them.
    locks = LockReading()
    if lock_folder is not None:
        locks = read_locks_of(lock_folder, [gpu.uuid for gpu in managed])
    records = store.active_attempts()
    refs = {record.token: attempt_ref(store, record) for record in records}
    attempts = _attempts(store, executors, records, refs, now)
    waiting = readers.groups.read(now, marks) if placing else ()
    pending, on_engines = by_engine(waiting, settings.on)
    reservation = queue_reservation(store) if placing and marks.has_reservations else None
    if progress is not None and pending and settings.queue_order is QueueOrder.RESERVE:
        known = progress.read(records) if reservation is None else progress.read_now(records)
        attempts = with_remaining_times(attempts, known, now)
    gpus, unmanaged = _gpus(watch, managed, attempts, refs, locks)
    requests = tuple(open_requests(store)) if marks.has_requests else ()
    verbs = {request.verb for request in requests}
    ours = {gpu.uuid for gpu in managed}
    every = store.gpus(managed_only=False) if verbs & {"pause", "resume"} else ()
    return Facts(
        now=now,
        settings=settings,
        config=config,
        gpus=gpus,
        unmanaged_gpus=unmanaged,
        other_gpus=tuple(gpu for gpu in every if gpu.uuid not in ours),
        all_sampled=watch.snapshot is not None,
        probe_error=watch.failure,
        storage_issue=health_issue,
        attempts=attempts,
        pending_groups=pending,
        engine_groups=on_engines,
        engines={name: engine_state(store, name) for name in executors.engines} if on_engines else {},
        adopted_jobs=tuple(jobs_to_watch(store)) if marks.has_adopted else (),
        reserved_jobs=tuple(reserved_jobs(store, now)) if placing and marks.has_reservations else (),
        queue_reservation=reservation,
        overtakes=readers.starts.overtakes(marks) if with_statistics else Overtakes(),
        history=readers.history.history() if with_statistics else GpuHistory(),
        run_times=readers.run_times.run_times(marks) if with_statistics else RunTimes(),
        gpu_time=gpu_time(store, now.wall) if with_statistics else None,
        requests=requests,
        jobs=_target_jobs(store, {request.target for request in requests}),
        cyclic_request=_find_cyclic_request(store, requests),
        has_unsettled_dependencies=marks.has_unsettled_dependencies,
        interrupted=tuple(interrupted_jobs(store)) if settings.recover or "recover" in verbs else (),
        finished_count=listed_count(store) if "clear" in verbs else 0,
        learned_mib=readers.learned.needs(marks) if store.learning else {},
    )


def _gpus(
    watch: GpuWatch,
    managed: Sequence[Gpu],
    attempts: Sequence[ActiveAttempt],
    refs: Mapping[str, AttemptRef],
    locks: LockReading,
) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
    """Returns the managed GPUs, with the claims of other programs, and the other GPUs in the sample."""
    tokens = {attempt.token: attempt.id for attempt in attempts}

    def command_of(token: str) -> RecordedCommand | None:
        return recorded_command(refs[token].folder, token)

    watched = watched_processes(attempts)
    foreign = locks.foreign_claims({gpu.uuid: gpu.total_mib for gpu in managed}, runner_pids(attempts))
    ours = {gpu.uuid for gpu in managed}
    sampled = watch.snapshot.gpus if attempts and watch.snapshot is not None else ()
    unmanaged = [Gpu(gpu.uuid, gpu.index) for gpu in sampled if gpu.uuid not in ours]
    with_claims = tuple(
        replace(gpu, claims=foreign.claims.get(gpu.uuid, ()), claims_problem=foreign.problems.get(gpu.uuid))
        for gpu in watch.gpus(managed, tokens, command_of, watched)
    )
    return with_claims, watch.gpus(unmanaged, tokens, command_of, watched)


def _attempts(
    store: Store,
    executors: Executors,
    records: Sequence[ActiveAttempt],
    refs: Mapping[str, AttemptRef],
    now: Now,
) -> tuple[ActiveAttempt, ...]:
    def observe(record: ActiveAttempt) -> ActiveAttempt:
        return observe_attempt(store, record, executors.observe)

    attempts = [observe(record) for record in records]
    wanted = {attempt.token: attempt for attempt in attempts if needs_process_scan(attempt, now)}
    if not wanted:
        return tuple(attempts)
    local = {token: refs[token].folder for token in wanted if executors.is_local(refs[token])}
    # A runner publishes its result after all processes have ended. A runner that was killed could not wait.
    unsupervised = [
        token for token in local if wanted[token].state.is_open and wanted[token].status.result is None
    ]
    alive = processes_of(local, unsupervised) if local else {}

    def with_survivors(record: ActiveAttempt, attempt: ActiveAttempt) -> ActiveAttempt:
        survivors = alive.get(attempt.token, ())
        if not survivors and attempt.state.is_open and attempt.status.claim != "dead":
            # Observe again, because the runner may have published its result before the scan.
            attempt = observe(record)
        return attempt.seen(survivors=survivors)

    return tuple(
        with_survivors(record, attempt) if attempt.token in wanted else attempt
        for record, attempt in zip(records, attempts, strict=True)
    )


def _find_cyclic_request(store: Store, requests: Sequence[Request]) -> int | None:
    """Returns the id of the first request that sets dependencies, if its job would wait for itself.

    A round carries out only the first of these requests.
    """
    first = next((request for request in requests if "parents" in request.args), None)
    if first is None:
        return None
    parents = [parent for parent, _ in first.args["parents"]]
    return first.request_id if is_ancestor(store, int(first.target), parents) else None


def _target_jobs(store: Store, targets: Collection[str]) -> dict[int, Job]:
    found = {}
    for job_id in {int(target) for target in targets if target.isascii() and target.isdigit()}:
        job = store.job(job_id)
        if job is not None:
            found[job_id] = job
    return found


# Lets the queue of one scheduler take turns with other programs (docs/design.md, Turns).
#
# The queue waits in line as one program. The scheduler holds a GPU from the decision to start a job there
# until the job's runner has claimed it, and while the GPU is reserved, so that no other program takes it.


#: Seconds for which a GPU that a `preempt` by hand has freed is kept for the queue.
_FREED_S = 30.0


class QueueTurns:
    """The places and holds of a scheduler's queue on these GPUs. folder: the folder with their lock files."""

    def __init__(self, folder: Path, uuids: Collection[str]) -> None:
        self.folder = folder
        self._turns = Turns(folder)
        #: The GPUs that a process claims from which the scheduler descends, so that no other program can.
        self._inherited = own_claims(read_locks_of(folder, uuids).locks)
        #: The GPUs that are kept for jobs, and those that runners are about to claim.
        self._kept: set[str] = set()
        self._launching: set[str] = set()
        self._freed_until: dict[str, float] = {}
        #: Since when the queue waits for the GPUs of refused starts, and those of them that are not its turn.
        self._refused: dict[str, float] = {}
        self._blocked: set[str] = set()

    @property
    def look_every_s(self) -> float:
        """The seconds after which `have_changed` must be called; infinite if it need not be."""
        if self._refused:
            return TURN_EVERY_S
        return MOVE_EVERY_S if self._turns.places else math.inf

    def have_changed(self) -> bool:
        """Moves on in line; returns whether nobody is ahead any more on the GPU of a refused start."""
        self._turns.move()
        return any(self._turns.ahead(uuid, self._refused[uuid]) is None for uuid in self._blocked)

    def begin_round(self, facts: Facts) -> dict[str, GpuClaim]:
        """Takes the holds on the GPUs that are reserved or freed for jobs, or that runners are to claim.

        Returns the programs that have the hold on other GPUs.
        """
        now = facts.now.boot
        ends = {**self._freed_until, **dict.fromkeys(rules.freed_by_hand(facts), now + _FREED_S)}
        self._freed_until = {uuid: end for uuid, end in ends.items() if end > now}
        # What no job of the queue could use is left to other programs.
        freed = rules.queue_line(facts, self._freed_until, most=len(self._freed_until))
        wanted = {*rules.reserved_gpus(facts), *freed} - self._inherited
        self._kept = {uuid for uuid in wanted if self._turns.hold(uuid)}
        self._launching = {uuid for uuid in self._awaited_claims(facts) if self._turns.hold(uuid)}
        self._refused, self._blocked = {}, set()
        if not facts.pending_groups and not facts.reserved_jobs:
            return {}  # no job could start, whoever has the holds
        uuids = [gpu.uuid for gpu in facts.gpus if gpu.uuid not in self._inherited]
        others = {uuid: self._turns.ahead(uuid) for uuid in uuids}
        return {uuid: turn_claim(pid) for uuid, pid in others.items() if pid is not None}

    def refusals(self, facts: Facts, actions: Sequence[Action]) -> dict[str, GpuClaim]:
        """Takes the holds that the starts need. Returns the programs that have them or are ahead, by GPU.

        Only the first start has the place of the queue in line; the next ones begin to wait with it.
        """
        starts = [one for one in actions if isinstance(one, Start) and one.process is None]
        gpus = {gpu.uuid: gpu for gpu in facts.gpus} if starts else {}
        found: dict[str, GpuClaim] = {}
        since = 0.0
        for start in starts:
            since = facts.now.boot if since else rules.queue_since(start.waiting_since, facts)
            for uuid in gpus.keys() & {*start.gpus} - self._kept - self._inherited:
                claim = self._blocker(gpus[uuid], since, facts)
                if claim is not None:
                    found[uuid] = claim
                    self._refused |= dict.fromkeys(start.gpus, since)
        self._blocked |= found.keys()
        return found

    def end_round(self, facts: Facts, actions: Sequence[Action]) -> None:
        """Takes the places of the queue in line, and gives up the holds that nobody needs any more."""
        started = {uuid for one in actions if isinstance(one, Start) for uuid in one.gpus}
        self._freed_until = {one: end for one, end in self._freed_until.items() if one not in started}
        self._turns.keep(self._kept | self._launching | started)
        claimed = rules.claimed_gpus(facts)
        # Once a GPU is free, the queue keeps its place for a moment, until it knows whether a job fits there.
        line = rules.queue_line(facts, claimed | self._turns.places.keys())
        if started:
            self._refused = dict.fromkeys(self._refused, facts.now.boot)
        self._turns.wait_in_line({**line, **self._refused}, claimed | self._refused.keys())
        if self._turns.problem is not None:
            log.warning("%s; without it, programs do not take turns", lock_problem(self._turns.problem))
            self._turns.problem = None

    def _blocker(self, gpu: Gpu, since: float, facts: Facts) -> GpuClaim | None:
        """Takes the hold on a GPU. Returns who has it or is ahead, or who has just claimed the GPU."""
        had_hold = gpu.uuid in self._turns.held
        pid = self._turns.take(gpu.uuid, since)
        if pid is not None:
            return turn_claim(pid)
        # Before the hold was taken, another program may have claimed the GPU since the facts were read.
        known = {*runner_pids(facts.attempts), *(claim.pid for claim in gpu.claims)}
        claims = () if had_hold else claims_of(self._locks(gpu.uuid), gpu.total_mib)
        return next((one for one in claims if one.pid not in known), None)

    def _awaited_claims(self, facts: Facts) -> set[str]:
        """Returns the GPUs that the runner of an attempt has not claimed yet."""
        return {
            uuid
            for one in facts.attempts
            if one.state.is_open and one.status.result is None and one.status.claim != "dead"
            for uuid in (one.gpus if one.watched_pid is None else ())
            if uuid not in self._inherited
            and (one.state is AttemptState.STARTING or uuid in self._turns.held)
            if one.status.pid not in [lock.pid for lock in self._locks(uuid)]
        }

    def _locks(self, uuid: str) -> Sequence[Lock]:
        return read_locks_of(self.folder, [uuid]).locks.get(uuid, ())


# Runs the rounds.


_PERFORMED_ON_ATTEMPT = (act.VoidClaim, act.RequestStop, act.WakeRunner, act.KillRunner, act.Sweep)


#: Actions after which no other round is needed at once.
_WITHOUT_CONSEQUENCES = (act.SetWaitReason, act.RecordGpuTime)


def _with_claims(facts: Facts, claims: Mapping[str, GpuClaim]) -> Facts:
    """Returns the facts with one more claim on each of these GPUs, by UUID."""
    if not claims:
        return facts
    gpus = ((gpu, claims.get(gpu.uuid)) for gpu in facts.gpus)
    return replace(
        facts, gpus=tuple(replace(gpu, claims=(*gpu.claims, new)) if new else gpu for gpu, new in gpus)
    )


def _name(action: act.Action) -> str:
    """Returns the name of an action as a step of the round, with the state that it leads to."""
    of_state = (act.AttemptChanged, act.JobChanged)
    state = f" {action.new.state}" if isinstance(action, of_state) else ""
    return f"{type(action).__name__}{state}"


def _begins_preemption(action: act.Action) -> bool:
    is_stop = isinstance(action, act.JobChanged) and action.new.stop is not action.old.stop
    return isinstance(action, act.Reserve) or is_stop


class Loop:
    """Runs the rounds of a scheduler, or of a command while no scheduler is running.

    launch: launches the attempt with a given id; see Launcher.launch. failpoint: called with the name of each
    step that a round has completed, so that tests can end the process there. decide: returns the actions of a
    round from its facts, which contain statistics only `with_statistics`.
    """

    def __init__(
        self,
        store: Store,
        watch: GpuWatch,
        launch: Callable[[int], object],
        executors: Executors,
        settings: Settings,
        clock: Clock,
        failpoint: Callable[[str], None] = lambda step: None,
        decide: Callable[[Facts], list[act.Action]] = plan,
        with_statistics: bool = True,
    ) -> None:
        self.store = store
        self.watch = watch
        self.settings = settings
        self.clock = clock
        self.config = LlmConfig()
        self.recorder = StoreWriter(store, settings, executors.default.name)
        self.progress = RunningProgress(store, clock)
        self.on_recorded: Callable[[Sequence[act.Action]], None] = lambda actions: None
        self.storage: StorageMonitor | None = None
        self.check_owner: Callable[[], None] = lambda: None
        self.turns: QueueTurns | None = None
        self.placing = True
        self.stop_requested = False
        self.sample_wanted = False
        self._readers = Readers(store, settings)
        self._logged: set[str] = set()
        self._line_waits: Mapping[int, WaitReason] | None = None
        self._launch_attempt = launch
        self._executors = executors
        self._failpoint = failpoint
        self._decide = decide
        self._with_statistics = with_statistics

    def tick(self) -> Facts | None:
        """Runs one round.

        Returns None if the round changed anything; the caller should then run another round at once. If it
        changed nothing except wait reasons and the count of GPU time, returns the facts. If an action cannot
        be performed, performs the other actions first and then raises its error. Calls `check_owner` after
        observing and before recording, and raises its errors.
        """
        now = self.clock.now()
        issue = self.storage.issue() if self.storage is not None else None
        with self.store.snapshot():
            facts = read_facts(
                self.store, self.watch, self._executors, self.config, self.settings, now, issue,
                readers=self._readers, placing=self.placing, progress=self.progress,
                lock_folder=self.turns.folder if self.turns is not None else None,
                with_statistics=self._with_statistics,
            )  # fmt: skip
        # If this scheduler no longer owns the folder, it must not record what it observed there.
        self.check_owner()
        self._log_anomalies(facts)
        with history_in_errors(self.store):
            facts, actions = self._plan_in_turn(facts)
        if not actions:
            return facts
        self._failpoint("planned")
        opened = self.recorder.record(actions, now)
        self._readers.groups.accept(actions)
        self._readers.history.accept(actions)
        self._failpoint("recorded")
        failed: OSError | sqlite3.OperationalError | None = None
        self.on_recorded(actions)
        for action in actions:
            try:
                self._perform(action, opened, facts)
            except (OSError, sqlite3.OperationalError) as error:
                failed = failed or error
            self._failpoint(f"performed {_name(action)}")
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
        actions = self._decide(facts)
        if any(isinstance(action, act.Reserve) for action in actions):
            facts = replace(facts, attempts=with_saved_times(self.store, facts.attempts))
            actions = self._decide(facts)
        launches = any(isinstance(action, (act.Start, act.Relaunch)) for action in actions)
        gives_up = any(isinstance(action, act.VoidClaim) and action.gives_up for action in actions)
        if (launches or gives_up) and self.storage is not None:
            # Use the result of the trial for this whole round, however long the storage check takes.
            shortage = self.storage.check_processes() if gives_up else None
            issue = shortage or self.storage.issue(fresh=True)
            if issue != facts.storage_issue:
                facts = replace(facts, storage_issue=issue)
                actions = self._decide(facts)
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
        elif isinstance(action, act.AttemptChanged):
            self.sample_wanted |= action.is_release
            result = action.old.status.result if action.is_end else None
            if result is not None and result.shortage is not None and self.storage is not None:
                self.storage.record_shortage(result.shortage)
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
        attempt = next(one for one in facts.attempts if one.id == action.attempt_id)
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
