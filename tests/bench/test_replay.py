"""Tests of the replay of traces: its figures for a small trace, its generators and its input."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest

from bench.replay import __main__ as command
from bench.replay.estimates import KINDS, Learned
from bench.replay.generate import MIXES, batch, mix, stream
from bench.replay.replay import figures, replay
from bench.replay.trace import TraceJob, read_trace, shortest_makespan_s, write_trace
from gpu_scheduler.core.scheduling.history import RunTimeKey
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings

BACKFILL = Settings(queue_order=QueueOrder.BACKFILL)
TRACE = """\
submit_s,duration_s,gpus,class
0,3600,1,train
60,7200,2,large
120,3600,1,train
3660,3600,1,train
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_the_figures_of_a_small_trace(trace: Path) -> None:
    jobs = read_trace(trace)
    outcome = replay(jobs, BACKFILL, times="none", gpus=2, seed=1)
    assert outcome.starts == (0.0, 7260.0, 120.0, 3660.0)
    found = figures(jobs, outcome, 2)
    assert found.makespan_h == pytest.approx(14_460 / 3600)
    # In all 25,200 GPU-seconds of work are submitted from time 0 on, and 21,600 from 60 s on.
    assert found.makespan == pytest.approx(14_460 / 12_600)
    assert found.worst_h == found.multi_worst_h == found.multi_mean_h == pytest.approx(2.0)
    assert found.mean_h == pytest.approx(0.5)
    assert found.median_h == 0.0
    assert found.slowdown == pytest.approx((1 + 2 + 1 + 1) / 4)
    assert found.idle == pytest.approx(1 - 25_200 / (2 * 14_460))


def test_the_table_has_a_column_for_each_order_and_kind_of_times(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([str(trace), "--gpus=2"])
    out = capsys.readouterr().out
    assert out.splitlines()[1].split("  ")[-4:] == [
        "backfill",
        "reserve exact",
        "reserve learned",
        "reserve none",
    ]
    assert "worst wait of multi-GPU jobs, h" in out


@pytest.mark.parametrize("times", KINDS)
def test_every_job_of_a_replay_starts(times: str) -> None:
    jobs = mix("lab", 1)[:60]
    outcome = replay(jobs, Settings(aging=2), times=times, gpus=8, seed=1)
    assert all(start >= job.submit_s for start, job in zip(outcome.starts, jobs, strict=True))


def test_the_bound_of_the_makespan() -> None:
    jobs = [TraceJob(10, 100), TraceJob(20, 100), TraceJob(20, 100), TraceJob(300, 30)]
    assert shortest_makespan_s(jobs, 4) == 320
    assert shortest_makespan_s(jobs[:3], 1) == 300
    assert shortest_makespan_s([*jobs[:2], TraceJob(200, 50, 2, 500)], 1) == 250


@pytest.mark.parametrize("name", ["stream", "batch", *MIXES])
def test_generated_traces_depend_only_on_their_seed(name: str) -> None:
    def generate(seed: int) -> list[TraceJob]:
        return {"stream": partial(stream, 0.9), "batch": partial(batch, 50)}.get(name, partial(mix, name))(
            seed
        )

    assert generate(3) == generate(3)
    assert generate(3) != generate(4)


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_has_its_load(name: str) -> None:
    jobs = mix(name, 1)
    assert len(jobs) == MIXES[name].jobs
    work_s = sum(job.work_s for job in jobs)
    assert work_s / (8 * jobs[-1].submit_s) == pytest.approx(MIXES[name].load, rel=0.02)


def test_a_stream_has_one_large_job_on_the_first_day() -> None:
    [large] = [job for job in stream(0.7, 1) if job.gpus > 1]
    assert (large.gpus, large.submit_s) == (8, 12 * 3600)


def test_a_written_trace_can_be_read(tmp_path: Path) -> None:
    jobs = batch(20, 1)
    text = io.StringIO()
    write_trace(jobs, text)
    path = tmp_path / "batch.csv"
    path.write_text(text.getvalue())
    read = read_trace(path)
    assert [(job.gpus, job.share, job.name) for job in read] == [
        (job.gpus, job.share, job.name) for job in jobs
    ]
    assert [job.duration_s for job in read] == pytest.approx([job.duration_s for job in jobs], abs=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "submit_s,gpu\n1,2\n",
            "line 1: unknown column 'gpu', no column 'duration_s'; the columns are submit_s,",
        ),
        ("submit_s,duration_s\n1,soon\n", "line 2: could not convert string to float: 'soon'"),
        (
            "submit_s,duration_s\n1,10\n2,0\n",
            "line 3: submit_s must be at least 0, duration_s and gpus positive",
        ),
        ("submit_s,duration_s\n", "no jobs"),
        ("submit_s,duration_s,gpus\n0,10,9\n", "the job submitted at 0 s needs 9 GPUs; there are 8"),
    ],
)
def test_a_wrong_trace_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(SystemExit, match=message):
        command.main([str(path)])


def test_learned_ratios_are_those_of_the_newest_200_jobs_that_ended() -> None:
    jobs = [TraceJob(0.0, 100.0 + n) for n in range(400)]
    learned = Learned(jobs, 1)
    known = [n for n in range(400) if learned.estimate(RunTimeKey(str(n), "{}")).predicted_s is not None]
    ratios = []
    for number in range(400):
        learned.learn(number)
        predicted = learned.estimate(RunTimeKey(str(number), "{}")).predicted_s
        if predicted is not None:
            ratios.append(jobs[number].duration_s / predicted)
    assert 240 < len(known) < 320
    assert learned.estimate(RunTimeKey(str(known[0]), "{}")).ratios == tuple(sorted(ratios[-200:]))
