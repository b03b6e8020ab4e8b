"""Tests the `screens` command with sessions that are attached, closed or killed.

Covers sockets in another folder, and a machine without Screen.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli import main
from tests.e2e.world import World
from tests.waiting import wait_for


class ScreensCommand:
    """The `screens` command, run in this process with the folder and environment of the world."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.patch, self._capsys = world, patch, capsys
        patch.chdir(world.folder)

    def text(self, *words: str) -> str:
        """Returns the output of `screens`."""
        self._capsys.readouterr()
        assert main(["screens", *words, "--state-file", self.world.state]) == 0
        return self._capsys.readouterr().out

    def sessions(self) -> dict[int, dict[str, Any]]:
        """Returns the sessions that `screens` shows, by job."""
        return {one["job"]: one for one in json.loads(self.text("--json"))["sessions"]}

    def value(self, job: int, what: str) -> Any:
        """Returns one value of a job's session."""
        return self.sessions()[job][what]


@pytest.fixture
def screens(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> ScreensCommand:
    return ScreensCommand(world, monkeypatch, capsys)


def test_the_command_screens_lists_sessions_with_their_jobs_and_attach_commands(
    screens: ScreensCommand, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world, sockets = screens.world, tmp_path_factory.mktemp("s")
    sockets.chmod(0o700)
    world.env["SCREENDIR"] = str(sockets)
    screens.patch.setenv("SCREENDIR", str(sockets))
    world.append("[share=0.5 allowed=2] sleep 60", "[gpus=2 allowed=0-1] sleep 60")
    world.start("--screen")
    wait_for(lambda: len(screens.sessions()) == 2, "both jobs running")
    wait_for(lambda: {screens.value(job, "state") for job in (1, 2)} == {"detached"}, "both listed")
    shown = screens.sessions()
    assert [(one["gpus"], one["attached"]) for one in shown.values()] == [([2], False), ([0, 1], False)]
    assert shown[2]["session"].endswith(".gpujob_0,1_sleep_2")
    assert shown[1]["command"] == f"screen -r {shown[1]['session']}"
    assert f"{shown[1]['command']}    or `attach 1`" in screens.text()
    _attach(screens, shown[1]["command"])
    _show_from_another_screendir(screens, sockets, shown[1]["session"])
    _show_without_screen(screens)
    _close_window(screens, shown[1]["session"], sockets)
    _kill_session(screens, shown[2]["session"])


def _attach(screens: ScreensCommand, command: str) -> None:
    """Attaches with the command that `screens` shows. The session is then listed as attached."""
    master, terminal = pty.openpty()
    attached = subprocess.Popen(
        shlex.split(command), env={**screens.world.env, "TERM": "xterm"}, start_new_session=True,
        stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    try:
        wait_for(lambda: screens.value(1, "attached"), "the session attached")
        assert screens.value(1, "command") == command.replace("-r", "-x")
        assert screens.value(2, "attached") is False
    finally:
        attached.kill()
        attached.wait()
        os.close(master)
    wait_for(lambda: screens.value(1, "attached") is False, "the session detached")


def _show_from_another_screendir(screens: ScreensCommand, sockets: Path, session: str) -> None:
    with screens.patch.context() as patch:
        patch.delenv("SCREENDIR")
        shown = screens.sessions()[1]
    assert (shown["state"], shown["screendir"]) == ("detached", str(sockets))
    assert shown["command"] == f"SCREENDIR={sockets} screen -r {session}"


def _show_without_screen(screens: ScreensCommand) -> None:
    with screens.patch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        text, shown = screens.text(), screens.sessions()[1]
    assert "GNU Screen is not installed" in text
    assert (shown["state"], shown["attached"]) == ("unknown", None)


def _close_window(screens: ScreensCommand, session: str, sockets: Path) -> None:
    """Closes the window of job 1, as Ctrl-A k does. The session continues with another window."""
    env = {**screens.world.env, "SCREENDIR": str(sockets)}
    for command in (["screen", "sleep", "60"], ["at", "0", "kill"]):
        subprocess.run(["screen", "-S", session, "-X", *command], env=env, check=True)
    wait_for(lambda: screens.value(1, "state") == "closed", "the closed window")
    shown = screens.sessions()
    assert (shown[1]["command"], shown[2]["state"]) == (None, "detached")
    assert "the window was closed, but the job continues; `logs 1 -f` follows its output" in screens.text()
    warning = "WARNING job 1 continues although its Screen window was closed; `logs 1 -f` follows its output"
    wait_for(lambda: warning in screens.world.output(), "the warning")
    jobs = screens.world.jobs()
    assert [(jobs[n]["state"], jobs[n]["window_closed"]) for n in (1, 2)] == [
        ("running", True), ("running", False)
    ]  # fmt: skip
    subprocess.run(["screen", "-S", session, "-X", "quit"], env=env, check=True)
    screens.world.end_scheduler()
    assert screens.world.output().count("was closed") == 1
    assert "job 1 keeps running: log " in screens.world.output()
    assert "job 2 keeps running: `attach 2`" in screens.world.output()


def _kill_session(screens: ScreensCommand, session: str) -> None:
    """Kills the session. `screens` shows this even without a scheduler."""
    os.kill(int(session.partition(".")[0]), signal.SIGKILL)
    wait_for(lambda: screens.value(2, "state") == "closed", "the closed session")


def test_the_command_screens_shows_that_no_job_has_a_session(screens: ScreensCommand) -> None:
    screens.world.append("[share=0.5] sleep 60")
    screens.world.start()
    wait_for(lambda: "1 running job" in screens.text(), "the job running")
    assert screens.text() == (
        "No job runs in a Screen session.\n"
        "1 running job without a session; `logs JOB -f` follows a job's output\n"
    )
