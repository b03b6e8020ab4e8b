"""The texts of `top`, from answers of the client."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.text.job_output import plain_lines
from gpu_scheduler.errors import ClientError
from gpu_scheduler.show import layout, top_text
from gpu_scheduler.show.layout import Cell, display_width, fitted
from tests.top_data import GPU, JOB

PROGRESS = {
    "percent": 53.7, "current": 159.0, "total": 300.0, "unit": "step", "eta_s": 5040.0, "finish_at": 5100.0,
}  # fmt: skip
CLAIM = {"pid": 812, "user": "ann", "mib": 8000, "by_scheduler": False, "job": None, "folder": None}
SUSPICION = {
    "jobs": [3, 4],
    "since": -9e9,
    "error": "Xid 79",
    "failed_trials": 0,
    "awaits": None,
    "trial_at": 5.0,
    "of_a_later_version": 1,
}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"reason": "needs 0.5 of a GPU"}, "7|queued|200|||train/bert|needs 0.5 of a GPU"),
        (
            {"state": "running", "gpus": [0, 1, 2], "started_at": 40.0, "progress": PROGRESS},
            "7|running|200|0-2|1:00|train/bert|53% ETA 1h24m",
        ),
        ({"state": "running", "started_at": 40.0, "name": None}, "7|running|200|-|1:00|python train.py|"),
        ({"state": "held", "interrupted": True}, "7|interrupted|200|||train/bert|"),
        (
            {"state": "finished", "outcome": "timed_out", "started_at": 20.0, "finished_at": 80.0},
            "7|timed out|200||1:00|train/bert|20 s ago",
        ),
        (
            {
                "state": "finished",
                "outcome": "failed",
                "started_at": 20.0,
                "finished_at": 80.0,
                "exit_code": 7,
            },
            "7|failed|200||1:00|train/bert|exit code 7",
        ),
        ({"name": "\x1b[31m[red]\u202e"}, r"7|queued|200|||\x1b[31m[red]\u202e|"),
    ],
)
def test_the_row_of_a_job(values: dict[str, Any], shown: str) -> None:
    assert "|".join(cell.text for cell in top_text.job_cells(JOB | values, 100.0)) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, "0|busy|0.5|31 %|█████▒▒▒········|job 7 8.0, others 4.0, free 12.0"),
        ({"jobs": []}, "0|busy|0.5|31 %|▒▒▒▒▒▒▒▒········|others 12.0, free 12.0"),
        (
            {"state": "lost", "fault": "no answer\x1b", "memory_used_mib": None},
            r"0|lost|0.5|31 %|?|no answer\x1b; memory unknown",
        ),
        (
            {"state": "paused", "pause_reason": "by an edit to the state file", "load_percent": None},
            "0|paused|0.5|?|█████▒▒▒········|paused by an edit to the state file; job 7 8.0, others 4.0,"
            " free 12.0",
        ),
        (
            {"state": "claimed", "memory_used_mib": None, "claims": [CLAIM], "claims_problem": "x is a link"},
            "0|claimed|0.5|31 %|?|cannot be claimed, because x is a link; 8000 MiB claimed by run, pid 812,"
            " user ann; memory unknown",
        ),
        (
            {"state": "suspect", "memory_used_mib": None, "suspicion": SUSPICION},
            "0|suspect|0.5|31 %|?|suspect: jobs 3, 4 failed on it with Xid 79; a job with retries left may"
            " try it now; `resume 0` uses it again at once; memory unknown",
        ),
    ],
)
def test_the_row_of_a_gpu(values: dict[str, Any], shown: str) -> None:
    gpu = GPU | values
    jobs = [JOB | {"peaks": {"0": 8192}} for _ in gpu["jobs"]]
    assert "|".join(cell.text for cell in top_text.gpu_cells(gpu, jobs, 100.0)) == shown


@pytest.mark.parametrize("width", [80, 81, 200, 10])
def test_a_row_takes_the_width_of_the_terminal(width: int) -> None:
    job = JOB | {"name": "模型" * 90, "reason": "ü" * 300}
    line = fitted(top_text.job_cells(job, 0.0), top_text.JOB_COLUMNS, width)
    assert display_width("".join(cell.text for cell in line)) == max(width + 1, 41)  # with the last blank


@pytest.mark.parametrize(
    ("health", "problem", "parts"),
    [
        (None, None, []),
        ({"scheduler": {"pid": 1}, "health_issues": []}, None, []),
        ({"scheduler": {"pid": None}, "health_issues": []}, None, ["Scheduler not running", "`start`"]),
        (None, ClientError("no answer from x; check the URL"), ["no answer", "check the URL"]),
        (None, ClientError("It was revoked. Send `X`.", 401), ["It was revoked; write", "--token-file"]),
        (
            {"scheduler": {"pid": 1}, "health_issues": [
                {"subject": "store", "path": "/data", "problem": "is on a full disk", "remedy": "free space",
                 "blocks_starts": True}]},
            None, ["store /data is on a full disk: free space; no new jobs start"],
        ),
    ],
)  # fmt: skip
def test_the_banner_names_the_problem_and_the_remedy(
    health: dict[str, Any] | None, problem: ClientError | None, parts: list[str]
) -> None:
    text = top_text.banner_text(health, problem)
    assert all(part in text for part in parts)
    assert bool(text) == bool(parts)


def test_lines_of_a_log_are_plain_text() -> None:
    lines = [" 10%|#\r 20%|##\r", "\x1b]0;owned\x07\x1b[31mred\x1b[0m [bold]\u202ex", "a\tb"]
    assert plain_lines(lines) == [" 20%|##", r"red [bold]\u202ex", "a       b"]


def test_the_filter_ignores_case_and_looks_at_the_reason() -> None:
    job = JOB | {"reason": "needs 2 GPUs"}
    assert all(top_text.matches(job, text) for text in ("BERT", "7", "queued", "2 gpus", "train.py"))
    assert not top_text.matches(job, "gpt")


def test_details_show_why_or_its_error() -> None:
    job = JOB | dict.fromkeys(("exit_code", "signal", "log", "session", "source", "vram_declared"))
    job |= {"attempts": 0, "warnings": ["low [b]"]}
    detail = {"job": job, "need": "1 GPU"}
    check = {"check": "order", "grade": "warn", "message": "behind \x1b[1m", "remedy": "`priority 7 0`"}
    found = top_text.detail_lines(detail, {"checks": [check], "log_end": ["x\ry"]}, 1.0)
    lines = [cell.text for cell in found]
    assert [line.split() for line in lines if "behind" in line] == [["warn", "order", "behind", r"\x1b[1m"]]
    assert {"y", "warning   low [b]"} <= {*lines}
    assert "`priority 7 0`" in {line.strip() for line in lines}
    assert top_text.detail_lines(detail, "no rights", 1.0)[-1] == Cell("no rights", layout.YELLOW)


def test_jobs_are_in_the_order_running_queued_held_finished() -> None:
    """Queued jobs with the same priority keep their order, which is that of the queue."""
    ended = [JOB | {"id": one, "state": "finished", "finished_at": float(one)} for one in (1, 2, 3)]
    queued = [JOB | {"id": one} for one in (9, 4, 5)]
    running, held = JOB | {"id": 10, "state": "running"}, JOB | {"id": 6, "state": "held"}
    others = [held, JOB | {"id": 7, "priority": 1}, JOB | {"id": 8, "cleared": True}, running]
    found = top_text.in_order([*ended, *others, *queued], 2)
    assert [one["id"] for one in found] == [10, 7, 9, 4, 5, 6, 3, 2]
