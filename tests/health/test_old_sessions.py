"""Tests of finding live sessions of the older scheduler, and of the findings that `doctor` reports."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.health import doctor
from gpu_scheduler.health.sessions import OldSession, old_sessions
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.procfs import Proc
from tests.fakes.proc import FakeProc
from tests.waiting import wait_for

SESSION = ("SCREEN", "-dmS", "gpujob_0,1_train_8c1d", "bash", "-c", "python train.py")
OLDER = '{"gpu_status": [1.0, 0.0], "paused_gpus": []}'


@pytest.fixture
def machine(tmp_path: Path) -> FakeProc:
    made = FakeProc(tmp_path / "proc")
    made.add_process(30, command_line=SESSION, start=200)
    return made


def names(machine: FakeProc) -> list[str]:
    return [session.name for session in old_sessions(Proc(str(machine.root)))]


def test_finds_a_session_whose_process_has_no_token_of_this_scheduler(machine: FakeProc) -> None:
    machine.add_process(31, parent=30, command_line=("bash", "-c", "python train.py"))
    [found] = old_sessions(Proc(str(machine.root)))
    assert (found.name, found.gpus, found.started_at) == ("30.gpujob_0,1_train_8c1d", "0,1", 1000002.0)
    assert "GPUs 0,1, started 1 min ago (" in found.describe(1000062.0)
    assert found.describe(1000062.0).endswith("`screen -r 30.gpujob_0,1_train_8c1d` opens it)")


def test_ignores_sessions_that_run_no_job_of_the_older_scheduler(machine: FakeProc) -> None:
    assert names(machine) == []  # no job runs in the session
    machine.add_process(31, parent=30, command_line=SESSION)  # the window has not started its command yet
    machine.add_process(32, parent=30, command_line=("bash",), state="Z")
    assert names(machine) == []
    machine.add_process(31, parent=30, command_line=("python", "start.py"), token="1234")
    assert names(machine) == [], "the process has this scheduler's token"
    bash = ("bash", "-c", "x")
    other = os.getuid() + 1
    for pid, words, user in (
        (40, ("SCREEN", "-dmS", "work", *bash), os.getuid()),
        (50, ("screen", "-r", "gpujob_0_train_1"), os.getuid()),
        (60, ("vim", "-S", "gpujob_0_train_1"), os.getuid()),
        (70, SESSION, other),
        (80, ("SCREEN",), os.getuid()),
    ):
        machine.add_process(pid, command_line=words, user=user)
        machine.add_process(pid + 1, parent=pid, command_line=bash)
    assert names(machine) == []


@pytest.mark.parametrize(
    "words",
    [
        ("/usr/bin/SCREEN", "-dmS", "gpujob_3_eval_1"),
        ("SCREEN", "-S", "gpujob_3_eval_1", "-dm"),
        ("SCREEN", "-c", "rc", "-d", "-m", "-S", "gpujob_3_eval_1"),
    ],
)
def test_finds_the_session_name_in_any_option_order(machine: FakeProc, words: tuple[str, ...]) -> None:
    machine.add_process(90, command_line=words)
    machine.add_process(91, parent=90, command_line=("python",))
    assert names(machine) == ["90.gpujob_3_eval_1"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[str]:
    """Starts a real session like those of the older scheduler; ends it after the test. Yields its name."""
    if shutil.which("screen") is None and "CI" not in os.environ:
        pytest.skip("screen is not installed")
    name = f"gpujob_0_train_{os.getpid()}"
    script = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/end ]; do sleep 0.02; done"
    subprocess.run(["screen", "-dmS", name, "bash", "-c", script], check=True, timeout=60)
    wait_for(lambda: [one for one in old_sessions() if one.name.endswith(f".{name}")], "the session")
    yield name
    (tmp_path / "end").touch()
    wait_for(
        lambda: not [one for one in old_sessions() if one.name.endswith(f".{name}")], "the end of the session"
    )


def test_doctor_names_a_real_session_and_says_whether_start_is_refused(session: str, tmp_path: Path) -> None:
    home = DataDir.of(str(tmp_path / "state.json"))
    finding = doctor.older_sessions(home, time.time())
    assert (finding.grade, f".{session}, GPU 0, started " in finding.message) == ("warn", True)
    home.state_file.write_text(OLDER)
    finding = doctor.older_sessions(home, time.time())
    assert (finding.grade, f".{session}, GPU 0, started " in finding.message) == ("bad", True)
    assert "--ignore-old-sessions" in finding.remedy


def test_doctor_accepts_a_machine_without_old_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> list[OldSession]:
        return []

    monkeypatch.setattr(doctor, "old_sessions", none)
    assert doctor.older_sessions(DataDir.of(str(tmp_path / "state.json")), 0.0).grade == "ok"
