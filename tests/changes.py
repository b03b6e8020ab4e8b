"""Changes of jobs, attempts and GPUs, for tests that bring a store into a state.

Each is made with the code with which the scheduler changes the row, from the row that the store has when the
change is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AttemptResult,
    FailureContext,
    Job,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.request import PauseCause, Request
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import Action, AttemptChanged, GpuChanged, JobChanged, stopped
from gpu_scheduler.core.scheduling.attempt_end import GpuInventory, end_attempt, end_with_result
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import record_measurements
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.requests import answer_requests
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.records import ATTEMPTS, JOBS, Table
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

HELD_BY_USER = StateReason(ReasonKind.HELD_BY_USER)
RETRIED_BY_USER = StateReason(ReasonKind.RETRIED_BY_USER)
#: The end of the output of a command that ran out of GPU memory, and settings with which its job is retried.
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
RETRIES = Settings(oom_retries=3, fail_retries=9)


class Change(Action, frozen=True):
    """A change of the rows of a store that depends on these rows. make: returns its actions."""

    make: Callable[[Store, Now], list[Action]]


class CheckedWriter(StoreWriter):
    """A store writer that also records changes, and checks that each action is based on the stored rows."""

    def record(self, actions: Iterable[Action], now: Now) -> dict[int, int]:
        """Records actions and changes in one transaction. Returns the ids of the attempts that it opened."""
        opened: dict[int, int] = {}
        with self._store.db.transaction():
            for one in actions:
                for action in one.make(self._store, now) if isinstance(one, Change) else [one]:
                    self._check(action)
                    opened |= super().record([action], now)
        return opened

    def _check(self, action: Action) -> None:
        """Checks that the columns that an action writes still have the values on which it is based."""
        if isinstance(action, JobChanged):
            _check_basis(JOBS, action.old, action.new, self._store.job(action.new.id))
        elif isinstance(action, AttemptChanged):
            _check_basis(ATTEMPTS, action.old, action.new, self._store.attempt(action.new.id))
            _check_basis(JOBS, action.old.job, action.new.job, self._store.job(action.new.job_id))


def _check_basis(table: Table[Any], old: Any, new: Any, there: Any) -> None:
    written, differs = table.changes(old, new), table.changes(old, there)
    assert not written.keys() & differs.keys(), f"{old} was changed meanwhile: {differs}"


# The changes of a job.


def _of_job(job_id: int, change: Callable[[Job, Now], JobChanged]) -> Change:
    def make(store: Store, now: Now) -> list[Action]:
        job = store.job(job_id)
        assert job is not None
        return [change(job, now)]

    return Change(make)


def finish(job_id: int, outcome: Outcome, reason: StateReason | None = None) -> Change:
    """A job finishes without an attempt."""
    return _of_job(job_id, lambda job, now: JobChanged(job, job.finished(outcome, reason, now)))


def hold(job_id: int, reason: StateReason = HELD_BY_USER, by: str = "user") -> Change:
    """A job is held. by: as in `Job.held_by`."""
    return _of_job(job_id, lambda job, _: JobChanged(job, job.held(by, reason)))


def queue(job_id: int, because: StateReason = RETRIED_BY_USER, **values: Any) -> Change:
    """A job is queued again. values: those of `Job.queued_again`."""
    return _of_job(job_id, lambda job, now: JobChanged(job, job.queued_again(now, **values), because))


def ask_to_stop(job_id: int, stop: StopRequest) -> Change:
    """The attempt of a job is asked to stop."""
    return _of_job(job_id, lambda job, _: stopped(job, stop))


def set_attribute(job_id: int, name: str, value: object) -> Change:
    """An attribute of a job is set."""
    return _of_job(job_id, lambda job, _: JobChanged(job, job.with_attribute(name, value)))


def set_job(job_id: int, **values: Any) -> Change:
    """A job gets these values in its row."""
    return _of_job(job_id, lambda job, _: JobChanged(job, replace(job, **values)))


# The changes of an attempt.


def _of_attempt(attempt_id: int, change: Callable[[ActiveAttempt, Now], ActiveAttempt]) -> Change:
    def make(store: Store, now: Now) -> list[Action]:
        [attempt] = [one for one in store.active_attempts() if one.id == attempt_id]
        return [AttemptChanged(attempt, change(attempt, now))]

    return Change(make)


def run(attempt_id: int) -> Change:
    """The runner of an attempt has claimed it."""
    return _of_attempt(attempt_id, ActiveAttempt.running)


def stop(attempt_id: int) -> Change:
    """An attempt has been asked to end."""
    return _of_attempt(attempt_id, ActiveAttempt.stopping)


def set_attempt(attempt_id: int, **values: Any) -> Change:
    """An attempt gets these values in its row."""
    return _of_attempt(attempt_id, lambda attempt, _: replace(attempt, **values))


def end(
    attempt_id: int,
    outcome: Outcome,
    reason: StateReason | None = None,
    *,
    exit_code: int | None = None,
    survivors: tuple[int, ...] = (),
    started_at: float | None = None,
    ended_at: float | None = None,
) -> Change:
    """An attempt ends. started_at, ended_at: those in its folder; None if it shows none."""

    def change(attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        began = outcome is not Outcome.NOT_STARTED
        at = now.wall if ended_at is None else ended_at
        result = AttemptResult(None, exit_code, None, began, None, survivors, started_at, at)
        return end_attempt(attempt, outcome, now, Settings(), reason, survivors, result)

    return _of_attempt(attempt_id, change)


def fail(
    attempt_id: int,
    log: str = "",
    settings: Settings | None = None,
    *,
    saved: SavedWork | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
) -> Change:
    """The command of an attempt fails with exit code 1. Its job is retried unless other settings are given.

    log: the end of its output. saved: the work that it has left.
    """

    def change(attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        at = now.wall if ended_at is None else ended_at
        result = AttemptResult(None, 1, None, True, None, (), started_at, at)
        seen = attempt.seen(failure_context=FailureContext(log), saved_work=saved)
        return end_with_result(seen, result, now, settings or RETRIES, GpuInventory())

    return _of_attempt(attempt_id, change)


def withdraw(attempt_id: int) -> Change:
    """The runner of an attempt has withdrawn the request to stop it."""
    return _of_attempt(attempt_id, lambda attempt, _: replace(attempt, job=replace(attempt.job, stop=None)))


def release(attempt_id: int) -> Change:
    """No process of an ended attempt is left."""
    return _of_attempt(attempt_id, ActiveAttempt.released)


def close(attempt_id: int) -> Change:
    """The memory of a released attempt is free."""
    return _of_attempt(attempt_id, lambda attempt, _: attempt.closed())


def leave(attempt_id: int) -> Iterator[Change]:
    """An ended attempt leaves its GPUs."""
    yield release(attempt_id)
    yield close(attempt_id)


def measure(
    attempt_id: int,
    at: float,
    *use: tuple[str, int | None, float | None],
    settings: Settings | None = None,
) -> Change:
    """A sample of the GPUs of an attempt is taken at this time in seconds since boot.

    use: the UUID of each GPU, the MiB that the attempt uses on it and its load in percent, or None.
    """

    def make(store: Store, now: Now) -> list[Action]:
        [attempt] = [one for one in store.active_attempts() if one.id == attempt_id]
        gpus = [_used_gpu(attempt, at, *one) for one in use]
        # Its launch counts as earlier than the sample.
        chosen = replace(settings or Settings(), launch_deadline_s=math.inf)
        facts = Facts(now, chosen, LlmConfig(), tuple(gpus), attempts=(attempt,))
        changes = [one for one in record_measurements(facts) if isinstance(one, AttemptChanged)]
        assert changes, f"attempt {attempt_id} is {attempt.state.value}, or has been measured since"
        return [*changes]

    return Change(make)


def _used_gpu(attempt: ActiveAttempt, at: float, uuid: str, mib: int | None, load: float | None) -> Gpu:
    processes = () if mib is None else (GpuProcess(1, mib),)
    sample = GpuSample(uuid, 0, "", None, mib, load, processes)
    return Gpu(uuid, 0, sample=sample, sampled_boot=at, owners={1: attempt.id})


# The changes of a GPU.


def pause(uuid: str, cause: PauseCause | None = None) -> Change:
    """A request pauses a GPU."""
    return _requested("pause", uuid, {} if cause is None else {"cause": cause})


def resume(uuid: str) -> Change:
    """A request resumes a GPU."""
    return _requested("resume", uuid, {})


def _requested(verb: str, uuid: str, args: Mapping[str, Any]) -> Change:
    def make(store: Store, now: Now) -> list[Action]:
        requests = (Request(1, verb, uuid, args),)
        facts = Facts(now, Settings(), LlmConfig(), tuple(store.gpus()), requests=requests)
        return [one for one in answer_requests(facts) if isinstance(one, GpuChanged)]

    return Change(make)


def set_gpu(uuid: str, **values: Any) -> Change:
    """A GPU gets these values in its row."""

    def make(store: Store, now: Now) -> list[Action]:
        [gpu] = [one for one in store.gpus() if one.uuid == uuid]
        return [GpuChanged(gpu, replace(gpu, **values))]

    return Change(make)
