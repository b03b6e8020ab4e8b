"""Tests Screen windows: attaching, pressing keys and resizing must not affect a job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None and "CI" not in os.environ, reason="tmux is not installed"
)

BAR = """\
import os, shutil, sys, time
n = 0
while not os.path.exists("go"):
    n += 1
    sys.stdout.write(f"\\rprogress {n} |###   | width {shutil.get_terminal_size().columns} ")
    sys.stdout.flush()
    with open("alive", "w") as file:
        file.write(str(n))
    time.sleep(0.03)
print("\\nlast line")
"""


class Tmux:
    """A terminal in which the test types and whose screen the test reads."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-s", "t", "bash --norc")

    def run(self, *words: str) -> str:
        """Runs one tmux command and returns its output."""
        done = subprocess.run(
            ["tmux", "-S", self.socket, *words], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def keys(self, *keys: str) -> None:
        """Presses these keys in the terminal."""
        self.run("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        """Returns the visible text of the terminal."""
        return self.run("capture-pane", "-p", "-t", "t")

    def sees(self, text: str) -> str:
        """Waits until this text is visible. Returns the screen."""
        wait_for(lambda: text in self.screen(), f"{text!r} on the screen")
        return self.screen()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(tmp_path)
    yield made
    made.run("kill-server")


def alive(world: World) -> int:
    try:
        return int((world.folder / "alive").read_text() or "0")
    except (OSError, ValueError):
        return 0


def goes_on(world: World) -> None:
    before = alive(world)
    wait_for(lambda: alive(world) > before + 3, "more output of the job")


def test_a_jobs_screen_session_supports_attach_resize_detach_and_ctrl_c(world: World, terminal: Tmux) -> None:
    (world.folder / "bar.py").write_text(BAR)
    world.start("--screen")
    world.append("0,bar.py,,,")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "running")
    session = world.jobs()[1]["session"]
    terminal.keys(f"screen -r {session}", "Enter")
    terminal.sees("|###")
    terminal.sees("width 100")
    terminal.run("resize-window", "-t", "t", "-x", "77", "-y", "20")
    terminal.sees("width 77")
    terminal.keys("C-s")
    goes_on(world)
    terminal.keys("C-q")
    terminal.keys("C-a", "d")
    terminal.sees("detached")
    goes_on(world)
    terminal.keys("C-l")
    terminal.keys(f"screen -x {session}", "Enter")
    terminal.sees("|###")
    terminal.keys("C-s")
    terminal.keys("C-a", "d")
    goes_on(world)
    terminal.keys(f"screen -x {session}", "Enter")
    terminal.sees("|###")
    terminal.keys("C-c")
    job = world.wait_finished(1)[1]
    assert job["outcome"] == "failed"
    assert job["signal"] == signal.SIGINT or job["exit_code"] == 130


def test_killing_screen_does_not_affect_its_job(world: World) -> None:
    (world.folder / "bar.py").write_text(BAR)
    world.start("--screen")
    world.append("0,bar.py,,,")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "running")
    goes_on(world)
    session = world.jobs()[1]["session"]
    os.kill(int(session.split(".")[0]), signal.SIGKILL)
    goes_on(world)
    (world.folder / "go").touch()
    job = world.wait_finished(1)[1]
    assert (job["outcome"], job["exit_code"]) == ("completed", 0)
    assert "last line" in Path(job["log"]).read_text()
    subprocess.run(["screen", "-wipe", session], stdout=subprocess.DEVNULL, check=False)


def test_start_with_screen_fails_with_a_remedy_if_screen_is_not_installed(
    world: World, tmp_path: Path
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    world.env["PATH"] = str(empty)
    done = world.cli("start", "--simulate", "1", "--screen")
    assert done.returncode == 1
    assert "apt-get install screen" in done.stderr
    assert "Traceback" not in done.stderr
