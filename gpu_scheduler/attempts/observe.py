"""Observes the attempts in the store, finds their processes, and ends those whose runner is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.attempts.folder import (
    LOCAL_EXECUTORS,
    AttemptRef,
    observe,
    observe_on_engine,
    recorded_command,
)
from gpu_scheduler.attempts.job_logs import read_tail
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.explain.explanation import is_failure
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, AttemptStatus, FailureContext, Observed
from gpu_scheduler.core.model.job_spec import ENGINES, JobSpec
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner import group_signals, process_scan
from gpu_scheduler.runner.process_scan import RecordedCommand
from gpu_scheduler.store.store import Store

_GPU_IDS_PLACEHOLDER = "THE-GPU-IDS"


def _observe_folder(attempt: AttemptRef) -> AttemptStatus:
    if attempt.executor in ENGINES:
        return observe_on_engine(attempt.folder, attempt.token)
    if attempt.executor not in LOCAL_EXECUTORS:
        return AttemptStatus(claim="unknown")  # only a scheduler can ask an executor about the attempt
    return observe(attempt.folder, attempt.token, attempt.runner)


def attempt_ref(store: Store, attempt: Attempt | ActiveAttempt) -> AttemptRef:
    """Returns the reference by which an executor identifies an attempt."""
    folder = store.data_dir.attempt_folder(attempt)
    return AttemptRef(attempt.job_id, attempt.number, attempt.token, folder, attempt.runner, attempt.executor)


def observe_attempt(
    store: Store, record: ActiveAttempt, observe_one: Callable[[AttemptRef], AttemptStatus] = _observe_folder
) -> ActiveAttempt:
    """Returns an active attempt with its current status. Does not observe an attempt that has ended.

    observe_one: the `observe` method of the attempt's executor.
    """
    if not record.state.is_open:
        return record
    try:
        status = observe_one(attempt_ref(store, record))
    except OSError as error:
        where = store.data_dir.attempt_folder(record)
        status = AttemptStatus(claim="unknown", anomalies=(f"{where}: {error.strerror}",))
    saved_work = None
    if (status.is_over or not status.folder_exists) and not _has_completed(status):
        # Imported only here, because no attempt ends in most rounds.
        from gpu_scheduler.attempts.job_progress import saved_work_of

        saved_work = saved_work_of(store, record, status)
    context = None
    result = status.result
    if result is not None and result.claimed_gpu is not None:
        context = FailureContext(claimed_gpu=store.gpu_indices().get(result.claimed_gpu))
    elif result is not None and is_failure(result):
        context = failure_context_of(store, record, status)
    seen = Observed(status, failure_context=context, saved_work=saved_work)
    return replace(record, observed=seen)


def _has_completed(status: AttemptStatus) -> bool:
    """Returns whether the command has ended with exit code 0 by itself, so that nothing is left to resume.

    After a preemption that was withdrawn, it may have ended because of the signal.
    """
    result = status.result
    is_asked = status.withdrawn is not None
    return result is not None and result.cause is None and result.exit_code == 0 and not is_asked


def runner_pids(attempts: Iterable[ActiveAttempt]) -> frozenset[int]:
    """Returns the pids of the runners of these attempts, and of adopted processes that have their GPUs alone.

    Leaves out attempts whose end is recorded, and those of remote executors, whose pids belong to another
    machine.
    """
    local = [one for one in attempts if one.state.is_open and one.executor in LOCAL_EXECUTORS]
    # The store knows the runner of an attempt whose folder cannot be read now.
    pids = {one.status.pid or (one.runner.pid if one.runner is not None else None) for one in local}
    # If an adopted process shares its GPU, its own claim limits what the runners of other jobs can claim.
    pids |= {one.watched_pid for one in local if one.whole}
    return frozenset(pid for pid in pids if pid is not None)


def attempts_without_processes(store: Store) -> frozenset[int]:
    """Returns the ids of attempts that have an allocation but no processes. For use while no loop is running.

    Does not include attempts of remote executors. Does not count a runner that has published its result,
    because it is about to end.
    """
    held = [
        record
        for record in store.active_attempts()
        if record.state.holds_gpus and record.executor in LOCAL_EXECUTORS
    ]
    boot_id = Clock().boot_id
    folders = {
        record.token: store.data_dir.attempt_folder(record) for record in held if record.boot_id == boot_id
    }
    alive = processes_of(folders) if folders else {}
    return frozenset(record.id for record in held if not _processes(store, record, alive))


def _processes(store: Store, record: ActiveAttempt, alive: Mapping[str, Collection[int]]) -> set[int]:
    pids = set(alive.get(record.token, ()))
    if pids and record.state.is_open:
        try:
            status = read_status(store, record)
        except OSError:
            return pids
        if status.result is not None and status.pid is not None:
            pids.discard(status.pid)
    return pids


def read_status(store: Store, record: Attempt) -> AttemptStatus:
    """Reads the status of an attempt on this machine. Raises OSError."""
    return _observe_folder(attempt_ref(store, record))


def readable_status(store: Store, record: Attempt) -> AttemptStatus:
    """Reads the status of an attempt like `read_status`. Raises SchedulerError, which names the folder."""
    try:
        return read_status(store, record)
    except OSError as error:
        folder = store.data_dir.attempt_folder(record)
        raise SchedulerError(f"job {record.job_id}: {folder} cannot be read: {error.strerror}") from None


def failure_context_of(store: Store, attempt: Attempt, status: AttemptStatus) -> FailureContext:
    """Returns the failure context of an attempt whose result reports a failure."""
    job = store.job(attempt.job_id)
    assert job is not None
    spec = job.spec
    return FailureContext(
        read_tail(attempt.log or status.log),
        _misleading_gpu_ids(store, attempt, spec),
        spec.oom_retries,
        spec.fail_retries,
        pipe_programs=spec.pipe_programs,
    )


def _misleading_gpu_ids(store: Store, attempt: Attempt, spec: JobSpec) -> tuple[int, ...]:
    """Returns the physical GPU ids in the command's arguments, if the command sees its GPUs under other ids.

    Returns an empty tuple if the ids agree or if the command has none in its arguments.
    """
    # Imported only after a failure, so that front ends do not load the code that builds commands.
    from gpu_scheduler.core.command.build import display_command
    from gpu_scheduler.core.command.shell_words import format_cuda_ids

    index = store.gpu_indices()
    gpus = tuple(index[uuid] for uuid in attempt.gpus if uuid in index)
    mode = spec.cuda_ids or store.recorded_options().cuda_ids
    same = format_cuda_ids(gpus, mode) == format_cuda_ids(gpus, "visible")
    return () if same or _GPU_IDS_PLACEHOLDER not in display_command(spec, _GPU_IDS_PLACEHOLDER) else gpus


# Sweeps. One scan of /proc covers any number of attempts. The caller decides when to scan again.

#: Maximum number of scans if each finds nothing but may have missed a process. Scans always miss a fork
#: chain; other programs fork only occasionally, so a few scans are enough.
_MAX_SCANS = 10


def processes_of(
    attempts: Mapping[str, Path], unsupervised: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Returns the pids of the living processes of these attempts, by token; omits attempts that have none.

    attempts: the folder of each attempt, by token. unsupervised: the tokens of attempts whose processes had
    no supervisor. If none of their processes is found, the scan is repeated until it has certainly missed
    none, up to a maximum number of scans.
    """
    commands = {token: recorded_command(folder, token) for token, folder in attempts.items()}
    return {token: tuple(sorted(found)) for token, found in _scan(commands, unsupervised).items()}


def _scan(
    commands: Mapping[str, RecordedCommand | None], unsupervised: Collection[str]
) -> dict[str, dict[int, int]]:
    for _ in range(_MAX_SCANS):
        scan = process_scan.scan(commands)
        unsure = [token for token in unsupervised if token not in scan.found] if scan.missed else []
        if not unsure:
            break
    for token in unsure:
        command = commands[token]
        if command is not None and group_signals.may_have_living_group(command):
            scan.found[token] = {command.pid: 0}  # no process lives long enough for its pid to be known
    return scan.found


def sweep_once(folder: Path, token: str, sig: int) -> tuple[int, ...]:
    """Signals every process of the attempt once; returns their pids, or () if no process is left.

    Never blocks; call it again until it finds nothing. Kill a live runner first, because this would signal
    the runner too.
    """
    command = recorded_command(folder, token)
    found = _scan({token: command}, (token,)).get(token, {})
    if command is not None and sig and 0 in found.values():
        group_signals.signal_group(command, token, sig)
    for pid, ticks in found.items():
        process_scan.send_signal(pid, ticks, sig)
        if sig == signal.SIGTERM:
            process_scan.send_signal(pid, ticks, signal.SIGCONT)
    return tuple(sorted(found))
