"""Tests how companions are started, started again and ended. The tests own the clock."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon.companions import Companion, Companions, companions_of
from gpu_scheduler.daemon.main_loop import Wakeups
from gpu_scheduler.store.data_dir import DataDir
from tests.processes import exists
from tests.waiting import wait_for

#: Ends at the end of its standard input, as every companion does.
LIVES = "import sys; print('up', flush=True); sys.stdin.read()"


class Stage:
    """One companion that runs a Python program, and the log about it."""

    def __init__(self, program: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.main_log = folder / "main.log"
        self.companions = Companions(
            [Companion("helper", (sys.executable, "-c", program))], self.main_log, trust=True
        )
        self._caplog = caplog

    def start(self, now: float) -> int:
        """Starts the companion and returns its pid."""
        self.companions.update(now)
        (pid,) = self.companions.pids
        return pid

    def wait_for_end(self, pid: int) -> None:
        fd = os.pidfd_open(pid)
        assert select.select([fd], [], [], 60)[0], f"{pid} runs on"
        os.close(fd)

    def said(self) -> list[str]:
        """Returns the log lines since the last call."""
        found = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Stage]:
    caplog.set_level(logging.INFO)
    made = Stage(request.param, tmp_path, caplog)
    yield made
    made.companions.close()


@pytest.mark.parametrize("stage", ["raise SystemExit(3)"], indirect=True)
def test_a_companion_that_ends_starts_again_after_ever_longer_waits(stage: Stage) -> None:
    now, waits, lines = 100.0, [], []
    for _ in range(9):
        stage.wait_for_end(stage.start(now))
        stage.companions.update(now)
        due = stage.companions.due_at
        assert due is not None
        assert stage.companions.pids == set()
        waits.append(due - now)
        stage.companions.update(due - 0.01)
        assert stage.companions.pids == set()
        now = due
        lines += [line for line in stage.said() if "ended" in line]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert lines[0] == "helper has ended (exit code 3) and is started again in 1 s"
    # A server that cannot run for days does not fill the log.
    assert lines[6:] == ["helper has ended (exit code 3) and is started again every minute from now on"]


@pytest.mark.parametrize("stage", [LIVES], indirect=True)
def test_after_a_minute_of_work_a_companion_starts_again_at_once(stage: Stage) -> None:
    now = 0.0
    for lived, wait in ((1, 1.0), (1, 2.0), (59, 4.0), (61, 1.0), (1, 2.0)):
        pid = stage.start(now)
        os.kill(pid, signal.SIGKILL)
        stage.wait_for_end(pid)
        now += lived
        stage.companions.update(now)
        assert stage.companions.due_at == now + wait
        assert f"(signal 9) and is started again in {wait:.0f} s" in stage.said()[-1]
        now += wait


@pytest.mark.parametrize(
    "stage", ["import sys; print('install it', file=sys.stderr); sys.exit(2)"], indirect=True
)
def test_a_usage_error_is_reported_once_and_ends_the_attempts(stage: Stage) -> None:
    stage.wait_for_end(stage.start(0))
    for now in (1.0, 100.0, 10000.0):
        stage.companions.update(now)
        assert (stage.companions.pids, stage.companions.due_at) == (set(), None)
    _, end = stage.said()
    assert end == (
        f"helper has ended (exit code 2) and is not started again; its last message in {stage.main_log} says"
        " why"
    )
    assert stage.main_log.read_text() == "install it\n"


@pytest.mark.parametrize("stage", [LIVES], indirect=True)
def test_the_end_of_a_companion_wakes_the_scheduler(stage: Stage) -> None:
    wakeups = Wakeups()
    pid = stage.start(0)
    wakeups.watch_companions(stage.companions.pids)
    assert wakeups.wait(0) == set()
    os.kill(pid, signal.SIGKILL)
    assert wakeups.wait(60) == {"companion"}
    assert wakeups.wait(0) == set()
    stage.companions.update(1)
    wakeups.watch_companions(stage.companions.pids)
    wakeups.close()


@pytest.mark.parametrize("stage", [LIVES], indirect=True)
def test_companions_end_with_the_scheduler_and_not_with_its_terminal(stage: Stage) -> None:
    pid = stage.start(0)
    assert os.getsid(pid) == pid
    wait_for(lambda: stage.main_log.exists() and stage.main_log.read_text() == "up\n", "its output")
    stage.companions.close()
    assert not exists(pid)
    stage.companions = Companions([], stage.main_log)


@pytest.mark.parametrize(
    "stage",
    ["import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"],
    indirect=True,
)
def test_a_companion_that_does_not_end_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.daemon.companions._GRACE_S", 0.1)
    pid = stage.start(0)
    wait_for(lambda: stage.main_log.exists() and stage.main_log.read_text() == "up\n", "its output")
    stage.companions.close()
    assert not exists(pid)
    stage.companions = Companions([], stage.main_log)


def test_a_program_that_cannot_be_executed_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    companions = Companions([Companion("helper", ("/nowhere",))], tmp_path / "main.log")
    companions.update(5)
    assert (companions.pids, companions.due_at) == (set(), 6)
    assert caplog.messages == [
        "helper cannot be started (No such file or directory) and is started again in 1 s"
    ]
    companions.close()


def test_start_passes_the_receivers_of_notifications_on_where_nobody_sees_them(tmp_path: Path) -> None:
    options = StartOptions(notify=("ntfy://s3cret", "json://h"), data_dir="d")
    (notifier,) = companions_of(options, DataDir.of(str(tmp_path / "s.json")), newest_event=7)
    words = notifier.argv[notifier.argv.index("notify") :]
    assert words[:3] == ("notify", "--after", "7")
    assert "s3cret" not in f"{words} {options}"
    assert notifier.env == {"GPU_SCHEDULER_NOTIFY": "ntfy://s3cret\njson://h"}


def test_start_passes_the_options_of_the_server_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = DataDir.of("s.json")
    assert companions_of(StartOptions(), home) == []
    (plain,) = companions_of(StartOptions(serve="127.0.0.1:8000"), home)
    assert plain.name == "serve"
    assert plain.argv[plain.argv.index("serve") :] == (
        *("serve", "--host", "127.0.0.1", "--port", "8000", "--state-file", str(tmp_path / "s.json")),
        *("--until-eof", "0"),
    )
    options = StartOptions(serve="[::]:1", data_dir="d", as_root=True, open_metrics=True,
                           allowed_host=("a", "b:2"), tls_cert="c", tls_key="k")  # fmt: skip
    (full,) = companions_of(options, home)
    assert full.argv[full.argv.index("serve") :] == (
        *("serve", "--host", "::", "--port", "1", "--state-file", str(tmp_path / "s.json")),
        *("--until-eof", "0", "--as-root", "--open-metrics", "--allowed-host=a", "--allowed-host=b:2"),
        *("--data-dir", str(tmp_path / "d"), "--tls-cert", str(tmp_path / "c")),
        *("--tls-key", str(tmp_path / "k")),
    )
