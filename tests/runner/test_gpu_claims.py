"""Tests that a runner holds the claims on its attempt's GPUs, and what happens if it does not get them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor, ForkingExecutor
from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.runner.locks import Lock
from tests.isolation import LOCK_DIR
from tests.runner.attempt import PreparedAttempt, patched, wait_for
from tests.runner.conftest import Make
from tests.runner.fork_helper import helper_pid
from tests.runner.lock_process import LockProcess, lock_processes, locks_on
from tests.runner.test_shortage import FAILING

TOTAL_MIB = 1000


@pytest.fixture
def locks() -> Path:
    """Makes the lock folder of this test."""
    folder = Path(os.environ[LOCK_DIR])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def other(locks: Path) -> Iterator[LockProcess]:
    """Starts another process that can claim GPUs."""
    with lock_processes(locks, 1) as (process,):
        yield process


def claims(
    locks: Path, *gpus: str, mib: int | None = None, total_mib: int | None = None
) -> dict[str, object]:
    """Returns the claims on these GPUs as in spec.json."""
    return {
        "folder": str(locks),
        "gpus": [{"name": name, "mib": mib, "total_mib": total_mib} for name in gpus],
    }


def holders(locks: Path, name: str) -> list[int]:
    return [lock.pid for lock in locks_on(locks, name)]


def mib_of(lock: Lock) -> int:
    assert lock.end is not None
    return lock.end - lock.start


@pytest.fixture
def forking() -> Iterator[ForkingExecutor]:
    """Makes an executor whose helper is ready."""
    made = ForkingExecutor()
    wait_for(lambda: helper_pid(made), "the helper")
    yield made
    made.close()


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_runner_holds_its_claims_while_the_command_runs(
    make: Make, locks: Path, forking: ForkingExecutor, terminal: bool, forks: bool
) -> None:
    attempt = make("echo ready; read _ < go", terminal=terminal, gpu_claims=claims(locks, "GPU-a", "GPU-b"))
    os.mkfifo(attempt.folder.parents[2] / "go")
    attempt.launch(forking if forks else DirectExecutor())
    attempt.until_logged("ready")
    runner = attempt.status().pid
    for name in ("GPU-a", "GPU-b"):
        (lock,) = locks_on(locks, name)
        assert (lock.start, lock.end, lock.pid) == (0, None, runner)
    (attempt.folder.parents[2] / "go").write_text("\n")
    assert attempt.result().exit_code == 0
    assert holders(locks, "GPU-a") == holders(locks, "GPU-b") == []


def test_the_claims_are_gone_when_the_result_appears(make: Make, locks: Path, tmp_path: Path) -> None:
    # The runner waits immediately before it renames its result.
    os.mkfifo(tmp_path / "go")
    patch = (
        "real = os.rename\n"
        "def rename(old, new, **more):\n"
        "    if new == 'result':\n"
        f"        open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        f"        open({str(tmp_path / 'go')!r}).close()\n"
        "    return real(old, new, **more)\n"
        "os.rename = rename\n"
    )
    attempt = make("exit 0", gpu_claims=claims(locks, "GPU-a")).launch(patched(tmp_path, patch))
    wait_for((tmp_path / "ready").exists, "the end of the command")
    assert attempt.status().claim == "live"
    assert (locks / "GPU-a").exists()
    assert holders(locks, "GPU-a") == []
    (tmp_path / "go").write_text("")
    assert attempt.result().exit_code == 0


def test_the_processes_of_the_command_hold_no_claim(make: Make, locks: Path) -> None:
    script = "sleep 600 & ls -l /proc/self/fd /proc/$!/fd; kill $!; read _ < go"
    attempt = make(script, gpu_claims=claims(locks, "GPU-a"))
    os.mkfifo(attempt.folder.parents[2] / "go")
    attempt.launch()
    attempt.until_logged("/proc/self/fd")
    wait_for(lambda: attempt.output().count("pipe:") > 2, "the list of open files")
    assert "GPU-a" not in attempt.output()
    assert holders(locks, "GPU-a") == [attempt.status().pid]
    (attempt.folder.parents[2] / "go").write_text("\n")
    attempt.result()


def test_the_command_does_not_run_if_another_program_has_claimed_a_gpu(
    make: Make, other: LockProcess, locks: Path, tmp_path: Path
) -> None:
    assert other.claim(("GPU-b", None, None)) == "held"
    attempt = make(f"touch {tmp_path}/ran", gpu_claims=claims(locks, "GPU-a", "GPU-b")).launch()
    result = attempt.result()
    assert (result.began, result.exit_code, result.signal, result.cause) == (False, None, None, None)
    assert (result.claimed_gpu, result.claimed_by) == ("GPU-b", other.pid)
    assert (result.shortage, result.failure) == (None, None)
    assert f"GPU-b was claimed by process {other.pid} first" in attempt.output()
    assert not (tmp_path / "ran").exists()
    assert holders(locks, "GPU-a") == []
    assert holders(locks, "GPU-b") == [other.pid]


def test_the_claims_last_until_the_leftover_processes_have_ended(make: Make, locks: Path) -> None:
    leftover = "trap 'echo asked; read _ < go; exit' TERM; echo up; while :; do sleep 0.05; done"
    attempt = make(f"({leftover}) & until grep -q up $LOG; do sleep 0.05; done; exit 3")
    attempt.spec["gpu_claims"] = claims(locks, "GPU-a")
    attempt.command_sh = attempt.command_sh.replace("$LOG", str(attempt.log))
    os.mkfifo(attempt.folder.parents[2] / "go")
    attempt.launch()
    attempt.until_logged("asked")
    assert holders(locks, "GPU-a") == [attempt.status().pid]
    (attempt.folder.parents[2] / "go").write_text("\n")
    assert (attempt.result().exit_code, attempt.result().survivors) == (3, ())
    assert holders(locks, "GPU-a") == []


def test_a_stop_before_the_command_claims_no_gpu(make: Make, other: LockProcess, locks: Path) -> None:
    assert other.claim(("GPU-a", None, None)) == "held"
    attempt = make("exit 0", gpu_claims=claims(locks, "GPU-a"))
    attempt.prepare()
    attempt.stop()
    DirectExecutor().launch(attempt.ref)
    result = attempt.result()
    assert (result.cause, result.claimed_gpu) == ("cancelled", None)


def test_fifty_simultaneous_starts_fit_on_the_gpu_that_they_fill(
    make: Make, locks: Path, forking: ForkingExecutor
) -> None:
    go = locks.parent / f"{locks.name}-go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done"
    made = [
        make(script, gpu_claims=claims(locks, "GPU-a", mib=TOTAL_MIB // 50, total_mib=TOTAL_MIB))
        for _ in range(50)
    ]
    for attempt in made:
        attempt.prepare()
    try:
        for attempt in made:
            forking.launch(attempt.ref)
        wait_for(lambda: all(one.status().is_over or began(one) for one in made), "50 started commands")
        held = locks_on(locks, "GPU-a")
        assert {lock.pid for lock in held} == {one.status().pid for one in made}
        assert sum(map(mib_of, held)) == TOTAL_MIB
    finally:
        go.touch()
    assert {one.result().exit_code for one in made} == {0}
    go.unlink()


def began(attempt: PreparedAttempt) -> bool:
    return (attempt.folder / "command.pid").exists() and attempt.token.encode() in (
        attempt.folder / "command.pid"
    ).read_bytes()


def test_a_killed_runner_frees_its_gpu_at_once(make: Make, other: LockProcess, locks: Path) -> None:
    attempt = make("echo ready; sleep 600", gpu_claims=claims(locks, "GPU-a")).launch()
    attempt.until_logged("ready")
    runner = attempt.status().pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: attempt.status().claim == "dead", "the end of the runner")
    assert other.claim(("GPU-a", None, None)) == "held"
    assert attempt.pids()  # the command outlives its runner until a sweep ends it


def test_an_unusable_lock_file_is_a_failed_launch(make: Make, locks: Path) -> None:
    (locks / "GPU-a").symlink_to("/etc/passwd")
    attempt = make("exit 0", gpu_claims=claims(locks, "GPU-a")).launch()
    result = attempt.result()
    assert (result.began, result.failure, result.shortage) == (False, FailureKind.GPU_CLAIM, None)
    remedy = "its owner or root must remove it while no program uses this GPU"
    assert result.message == f"the lock file {locks}/GPU-a is a symbolic link; {remedy}"
    assert result.message in attempt.output()


def test_a_missing_lock_folder_is_a_failed_launch(make: Make, locks: Path) -> None:
    locks.rmdir()
    result = make("exit 0", gpu_claims=claims(locks, "GPU-a")).launch().result()
    assert result.failure is FailureKind.GPU_CLAIM
    assert result.message == (
        f"the lock file {locks}/GPU-a cannot be used: No such file or directory; `doctor` checks its folder"
    )


def test_a_shortage_of_descriptors_during_the_claim_is_reported_as_a_shortage(
    make: Make, locks: Path, tmp_path: Path
) -> None:
    patch = "real = os.open\n" + (
        "def opening(path, *a, **k):\n"
        "    if str(path).endswith('GPU-a'):\n"
        "        raise OSError(24, os.strerror(24), path)\n"
        "    return real(path, *a, **k)\n"
        "os.open = opening\n"
    )
    attempt = make("exit 0", gpu_claims=claims(locks, "GPU-a"))
    result = attempt.launch(patched(tmp_path, patch)).result()
    assert (result.began, result.shortage, result.failure) == (False, 24, None)


def test_a_lost_claim_is_reported_as_such_even_if_no_process_can_be_started(
    make: Make, other: LockProcess, locks: Path, tmp_path: Path
) -> None:
    assert other.claim(("GPU-a", None, None)) == "held"
    executor = patched(tmp_path, FAILING + "failing('posix_spawn', 11, range(99))")
    result = make("exit 0", gpu_claims=claims(locks, "GPU-a")).launch(executor).result()
    assert (result.claimed_by, result.shortage) == (other.pid, None)


@pytest.mark.parametrize("changes", [{}, {"gpu_claims": None}])
def test_an_attempt_without_claims_runs(make: Make, changes: dict[str, object]) -> None:
    assert make("exit 5", **changes).launch().result().exit_code == 5
