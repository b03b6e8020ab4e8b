"""Gathers the facts of a round: the store, the status and processes of open attempts, and the GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.attempts.executor import AttemptRef, Executors
from gpu_scheduler.attempts.observe import attempt_ref, observe_attempt, runner_pids
from gpu_scheduler.attempts.running_progress import RunningProgress, with_remaining_times
from gpu_scheduler.attempts.sweep import processes_of, recorded_command
from gpu_scheduler.claims.foreign_claims import LockReading, read_locks_of
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.request import JobFact, Request
from gpu_scheduler.core.scheduling.facts import AdoptedJob, Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.reconcile_attempt import needs_process_scan
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from gpu_scheduler.gpus.watch import GpuWatch, watched_processes, with_stored_values
from gpu_scheduler.runner.membership import RecordedCommand
from gpu_scheduler.store.adopted_jobs import jobs_to_watch
from gpu_scheduler.store.attempt_history import GpuHistoryReader, QueueStartsReader
from gpu_scheduler.store.dependencies import has_unsettled_dependencies, is_ancestor
from gpu_scheduler.store.gpu_time import gpu_time
from gpu_scheduler.store.job_lists import find_job_fact, interrupted_jobs, listed_count
from gpu_scheduler.store.measurements import LearnedNeedsReader
from gpu_scheduler.store.pending_groups_reader import PendingGroupsReader
from gpu_scheduler.store.records import ActiveAttemptRecord, GpuRecord
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.reservations import queue_reservation, reserved_jobs
from gpu_scheduler.store.run_times import RunTimesReader
from gpu_scheduler.store.store import Store


def read_facts(
    store: Store,
    watch: GpuWatch,
    executors: Executors,
    config: LlmConfig,
    settings: Settings,
    now: Now,
    health_issue: str | None = None,
    *,
    placing: bool = True,
    learned: LearnedNeedsReader | None = None,
    starts: QueueStartsReader | None = None,
    run_times: RunTimesReader | None = None,
    progress: RunningProgress | None = None,
    groups: PendingGroupsReader | None = None,
    lock_folder: Path | None = None,
    history: GpuHistoryReader | None = None,
) -> Facts:
    """Returns all facts on which the decisions of one round are based.

    placing: whether jobs may be started. learned: the reader of learned needs; None if needs are not learned.
    starts, history, run_times, groups: the readers of the starts that overtook waiting jobs, of the ends on
    each GPU, of the run times, and of the pending groups; None to read all of them. progress: that of the
    running attempts; None if it is not looked for.
    lock_folder: the folder with the lock files of the GPUs; None if there is none.
    """
    managed = store.gpus()
    # Read before the attempts, so that every lock of a runner belongs to one of these attempts.
    locks = LockReading()
    if lock_folder is not None:
        locks = read_locks_of(lock_folder, [gpu.uuid for gpu in managed])
    records = store.active_attempts()
    refs = {record.token: attempt_ref(store, record) for record in records}
    attempts = _attempts(store, executors, records, refs, now)
    pending = (groups or PendingGroupsReader(store)).read(now) if placing else ()
    reservation = queue_reservation(store) if placing else None
    if progress is not None and pending and settings.queue_order is QueueOrder.RESERVE:
        known = progress.read(records) if reservation is None else progress.read_now(records)
        attempts = with_remaining_times(attempts, known, now)
    gpus, unmanaged = _gpus(watch, managed, attempts, refs, locks)
    requests = tuple(open_requests(store))
    verbs = {request.verb for request in requests}
    return Facts(
        now=now,
        settings=settings,
        config=config,
        gpus=gpus,
        unmanaged_gpus=unmanaged,
        all_sampled=watch.snapshot is not None,
        probe_error=watch.failure,
        storage_issue=health_issue,
        attempts=attempts,
        pending_groups=pending,
        adopted_jobs=_adopted_jobs(store, now),
        reserved_jobs=tuple(reserved_jobs(store, now)) if placing else (),
        queue_reservation=reservation,
        overtakes=(starts or QueueStartsReader(store)).overtakes(),
        history=(history or GpuHistoryReader(store)).history(),
        run_times=(run_times or RunTimesReader(store)).run_times(),
        gpu_time=gpu_time(store, now.wall),
        requests=requests,
        jobs=_target_jobs(store, {request.target for request in requests}),
        cyclic_request=_find_cyclic_request(store, requests),
        has_unsettled_dependencies=has_unsettled_dependencies(store),
        interrupted=tuple(interrupted_jobs(store)) if settings.recover or "recover" in verbs else (),
        finished_count=listed_count(store) if "clear" in verbs else 0,
        learned_mib=learned.needs() if learned is not None else {},
    )


def _gpus(
    watch: GpuWatch,
    managed: Sequence[GpuRecord],
    attempts: Sequence[Attempt],
    refs: Mapping[str, AttemptRef],
    locks: LockReading,
) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
    """Returns the managed GPUs, with the claims of other programs, and the other GPUs in the sample."""
    tokens = {attempt.token: attempt.attempt_id for attempt in attempts}

    def command_of(token: str) -> RecordedCommand | None:
        return recorded_command(refs[token].folder, token)

    watched = watched_processes(attempts)
    foreign = locks.foreign_claims({gpu.uuid: gpu.total_mib for gpu in managed}, runner_pids(attempts))
    paused = {gpu.uuid: (gpu.index, gpu.paused) for gpu in managed}
    recorded = {gpu.uuid: gpu for gpu in managed}
    sampled = watch.snapshot.gpus if attempts and watch.snapshot is not None else ()
    unmanaged = {gpu.uuid: (gpu.index, False) for gpu in sampled if gpu.uuid not in paused}
    with_claims = tuple(
        replace(
            with_stored_values(gpu, recorded[gpu.uuid]),
            claims=foreign.claims.get(gpu.uuid, ()),
            claims_problem=foreign.problems.get(gpu.uuid),
        )
        for gpu in watch.gpus(paused, tokens, command_of, watched)
    )
    return with_claims, watch.gpus(unmanaged, tokens, command_of, watched)


def _attempts(
    store: Store,
    executors: Executors,
    records: Sequence[ActiveAttemptRecord],
    refs: Mapping[str, AttemptRef],
    now: Now,
) -> tuple[Attempt, ...]:
    def observe(record: ActiveAttemptRecord) -> Attempt:
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

    def with_survivors(record: ActiveAttemptRecord, attempt: Attempt) -> Attempt:
        survivors = alive.get(attempt.token, ())
        if not survivors and attempt.state.is_open and attempt.status.claim != "dead":
            # Observe again, because the runner may have published its result before the scan.
            attempt = observe(record)
        return replace(attempt, survivors=survivors)

    return tuple(
        with_survivors(record, attempt) if attempt.token in wanted else attempt
        for record, attempt in zip(records, attempts, strict=True)
    )


def _adopted_jobs(store: Store, now: Now) -> tuple[AdoptedJob, ...]:
    found = []
    for job in jobs_to_watch(store):
        is_due = job.boot_id != now.boot_id or (job.not_before_boot or 0.0) <= now.boot
        assert job.adopted is not None
        resources = ResourceSpec.from_key(job.spec_key)
        found.append(AdoptedJob(job.id, job.adopted, resources, is_due, job.stop_cause))
    return tuple(found)


def _find_cyclic_request(store: Store, requests: Sequence[Request]) -> int | None:
    """Returns the id of the first request that sets dependencies, if its job would wait for itself.

    A round carries out only the first of these requests.
    """
    first = next((request for request in requests if "parents" in request.args), None)
    if first is None:
        return None
    parents = [parent for parent, _ in first.args["parents"]]
    return first.request_id if is_ancestor(store, int(first.target), parents) else None


def _target_jobs(store: Store, targets: Collection[str]) -> dict[int, JobFact]:
    found = {}
    for job_id in {int(target) for target in targets if target.isascii() and target.isdigit()}:
        job = find_job_fact(store, job_id)
        if job is not None:
            found[job_id] = job
    return found
