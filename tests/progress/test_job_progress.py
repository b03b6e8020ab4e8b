"""The progress of a job from everything that shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.job_progress import SCAN_INTERVAL_S, ProgressReader, ProgressSource
from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.job import Checkpoint, ProgressUnit
from tests.core.training_logs import tqdm
from tests.progress.training import spec, trainer_checkpoint

NOW = 2000.0


def read(folder: Path, *arguments: str, now: float = NOW, **values: Any) -> JobProgress:
    """Reads the progress of an attempt that started at 1000 and whose log was last written at 2000."""
    given = {"log": str(folder / "log"), "progress_file": str(folder / "progress"), "started_at": 1000.0}
    return ProgressReader().read(
        ProgressSource(1, spec(folder, *arguments), **{"since_wall": 900.0, **given, **values}), now
    )


def write(path: Path, text: str, at: float = NOW) -> None:
    path.write_text(text)
    os.utime(path, (at, at))


def test_the_time_left_follows_from_the_work_done(tmp_path: Path) -> None:
    write(tmp_path / "log", "Step 1/100\nStep 53/100\n")
    found = read(tmp_path)
    assert found.percent == 53
    assert found.remaining_s == pytest.approx(1000 * 47 / 53)
    assert found.finish_at == pytest.approx(NOW + 1000 * 47 / 53)


def test_the_time_left_decreases_until_the_next_line(tmp_path: Path) -> None:
    write(tmp_path / "log", "Step 25/100\nStep 50/100\n")
    assert read(tmp_path, now=NOW + 300).remaining_s == pytest.approx(700)
    assert read(tmp_path, now=NOW + 1001).remaining_s is None


def test_the_jobs_own_report_counts_first(tmp_path: Path) -> None:
    write(tmp_path / "log", "Step 5/100\n")
    write(tmp_path / "progress", '{"step": 50, "total": 200}')
    assert read(tmp_path).percent == 25


def test_a_report_without_a_total_counts_if_the_command_has_it(tmp_path: Path) -> None:
    write(tmp_path / "progress", '{"step": 50}')
    assert read(tmp_path, "--max_steps", "200").percent == 25
    assert read(tmp_path).percent is None
    write(tmp_path / "log", "Step 50/100\n")
    assert read(tmp_path).percent == 50


LOGGED = "loading 3/3\n" + "x" * 300 + "\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("Step 301/600\n", None),
        ("Step 301/600\nStep 302/600\n", 1000 * 298 / 2),
        ("Step 310/600\nStep 320/600\nStep 330/600\n", 1000 * 270 / 30),
        ("Epoch 6/10\n", None),
        ("Epoch 6/10\nEpoch 7/10\n", 1000 * 4 / 2),
        ("Epoch 1/10\nEpoch 2/10\n", 1000 * 9 / 1),
        ("Step 1/600\n", 1000 * 599),
        ("Step 100/300\n", None),
        ("Step 100/300\nStep 200/300\n", 1000 * 100 / 200),
        ("Step 37/600\nStep 38/600\nStep 75/600\n", 1000 * 525 / 75),
        (f"\r{tqdm('', 0, 600)}\r{tqdm('', 301, 600)}", None),
        (f"\r{tqdm('', 0, 600)}\r{tqdm('', 301, 600)}\r{tqdm('', 320, 600, 20)}", 20.5 * 280 / 38),
        (f"\r{tqdm('', 0, 600)}\r{tqdm('', 30, 600, 3)}\r{tqdm('', 60, 600, 6)}", 6.5 * 540 / 60),
    ],
)  # fmt: skip
def test_a_program_that_resumes_by_itself_counts_from_its_first_readings(
    tmp_path: Path, log: str, expected: float | None
) -> None:
    write(tmp_path / "log", LOGGED + log)
    assert read(tmp_path).remaining_s == (None if expected is None else pytest.approx(expected))


def test_a_report_far_from_the_beginning_shows_a_speed_with_the_next_one(tmp_path: Path) -> None:
    write(tmp_path / "progress", '{"step": 301, "total": 600}', NOW - 100)
    for at, step, expected in (
        (NOW - 100, 301, None),
        (NOW, 320, 100 * 280 / 19),
        (NOW + 9, 330, 109 * 270 / 29),
    ):
        write(tmp_path / "progress", f'{{"step": {step}, "total": 600}}', at)
        left = read(tmp_path, now=at).remaining_s  # a new reader each time, as in commands
        assert left == (None if expected is None else pytest.approx(expected))


def test_a_report_near_the_beginning_counts_from_the_start(tmp_path: Path) -> None:
    write(tmp_path / "progress", '{"step": 3, "total": 600}', NOW - 100)
    assert read(tmp_path).remaining_s == pytest.approx(900 * 597 / 3 - 100)
    write(tmp_path / "progress", '{"step": 320, "total": 600}')
    assert read(tmp_path).remaining_s == pytest.approx(1000 * 280 / 320)


def test_checkpoints_of_another_run_show_a_speed_with_the_second_own_one(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-300", 500.0, max_steps=600)
    trainer_checkpoint(tmp_path / "out/checkpoint-350", 1500.0, max_steps=600)
    assert read(tmp_path, "--output_dir", "out", now=1500.0).remaining_s is None
    trainer_checkpoint(tmp_path / "out/checkpoint-400", 1900.0, max_steps=600)
    assert read(tmp_path, "--output_dir", "out", now=1900.0).remaining_s == pytest.approx(400 * 200 / 50)


def test_checkpoints_count_if_the_log_shows_nothing(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 1600.0, max_steps=400)
    trainer_checkpoint(tmp_path / "out/checkpoint-150", 1900.0, max_steps=400, whole=False)
    found = read(tmp_path, "--output_dir", "out", "--max_steps", "300")
    assert found.progress is not None
    assert (found.percent, found.progress.unit) == (50, ProgressUnit.CHECKPOINT)
    assert found.checkpoint == Checkpoint(str(tmp_path / "out/checkpoint-100"), 100.0, 1600.0)
    assert found.remaining_s == pytest.approx(900 - 100)  # 150 steps in 900 s, 100 s ago
    write(tmp_path / "log", "Step 225/300\n")
    assert read(tmp_path, "--output_dir", "out").percent == 75


def test_the_trainers_state_has_the_number_of_steps(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 1600.0, max_steps=400)
    assert read(tmp_path, "--output_dir", "out").percent == 25


def test_a_resumed_attempt_counts_from_its_step(tmp_path: Path) -> None:
    write(tmp_path / "log", "Step 200/300\n")
    resumed = read(tmp_path, resumed_from=Checkpoint("/out/checkpoint-150", 150.0))
    assert resumed.remaining_s == pytest.approx(1000 * 100 / 50)
    by_path = read(tmp_path, resumed_from=Checkpoint("/out/checkpoint-150"))
    assert by_path.remaining_s == resumed.remaining_s
    by_command = read(tmp_path, "--resume_from_checkpoint", "out/checkpoint-150")
    assert by_command.remaining_s == resumed.remaining_s
    unknown = read(tmp_path, "--resume_from_checkpoint", "True")
    assert unknown.percent == pytest.approx(200 / 3)
    assert unknown.remaining_s is None


def test_a_resumed_attempt_that_counts_only_its_own_work(tmp_path: Path) -> None:
    write(tmp_path / "log", "Step 50/150\n")
    resumed = read(tmp_path, resumed_from=Checkpoint("/out/checkpoint-150", 150.0))
    assert resumed.remaining_s == pytest.approx(2000)


def test_checkpoints_of_an_earlier_attempt_show_no_speed(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 950.0)
    trainer_checkpoint(tmp_path / "out/checkpoint-150", 1500.0)
    found = read(tmp_path, "--output_dir", "out")
    assert (found.percent, found.remaining_s) == (50, None)
    from_there = read(tmp_path, "--output_dir", "out", resumed_from=Checkpoint("c", 100.0))
    assert from_there.remaining_s == pytest.approx(500 * 150 / 50 - 500)


def test_an_attempt_that_starts_over_does_not_show_the_progress_of_the_one_before(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 950.0)
    assert read(tmp_path, "--output_dir", "out").progress is None
    resumed = read(
        tmp_path, "--output_dir", "out", resumed_from=Checkpoint("/out/checkpoint-100", 100.0)
    ).progress
    assert resumed is not None


def test_epochs_of_a_resumed_attempt_show_a_speed_only_if_the_steps_are_known(tmp_path: Path) -> None:
    write(tmp_path / "log", "Epoch 3/4: loss 0.1\n")
    resumed = Checkpoint("c", 150.0)
    assert read(tmp_path, resumed_from=resumed).remaining_s is None
    found = read(tmp_path, "--max_steps", "300", resumed_from=resumed)
    assert found.remaining_s == pytest.approx(1000 * 1 / (3 - 2))


def test_checkpoints_are_searched_only_now_and_then(tmp_path: Path) -> None:
    reader = ProgressReader()
    source = ProgressSource(1, spec(tmp_path, "--output_dir", "out"))
    assert reader.read(source, NOW) == JobProgress()
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 1600.0)
    assert reader.read(source, NOW + SCAN_INTERVAL_S - 1) == JobProgress()
    assert reader.read(source, NOW + SCAN_INTERVAL_S).checkpoint is not None
    reader.keep_only([2])
    assert reader.read(source, NOW).checkpoint is not None


def test_nothing_is_shown_of_a_job_without_evidence(tmp_path: Path) -> None:
    assert read(tmp_path) == JobProgress()


def test_checkpoints_are_not_searched_in_vain(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 1600.0)
    source = ProgressSource(1, spec(tmp_path, "--output_dir", "out"), str(tmp_path / "log"))
    reader = ProgressReader()
    shown = reader.read(source, NOW, with_checkpoint=False)
    assert shown.percent == pytest.approx(100 / 3)
    write(tmp_path / "log", "Step 200/300\n")
    shown = reader.read(source, NOW + 1, with_checkpoint=False)
    assert shown.percent == pytest.approx(200 / 3)
    assert shown.checkpoint is None
    assert reader.read(source, NOW + 1).checkpoint is not None
