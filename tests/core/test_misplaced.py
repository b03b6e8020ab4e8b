"""Misplaced processes: processes of a job on a GPU outside its allocation."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import AttemptChanged, GpuChanged
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.plan import misplaced_processes, plan
from tests.attempts import replace
from tests.core.decisions import changed_attempts
from tests.core.gpu_world import facts, gpu, running

RUNNING = running(1, "U0", share=1000)


def observed(*gpus: Gpu, attempt: ActiveAttempt = RUNNING, others: tuple[Gpu, ...] = ()) -> Facts:
    return facts(*gpus, attempts=(attempt,), unmanaged_gpus=others)


def used(index: int, *processes: GpuProcess, owners: dict[int, int | None] | None = None) -> Gpu:
    return gpu(index, 0, processes, owners=owners or {})


HERE = used(2, GpuProcess(71, 300), GpuProcess(72, 4000), owners={71: 1, 72: 1})
MISPLACED = replace(RUNNING, misplaced=(("U2", 72),))
#: The job has no allocation on that GPU, so the process's memory is reserved like that of a foreign process.
FOREIGN_PEAKS = GpuChanged(HERE, replace(HERE, foreign_peaks={(71, 0.0): 300, (72, 0.0): 4000}))


def test_reports_only_the_largest_misplaced_process_and_only_once() -> None:
    found = AttemptChanged(RUNNING, MISPLACED)
    assert misplaced_processes(observed(used(0), HERE)) == [found]
    assert plan(observed(used(0), HERE)) == [FOREIGN_PEAKS, found]
    reported = replace(RUNNING, misplaced_gpus=("U2",))
    assert misplaced_processes(observed(used(0), HERE, attempt=reported)) == []


def test_reports_misplaced_processes_on_every_gpu_including_unmanaged_ones() -> None:
    third = used(3, GpuProcess(72, 1), owners={72: 1})
    both = replace(RUNNING, misplaced=(("U2", 72), ("U3", 72)))
    assert changed_attempts(misplaced_processes(observed(HERE, others=(third,))))[-1] == both


@pytest.mark.parametrize(
    ("sampled", "attempt"),
    [
        (used(0, GpuProcess(71, 300), owners={71: 1}), RUNNING),
        (used(2, GpuProcess(71, 300), owners={71: None}), RUNNING),
        (used(2, GpuProcess(71, 300), owners={71: 99}), RUNNING),
        (used(2, GpuProcess(71, 300, graphics_only=True), owners={71: 1}), RUNNING),
        (replace(HERE, sample=GpuSample("U2", 2, "GPU", 24576, 300, 0.0, None)), RUNNING),
        (replace(HERE, sample=None), RUNNING),
        (HERE, replace(RUNNING, state=AttemptState.RELEASED, released_boot=1.0)),
    ],
    ids=["its own", "foreign", "unknown", "a display", "no list", "no sample", "ended"],
)
def test_ignores_processes_that_are_not_misplaced(sampled: Gpu, attempt: ActiveAttempt) -> None:
    assert misplaced_processes(observed(sampled, attempt=attempt)) == []
