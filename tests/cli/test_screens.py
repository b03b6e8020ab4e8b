"""The `screens` command for attempts in every phase. The tests in tests/e2e use real sessions."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.show import logs
from tests.cli.desk import Desk
from tests.waiting import wait_for


def screens_json(desk: Desk) -> dict[str, Any]:
    code, out, err = desk.run("screens", "--json")
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def test_a_session_that_is_being_created_has_no_attach_command(desk: Desk) -> None:
    job = desk.job()
    desk.writer.record_log(desk.attempt(job).id, "/logs/1.log", "gpujob_0_echo_1")
    [shown] = screens_json(desk)["sessions"]
    assert (shown["session"], shown["state"], shown["command"]) == ("gpujob_0_echo_1", "starting", None)
    assert "gpujob_0_echo_1 is being created" in desk.run("screens")[1]


def test_an_attempt_with_a_dead_runner_has_no_session(desk: Desk) -> None:
    job = desk.run_job("exec sleep 60")
    row = desk.store.attempts(job)[0]
    assert screens_json(desk)["without_session"] == 1
    pid = observe(desk.folder(row), row.token).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: observe(desk.folder(row), row.token).claim == "dead", "the runner's end")
    assert (screens_json(desk)["sessions"], screens_json(desk)["without_session"]) == ([], 0)


def test_queries_screen_in_the_socket_folder_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCREENDIR", "/ours")
    assert logs.screen_environment("/theirs")["SCREENDIR"] == "/theirs"
    assert "SCREENDIR" not in logs.screen_environment(None)
    assert logs.screen_environment(None)["PATH"] == os.environ["PATH"]
