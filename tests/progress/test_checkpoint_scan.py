"""Finding the newest complete checkpoint of a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.job_progress import find_checkpoint, scan_checkpoints
from gpu_scheduler.core.model.job import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from tests.progress.training import spec, trainer_checkpoint, zip_checkpoint


def test_the_newest_folder_of_the_trainer_counts_once_its_state_is_written(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    trainer_checkpoint(tmp_path / "out/checkpoint-100", 1000.0)
    newest = trainer_checkpoint(tmp_path / "out/checkpoint-150", 1100.0, whole=False)
    assert find_checkpoint(job, 900.0) == Checkpoint(str(tmp_path / "out/checkpoint-100"), 100.0, 1000.0)
    (newest / "trainer_state.json").write_text('{\n  "global_step": 150,\n  "max_st')
    os.utime(newest / "trainer_state.json", (1100.0, 1100.0))
    assert find_checkpoint(job, 900.0) == Checkpoint(str(tmp_path / "out/checkpoint-100"), 100.0, 1000.0)
    (newest / "trainer_state.json").write_text('{\n  "global_step": 150,\n  "max_steps": 300\n}\n')
    os.utime(newest / "trainer_state.json", (1100.0, 1100.0))
    assert find_checkpoint(job, 900.0) == Checkpoint(str(newest), 150.0, 1100.0)


def test_the_output_folder_is_in_the_folder_to_which_the_command_changes(tmp_path: Path) -> None:
    trainer_checkpoint(tmp_path / "outputs/checkpoint-900", 1000.0)
    inner = trainer_checkpoint(tmp_path / "exp05/outputs/checkpoint-100", 1000.0)
    command = "cd exp05 && python train.py --output_dir outputs"
    job = JobSpec(kind="command", text=command, cwd=str(tmp_path), command=command)
    assert find_checkpoint(job, None) == Checkpoint(str(inner), 100.0, 1000.0)
    reported = tmp_path / "progress"
    reported.write_text('{"step": 100, "checkpoint": "outputs/checkpoint-100"}\n')
    assert find_checkpoint(job, None, str(reported)) == Checkpoint(str(inner), 100.0, 1000.0)
    unknown = replace(job, command=command.replace("exp05", "$EXP"))
    assert find_checkpoint(unknown, None) is None


@pytest.mark.parametrize(
    ("written", "folder"),
    [
        ("'out$(date)'", "out$(date)"),
        ("'a `b` $c'", "a `b` $c"),
        (r"out\$x", "out$x"),
        (r'"out\$(x) it\`s"', "out$(x) it`s"),
        (r""""it's "'$x'""", "it's $x"),
        ('"out$(date)"', None),
        ("\"'out$x'\"", None),
        ("out$x", None),
        ("out`date`", None),
        ("$'out'", None),
    ],
)
def test_an_output_folder_is_known_if_the_shell_expands_nothing_in_it(
    tmp_path: Path, written: str, folder: str | None
) -> None:
    command = f"python train.py --output_dir {written} --epochs 3"
    job = JobSpec(kind="command", text=command, cwd=str(tmp_path), command=command)
    for name in (folder, job.option("output_dir")):
        if name is not None and not (tmp_path / name).exists():
            trainer_checkpoint(tmp_path / name / "checkpoint-100", 1000.0)
    found = find_checkpoint(job, None)
    assert found == (folder and Checkpoint(str(tmp_path / folder / "checkpoint-100"), 100.0, 1000.0))


def test_an_argument_of_a_line_for_a_script_is_never_expanded(tmp_path: Path) -> None:
    saved = trainer_checkpoint(tmp_path / "out$(date)/checkpoint-100", 1000.0)
    job = spec(tmp_path, "--output_dir", "out$(date)")
    assert find_checkpoint(job, None) == Checkpoint(str(saved), 100.0, 1000.0)


def test_all_but_the_newest_of_a_kind_are_complete(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir=out")
    for step in (50, 100, 150):
        trainer_checkpoint(tmp_path / f"out/checkpoint-{step}", 1000.0 + step, whole=False)
    found = find_checkpoint(job, None)
    assert found is not None
    assert found.step == 100


def test_a_lightning_file_counts_if_it_is_a_whole_zip(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output-dir", str(tmp_path / "out"))
    first = zip_checkpoint(tmp_path / "out/lightning_logs/version_0/checkpoints/epoch=0-step=30.ckpt", 1000.0)
    zip_checkpoint(tmp_path / "out/epoch=1-step=60.ckpt", 1100.0, whole=False)
    assert find_checkpoint(job, None) == Checkpoint(str(first), 30.0, 1000.0)
    whole = zip_checkpoint(tmp_path / "out/checkpoints/epoch=2-step=90.ckpt", 1200.0)
    assert find_checkpoint(job, None) == Checkpoint(str(whole), 90.0, 1200.0)


def test_the_attribute_names_other_checkpoints(tmp_path: Path) -> None:
    job = spec(tmp_path, checkpoints="models/run[0-9]/model_epoch_*.pt")
    legacy = tmp_path / "models/run1/model_epoch_5.pt"
    legacy.parent.mkdir(parents=True)
    legacy.write_bytes(b"pickle")
    os.utime(legacy, (1000.0, 1000.0))
    assert find_checkpoint(job, None) is None  # it may be half written
    (tmp_path / "models/run1/model_epoch_10.pt").write_bytes(b"pick")
    assert find_checkpoint(job, None) == Checkpoint(str(legacy), 5.0, 1000.0)


def test_older_checkpoints_are_those_of_other_runs(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    trainer_checkpoint(tmp_path / "out/checkpoint-900", 800.0)
    trainer_checkpoint(tmp_path / "out/checkpoint-50", 1000.0)
    found = find_checkpoint(job, 900.0)
    assert found is not None
    assert found.step == 50


def test_a_file_time_may_lag_the_wall_clock_by_a_tick(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    trainer_checkpoint(tmp_path / "out/checkpoint-50", 899.99)
    assert find_checkpoint(job, 900.0) is not None
    assert find_checkpoint(job, 900.1) is None


@pytest.mark.parametrize("arguments", [(), ("--output_dir", "$SCRATCH/out"), ("--output_dir",)])
def test_no_other_folder_is_searched(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    trainer_checkpoint(tmp_path / "checkpoint-50", 1000.0)
    trainer_checkpoint(tmp_path / "out/checkpoint-50", 1000.0)
    assert find_checkpoint(spec(tmp_path, *arguments), None) is None
    assert find_checkpoint(spec(tmp_path, "--output_dir", "elsewhere"), None) is None


def test_completions_only_show_how_far_the_job_is(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    (tmp_path / "out/completions").mkdir(parents=True)
    (tmp_path / "out/completions/completions_00150.parquet").write_bytes(b"PAR1")
    assert find_checkpoint(job, None) is None
    assert [one.name.step for one in scan_checkpoints(job, None)] == [150.0]


def test_odd_files_are_no_checkpoints(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out", checkpoints="out/*.ckpt")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/checkpoint-5").write_text("a file")
    (tmp_path / "out/checkpoint-6").symlink_to(tmp_path / "nowhere")
    (tmp_path / "out/epoch=0-step=7.ckpt").mkdir()
    os.mkfifo(tmp_path / "out/last.ckpt")
    assert scan_checkpoints(job, None) == []


def test_a_folder_that_cannot_be_read_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no folder")
    job = spec(tmp_path, "--output_dir", "out", checkpoints="out/*/[")
    assert find_checkpoint(job, None) is None


def test_the_checkpoint_that_the_job_reports_counts_first(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    trainer_checkpoint(tmp_path / "out/checkpoint-50", 1000.0)
    report, reported = tmp_path / "progress", tmp_path / "state.pt"
    report.write_text('{"step": 40, "checkpoint": "state.pt"}')
    found = find_checkpoint(job, None, str(report))
    assert found is not None
    assert found.step == 50  # the reported one does not exist
    reported.write_bytes(b"x")
    os.utime(reported, (900.0, 900.0))
    assert find_checkpoint(job, None, str(report)) == Checkpoint(str(reported), 40.0, 900.0)


def test_a_fifo_in_place_of_the_state_of_the_trainer_blocks_nothing(tmp_path: Path) -> None:
    job = spec(tmp_path, "--output_dir", "out")
    (tmp_path / "out/checkpoint-5").mkdir(parents=True)
    os.mkfifo(tmp_path / "out/checkpoint-5/trainer_state.json")
    assert find_checkpoint(job, None) is None


def test_links_to_the_folder_itself_are_not_followed(tmp_path: Path) -> None:
    tmp_path = tmp_path / "run[1]"
    tmp_path.mkdir()
    for name in "abc":
        (tmp_path / name).symlink_to(".")
    inner = zip_checkpoint(tmp_path / "runs/one/last-10.ckpt", 1000.0)
    found = scan_checkpoints(spec(tmp_path, checkpoints="**/*.ckpt"), None)
    assert [one.path for one in found] == [str(inner)]
    assert scan_checkpoints(spec(tmp_path, checkpoints="runs/**/*.ckpt"), None) == found
