"""Tests when the GPUs are polled, and which peaks of foreign processes still count."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.gpus import watch
from gpu_scheduler.gpus.probes.probe_process import ProbeClient
from gpu_scheduler.gpus.sampling import FREQUENT_EVERY_S, FREQUENT_S, Sampler
from gpu_scheduler.gpus.watch import GpuWatch, current_peaks
from tests.loop.manual_clock import ManualClock


class Counted(ProbeClient):
    """A probe client that answers at once, without a probe process."""

    def __init__(self) -> None:
        super().__init__("nvml")

    def query(self, now: float | None = None) -> None:
        pass


def asked(clock: ManualClock, sampler: Sampler, seconds: float) -> list[float]:
    """Returns when the GPUs are polled within the next `seconds`. Checks that each poll was due."""
    end = clock.boot + seconds
    times: list[float] = []
    while True:
        due = sampler.due_at
        assert due is not None
        if due > end:
            clock.boot = end
            return times
        clock.boot = max(clock.boot, due)
        assert sampler.query(at_once=False)
        assert not sampler.query(at_once=False)
        times.append(clock.boot)


@pytest.mark.parametrize(
    ("every_s", "closely_s"), [(5.0, FREQUENT_EVERY_S), (0.25, 0.25), (20.0, FREQUENT_EVERY_S)]
)
def test_polls_the_gpus_more_often_for_a_while_after_a_job_starts(every_s: float, closely_s: float) -> None:
    clock, probe = ManualClock(), Counted()
    sampler = Sampler(probe, GpuWatch(), clock, every_s)
    try:
        first = asked(clock, sampler, 4 * every_s)
        assert first == [100.0 + every_s * n for n in range(5)]
        clock.boot = began = first[-1]
        sampler.sample_frequently()
        times = asked(clock, sampler, FREQUENT_S + 3 * every_s)
        steps = [later - earlier for earlier, later in zip([began, *times], times, strict=False)]
        close = [step for at, step in zip(times, steps, strict=True) if at <= began + FREQUENT_S]
        assert set(close) == {closely_s}
        assert len(close) == FREQUENT_S / closely_s
        # After that, samples follow at the usual interval.
        assert set(steps[len(close) + 1 :]) == {every_s}
    finally:
        sampler.close()


HELD = {(7, 50.0): 9000, (8, 60.0): 700, (9, 0.0): 300}


@pytest.mark.parametrize(
    ("listed", "alive", "kept"),
    [
        ([], [], {}),
        # The process is alive, but not on the GPU now.
        ([], [(7, 50.0)], {(7, 50.0): 9000}),
        # A listed process counts even if /proc hides it. If its start time is unknown, only its pid must
        # match.
        ([7, 9], [], {(7, 50.0): 9000, (9, 0.0): 300}),
        # Another process has this pid now.
        ([8], [], {}),
    ],
)
def test_the_peak_of_a_foreign_process_counts_while_the_process_is_alive(
    listed: list[int],
    alive: list[tuple[int, float]],
    kept: dict[tuple[int, float], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "is_alive", lambda pid, start: (pid, start) in alive)
    sample = GpuSample("U0", 0, "card", 24576, 0, 0.0, tuple(GpuProcess(pid, 1) for pid in listed))
    gpu = Gpu("U0", 0, sample=sample, process_starts={7: 50.0, 8: 61.0}, foreign_peaks=HELD)
    assert current_peaks(gpu) == kept


def test_without_a_gpu_sample_only_live_foreign_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "is_alive", lambda pid, start: pid == 8)
    assert current_peaks(Gpu("U0", 0, foreign_peaks=HELD)) == {(8, 60.0): 700}
