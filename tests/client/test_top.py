"""The app `top` on a real queue, and what it does while it is suspended or a job is silent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("textual", reason="needs the extra `top`, which `make test` installs")

from textual.pilot import Pilot
from textual.widgets import Log

from gpu_scheduler import top
from gpu_scheduler.client import Client
from gpu_scheduler.show import top_text
from tests.client.desk import Desk
from tests.client.test_transports import server
from tests.top_data import GPU, JOB
from tests.waiting import wait_for


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
        watcher = top.Watcher(Client(url))
        watcher.start()
        problem = wait_for(lambda: watcher.picture.problem, "the refusal")
    assert "--token-file" in top_text.banner_text(None, problem)
    if desk.kind == "store":
        app = top.Top(desk.client(), None)

        async def use(pilot: Pilot[None]) -> None:
            await until(pilot, lambda: "Scheduler not running" in str(app._banner.render()), "the banner")

        drive(app, use)


def test_a_long_queue_is_drawn_row_by_row() -> None:
    app = top.Top(Client(state_file="none.json"), None)
    jobs = [JOB | {"id": one, "reason": "needs a GPU"} for one in range(1, 10_001)]
    health = {"scheduler": {"pid": 1}, "counts": {"queued": 10_000}, "health_issues": []}
    app._watcher.start = lambda: None  # type: ignore[method-assign]

    async def use(pilot: Pilot[None]) -> None:
        app._watcher.picture = top.Picture(jobs, [GPU], health)
        await until(pilot, lambda: app._jobs.rows, "the jobs")
        for _ in range(60):
            before = app._jobs.at
            app._watcher.picture = top.Picture(jobs, [GPU], health)
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


@pytest.mark.parametrize("desk", ["store"], indirect=True)
def test_the_thread_of_a_silent_log_ends_with_its_screen(desk: Desk) -> None:
    desk.world.start()
    tail = top.LogTail(desk.client().submit(command="echo one; sleep 600"))
    wait_for(lambda: "one" in tail.new, "the only line")
    assert tail.thread.is_alive()
    tail.is_over = True
    wait_for(lambda: not tail.thread.is_alive(), "the end of the thread")


class Changing(Client):
    """A client whose queue is another one at each look, until it has been asked so many times."""

    def __init__(self, last: int) -> None:
        self.looks, self._last, self._never = 0, last, threading.Event()

    def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        if operation == "jobs":
            return {"jobs": [JOB], "next": None}
        if operation == "health":
            return {"scheduler": {"pid": 1}, "counts": {"queued": 1}, "health_issues": []}
        self.looks += 1
        if self.looks > self._last:
            self._never.wait()
        return {"gpus": [GPU | {"index": self.looks}], "now": 0.0}

    def events(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        yield {"event": "reset"}
        self._never.wait()


class Newer(Changing):
    """A client whose server has a state of jobs that this version does not know."""

    def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        found = super().call(operation, **arguments)
        return {**found, "jobs": [JOB | {"state": "suspended"}]} if operation == "jobs" else found


def test_an_answer_of_another_version_is_named() -> None:
    app = top.Top(Newer(1), None)

    async def use(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "the same version" in str(app._banner.render()), "the problem")

    drive(app, use)


def test_pictures_do_not_queue_up_while_the_app_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_LEAST_S", 0.0)
    monkeypatch.setattr(top, "_SLOW_S", 0.02)
    client = Changing(100)
    app = top.Top(client, lambda _: wait_for(lambda: client.looks > 100, "a hundred pictures"))
    monkeypatch.setattr(app, "suspend", nullcontext)  # there is no terminal to give back
    seen: list[int] = []

    async def use(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app._jobs.rows, "the first picture")
        show, shown = app._gpus.show, client.looks

        def spy(gpus: Sequence[dict[str, Any]]) -> None:
            seen.append(gpus[0]["index"])
            show(gpus)

        monkeypatch.setattr(app._gpus, "show", spy)
        await pilot.press("a")
        await until(pilot, lambda: seen and seen[-1] == 100, "the newest picture")
        assert shown < 90
        assert len([one for one in seen if one > shown]) < 10

    drive(app, use)
