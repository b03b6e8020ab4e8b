"""Tests how samples are stored if GPUs are lost, recover or change their order, even across a restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import LOST, UNLISTED, FaultKind, Gpu, GpuFault, GpuSample, Snapshot
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.errors import GpuStateError, UsageError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient, ProbeFailure, UnreadableError
from gpu_scheduler.gpus.sampling import RETRY_S, SAMPLE_EVERY_S, Sampler
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.store import Store
from tests.changes import CheckedWriter
from tests.loop.rig import Rig

ONE, TWO = (GpuFault(FaultKind.RECOVERING, good_samples=count) for count in (1, 2))


def gpu_sample(index: int, uuid: str, fault: GpuFault | None = None) -> GpuSample:
    return GpuSample(uuid, index, f"Fake {uuid[-1]}", 24576, 0, 0.0, (), fault)


FOUR = tuple(gpu_sample(i, f"GPU-{c}") for i, c in enumerate("abcd"))


class FakeProbeClient(ProbeClient):
    """A probe client without a probe process. It gives the answers that the test sets."""

    def __init__(self) -> None:
        super().__init__("nvml")
        self.answer: Snapshot | ProbeFailure | None = None

    def query(self, now: float | None = None) -> None:
        self.queried_at = 0.0 if now is None else now

    def sample(self, timeout_s: float | None = None) -> Snapshot:
        self.query()
        if self.answer is None:
            raise UnreadableError(ProbeFailure("no answer yet"))
        self.queried_at = None
        if isinstance(self.answer, ProbeFailure):
            raise UnreadableError(self.answer)
        return self.answer

    def read(self) -> Snapshot | ProbeFailure | None:
        answer, self.answer, self.queried_at = self.answer, None, None
        return answer

    def expire(self, now: float) -> ProbeFailure | None:
        return None


class SamplerBench:
    """A store with a sampler. `restart` simulates a new scheduler with the same store."""

    def __init__(self, store: Store, watch: GpuWatch | None = None) -> None:
        self.store = store
        self.recorder = CheckedWriter(store, Settings())
        self.restart(watch)

    def restart(self, watch: GpuWatch | None = None) -> None:
        self.watch, self.probe = watch or GpuWatch(), FakeProbeClient()
        self.sampler = Sampler(self.probe, self.watch, Clock())

    def begin(self, samples: Sequence[GpuSample] | str | None, option: str | None = None) -> None:
        if samples is not None:
            self.set_gpus(samples)
        try:
            self.sampler.begin(option, self.store, self.recorder)
        finally:
            self.probe.close()

    def set_gpus(self, samples: Sequence[GpuSample] | str) -> None:
        self.probe.answer = (
            ProbeFailure(samples) if isinstance(samples, str) else Snapshot(1.0, tuple(samples))
        )

    def take(self, samples: Sequence[GpuSample] | str) -> None:
        self.set_gpus(samples)
        self.sampler.read(self.recorder)

    def faults(self) -> list[GpuFault | None]:
        """Returns the stored fault of each GPU. Checks that placement uses the same faults."""
        rows = self.store.gpus()
        seen = self.watch.gpus(rows, {})
        if self.watch.snapshot is not None:
            assert [(g.index, g.uuid, g.sample and g.sample.fault) for g in seen] == [
                (row.index, row.uuid, row.fault) for row in rows
            ]
        return [row.fault for row in rows]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SamplerBench]:
    made = SamplerBench(Store(DataDir.of(str(tmp_path / "state.json")), create=True))
    yield made
    made.store.close()


def lost(*uuids: str) -> list[GpuSample]:
    return [gpu_sample(g.index, g.uuid, LOST) if g.uuid in uuids else g for g in FOUR]


def test_a_note_of_the_probe_is_logged_when_it_begins_and_after_each_change(
    bench: SamplerBench, caplog: pytest.LogCaptureFixture
) -> None:
    def take(note: str) -> None:
        bench.probe.answer = Snapshot(1.0, FOUR, note)
        bench.sampler.read(bench.recorder)

    bench.probe.answer = Snapshot(1.0, FOUR, "NVML fails")
    with caplog.at_level(logging.WARNING, "gpu_scheduler"):
        bench.begin(None)
        for note in ("NVML fails", "", "", "NVML fails", "NVML is gone"):
            take(note)
    assert [r.message for r in caplog.records] == ["NVML fails", "NVML fails", "NVML is gone"]


def test_a_lost_gpu_recovers_after_three_good_samples(
    bench: SamplerBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin(FOUR)
    with caplog.at_level(logging.INFO, "gpu_scheduler"):
        for _ in range(3):
            bench.take(lost("GPU-b"))
        assert bench.faults() == [None, LOST, None, None]
        seen = []
        for _ in range(4):
            bench.take(FOUR)
            seen.append(bench.faults()[1])
    assert seen == [ONE, TWO, None, None]
    assert [r.message for r in caplog.records if r.message.startswith("GPU 1 ")] == [
        "GPU 1 (Fake b, GPU-b): lost; it accepts no new jobs",
        "GPU 1 (Fake b, GPU-b) is back after 3 good samples in a row; it accepts jobs again",
    ]


def test_a_gpu_missing_from_a_sample_is_lost_and_must_recover_even_after_a_restart(
    bench: SamplerBench,
) -> None:
    bench.begin(FOUR)
    left = [gpu_sample(0, "GPU-a"), gpu_sample(1, "GPU-c"), gpu_sample(2, "GPU-d")]
    bench.take(left)
    assert [(row.uuid, row.index, row.fault) for row in bench.store.gpus()] == [
        ("GPU-a", 0, None),
        ("GPU-c", 1, None),
        ("GPU-d", 2, None),
        ("GPU-b", 3, UNLISTED),
    ]
    bench.restart()
    bench.begin(left)
    assert bench.faults() == [None, None, None, UNLISTED]
    bench.take(FOUR)
    assert bench.faults() == [None, ONE, None, None]
    bench.restart()
    bench.begin(FOUR)
    assert bench.faults() == [None, TWO, None, None]
    bench.take(FOUR)
    assert bench.faults() == [None] * 4


def test_a_failed_sample_makes_gpus_unreadable_but_not_lost(bench: SamplerBench) -> None:
    bench.begin(FOUR)
    bench.take(lost("GPU-b"))
    bench.take("no answer within 10 s")
    blind = GpuFault(FaultKind.UNREADABLE, "no answer within 10 s")
    assert bench.watch.failure == "no answer within 10 s"
    assert bench.faults() == [blind, LOST, blind, blind]
    bench.restart()
    bench.begin("still none")
    blind = GpuFault(FaultKind.UNREADABLE, "still none")
    assert bench.watch.failure == "still none"
    assert bench.faults() == [blind, LOST, blind, blind]
    bench.take(FOUR)
    assert bench.faults() == [None, ONE, None, None]
    assert [gpu.sample is not None for gpu in bench.watch.gpus([Gpu("GPU-a", 0)], {})] == [True]


def test_a_failed_gpu_query_is_repeated_soon(bench: SamplerBench) -> None:
    bench.begin(FOUR)
    assert bench.sampler.query(at_once=True)
    before = Clock().now().boot
    bench.take("nvidia-smi: NVIDIA-SMI has failed")
    assert bench.sampler.due_at is not None
    assert bench.sampler.due_at - before <= RETRY_S + 1 < SAMPLE_EVERY_S


def test_pauses_and_allocations_follow_their_gpu_if_the_gpu_order_changes(bench: SamplerBench) -> None:
    bench.begin(FOUR)
    with bench.store.db.transaction() as db:
        db.execute("UPDATE gpu SET paused = 1 WHERE uuid = 'GPU-b'")
    bench.restart()
    bench.begin([gpu_sample(i, f"GPU-{c}") for i, c in enumerate("bdac")])
    assert [(row.uuid, row.index, row.paused) for row in bench.store.gpus()] == [
        ("GPU-b", 0, 1),
        ("GPU-d", 1, 0),
        ("GPU-a", 2, 0),
        ("GPU-c", 3, 0),
    ]


def test_unknown_gpu_loads_replace_the_loads_of_older_samples(bench: SamplerBench) -> None:
    bench.begin([replace(FOUR[0], load_percent=90.0)])
    seen = []
    for _ in range(3):
        bench.take([replace(FOUR[0], load_percent=None)])
        [gpu] = bench.watch.gpus([Gpu("GPU-a", 0)], {})
        seen.append(gpu.mean_load)
    assert seen == [90.0, 90.0, None]


def test_start_continues_to_manage_a_lost_gpu(bench: SamplerBench) -> None:
    bench.begin(FOUR)
    bench.restart()
    bench.begin(FOUR[:3], option="4")
    assert bench.faults() == [None, None, None, UNLISTED]
    # If the option excludes the lost GPU, the GPU is removed from the store.
    bench.restart()
    bench.begin(FOUR[:3], option="0-2")
    bench.restart()
    bench.begin(FOUR[:3])
    assert bench.faults() == [None, None, None]
    bench.restart()
    with pytest.raises(UsageError, match="3 GPUs found"):
        bench.begin(FOUR[:3], option="4")


def test_the_current_option_alone_determines_which_simulated_gpus_exist(bench: SamplerBench) -> None:
    simulated = [gpu_sample(i, f"SIM-{i}") for i in range(4)]
    bench.begin(simulated)
    bench.restart()
    bench.begin(simulated[:2])
    assert bench.faults() == [None, None]
    bench.restart()
    bench.begin(FOUR)
    assert bench.faults() == [None] * 4
    bench.restart()
    bench.begin(simulated[:1])
    assert bench.faults() == [None]


def test_a_gpu_whose_uuid_was_unknown_is_managed_once_it_recovers(bench: SamplerBench) -> None:
    bench.begin([FOUR[0], gpu_sample(1, "unknown-1", LOST), FOUR[2]])
    assert [row.uuid for row in bench.store.gpus()] == ["GPU-a", "GPU-c"]
    seen = []
    for _ in range(3):
        bench.take(FOUR[:3])
        seen.append(bench.faults()[1])
    assert seen == [ONE, TWO, None]
    bench.take(FOUR)
    assert len(bench.store.gpus()) == 3, "the scheduler never managed the fourth GPU"


def test_start_fails_with_a_remedy_if_no_gpus_were_sampled_or_stored(bench: SamplerBench) -> None:
    with pytest.raises(GpuStateError, match="cannot read the GPUs: Driver Not Loaded"):
        bench.begin("Driver Not Loaded")


class Sampled(Rig):
    """A rig whose samples go through a sampler.

    `lost` contains the indices of the GPUs that do not respond.
    """

    bench: SamplerBench | None = None
    lost: tuple[int, ...] = ()

    def take_sample(self) -> None:
        if self.bench is None:
            super().take_sample()
            return
        cards = [gpu_sample(i, f"U{i}", LOST if i in self.lost else None) for i in range(self.gpus)]
        now = self.clock.now().boot
        self.bench.probe.answer = Snapshot(now, tuple(cards))
        self.bench.sampler.read(self.bench.recorder)


def test_start_with_a_number_of_gpus_logs_which_gpus_it_selected(
    bench: SamplerBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpu_scheduler")
    bench.begin(FOUR, "1")
    assert "--gpus 1 is a count: GPU 0; for GPU 1 alone write --gpus 1," in caplog.messages


def test_a_job_on_a_lost_gpu_continues_but_no_other_job_starts_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Sampled(tmp_path, gpus=1)
    os.mkfifo(tmp_path / "go")
    running = rig.add_job("read line < go; exit 3")
    rig.runner_pid(running)
    bench = SamplerBench(rig.store, rig.watch)
    bench.begin([gpu_sample(0, "U0")])
    rig.bench, rig.lost = bench, (0,)
    rig.take_sample()
    assert (
        f"lost; it accepts no new jobs; jobs running on it continue and keep their share (job {running})"
        in caplog.text
    )
    waiting = rig.add_job("exit 0")
    [attempt] = rig.tick().attempts
    assert (attempt.gpus, attempt.state.is_open) == (("U0",), True)
    (tmp_path / "go").write_text("\n")
    assert rig.tick_until_ended(running).exit_code == 3
    assert rig.job(waiting).state == "queued"
    [reason] = wait_reasons(rig.store).values()
    assert "GPU 0: lost" in wait_text(reason)
    rig.lost = ()
    rig.take_sample()
    rig.take_sample()
    rig.tick()
    assert rig.job(waiting).state == "queued"
    rig.take_sample()
    assert rig.tick_until_ended(waiting).outcome == "completed"


def test_start_continues_while_a_slow_driver_has_not_yet_answered(
    bench: SamplerBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.begin(FOUR)
    bench.restart()
    bench.begin(None)
    assert bench.faults() == [GpuFault(FaultKind.UNREADABLE, "no answer yet")] * 4
    assert not bench.sampler.query(at_once=True)
    assert bench.sampler.due_at == bench.probe.deadline
    bench.take(FOUR)
    assert bench.faults() == [None] * 4
    assert caplog.text.count("the GPUs respond again") == 1
    assert bench.sampler.query(at_once=True)
