"""Tests what the store writer records for an action, and whether a power cut may undo it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, StopRequest
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import writer
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

NOW = Now(1_700_000_000.0, 1000.0, "boot")
LATER = Now(1_700_000_003.0, 1003.0, "boot")
#: The actions that the writer records without the table.
OTHERS = (act.Action, act.AttemptAction, act.Start, act.EndScheduler)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(act, inspect.isclass)
        if issubclass(kind, act.Action) and kind not in OTHERS
    ],
)
def test_each_action_is_recorded(kind: type[act.Action]) -> None:
    is_on_attempt = issubclass(kind, act.AttemptAction)
    assert is_on_attempt is not (kind in writer._RECORD)
    assert not is_on_attempt or kind is act.Relaunch or kind in writer._TIMES


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Returns a store with GPU U0 and job 1, whose attempt is asked to stop."""
    store = Store(DataDir.of(str(tmp_path / "s.json")), create=True)
    store.insert_job(JobSpec("command", "true", "/", command="true"), "cli")
    CheckedWriter(store, Settings()).record_gpus([GpuSample("U0", 0, "GPU", 1000, 0, 0.0)], ["U0"], NOW)
    record(store, act.Start(1, ("U0",), 1000))
    stop = StopRequest("preempted", 60.0, "withdraw", "id")
    record(store, changes.run(1), changes.ask_to_stop(1, stop))
    return store


def record(store: Store, *actions: act.Action, now: Now = NOW) -> None:
    CheckedWriter(store, Settings()).record(actions, now)


def was_synced(store: Store, action: act.Action) -> bool:
    """Records an action or a change; returns whether a power cut can no longer undo it."""
    made = action.make(store, NOW) if isinstance(action, changes.Change) else [action]
    writer.StoreWriter(store, Settings()).record(made, NOW)
    [synchronous] = store.db.rows("PRAGMA synchronous")
    return bool(synchronous[0] == 2)


def active(store: Store) -> ActiveAttempt:
    [attempt] = store.active_attempts()
    return attempt


@pytest.mark.parametrize(
    ("action", "is_synced"),
    [
        # The next round would find these again in the folder of the attempt or on the GPU.
        (changes.stop(1), False),
        (changes.set_attempt(1, window_closed=True), False),
        (changes.set_gpu("U0", foreign_loads=(5.0,), foreign_load_boot=1000.0), False),
        (act.SetWaitReason("key", WaitReason(WaitKind.NOT_TRIED)), False),
        (act.RecordGpuTime(1.0, 0.0, NOW.wall), False),
        # The job must not be stopped again for a request that its runner has withdrawn.
        (changes.withdraw(1), True),
        (changes.end(1, Outcome.COMPLETED), True),
        (changes.pause("U0"), True),
        (act.AnswerRequest(1, RequestAnswer(AnswerCode.PAUSED)), True),
        (act.Sweep(1, kill=False), True),
    ],
)
def test_a_power_cut_undoes_only_what_the_next_round_finds_again(
    store: Store, action: act.Action, is_synced: bool
) -> None:
    assert was_synced(store, action) == is_synced


def test_a_power_cut_does_not_undo_the_end_of_an_attempt_that_nobody_stopped(store: Store) -> None:
    record(store, changes.withdraw(1))
    assert was_synced(store, changes.end(1, Outcome.COMPLETED))


@pytest.mark.parametrize(
    ("action", "times"),
    [
        (act.VoidClaim(1), (1003.0, None, None)),
        (act.RequestStop(1, StopRequest("cancelled", 5.0)), (1003.0, None, 1003.0)),
        (act.WakeRunner(1), (1003.0, None, None)),
        (act.KillRunner(1), (1003.0, None, None)),
        (act.Sweep(1, kill=False), (1003.0, 1003.0, None)),
    ],
)
def test_an_action_on_an_attempt_records_when_it_was_performed(
    store: Store, action: act.Action, times: tuple[float | None, ...]
) -> None:
    record(store, action, now=LATER)
    attempt = active(store)
    assert (attempt.signalled_boot, attempt.swept_boot, attempt.stopping_boot) == times


def test_the_grace_period_of_a_sweep_begins_with_its_first_signal(store: Store) -> None:
    record(store, act.Sweep(1, kill=False))
    record(store, act.Sweep(1, kill=True), now=LATER)
    assert (active(store).swept_boot, active(store).signalled_boot) == (NOW.boot, LATER.boot)


def test_an_attempt_follows_a_preemption_until_a_command_has_run_again(store: Store) -> None:
    for number, outcome in enumerate(
        (Outcome.PREEMPTED, Outcome.NOT_STARTED, Outcome.NOT_STARTED, Outcome.FAILED, Outcome.NOT_STARTED), 1
    ):
        record(
            store, changes.end(number, outcome), *changes.leave(number),
            *([] if outcome is Outcome.NOT_STARTED else [changes.queue(1)]),
            act.Start(1, ("U0",), 1000),
        )  # fmt: skip
    found = [one.follows_preemption for one in store.attempts(1)]
    assert found == [False, True, True, True, False, False]
