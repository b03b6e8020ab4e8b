"""`screens` beside real sessions: looked into, in another folder, killed, and with no Screen to ask."""

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


class Looker:
    """The command in this process, in the world's folder and environment."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.patch, self._capsys = world, patch, capsys
        patch.chdir(world.folder)

    def text(self, *words: str) -> str:
        """What `screens` prints."""
        self._capsys.readouterr()
        assert main(["screens", *words, "--state-file", self.world.state]) == 0
        return self._capsys.readouterr().out

    def sessions(self) -> dict[int, dict[str, Any]]:
        """The sessions that it shows, by job."""
        return {one["job"]: one for one in json.loads(self.text("--json"))["sessions"]}

    def of(self, job: int, what: str) -> Any:
        """One value of one of them."""
        return self.sessions()[job][what]


@pytest.fixture
def looker(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Looker:
    return Looker(world, monkeypatch, capsys)


def test_sessions_with_their_jobs_and_the_command_that_opens_each(
    looker: Looker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world, sockets = looker.world, tmp_path_factory.mktemp("s")
    sockets.chmod(0o700)
    world.env["SCREENDIR"] = str(sockets)
    looker.patch.setenv("SCREENDIR", str(sockets))
    world.append("[share=0.5 allowed=2] sleep 60", "[gpus=2 allowed=0-1] sleep 60")
    world.start("--screen")
    wait_for(lambda: len(looker.sessions()) == 2, "both jobs running")
    wait_for(lambda: {looker.of(job, "state") for job in (1, 2)} == {"detached"}, "both listed")
    shown = looker.sessions()
    assert [(one["gpus"], one["attached"]) for one in shown.values()] == [([2], False), ([0, 1], False)]
    assert shown[2]["session"].endswith(".gpujob_0,1_sleep_2")
    assert shown[1]["command"] == f"screen -r {shown[1]['session']}"
    assert f"{shown[1]['command']}    or `attach 1`" in looker.text()
    _look_into(looker, shown[1]["command"])
    _from_another_folder(looker, sockets, shown[1]["session"])
    _without_screen(looker)
    _window_closed(looker, shown[1]["session"], sockets)
    _killed(looker, shown[2]["session"])


def _look_into(looker: Looker, command: str) -> None:
    """The command that is shown opens the session, and it is attached then."""
    master, terminal = pty.openpty()
    looking = subprocess.Popen(
        shlex.split(command), env={**looker.world.env, "TERM": "xterm"}, start_new_session=True,
        stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    try:
        wait_for(lambda: looker.of(1, "attached"), "the session attached")
        assert looker.of(1, "command") == command.replace("-r", "-x")
        assert looker.of(2, "attached") is False
    finally:
        looking.kill()
        looking.wait()
        os.close(master)
    wait_for(lambda: looker.of(1, "attached") is False, "the session detached")


def _from_another_folder(looker: Looker, sockets: Path, session: str) -> None:
    with looker.patch.context() as patch:
        patch.delenv("SCREENDIR")
        shown = looker.sessions()[1]
    assert (shown["state"], shown["screendir"]) == ("detached", str(sockets))
    assert shown["command"] == f"SCREENDIR={sockets} screen -r {session}"


def _without_screen(looker: Looker) -> None:
    with looker.patch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        text, shown = looker.text(), looker.sessions()[1]
    assert "GNU Screen is not installed" in text
    assert (shown["state"], shown["attached"]) == ("unknown", None)


def _window_closed(looker: Looker, session: str, sockets: Path) -> None:
    """By Ctrl-A k, in a session that has another window: it lives on, and shows nothing of the job."""
    env = {**looker.world.env, "SCREENDIR": str(sockets)}
    for command in (["screen", "sleep", "60"], ["at", "0", "kill"]):
        subprocess.run(["screen", "-S", session, "-X", *command], env=env, check=True)
    wait_for(lambda: looker.of(1, "state") == "closed", "the closed window")
    shown = looker.sessions()
    assert (shown[1]["command"], shown[2]["state"]) == (None, "detached")
    assert "window closed, the job continues; `logs 1 -f` follows it" in looker.text()
    told = "WARNING job 1 continues without its Screen window, which was closed; `logs 1 -f` follows it"
    wait_for(lambda: told in looker.world.said(), "the warning")
    jobs = looker.world.jobs()
    assert [(jobs[n]["state"], jobs[n]["window_closed"]) for n in (1, 2)] == [
        ("running", True), ("running", False)
    ]  # fmt: skip
    subprocess.run(["screen", "-S", session, "-X", "quit"], env=env, check=True)
    looker.world.end()
    assert looker.world.said().count("was closed") == 1
    assert "job 1 keeps running: log " in looker.world.said()
    assert "job 2 keeps running: `attach 2`" in looker.world.said()


def _killed(looker: Looker, session: str) -> None:
    """No scheduler is needed to be told."""
    os.kill(int(session.partition(".")[0]), signal.SIGKILL)
    wait_for(lambda: looker.of(2, "state") == "closed", "the closed session")


def test_without_sessions_that_is_said(looker: Looker) -> None:
    looker.world.append("[share=0.5] sleep 60")
    looker.world.start()
    wait_for(lambda: "1 running job" in looker.text(), "the job running")
    assert looker.text() == (
        "No job runs in a Screen session.\n1 running job without a session; `logs JOB -f` follows one\n"
    )
