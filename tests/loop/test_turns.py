"""The queue takes turns with other programs, with real runners and locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.rounds.loop import read_facts
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.system.gpu_claims import PASSED_OVER_S, read_gpu_locks
from gpu_scheduler.system.safe_file import name_of_user
from tests.claim_holder import claim_holder
from tests.loop.rig import PREEMPTING, Rig
from tests.turn_taker import TurnTaker, turn_taker
from tests.waiting import wait_for

_UNTIL_GO = "until [ -e go ]; do sleep 0.01; done"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The lock folder."""
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.prepare()
    rig.store.close()
    return rig.claim_folder.path


@pytest.fixture
def other(folder: Path) -> Iterator[TurnTaker]:
    """Another program that takes turns."""
    with turn_taker(folder) as found:
        yield found


def reason_of(rig: Rig) -> str:
    [reason] = wait_reasons(rig.store).values()
    return wait_text(reason)


def kept_for(other: TurnTaker) -> str:
    user = name_of_user(os.getuid())
    return f"needs 1 idle GPU, 0 free (GPU 0: kept for a waiting program, pid {other.pid}, user {user})"


def test_a_start_whose_turn_it_is_not_costs_no_attempt(tmp_path: Path, other: TurnTaker) -> None:
    other.wait_in_line("U0", 100.0)
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job("true")
    rig.tick()
    assert (rig.store.attempts(job), rig.job(job).state) == ([], JobState.QUEUED)
    assert not [*(tmp_path / "logs").iterdir()]
    assert reason_of(rig) == kept_for(other)
    assert rig.loop.turns is not None
    assert not rig.loop.turns.have_changed()
    other.kill()
    assert rig.loop.turns.have_changed()
    assert rig.tick_until_ended(job).exit_code == 0
    assert len(rig.store.attempts(job)) == 1


def test_a_program_that_began_to_wait_later_does_not_stop_the_queue(tmp_path: Path, other: TurnTaker) -> None:
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job("true")
    other.wait_in_line("U0", -1.0)
    assert rig.tick_until_ended(job).exit_code == 0


def test_a_program_that_hangs_is_passed_over(tmp_path: Path, other: TurnTaker) -> None:
    other.wait_in_line("U0", 100.0, moved_ago_s=PASSED_OVER_S + 2)
    rig = Rig(tmp_path, gpus=1)
    assert rig.tick_until_ended(rig.add_job("true")).exit_code == 0


def test_a_gpu_that_another_program_holds_counts_as_claimed(tmp_path: Path, other: TurnTaker) -> None:
    assert other.hold("U0")
    rig = Rig(tmp_path, gpus=2)
    first, second = rig.add_job(_UNTIL_GO), rig.add_job("true")
    rig.runner_pid(first)
    assert [one.gpus for one in rig.store.attempts(first)] == [("U1",)]
    assert rig.store.attempts(second) == []
    other.give_up()
    rig.tick_until(lambda: rig.job(second).state == "finished")
    (tmp_path / "go").touch()
    rig.tick_until_ended(first)


def test_only_the_first_of_several_starts_has_the_place_of_the_queue(
    tmp_path: Path, other: TurnTaker
) -> None:
    rig = Rig(tmp_path, gpus=2)
    jobs = [rig.add_job(_UNTIL_GO) for _ in range(2)]
    other.wait_in_line("U1", 0.0)
    rig.runner_pid(jobs[0])
    assert [len(rig.store.attempts(job)) for job in jobs] == [1, 0]
    other.kill()
    rig.runner_pid(jobs[1])
    (tmp_path / "go").touch()
    rig.tick_until(lambda: all(rig.job(job).state == "finished" for job in jobs))


def test_a_start_ends_the_wait_of_the_queue_on_every_gpu(tmp_path: Path, other: TurnTaker) -> None:
    rig = Rig(tmp_path, gpus=2)
    refused, started = rig.add_job("true", allowed=(0,)), rig.add_job("true", allowed=(1,))
    with rig.store.db.transaction() as db:
        db.execute("UPDATE job SET queued_at = queued_at - 50")
    other.wait_in_line("U0", 100.0)
    while not rig.store.attempts(started):
        rig.tick_once()
    assert rig.store.attempts(refused) == []
    assert other.ahead("U0", 10.0) is None
    assert other.ahead("U0") == os.getpid()
    other.kill()
    for job in (refused, started):
        rig.tick_until_ended(job)


def test_a_claim_that_was_taken_after_the_facts_were_read_costs_no_attempt(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job("true")
    with claim_holder(folder, "U0") as process:
        monkeypatch.setattr(
            "gpu_scheduler.rounds.loop.read_facts",
            lambda *args, **options: read_facts(*args, **{**options, "lock_folder": None}),
        )
        rig.tick()
        assert rig.store.attempts(job) == []
        assert f"pid {process.pid}" in reason_of(rig)
    monkeypatch.undo()
    assert rig.tick_until_ended(job).exit_code == 0


def test_a_hold_lasts_until_the_runner_has_claimed_its_gpu(tmp_path: Path, other: TurnTaker) -> None:
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job(_UNTIL_GO)
    while not rig.store.attempts(job):
        rig.tick_once()
    # The runner may be faster than this check.
    assert not other.hold("U0") or read_gpu_locks(rig.claim_folder.path, "U0")
    other.give_up()
    pid = rig.runner_pid(job)
    wait_for(lambda: pid in [lock.pid for lock in read_gpu_locks(rig.claim_folder.path, "U0")], "the claim")
    rig.tick()
    assert other.hold("U0")
    (tmp_path / "go").touch()
    rig.tick_until_ended(job)


def test_the_queue_keeps_its_place_while_its_own_job_runs(tmp_path: Path, other: TurnTaker) -> None:
    rig = Rig(tmp_path, gpus=1)
    first = rig.add_job(_UNTIL_GO)
    rig.runner_pid(first)
    rig.add_job("true")
    rig.tick()
    other.wait_in_line("U0", 0.0)
    assert other.ahead("U0") == os.getpid()
    (tmp_path / "go").touch()
    rig.tick_until_ended(first)


def test_a_preempted_gpu_is_kept_for_the_urgent_job(tmp_path: Path, other: TurnTaker) -> None:
    rig = Rig(tmp_path, gpus=1, settings=PREEMPTING)
    victim = rig.add_job(f"trap '{_UNTIL_GO}; exit 0' TERM; touch up; while :; do sleep 0.01; done")
    rig.runner_pid(victim)
    wait_for((tmp_path / "up").exists, "the victim")
    other.wait_in_line("U0", 100.0)
    urgent = rig.add_job("touch ran", preempt=True, priority=0)
    rig.tick()
    assert rig.store.active_attempts()[0].preempted_for == urgent
    assert not other.hold("U0")
    (tmp_path / "go").touch()
    rig.tick_until(lambda: rig.job(urgent).state == "finished")
    assert [len(rig.store.attempts(job)) for job in (victim, urgent)] == [1, 1]
    rig.tick_until(lambda: other.hold("U0"), "the end of the hold")


def test_a_gpu_that_a_preempt_by_hand_frees_is_kept_for_the_next_job(
    tmp_path: Path, other: TurnTaker
) -> None:
    rig = Rig(tmp_path, gpus=1)
    first = rig.add_job(f"[ -e up ] || {{ touch up; {_UNTIL_GO}; }}")
    rig.runner_pid(first)
    wait_for((tmp_path / "up").exists, "the first job")
    second = rig.add_job("touch ran")
    other.wait_in_line("U0", 100.0)
    add_request(rig.store, "preempt", str(first), stop_id="a", grace_s=600.0, on_timeout="kill")
    rig.tick_until(lambda: rig.job(second).state == "finished", "the second job")
    assert (tmp_path / "ran").exists()
    rig.tick_until(lambda: rig.job(first).state == "held")
    rig.tick()
    assert other.hold("U0")


def test_a_gpu_that_a_preempt_by_hand_frees_is_not_kept_if_no_job_could_use_it(
    tmp_path: Path, other: TurnTaker
) -> None:
    rig = Rig(tmp_path, gpus=2)
    first = rig.add_job(f"touch up; {_UNTIL_GO}", allowed=(0,))
    rig.runner_pid(first)
    wait_for((tmp_path / "up").exists, "the first job")
    rig.add_job("true", vram=10**7)
    add_request(rig.store, "preempt", str(first), stop_id="a", grace_s=600.0, on_timeout="kill")
    rig.tick_until(lambda: rig.job(first).state == "held")
    rig.tick()
    assert other.hold("U0")


def test_nobody_is_preempted_while_it_is_only_the_turn_of_another_program(
    tmp_path: Path, other: TurnTaker
) -> None:
    rig = Rig(tmp_path, gpus=2, settings=PREEMPTING)
    low = rig.add_job(_UNTIL_GO)
    rig.runner_pid(low)
    assert [one.gpus for one in rig.store.attempts(low)] == [("U0",)]
    other.wait_in_line("U1", 100.0)
    urgent = rig.add_job("touch ran", preempt=True, priority=0)
    rig.tick()
    assert (rig.store.attempts(urgent), rig.job(low).state) == ([], JobState.RUNNING)
    assert rig.store.active_attempts()[0].preempted_for is None
    other.kill()
    rig.tick_until(lambda: rig.job(urgent).state == "finished")
    (tmp_path / "go").touch()
    rig.tick_until_ended(low)
    assert len(rig.store.attempts(low)) == 1
