"""Status reports as text and JSON, compared with golden files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.gpu import LOST, FaultKind, GpuClaim, GpuFault
from gpu_scheduler.core.model.job import Checkpoint, Progress, ProgressUnit
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.show.job_views import StatusReport
from gpu_scheduler.show.layout import Viewport
from gpu_scheduler.show.status_json import job_object, to_json
from gpu_scheduler.show.status_text import to_text
from gpu_scheduler.show.tables import finished_row, gpu_rows, held_row
from gpu_scheduler.store.jobs_files import JobsFileRecord, MalformedLineRecord
from tests.reasons import worded
from tests.records import attempt_record, gpu_view, job_view

GOLDEN = Path(__file__).with_name("golden")
DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"
FAILED = GpuFault(FaultKind.QUERY_FAILED, "15")
NOW = 1_700_000_000.0

REPORT = StatusReport(
    now=NOW,
    pid=4711,
    state_file="/home/me/gpu_scheduler_state.json",
    data_dir="/home/me/gpu_scheduler_state.d",
    gpus=(
        gpu_view(
            "busy", 1000, uuid="GPU-a", name="NVIDIA H200", used_mib=70_000, total_mib=143_771,
            load_percent=98.0, sampled_at=NOW - 2, jobs=(3, 4), allocated_mib=125_000,
            has_declared_memory=True,
        ),
        gpu_view(
            "available", 500, uuid="GPU-b", index=1, name="NVIDIA H200", used_mib=512, total_mib=143_771,
            load_percent=0.0, sampled_at=NOW - 2, jobs=(5,),
            claims=(GpuClaim(8000, 812, "ann"), GpuClaim(100, 0)),
        ),
        gpu_view(
            "lost", uuid="GPU-c", index=2, name="NVIDIA H200", used_mib=None, total_mib=None,
            load_percent=None, fault=FAILED, sampled_at=NOW - 2,
        ),
        gpu_view(
            "claimed", uuid="GPU-d", index=3, name="NVIDIA H200", used_mib=512, total_mib=143_771,
            load_percent=0.0, sampled_at=NOW - 2, claims=(GpuClaim(None, 813, "bob", by_scheduler=True),),
        ),
        gpu_view(
            "claimed", uuid="GPU-e", index=4, name="NVIDIA H200", used_mib=512, total_mib=143_771,
            load_percent=0.0, sampled_at=NOW - 2,
            claims_problem="/locks/GPU-e is a symbolic link; remove it",
        ),
    ),
    jobs=(
        job_view(
            3, "running", text="0,/home/me/train.py,,--llm qwen", gpus=(0,), attempts=1,
            session="912.gpujob_0_train_3", log="/tmp/gpu_scheduler_logs/job_3.log",
            created_at=NOW - 500, started_at=NOW - 130, priority=0, vram_declared=81_920, peaks={0: 69_500},
            spec_json='{"script": "/home/me/train.py", "arguments": ["--llm", "qwen"]}',
            last_line="loss 0.2 \x07",
            progress=JobProgress(
                Progress(159, 300, ProgressUnit.STEP),
                Checkpoint("/home/me/out/checkpoint-150", 150, NOW - 20), 5040.0, NOW + 5040,
            ),
        ),
        job_view(5, "running", is_recorded=False, text="python t.py", gpus=(1,), started_at=NOW - 3),
        job_view(6, "queued", text="python big.py", reason=worded("needs 2 free GPUs, 1 free"), priority=200),
        job_view(
            7, "queued", text="evil \x1b[2J",
            reason=worded("infeasible: needs 9 idle GPUs, but only 3 are managed"), infeasible=True,
        ),
        job_view(8, "held", text="echo held", reason=worded("held by the user"), name="later"),
        job_view(
            2, "finished", "failed", text="python bad.py", exit_code=7, reason=worded("exit code 7"),
            attempts=1,
            started_at=NOW - 400, finished_at=NOW - 300, gpus=(0,),
        ),
        job_view(
            1, "finished", "failed", text="python none.py", attempts=5,
            reason=worded("could not be started: conda environment x does not exist (tried 5 times)"),
            finished_at=NOW - 7200,
        ),
    ),
    counts={"running": 2, "queued": 20_002, "held": 1, "finished": 9},
    unsuccessful_counts={"failed": 4},
    malformed=(
        MalformedLineRecord(
            "/home/me/jobs.txt", 4, "train.py &\x07", "it ends in &", "the same without the &"
        ),
    ),
    jobs_files=(
        JobsFileRecord("/home/me/jobs.txt", "/", None), JobsFileRecord("/gone.txt", "/", "no such file"),
    ),
    health_issues=(
        HealthIssue(
            "store",
            "/home/me/gpu_scheduler_state.d",
            "is on a full disk",
            "free some space there",
            True,
        ),
        HealthIssue(
            "state file", "/home/me/s\x1b.json", "may not be read", "chmod u+rw it", False
        ),
    ),
)  # fmt: skip


def check(name: str, text: str) -> None:
    """Compares the text with a golden file. If UPDATE_GOLDEN is set, writes the file instead."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


PIPE, NARROW = Viewport(), Viewport(72, 60)


@pytest.mark.parametrize("screen", [PIPE, NARROW], ids=["pipe", "72"])
def test_the_text_of_the_status_matches_the_golden_file(screen: Viewport) -> None:
    text = to_text(REPORT, screen)
    assert "\x1b" not in text
    check(f"status_{screen.width or 'pipe'}.txt", text)


def test_the_verbose_text_of_the_status_matches_the_golden_file() -> None:
    check("status_verbose.txt", to_text(REPORT, Viewport(72), verbose=True))


def many() -> StatusReport:
    """Returns a report of 40 jobs in all states on 8 GPUs. Some have long titles and wide characters."""
    sweep = JobSpec(
        "csv",
        "",
        "/",
        script="/home/me/sweep/train.py",
        arguments=("--llm", "qwen2.5-3b-inst", "--seed", "1"),
    ).to_json()
    bar = "epoch 3/30:  35%|███████             | 58/600 [01:39<05:00,  1.00it/s, loss=2.104]"
    jobs = [
        job_view(
            n, "running", text="x", spec_json=sweep, gpus=(n - 1,), started_at=NOW - 60 * n, last_line=bar
        )
        for n in range(1, 8)
    ]
    wide = job_view(
        8, "running", text="x", name="模型训练" * 9, spec_json=sweep, gpus=(7,), started_at=NOW - 60,
        last_line="载入" * 20,
    )  # fmt: skip
    jobs.append(wide)
    half = WaitReason(WaitKind.NO_FREE_GPU, need=Need(1, 500))
    jobs += [job_view(n, "queued", text="x", spec_json=sweep, wait=half) for n in range(9, 29)]
    jobs.append(job_view(29, "queued", name="ddp", reason=worded("needs 2 idle GPUs, 0 free")))
    jobs.append(job_view(30, "held", text="python t.py", reason=worded("held by its line")))
    over = {"text": "python t.py", "started_at": NOW - 90, "finished_at": NOW - 5}
    jobs += [job_view(n, "finished", "completed", **over) for n in range(31, 40)]
    error = worded("exit code 1: ValueError: " + "x" * 90)
    jobs.append(job_view(40, "finished", "failed", exit_code=1, reason=error, **over))
    gpu = replace(REPORT.gpus[0], has_declared_memory=False)
    gpus = tuple(replace(gpu, record=replace(gpu.record, index=n), jobs=(n + 1,)) for n in range(8))
    return StatusReport(
        NOW, 4711, "s", "d", gpus, tuple(jobs),
        counts={"running": 8, "queued": 21, "held": 1, "finished": 10}, unsuccessful_counts={"failed": 1},
    )  # fmt: skip


@pytest.mark.parametrize(("width", "rows"), [(100, 45), (80, 24)])
def test_the_status_of_forty_jobs_fits_on_one_screen(width: int, rows: int) -> None:
    text = to_text(many(), Viewport(width, rows - 1))
    lines = text.splitlines()
    assert len(lines) < rows
    assert max(map(cell_len, lines)) <= width
    check(f"status_{width}x{rows}.txt", text)


@pytest.mark.parametrize("rows", [1, 5, 9, 14, 20, 30, 60])
@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_the_status_shortens_the_list_of_running_jobs_last(width: int, rows: int) -> None:
    lines = to_text(many(), Viewport(width, rows)).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= max(rows, 7)
    if width > 40 and rows >= 17:
        assert sum(" running " in line for line in lines[1:]) == 8


def test_output_to_a_pipe_is_not_truncated() -> None:
    report = many()
    lines = to_text(report).splitlines()
    [failed] = [line for line in lines if line.startswith(" 40  failed")]
    assert failed.endswith(f"exit code 1: ValueError: {'x' * 90}")
    assert sum("loss=2.104]" in line for line in lines) == 7
    assert sum("模型训练" * 9 in line for line in lines) == 1
    assert "\x1b" not in to_text(report)


def test_the_status_colours_states_outcomes_and_reasons() -> None:
    text = to_text(many(), Viewport(100, 45, has_colours=True))
    red, green, yellow, cyan = (f"\x1b[3{code}m" for code in (1, 2, 3, 6))
    for word in (f"{cyan}running", f"{red}failed", f"{green}completed", f"{yellow}held",
                 f"{red}exit code 1: Val", f"{yellow}wait for half a GPU\x1b[0m"):  # fmt: skip
        assert word in text


def test_queued_jobs_with_the_same_wait_reason_share_a_row() -> None:
    [row] = [line for line in to_text(many()).splitlines() if " jobs wait " in line]
    assert row.strip() == "20 jobs wait for half a GPU: 9-28 (train.py --llm qwen2.5-3b-inst --seed 1)"
    text = to_text(many(), show_all=True)
    assert text.count("needs 0.5 of a GPU, 0 free") == 20
    stopped = tuple(job._replace(wait=WaitReason(WaitKind.NO_SCHEDULER)) for job in many().jobs)
    text = to_text(replace(many(), jobs=stopped, pid=None))
    assert "     21 jobs wait, no scheduler is running: 9-29\n" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "No jobs yet; scheduler pid 4711"),
        ({"counts": {"queued": 1}}, "1 job: 1 queued; scheduler pid 4711"),
        (
            {
                "counts": {"finished": 33, "starting": 1, "running": 2, "stopping": 1, "queued": 2},
                "unsuccessful_counts": {"failed": 2},
            },
            "39 jobs: 31 completed, 2 failed, 4 running, 2 queued; scheduler pid 4711",
        ),
        (
            {
                "counts": {"finished": 2000, "running": 2, "held": 1},
                "unsuccessful_counts": {"cancelled": 3, "timed_out": 1},
                "jobs": (job_view(1, "finished", "cancelled", is_recorded=False),),
            },
            "2,003 jobs: 1,996 completed, 1 timed out, 4 cancelled, 1 running, 1 held; scheduler pid 4711",
        ),
        (
            {"counts": {"running": 1}, "jobs": (job_view(1, "held", is_recorded=False),)},
            "1 job: 1 held; scheduler pid 4711",
        ),
    ],
)
def test_the_first_line_of_the_status_counts_all_jobs(values: dict[str, Any], expected: str) -> None:
    assert to_text(StatusReport(NOW, 4711, "s", "d", **values)).splitlines()[0] == expected


def test_the_status_shows_the_outcome_of_a_job_whose_end_is_not_recorded_yet() -> None:
    job = job_view(
        1, "finished", "cancelled", is_recorded=False, text="t", reason=worded("cancelled by the user")
    )
    text = to_text(StatusReport(NOW, None, "s", "d", jobs=(job,), counts={"running": 1}))
    assert "  1  cancelled " in text
    assert "recorded" not in text


def test_the_status_shows_the_clock_at_the_right_end_of_its_first_line() -> None:
    first = to_text(many(), Viewport(100, 45), clock="05:27:41").splitlines()[0]
    assert first.endswith("  05:27:41")
    assert len(first) == 100
    assert "05:27" not in to_text(many(), Viewport(40, 45), clock="05:27:41")


def test_the_status_shows_warnings_about_running_jobs_only() -> None:
    running = REPORT.jobs[0]._replace(warnings=("odd folder",))
    over = REPORT.jobs[-1]._replace(warnings=("other folder",))
    text = to_text(replace(REPORT, jobs=(running, over)))
    assert "Warning: job 3: odd folder\n" in text
    assert "other folder" not in text


def test_the_status_shows_a_health_issue_completely_even_on_a_narrow_screen() -> None:
    text = to_text(REPORT, Viewport(40, 60))
    assert "no new jobs start until this is resolved" in text.replace("\n", " ")


def test_the_status_has_an_allocated_column_only_if_a_job_declared_memory() -> None:
    assert "Allocated" in to_text(REPORT)
    gpus = tuple(replace(gpu, has_declared_memory=False) for gpu in REPORT.gpus)
    assert "Allocated" not in to_text(replace(REPORT, gpus=gpus))


def test_the_verbose_status_shows_the_memory_of_jobs() -> None:
    jobs = (REPORT.jobs[0]._replace(peaks={0: 70, 1: 80}),)
    assert "     memory GPU 0 70, GPU 1 80 of 81920 MiB\n" in to_text(
        replace(REPORT, jobs=jobs), verbose=True
    )
    assert "81920" not in to_text(REPORT)


@pytest.mark.parametrize(
    ("fault", "name"), [(None, "H200"), (LOST, "H200"), (FAILED, "query failed: 15 (H200)")]
)
def test_the_name_of_a_gpu_follows_its_fault_unless_its_state_says_everything(
    fault: GpuFault | None, name: str
) -> None:
    _, [row] = gpu_rows([gpu_view("lost", fault=fault)])
    assert row.cells[-1].text == name


def test_the_status_shows_the_age_of_gpu_values_if_no_scheduler_is_running() -> None:
    text = to_text(replace(REPORT, pid=None, now=NOW + 178))
    assert "Scheduler not running; GPU values as of 3 min ago\n" in text


def test_the_status_counts_the_jobs_and_malformed_lines_that_it_omits() -> None:
    text = to_text(REPORT)
    assert "… and 20,000 more queued (status --all)" in text
    assert "… and 7 more finished (status --all)" in text
    bad = tuple(REPORT.malformed[0]._replace(number=n) for n in range(25))
    assert "… and 6 more malformed lines (status --all)" in to_text(replace(REPORT, malformed=bad))
    assert "… and 23 more malformed lines (status --all)" in to_text(replace(REPORT, malformed=bad), NARROW)
    assert "more malformed" not in to_text(replace(REPORT, malformed=bad), show_all=True)


def test_the_status_of_an_empty_store_says_that_there_are_no_jobs_yet() -> None:
    assert to_text(StatusReport(NOW, None, "/s.json", "/s.d")) == "No jobs yet\nScheduler not running\n"
    only = StatusReport(NOW, None, "/s.json", "/s.d", jobs=REPORT.jobs[2:3], counts={"queued": 1})
    assert "No GPUs detected yet." in to_text(only)


def test_the_json_of_the_status_matches_the_golden_file() -> None:
    text = to_json(REPORT)
    assert text.isascii()
    assert json.loads(text)["gpus"][0]["allocated"] == 1.0
    check("status.json", text)


def test_the_documentation_lists_exactly_the_keys_of_the_json_status() -> None:
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
        "An element of `health_issues`": report["health_issues"][0].keys(),
    }.items():
        rows = re.findall(r"^\| (`.*?) \|", sections[title], flags=re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(keys), title


def test_the_status_shows_each_accepted_form_of_malformed_lines_only_once() -> None:
    one, other = "one block of attributes", "the same without the &"
    forms = (one, one, None, other, one)
    bad = tuple(MalformedLineRecord("/jobs.txt", 1 + at, "x", "why", each) for at, each in enumerate(forms))
    lines = [line for line in to_text(replace(REPORT, malformed=bad)).splitlines() if "Malformed" in line]
    assert lines == [
        f"Malformed: jobs.txt:1: why (accepted: {one}): x",
        "Malformed: jobs.txt:2: why: x",
        "Malformed: jobs.txt:3: why: x",
        f"Malformed: jobs.txt:4: why (accepted: {other}): x",
        "Malformed: jobs.txt:5: why: x",
    ]


def test_an_interrupted_job_shows_its_run_time() -> None:
    attempt = attempt_record(started_at=NOW - 100, ended_at=NOW - 35, outcome="interrupted")
    job = job_view(3, "held", held_by="interrupted")._replace(attempt=attempt)
    row = held_row(job, NOW)
    assert (row.state.text, row.time.text) == ("interrupted", "1:05")
    assert held_row(job_view(3, "held"), NOW).time.text == ""


def test_a_job_that_is_cancelled_in_the_queue_shows_the_run_time_of_its_last_attempt() -> None:
    attempt = attempt_record(started_at=NOW - 100, ended_at=NOW - 35, outcome="failed")
    job = job_view(3, "finished", "cancelled", finished_at=NOW - 1)._replace(attempt=attempt)
    assert finished_row(job, NOW).time.text == "1:05"


def test_the_json_has_the_pid_of_a_running_job() -> None:
    running = job_view(3, "running", started_at=NOW)
    attempt = attempt_record(runner_pid=4960)
    assert job_object(running._replace(attempt=attempt))["pid"] == 4960
    assert job_object(running._replace(attempt=replace(attempt, watched_pid=812)))["pid"] == 812
    assert job_object(job_view(3, "finished", "failed")._replace(attempt=attempt))["pid"] is None
