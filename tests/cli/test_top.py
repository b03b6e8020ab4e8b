"""`top` on a terminal: what it needs, and how it leaves the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.cli.terminal import Terminal
from tests.waiting import wait_for

pytest.importorskip("textual", reason="needs the extra `top`, which `make test` installs")

ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.fixture
def shown(desk: Desk) -> Iterator[Terminal]:
    """Provides `top` on a terminal, once it shows a job with a hostile command."""
    desk.job("echo \x1b]0;owned\x07 [red]\u202ex")
    made = Terminal("top", with_stderr=True, size=(24, 200))
    try:
        made.until("[red]")
        yield made
    finally:
        made.close()


def until_stopped(shown: Terminal, stopped: bool) -> None:
    def is_stopped() -> bool:
        state = Path(f"/proc/{shown.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        shown.read()
        return (state == "T") is stopped

    wait_for(is_stopped, "the stop of top")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_top_and_restores_the_terminal(shown: Terminal, number: signal.Signals) -> None:
    shown.process.send_signal(number)
    code, said = shown.end()
    assert code == -number
    assert "Traceback" not in said
    assert said.count(ENTER) == said.count(LEAVE) == 1
    assert SHOW_CURSOR in said.partition(LEAVE)[2]
    assert shown.after == shown.before


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_top(shown: Terminal, key: bytes) -> None:
    shown.press(key)
    assert shown.end()[0] == 0
    assert shown.after == shown.before


def test_hostile_text_reaches_the_terminal_as_escapes(shown: Terminal) -> None:
    said = shown.read()
    assert r"\x1b]0;owned\x07" in said
    assert "\x1b]0;owned" not in said
    assert "\u202e" not in said


def test_ctrl_z_and_fg(shown: Terminal) -> None:
    shown.press(b"\x1a")
    until_stopped(shown, True)
    said = shown.read()
    assert said.rindex(LEAVE) > said.rindex(ENTER)
    at = len(said)
    shown.process.send_signal(signal.SIGCONT)
    assert ENTER in shown.until("[red]", at)
    shown.press(b"q")
    assert shown.end()[0] == 0
    assert shown.after == shown.before


def test_top_comes_back_if_there_is_no_session_to_attach_to(shown: Terminal) -> None:
    at = len(shown.read())
    shown.press(b"a")
    said = shown.until("not running but queued", at)
    assert said.rindex(ENTER) > said.rindex(LEAVE)
    shown.press(b"q")
    assert shown.end()[0] == 0


def test_a_resize_is_followed(shown: Terminal) -> None:
    at = len(shown.read())
    shown.resize(10, 60)
    # The line of keys, which is the last one, is drawn there now.
    found = wait_for(
        lambda: re.search(r"\x1b\[10;1H(\x1b\[[0-9;]*m)*Enter", shown.read()[at:]), "keys in row 10"
    )
    assert found is not None


def test_no_color(desk: Desk) -> None:
    desk.job("true", name="first")
    shown = Terminal("top", with_stderr=True, NO_COLOR="1")
    said = shown.until("first")
    shown.close()
    assert "\x1b[32m" not in said
    assert "\x1b[33m" not in said


def test_top_needs_a_terminal_that_can_draw(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("top")
    assert (code, out) == (2, "")
    assert "not a terminal; use `status --watch`" in err
    shown = Terminal("top", with_stderr=True, TERM="dumb")
    code, said = shown.end()
    shown.close()
    assert code == 2
    assert "TERM is dumb; use `status --watch`" in said


def test_top_names_the_package_that_is_missing(desk: Desk) -> None:
    assert desk.store
    (desk.path / "textual.py").write_text("raise ImportError('no textual', name='textual')\n")
    shown = Terminal("top", with_stderr=True)
    code, said = shown.end()
    shown.close()
    assert code == 2
    assert 'pip install "gpu-job-scheduler[top]"' in said
    assert "`status --watch`" in said


def test_a_token_file_of_other_users_is_refused(desk: Desk) -> None:
    token = desk.path / "token"
    token.write_text("t")
    token.chmod(0o644)
    shown = Terminal("top", "--url", "http://127.0.0.1:1", "--token-file", str(token), with_stderr=True)
    code, said = shown.end()
    shown.close()
    assert code == 2
    assert f"chmod 600 {token}" in said.replace("\n", "")


def test_no_other_command_imports_textual(desk: Desk) -> None:
    code = (
        "import sys; from gpu_scheduler.cli import main; main(['status']); main(['events']);"
        "import gpu_scheduler.client, gpu_scheduler.cli.front_ends; sys.exit('textual' in sys.modules)"
    )
    assert desk.store
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert (
        subprocess.run([sys.executable, "-c", code], env=env, check=False, capture_output=True).returncode
        == 0
    )
