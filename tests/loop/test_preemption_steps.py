"""A scheduler that dies at any one of the steps of a preemption, and the next one that completes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.core.model.states import JobState
from tests.fakes.remote_executor import RemoteExecutor
from tests.loop.manual_clock import ManualClock
from tests.loop.preemption_judge import history_faults
from tests.loop.rig import Rig


class SchedulerDied(BaseException):
    """Ends a round at a failpoint, as SIGKILL would."""


def dying_at(step: int) -> Callable[[str], None]:
    """Returns a failpoint that ends the round at this step, counted from 1."""
    left = step

    def failpoint(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise SchedulerDied(name)

    return failpoint


def preempts_after_a_death(folder: Path, step: int) -> bool:
    """Lets a job preempt two others under a scheduler that dies at this step.

    Returns whether the scheduler reached the step.
    """
    folder.mkdir()
    executor, clock = RemoteExecutor(), ManualClock()
    rig = Rig(folder, gpus=2, executor=executor, clock=clock)
    victims = [rig.add_job(f"low {number}", priority=300, share=1000) for number in range(2)]
    rig.tick()
    urgent = rig.add_job("urgent", priority=100, gpus=2, share=1000, preempt=True)
    backfill = rig.add_job("backfill", priority=200, share=500)
    rig.store.close()
    rig, died = Rig(folder, gpus=2, executor=executor, clock=clock, failpoint=dying_at(step)), False
    jobs = [urgent, backfill, *victims]

    def has_finished() -> bool:
        return all(rig.job(job).state is JobState.FINISHED for job in jobs)

    for _ in range(20):
        if has_finished():
            break
        clock.boot += 5.0
        rig.take_sample()
        try:
            rig.tick()
        except SchedulerDied:
            rig.store.close()
            rig, died = Rig(folder, gpus=2, executor=executor, clock=clock), True
            continue
        for token, attempt in executor.attempts.items():
            if attempt.state == "running" and rig.job(urgent).state is not JobState.QUEUED:
                executor.end(token, 0)
    assert has_finished()
    assert all(attempt.begun == 1 for attempt in executor.attempts.values())
    counts: Counter[str] = Counter()
    assert list(history_faults(rig.store, (), counts)) == []
    assert counts == {"preemptions": 1, "starts on reserved GPUs": 1, "victims": 2}
    rig.store.close()
    return died


def test_a_preemption_is_completed_after_a_death_at_each_of_its_steps(tmp_path: Path) -> None:
    step = 1
    while preempts_after_a_death(tmp_path / str(step), step):
        step += 1
    assert step > 30
