"""Misplaced processes: processes of a job on a GPU outside its allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import RecordForeignPeaks, RecordMisplacedProcess
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.misplaced import misplaced_process_message, misplaced_processes
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings

RUNNING = Attempt(
    1, 7, "t", "boot", AttemptState.RUNNING, ("U0",), 1000, status=AttemptStatus("live", 5), measured_at=1.0
)


def gpu(index: int, *processes: GpuProcess, owners: dict[int, int | None] | None = None) -> Gpu:
    sample = GpuSample(f"U{index}", index, "GPU", 24576, 0, 0.0, processes)
    return Gpu(f"U{index}", index, False, sample, 1.0, 0.0, owners or {}, foreign_load_at=1.0)


def facts(*gpus: Gpu, attempt: Attempt = RUNNING, others: tuple[Gpu, ...] = ()) -> Facts:
    return Facts(
        Now(0.0, 10.0, "boot"), Settings(), LlmConfig(), gpus, unmanaged_gpus=others, attempts=(attempt,)
    )


HERE = gpu(2, GpuProcess(71, 300), GpuProcess(72, 4000), owners={71: 1, 72: 1})
MISPLACED = RecordMisplacedProcess(7, 1, "U2", 72)
#: No allocation covers it there, so its memory is reserved like that of a foreign process.
FOREIGN_PEAKS = RecordForeignPeaks("U2", ((71, 0.0, 300), (72, 0.0, 4000)))


def test_reports_the_largest_misplaced_process_once() -> None:
    assert misplaced_processes(facts(gpu(0), HERE)) == [MISPLACED]
    assert plan(facts(gpu(0), HERE)) == [FOREIGN_PEAKS, MISPLACED]
    assert misplaced_processes(facts(gpu(0), HERE, attempt=replace(RUNNING, misplaced_gpus=("U2",)))) == []


def test_reports_every_gpu_including_unmanaged_ones() -> None:
    third = gpu(3, GpuProcess(72, 1), owners={72: 1})
    assert misplaced_processes(facts(HERE, others=(third,))) == [
        MISPLACED,
        RecordMisplacedProcess(7, 1, "U3", 72),
    ]


@pytest.mark.parametrize(
    ("sampled", "attempt"),
    [
        (gpu(0, GpuProcess(71, 300), owners={71: 1}), RUNNING),
        (gpu(2, GpuProcess(71, 300), owners={71: None}), RUNNING),
        (gpu(2, GpuProcess(71, 300), owners={71: 99}), RUNNING),
        (gpu(2, GpuProcess(71, 300, graphics_only=True), owners={71: 1}), RUNNING),
        (replace(HERE, sample=GpuSample("U2", 2, "GPU", 24576, 300, 0.0, None)), RUNNING),
        (replace(HERE, sample=None), RUNNING),
        (HERE, replace(RUNNING, state=AttemptState.RELEASED, released_at=1.0)),
    ],
    ids=["its own", "foreign", "unknown", "a display", "no list", "no sample", "ended"],
)
def test_ignores_processes_that_are_not_misplaced(sampled: Gpu, attempt: Attempt) -> None:
    assert misplaced_processes(facts(sampled, attempt=attempt)) == []


def test_the_message_names_both_gpus() -> None:
    assert misplaced_process_message((0,), 2, 4711).startswith(
        "was given GPU 0 but uses GPU 2 (process 4711): it probably sets CUDA_VISIBLE_DEVICES itself"
    )
    assert "was given GPUs 0,1 but" in misplaced_process_message((0, 1), 2, 4711)
