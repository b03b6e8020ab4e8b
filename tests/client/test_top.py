"""The picture of `top`: its text from answers of the client, and the app on a real queue."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("textual", reason="needs the extra `top`, which `make test` installs")

from textual.pilot import Pilot
from textual.widgets import Log

from gpu_scheduler import top
from gpu_scheduler.client import Client
from gpu_scheduler.errors import ClientError
from gpu_scheduler.show.layout import Cell, display_width
from tests.client.desk import Desk
from tests.client.test_transports import server

JOB: dict[str, Any] = {
    "id": 7, "state": "queued", "outcome": None, "reason": None, "infeasible": False, "interrupted": False,
    "cleared": False, "name": "train/bert", "command": "python train.py", "gpus": [], "started_at": None,
    "finished_at": None, "priority": 200, "engine": None, "progress": None, "peaks": {}, "after": [],
}  # fmt: skip
GPU: dict[str, Any] = {
    "index": 0, "name": "Simulated", "state": "busy", "allocated": 0.5, "memory_used_mib": 12288,
    "memory_total_mib": 24576, "load_percent": 31.4, "fault": None, "suspicion": None, "jobs": [7],
    "reserved_for": [], "claims": [], "claims_problem": None,
}  # fmt: skip
PROGRESS = {"percent": 53.7, "current": 159.0, "total": 300.0, "unit": "step", "eta_s": 5040.0}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"reason": "needs 0.5 of a GPU"}, "7|queued|200|||train/bert|needs 0.5 of a GPU"),
        (
            {"state": "running", "gpus": [0, 1, 2], "started_at": 40.0, "progress": PROGRESS},
            "7|running|200|0-2|1:00|train/bert|53% (step 159 of 300) ETA 1h24m",
        ),
        ({"state": "running", "started_at": 40.0, "name": None}, "7|running|200|-|1:00|python train.py|"),
        ({"state": "held", "interrupted": True}, "7|interrupted|200|||train/bert|"),
        (
            {"state": "finished", "outcome": "timed_out", "started_at": 20.0, "finished_at": 80.0},
            "7|timed out|200||1:00|train/bert|20 s ago",
        ),
        ({"name": "\x1b[31m[red]\u202e"}, r"7|queued|200|||\x1b[31m[red]\u202e|"),
    ],
)
def test_the_row_of_a_job(values: dict[str, Any], shown: str) -> None:
    assert "|".join(cell.text for cell in top.job_cells(JOB | values, 100.0)) == shown


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
            {"state": "paused", "pause_reason": "the state file", "jobs": [], "load_percent": None},
            "0|paused|0.5|?|▒▒▒▒▒▒▒▒········|the state file; others 12.0, free 12.0",
        ),
    ],
)
def test_the_row_of_a_gpu(values: dict[str, Any], shown: str) -> None:
    gpu = GPU | values
    jobs = [JOB | {"peaks": {"0": 8192}} for _ in gpu["jobs"]]
    assert "|".join(cell.text for cell in top.gpu_cells(gpu, jobs, 100.0)) == shown


@pytest.mark.parametrize("width", [80, 81, 200, 10])
def test_a_row_takes_the_width_of_the_terminal(width: int) -> None:
    job = JOB | {"name": "模型" * 90, "reason": "ü" * 300}
    line = top.fitted(top.job_cells(job, 0.0), top.JOB_COLUMNS, width)
    assert display_width("".join(cell.text for cell in line)) == max(width + 1, 41)  # with the last blank


@pytest.mark.parametrize(
    ("health", "problem", "parts"),
    [
        (None, None, []),
        ({"scheduler": {"pid": 1}, "health_issues": []}, None, []),
        ({"scheduler": {"pid": None}, "health_issues": []}, None, ["Scheduler not running", "`start`"]),
        (None, ClientError("no answer from x; check the URL"), ["no answer", "check the URL"]),
        (None, ClientError("The token was revoked.", 401), ["revoked", "--token-file"]),
        (
            {"scheduler": {"pid": 1}, "health_issues": [
                {"subject": "store", "problem": "is on a full disk", "remedy": "free space",
                 "blocks_starts": True}]},
            None, ["store is on a full disk; free space; no new jobs start"],
        ),
    ],
)  # fmt: skip
def test_the_banner_names_the_problem_and_the_remedy(
    health: dict[str, Any] | None, problem: ClientError | None, parts: list[str]
) -> None:
    text = top.banner_text(health, problem)
    assert all(part in text for part in parts)
    assert bool(text) == bool(parts)


def test_lines_of_a_log_are_plain_text() -> None:
    lines = [" 10%|#\r 20%|##\r", "\x1b]0;owned\x07\x1b[31mred\x1b[0m [bold]\u202ex", "a\tb"]
    assert top.log_lines(lines) == [" 20%|##", r"red [bold]\u202ex", "a       b"]


def test_the_filter_ignores_case_and_looks_at_the_reason() -> None:
    job = JOB | {"reason": "needs 2 GPUs"}
    assert all(top.matches(job, text) for text in ("BERT", "7", "queued", "2 gpus", "train.py"))
    assert not top.matches(job, "gpt")


# The app.


def drive(app: top.Top, use: Callable[[Pilot[None]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            await use(pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], seen: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 40
    while not seen():
        assert time.monotonic() < end, what
        await pilot.pause(0.02)


def texts(table: top.RowView) -> list[str]:
    return ["".join(part.text for part in table.render_line(y)) for y in range(table.size.height)]


def test_the_keys_change_jobs_and_gpus(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    long = client.submit(command="echo hello; sleep 600", name="long")
    wide = client.submit(command="true", name="wide", gpus=9)
    app = top.Top(client, None)
    jobs, gpus = app._jobs, app._gpus

    async def use(pilot: Pilot[None]) -> None:
        async def says(text: str) -> None:
            await until(pilot, lambda: text in app._said, f"{text}; last: {app._said}")

        await until(pilot, lambda: [one["id"] for one in jobs.rows] == [long.id, wide.id], "the jobs")
        await until(pilot, lambda: "running" in texts(jobs)[1], "the start")
        assert len(gpus.rows) == 4
        await pilot.press("h")
        await says("hold needs a job that is queued")
        await pilot.press("down", "h")
        await says(f"job {wide.id}: held")
        await pilot.press("p", "5", "enter")
        await until(pilot, lambda: wide.info()["priority"] == 5, "the priority")
        await pilot.press("u")
        await until(pilot, lambda: wide.status() == "queued", "the release")
        await pilot.press("slash", "l", "o", "n", "g", "enter")
        assert [one["id"] for one in jobs.rows] == [long.id]
        await pilot.press("enter")
        await until(pilot, lambda: "scheduler" in str(app.screen.query_one("#lines").render()), "why")
        await pilot.press("q", "l")
        assert isinstance(app.screen, top.LogScreen)
        log = app.screen.query_one(Log)
        await until(pilot, lambda: "hello" in log.lines, "the log")
        await pilot.press("q", "c", "n", "enter")
        assert long.status() == "running"
        await pilot.press("c", "y", "enter")
        await until(pilot, lambda: long.status() == "cancelled", "the cancellation")
        await pilot.press("escape", "tab", "space", "y", "enter")
        await until(pilot, lambda: gpus.rows[0]["state"] == "paused", "the pause")
        await pilot.press("space")
        await until(pilot, lambda: gpus.rows[0]["state"] == "available", "the resumption")
        await pilot.press("question_mark")
        assert isinstance(app.screen, top.Lines)

    drive(app, use)


def test_a_revoked_token_and_a_lost_scheduler_are_shown(desk: Desk) -> None:
    def refuse(request: BaseHTTPRequestHandler) -> None:
        request.send_error(401)

    with server(refuse) as url:
        seen: list[top.Picture] = []
        done = threading.Event()

        def show(found: top.Picture) -> None:
            seen.append(found)
            done.set()

        watcher = top.Watcher(Client(url), show)
        watcher.start()
        assert done.wait(30)
    assert "--token-file" in top.banner_text(None, seen[-1].problem)
    if desk.kind == "store":
        app = top.Top(desk.client(), None)

        async def use(pilot: Pilot[None]) -> None:
            await until(pilot, lambda: "Scheduler not running" in str(app._banner.render()), "the banner")

        drive(app, use)


def test_a_long_queue_is_drawn_row_by_row() -> None:
    app = top.Top(Client(state_file="none.json"), None)
    jobs = [JOB | {"id": one, "reason": "needs a GPU"} for one in range(1, 10_001)]
    picture = top.Picture(jobs, [GPU], {"scheduler": {"pid": 1}, "counts": {"queued": 10_000},
                                        "health_issues": []}, 1.0, 1.0, None, True)  # fmt: skip
    app._watcher.start = lambda: None  # type: ignore[method-assign]

    async def use(pilot: Pilot[None]) -> None:
        app._show(picture)
        await pilot.pause()
        for _ in range(60):
            before = app._jobs.at
            app._show(picture)
            await pilot.press("pagedown")
            await pilot.pause()
            assert app._jobs.at == before + app._jobs.size.height - 2

    drive(app, use)


def test_the_selected_job_stays_selected() -> None:
    app = top.Top(Client(state_file="none.json"), None)

    async def use(pilot: Pilot[None]) -> None:
        table = app._jobs
        table.show([{**JOB, "id": one} for one in (1, 2, 3)])
        table.action_move(1)
        table.show([{**JOB, "id": one} for one in (9, 8, 1, 2, 3)])
        assert (table.at, table.selected) == (3, {**JOB, "id": 2})
        table.show([{**JOB, "id": 9}])
        assert table.at == 0
        table.show([])
        assert table.selected is None

    drive(app, use)


def test_details_show_why_or_its_error() -> None:
    job = JOB | dict.fromkeys(("exit_code", "signal", "log", "session", "source", "vram_declared"))
    job |= {"attempts": 0, "warnings": ["low [b]"]}
    detail = {"job": job, "need": "1 GPU"}
    check = {"check": "order", "grade": "warn", "message": "behind \x1b[1m", "remedy": "`priority 7 0`"}
    found = top.detail_lines(detail, {"checks": [check], "log_end": ["x\ry"]}, 1.0)
    lines = [cell.text for cell in found]
    assert {r"warn  order: behind \x1b[1m", "      `priority 7 0`", "y", "warning   low [b]"} <= {*lines}
    assert top.detail_lines(detail, "no rights", 1.0)[-1] == Cell("no rights", top._YELLOW)
