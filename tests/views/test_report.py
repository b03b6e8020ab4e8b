"""A report as text and as JSON, against golden files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.views.as_json import to_json
from gpu_scheduler.views.report import GpuShown, JobsFileShown, JobShown, MalformedShown, Report
from gpu_scheduler.views.text import to_text

GOLDEN = Path(__file__).with_name("golden")
DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"
NOW = 1_700_000_000.0

REPORT = Report(
    now=NOW,
    pid=4711,
    state_file="/home/me/gpu_scheduler_state.json",
    data_dir="/home/me/gpu_scheduler_state.d",
    gpus=(
        GpuShown(
            0, "GPU-a", "NVIDIA H200", "busy", 1000, 70_000, 143_771, 98.0, None, NOW - 2, (3, 4), 125_000,
            by_memory=True,
        ),
        GpuShown(1, "GPU-b", "NVIDIA H200", "available", 500, 512, 143_771, 0.0, None, NOW - 2, (5,)),
        GpuShown(2, "GPU-c", "NVIDIA H200", "lost", 0, None, None, None, "query failed: 15", NOW - 2),
    ),
    jobs=(
        JobShown(
            3, "running", text="0,/home/me/train.py,,--llm qwen", gpus=(0,), attempts=1,
            session="912.gpujob_0_train_3", log="/tmp/gpu_scheduler_logs/job_3.log",
            created_at=NOW - 500, started_at=NOW - 130, priority=0, vram_declared=81_920, peaks={0: 69_500},
        ),
        JobShown(5, "running", recorded=False, text="python t.py", gpus=(1,), started_at=NOW - 3),
        JobShown(6, "queued", text="python big.py", reason="needs 2 free GPUs, 1 free", priority=200),
        JobShown(
            7, "queued", text="evil \x1b[2J", reason="infeasible: needs 9 idle GPUs, 3 managed",
            infeasible=True,
        ),
        JobShown(8, "held", text="echo held", reason="held by the user", name="later"),
        JobShown(
            2, "finished", "failed", text="python bad.py", exit_code=7, reason="exit code 7", attempts=1,
            started_at=NOW - 400, finished_at=NOW - 300, gpus=(0,),
        ),
        JobShown(
            1, "finished", "failed", text="python none.py", attempts=5,
            reason="could not be started: conda environment x does not exist (tried 5 times)",
            finished_at=NOW - 7200,
        ),
    ),
    counts={"running": 2, "queued": 20_002, "held": 1, "finished": 9},
    malformed=(
        MalformedShown("/home/me/jobs.txt", 4, "train.py &\x07", "it ends in &", "the same without the &"),
    ),
    jobs_files=(JobsFileShown("/home/me/jobs.txt"), JobsFileShown("/gone.txt", "no such file")),
    troubles=(
        Trouble("record", "/home/me/gpu_scheduler_state.d", "is on a full disk", "free space there", True),
        Trouble("state file", "/home/me/s\x1b.json", "may not be read", "chmod u+rw it", False),
    ),
)  # fmt: skip


def check(name: str, text: str) -> None:
    """Compare with the golden file; UPDATE_GOLDEN=1 writes it."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [None, 72])
def test_text_is_golden(width: int | None) -> None:
    text = to_text(REPORT, width=width)
    assert "\x1b" not in text
    check(f"status_{width or 'pipe'}.txt", text)


def test_rows_are_cut_and_what_is_below_them_is_not() -> None:
    job = JobShown(1, "running", text="python " + 90 * "x", log="/" + 90 * "y")
    wide = replace(job, text=60 * "模")
    lines = to_text(Report(NOW, 1, "s", "d", jobs=(job, wide)), width=60).splitlines()
    assert [len(line) for line in lines if "xxx" in line] == [60]
    assert next(line for line in lines if "xxx" in line).endswith("…")
    assert any(line.endswith("/" + 90 * "y") for line in lines)
    (row,) = [line for line in lines if "模" in line]
    assert 58 <= len(row) + row.count("模") <= 60


def test_memory_is_told_only_where_there_is_something_to_tell() -> None:
    gpus = tuple(replace(gpu, by_memory=False) for gpu in REPORT.gpus)
    jobs = tuple(replace(job, vram_declared=None, peaks={}) for job in REPORT.jobs)
    text = to_text(replace(REPORT, gpus=gpus, jobs=jobs))
    assert "Booked" not in text
    assert "MiB" not in text.partition("Running")[2]
    text = to_text(replace(REPORT, gpus=gpus, jobs=(replace(jobs[0], peaks={0: 70, 1: 80}), *jobs[1:])))
    assert "\n         memory GPU 0 70, GPU 1 80 MiB\n" in text


def test_without_a_scheduler_the_values_of_gpus_have_an_age() -> None:
    text = to_text(replace(REPORT, pid=None, now=NOW + 178))
    assert "Scheduler   not running" in text
    assert "GPUs, values as of 3 min ago" in text


def test_what_is_left_out_is_counted() -> None:
    text = to_text(REPORT)
    assert "Queued (20,002)" in text
    assert "and 20,000 more (--all)" in text
    many = tuple(replace(REPORT.malformed[0], number=n) for n in range(25))
    assert "and 5 more lines (--all)" in to_text(replace(REPORT, malformed=many))
    assert "more line" not in to_text(replace(REPORT, malformed=many), everything=True)


def test_an_empty_record_says_so() -> None:
    text = to_text(Report(NOW, None, "/s.json", "/s.d"))
    assert "No GPUs are known yet." in text
    assert "No jobs yet." in text


def test_json_is_golden() -> None:
    text = to_json(REPORT)
    assert text.isascii()
    assert json.loads(text)["gpus"][0]["allocated"] == 1.0
    check("status.json", text)


def test_every_key_is_documented_and_no_other() -> None:
    parts = re.split(r"^## (.+)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    report = json.loads(to_json(REPORT))
    for title, keys in {
        "": report.keys(),
        "`scheduler`": report["scheduler"].keys(),
        "An element of `gpus`": report["gpus"][0].keys(),
        "An element of `jobs`": report["jobs"][0].keys(),
        "An element of `malformed`": report["malformed"][0].keys(),
        "An element of `jobs_files`": report["jobs_files"][0].keys(),
        "An element of `troubles`": report["troubles"][0].keys(),
    }.items():
        rows = re.findall(r"^\| (`.*?) \|", sections[title], flags=re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(keys), title
