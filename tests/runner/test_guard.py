"""Tests of the guard and of runners on an engine, with real guards, writers, runners and commands."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import parse_claim, void_claim
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.runner import folder as files
from gpu_scheduler.runner.folder import START, TOKEN, boot_id, living_fields, mark_of
from tests.processes import children_of
from tests.runner.attempt import PreparedAttempt, patched, wait_for
from tests.runner.conftest import Make

#: The divisors of all times: a beat every 0.5 s and death after 10 s without one, or both twice as fast.
SCALE, FAST = 60, 120
#: The seconds between two beats, and without one until death, of a guard that is fast.
BEAT_S, SILENCE_S = 30 / FAST, 600 / FAST
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"
WAITING = "echo up; exec sleep 300"

Guard = subprocess.Popen[bytes]
Launch = Callable[..., Guard]


@pytest.fixture
def on_engine(make: Make) -> Make:
    """Returns a function `on_engine(script, **spec)`, which makes attempts for an engine."""

    def one(script: str, **spec: Any) -> PreparedAttempt:
        attempt = make(script, **{"engine": "slurm", "boot_id": OTHER_BOOT, **spec})
        attempt.prepare()
        return attempt

    return one


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Returns a function that starts a guard for an attempt, as an engine does."""
    guards: list[Guard] = []

    def one(attempt: PreparedAttempt, scale: int = SCALE, **env: str) -> Guard:
        command = [sys.executable, "-I", "-S", START, "--guard", str(attempt.folder)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        clean = {**clean, "GPU_SCHEDULER_TIME_SCALE": str(scale), **env}
        guards.append(subprocess.Popen(command, env=clean, stdin=subprocess.DEVNULL))
        return guards[-1]

    yield one
    for guard in guards:
        guard.kill()
        guard.wait()


def beat(attempt: PreparedAttempt) -> int:
    """Returns the number in the heartbeat, -1 if there is none."""
    try:
        return int((attempt.folder / "heartbeat").read_text())
    except FileNotFoundError:
        return -1


def runner_of(attempt: PreparedAttempt) -> int:
    """Returns the pid of the attempt's runner once it has claimed the attempt."""
    pid = attempt.until_live().pid
    assert pid is not None
    return pid


def writer_of(guard: Guard, runner: int) -> int:
    """Returns the pid of the living process that writes the heartbeat."""

    def others() -> list[int]:
        return [pid for pid in children_of(guard.pid) if pid != runner and living_fields(pid)]

    [writer] = wait_for(others, "a writer")
    return writer


def said(attempt: PreparedAttempt) -> list[int]:
    """Returns the pids that the command has written after "up"."""
    lines = wait_for(lambda: [line for line in attempt.output().splitlines() if line[:3] == "up "], "pids")
    return [int(word) for word in lines[0].split()[1:]]


def until_ended(*pids: int) -> None:
    wait_for(lambda: not any(map(living_fields, pids)), f"the end of {pids}")


def test_an_engines_attempt_has_a_heartbeat_and_leaves_no_process(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("echo up $PPID; read -r _ < go; exit 3")
    os.mkfifo(attempt.folder.parents[2] / "go")
    guard = launch(attempt)
    runner = runner_of(attempt)
    writer = writer_of(guard, runner)
    first = beat(attempt)
    assert first >= 0
    wait_for(lambda: beat(attempt) > first + 2, "three beats")
    assert (attempt.folder / "heartbeat").stat().st_size == 21
    assert said(attempt) == [runner]
    for pid in (guard.pid, writer):
        assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert mark_of(pid) is None
    (attempt.folder.parents[2] / "go").write_text("\n")
    result = attempt.result()
    assert (result.cause, result.exit_code, result.survivors) == (None, 3, ())
    assert guard.wait(60) == 0
    until_ended(runner, writer)
    last = beat(attempt)
    assert attempt.pids() == ()
    assert beat(attempt) == last
    assert {path.name for path in attempt.folder.iterdir()} == {
        "spec.json", "command.sh", "command.pid", "claim", "result", "heartbeat",
    }  # fmt: skip


def test_the_claim_names_the_machine_and_a_nonce(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine(WAITING)
    launch(attempt)
    runner = runner_of(attempt)
    claim = json.loads((attempt.folder / "claim").read_text())
    assert (claim["boot_id"], claim["host"], claim["pid"]) == (boot_id(), os.uname().nodename, runner)
    assert len(bytes.fromhex(claim["nonce"])) == 16
    parsed = parse_claim(claim, attempt.token)
    assert not isinstance(parsed, files.UnusableFile)
    assert (parsed.void, parsed.runner and parsed.runner.pid) == (False, runner)


def test_the_command_gets_the_devices_and_variables_of_the_engine(on_engine: Make, launch: Launch) -> None:
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "7", "SLURM_NTASKS": "9", "MINE": "1"}
    attempt = on_engine("exec env", env=env)
    given = {
        "SLURM_JOB_ID": "55", "SLURM_NTASKS": "1", "CUDA_VISIBLE_DEVICES": "2", "NVIDIA_VISIBLE_DEVICES": "3",
        "GPU_DEVICE_ORDINAL": "4", "ROCR_VISIBLE_DEVICES": "5",
    }  # fmt: skip
    launch(attempt, **given, MINE="2", OTHER="3", SLURMX="4")
    assert attempt.result().exit_code == 0
    shown = dict(line.split("=", 1) for line in attempt.body().splitlines())
    assert given.items() <= shown.items()
    assert (shown["MINE"], shown[TOKEN]) == ("1", attempt.token)
    assert not {"OTHER", "SLURMX", "GPU_SCHEDULER_TIME_SCALE"} & set(shown)


def test_a_local_command_gets_no_variables_of_the_runner(make: Make, tmp_path: Path) -> None:
    attempt = make("exec env", engine=None)
    patch = "os.environ.update(SLURM_JOB_ID='5', CUDA_VISIBLE_DEVICES='2')"
    assert attempt.launch(patched(tmp_path, patch)).result().exit_code == 0
    assert "SLURM_JOB_ID" not in attempt.body()
    assert "CUDA_VISIBLE_DEVICES" not in attempt.body()
    assert not {"host", "nonce"} & set(json.loads((attempt.folder / "claim").read_text()))


@pytest.mark.parametrize("engine", [{}, {"engine": None}])
def test_a_local_spec_belongs_to_its_boot(make: Make, launch: Launch, engine: dict[str, None]) -> None:
    """The specs of earlier versions have no `engine`."""
    attempt = make("exit 4", **engine)
    assert attempt.launch().result().exit_code == 4
    other = make("exit 4", boot_id=OTHER_BOOT, **engine)
    other.prepare()
    assert launch(other).wait(60) == 0
    assert other.status().claim == "none"


def test_a_file_stop_alone_ends_the_command_with_its_signal(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("trap 'echo asked; exit 6' USR2; echo up; while :; do sleep 0.02; done")
    launch(attempt)
    attempt.until_logged("up")
    stop = {
        "token": attempt.token, "cause": "preempted", "grace_s": 60, "follow": "kill", "id": "1",
        "signal": "USR2",
    }  # fmt: skip
    (attempt.folder / "new").write_text(json.dumps(stop))
    (attempt.folder / "new").rename(attempt.folder / "stop")
    result = attempt.result()
    assert (result.cause, result.exit_code) == ("preempted", 6)
    assert "asked" in attempt.body()


def test_a_later_stop_replaces_one_whose_grace_lasts(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("trap '' TERM; echo up; while :; do sleep 0.02; done")
    launch(attempt)
    attempt.until_logged("up")
    for stop in (StopRequest("preempted", 600.0), StopRequest("cancelled", 0.1)):
        attempt.stop(stop.cause, stop.grace_s)
    result = attempt.result()
    assert (result.cause, result.signal) == ("cancelled", signal.SIGKILL)


@pytest.mark.parametrize("to_all", [False, True])
def test_sigterm_from_outside_interrupts_a_command_that_exits_with_0(
    on_engine: Make, launch: Launch, to_all: bool
) -> None:
    """An engine signals all processes of its job, or only the guard."""
    attempt = on_engine("trap 'exit 0' TERM; echo up $$; while :; do sleep 0.02; done")
    guard = launch(attempt)
    [command] = said(attempt)
    runner = runner_of(attempt)
    for pid in (command, runner, writer_of(guard, runner)) if to_all else ():
        os.kill(pid, signal.SIGTERM)
    guard.terminate()
    result = attempt.result()
    assert (result.cause, result.exit_code) == ("machine", 0)
    assert guard.wait(60) == 0


def test_sigterm_counts_that_the_runner_sees_after_the_end_of_the_command(
    on_engine: Make, launch: Launch, tmp_path: Path
) -> None:
    attempt = on_engine("kill -STOP $PPID; kill -TERM $PPID; echo $$ $PPID > new; mv new pids; exit 0")
    launch(attempt)
    wait_for((tmp_path / "pids").exists, "the end of the command")
    command, runner = map(int, (tmp_path / "pids").read_text().split())
    until_ended(command)
    os.kill(runner, signal.SIGCONT)
    assert attempt.result().cause == "machine"


#: A command with a process that no longer has the token, the session, or a parent.
HIDING = "(setsid env -i sh -c 'echo $$ > hidden; exec sleep 300' &); until [ -s hidden ]; do :; done; "


@pytest.mark.parametrize("is_late", [False, True])
def test_a_file_server_that_hangs_ends_every_process(on_engine: Make, launch: Launch, is_late: bool) -> None:
    """is_late: the guard sees the first report after the silence together with the silence itself.

    The attempt also has a process that is not below the guard, as those that `srun` starts.
    """
    attempt = on_engine(HIDING + "echo up $$ $(cat hidden); trap '' TERM; while :; do sleep 0.02; done")
    guard = launch(attempt, FAST)
    command, hidden = said(attempt)
    runner = runner_of(attempt)
    writer = writer_of(guard, runner)
    elsewhere = subprocess.Popen(["sleep", "300"], env={**os.environ, TOKEN: attempt.token})
    wait_for(lambda: beat(attempt) > 0, "a beat")
    os.kill(writer, signal.SIGSTOP)
    if is_late:
        os.kill(guard.pid, signal.SIGSTOP)
        last, end = beat(attempt), time.monotonic() + SILENCE_S + 0.5
        wait_for(lambda: time.monotonic() > end, "the silence")
        os.kill(writer, signal.SIGCONT)
        wait_for(lambda: beat(attempt) > last + 1, "a beat")
        os.kill(guard.pid, signal.SIGCONT)
    assert guard.wait(60) == 1
    assert elsewhere.wait(60) == -signal.SIGKILL
    until_ended(command, hidden, runner, writer)
    assert (attempt.status().claim, attempt.status().result) == ("dead", None)


def test_a_guard_that_was_stopped_while_heartbeats_were_written_goes_on(
    on_engine: Make, launch: Launch
) -> None:
    attempt = on_engine(WAITING)
    guard = launch(attempt, FAST)
    attempt.until_logged("up")
    os.kill(guard.pid, signal.SIGSTOP)
    last = beat(attempt)
    wait_for(lambda: beat(attempt) > last + (SILENCE_S + 1) / BEAT_S, "beats for longer than a silence")
    os.kill(guard.pid, signal.SIGCONT)
    last = beat(attempt)
    wait_for(lambda: beat(attempt) > last + 4, "a second of beats")
    assert attempt.status().claim == "live"
    guard.terminate()
    assert attempt.result().cause == "machine"


def test_a_new_writer_replaces_one_that_was_killed(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine(WAITING)
    guard = launch(attempt)
    runner = runner_of(attempt)
    os.kill(writer_of(guard, runner), signal.SIGKILL)
    last = beat(attempt)
    wait_for(lambda: beat(attempt) > last + 2, "a beat of another writer")
    assert TOKEN.encode() not in Path(f"/proc/{writer_of(guard, runner)}/environ").read_bytes()
    guard.terminate()
    assert attempt.result().signal == signal.SIGTERM
    assert guard.wait(60) == 0


@pytest.mark.parametrize("asked", [False, True])
def test_the_death_of_the_guard_ends_the_command_at_once(
    on_engine: Make, launch: Launch, asked: bool
) -> None:
    attempt = on_engine(HIDING + "trap '' TERM; echo up $$ $(cat hidden); while :; do sleep 0.02; done")
    guard = launch(attempt)
    pids = said(attempt)
    runner = runner_of(attempt)
    writer = writer_of(guard, runner)
    if asked:
        attempt.stop("cancelled", 600.0)
    guard.kill()
    result = attempt.result(20)
    assert (result.cause, result.signal) == ("cancelled" if asked else "machine", signal.SIGKILL)
    until_ended(*pids, runner, writer)


def test_the_death_of_the_runner_ends_the_command(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine(HIDING + "trap '' TERM; echo up $$ $(cat hidden); while :; do sleep 0.02; done")
    guard = launch(attempt)
    pids = said(attempt)
    os.kill(runner_of(attempt), signal.SIGKILL)
    assert guard.wait(60) == 0
    until_ended(*pids)
    assert attempt.status().result is None


def test_two_guards_run_the_command_once(on_engine: Make, launch: Launch) -> None:
    for _ in range(3):
        attempt = on_engine("echo ran; sleep 0.3; exit 5")
        guards = [launch(attempt) for _ in range(3)]
        assert attempt.result().exit_code == 5
        assert [guard.wait(60) for guard in guards] == [0, 0, 0]
        assert attempt.body() == "ran\n"
        assert not list(attempt.folder.glob(".*"))


def test_a_guard_that_comes_later_leaves_the_heartbeat_alone(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("exit 5")
    assert launch(attempt).wait(60) == 0
    (attempt.folder / "heartbeat").write_text("77")
    assert launch(attempt).wait(60) == 0
    assert beat(attempt) == 77


def test_a_void_claim_prevents_the_start(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("echo ran")
    void_claim(attempt.folder, attempt.token)
    assert launch(attempt).wait(60) == 0
    assert attempt.output() == ""


def test_nothing_starts_without_a_heartbeat(on_engine: Make, launch: Launch) -> None:
    attempt = on_engine("echo ran")
    (attempt.folder / "heartbeat").mkdir()
    assert launch(attempt).wait(60) == 1
    assert "IsADirectoryError" in (attempt.folder / "runner.err").read_text()
    assert (attempt.output(), attempt.status().claim) == ("", "none")


# Network file systems, on which a call may report a failure although it has succeeded.


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = files.open_folder(str(tmp_path))
    yield fd
    os.close(fd)


def identity() -> dict[str, str | int | None]:
    return {"token": "t", "nonce": secrets.token_hex(16)}


def failing(real: Callable[..., None], number: int, happens: bool) -> Callable[..., None]:
    """Returns a function that fails with this errno. happens: whether it does its work before."""

    def fail(*args: Any, **more: Any) -> None:
        if happens:
            real(*args, **more)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ENOENT, errno.ENOMEM])
def test_a_claim_counts_although_link_reports_a_failure(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    mine = identity()
    monkeypatch.setattr(os, "link", failing(os.link, number, True))
    fd = files.claim(folder, mine)
    assert fd is not None
    assert json.loads((tmp_path / "claim").read_text()) == mine
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
    os.close(fd)


@pytest.mark.parametrize("number", [None, errno.EEXIST, errno.EIO])
@pytest.mark.parametrize(
    "text", ['{"token": "t", "nonce": "a"}', '{"token": "t", "void": true}', '{"tok', ""]
)
def test_a_claim_with_another_nonce_is_that_of_another(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, text: str
) -> None:
    (tmp_path / "claim").write_text(text)
    if number is not None:
        monkeypatch.setattr(os, "link", failing(os.link, number, False))
    assert files.claim(folder, identity()) is None
    assert (tmp_path / "claim").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_a_link_that_fails_without_a_claim_is_a_failure(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, errno.EIO, False))
    with pytest.raises(OSError, match="Input/output error"):
        files.claim(folder, identity())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_server_without_locks_can_be_used_by_engines_only(
    folder: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("fcntl.lockf", failing(lambda *_: None, number, False))
    fd = files.claim(folder, identity())
    assert fd is not None
    os.close(fd)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.claim(folder, {"token": "t"})


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO])
def test_a_result_counts_although_rename_reports_a_failure(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    writer = files.ResultWriter(folder, "nonce")
    monkeypatch.setattr(os, "rename", failing(os.rename, number, True))
    assert writer.publish({"token": "t", "exit_code": 4})
    assert json.loads((tmp_path / "result").read_text()) == {"token": "t", "exit_code": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    os.close(writer._fd)


def test_runners_with_the_same_pid_on_two_machines_share_no_file(folder: int, tmp_path: Path) -> None:
    one, two = files.ResultWriter(folder, "a"), files.ResultWriter(folder, "b")
    two.discard()
    assert one.publish({"exit_code": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    for writer in (one, two):
        os.close(writer._fd)
