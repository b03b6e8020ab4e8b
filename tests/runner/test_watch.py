"""Tests of runners that watch a process that was started elsewhere, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor, ForkingExecutor
from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.process_scan import is_running, ticks_of
from tests.processes import is_zombie
from tests.runner.attempt import PreparedAttempt, patched, wait_for
from tests.runner.conftest import Make
from tests.runner.test_start import SLOW

#: Python code that waits until the file `go` exists, and then exits with the code in it.
WAIT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nos._exit(int(open('go').read()))"
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').close()\n"

#: Python code whose child process writes its pid to the file `child`; the parent runs the code `{}`.
FORK = (
    "import os\nif os.fork():\n  {}\nelse:\n"
    "  open('new', 'w').write(str(os.getpid()))\n  os.rename('new', 'child')\n"
)

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts a Python program in the test's folder. It is killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def one(code: str, **options: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", code]
        started.append(subprocess.Popen(command, cwd=tmp_path, **options))  # type: ignore[call-overload]
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


def watch_of(pid: int, **changes: object) -> dict[str, object]:
    """Returns the value of `watch` in the spec for a living process."""
    watch = {"pid": pid, "start_ticks": ticks_of(pid), "boot_id": boot_id(), "started_at": 1000.5}
    return {**watch, **changes}


def watched(make: Make, process: subprocess.Popen[bytes], **changes: object) -> PreparedAttempt:
    """Launches a watcher of the process and waits until it has claimed the attempt."""
    attempt = make("exit 99", watch=watch_of(process.pid, **changes))
    attempt.launch().until_live()
    return attempt


def child_in(folder: Path) -> int:
    """Returns the pid that a program with FORK writes."""
    wait_for((folder / "child").exists, "the pid of the child")
    return int((folder / "child").read_text())


def finish(folder: Path, code: int) -> None:
    (folder / "new").write_text(str(code))
    (folder / "new").rename(folder / "go")


@pytest.mark.parametrize("code", [0, 3])
def test_a_watcher_reports_the_exit_code_of_a_process_that_it_did_not_start(
    make: Make, start: Start, tmp_path: Path, code: int
) -> None:
    process = start(WAIT)
    attempt = watched(make, process)
    finish(tmp_path, code)
    # The process stays a zombie, because this test has not collected it.
    result = attempt.result()
    assert is_zombie(process.pid)
    assert (result.cause, result.exit_code, result.signal, result.began) == (None, code, None, True)
    assert result.started_at == 1000.5


def test_a_watcher_reports_the_exit_code_of_a_process_that_its_parent_collects_at_once(
    make: Make, start: Start, tmp_path: Path
) -> None:
    parent = start(f"{FORK.format('os.waitpid(-1, 0); os._exit(0)')}{WAIT}")
    pid = child_in(tmp_path)
    attempt = make("exit 99", watch=watch_of(pid)).launch()
    attempt.until_live()
    finish(tmp_path, 7)
    result = attempt.result()
    parent.wait()
    # Before Linux 6.15, the kernel does not tell how a collected process ended.
    assert (result.exit_code, result.signal) in {(7, None), (None, None)}
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
        assert result.exit_code == 7


def test_a_watcher_reports_the_signal_that_ended_the_process(make: Make, start: Start) -> None:
    process = start(WAIT)
    attempt = watched(make, process)
    process.send_signal(signal.SIGUSR1)
    assert (attempt.result().exit_code, attempt.result().signal) == (None, signal.SIGUSR1)


def test_a_process_that_is_gone_has_ended_without_a_code(make: Make, start: Start) -> None:
    process = start(WAIT)
    watch = watch_of(process.pid)
    process.kill()
    process.wait()
    result = make("exit 99", watch=watch).launch().result()
    assert (result.cause, result.exit_code, result.signal, result.began) == (None, None, None, True)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_process_that_reuses_the_pid_is_not_watched_or_signalled(
    make: Make, start: Start, change: dict[str, object]
) -> None:
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid, **change))
    attempt.prepare()
    attempt.stop()
    attempt.launch()
    result = attempt.result()
    assert (result.cause, result.exit_code, result.signal) == (None, None, None)
    assert process.poll() is None


def test_a_zombie_has_ended_by_itself_even_if_a_stop_is_open(
    make: Make, start: Start, tmp_path: Path
) -> None:
    process = start(WAIT)
    watch = watch_of(process.pid)
    finish(tmp_path, 5)
    wait_for(lambda: is_zombie(process.pid), "the end of the process")
    attempt = make("exit 99", watch=watch)
    attempt.prepare()
    attempt.stop()
    attempt.launch()
    assert (attempt.result().cause, attempt.result().exit_code) == (None, 5)


def test_a_cancel_ends_the_process_but_not_its_process_group(make: Make, start: Start) -> None:
    # Both are in the process group of the test, like commands of one shell without job control.
    other, process = start(WAIT), start(WAIT)
    attempt = watched(make, process)
    assert attempt.stop(grace_s=60)
    result = attempt.result()
    assert (result.cause, result.signal) == ("cancelled", signal.SIGTERM)
    assert other.poll() is None


def test_a_stop_from_before_the_watcher_is_carried_out(make: Make, start: Start) -> None:
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid))
    attempt.prepare()
    attempt.stop(grace_s=60)
    attempt.launch()
    assert (attempt.result().cause, attempt.result().signal) == ("cancelled", signal.SIGTERM)


def test_the_process_and_its_descendants_get_sigkill_after_the_grace_period(
    make: Make, start: Start, tmp_path: Path
) -> None:
    process = start(f"{FORK.format('pass')}{IGNORE}{WAIT}")
    child = child_in(tmp_path)
    wait_for(lambda: (tmp_path / "ready").exists(), "the handler")
    ticks = ticks_of(child)
    assert ticks is not None
    attempt = watched(make, process)
    attempt.stop(grace_s=0.1)
    assert attempt.result().signal == signal.SIGKILL
    assert attempt.result().survivors == ()
    wait_for(lambda: not is_running(child, ticks), "the end of the child")


def test_descendants_that_a_cancelled_process_leaves_are_ended(
    make: Make, start: Start, tmp_path: Path
) -> None:
    # Like `bash train.sh`: the shell dies of SIGTERM, and its command runs on.
    process = start(f"{FORK.format('pass')}{WAIT}")
    child = child_in(tmp_path)
    ticks = ticks_of(child)
    assert ticks is not None
    attempt = watched(make, process)
    attempt.stop(grace_s=60)
    assert attempt.result().cause == "cancelled"
    assert not is_running(child, ticks)


def test_descendants_of_a_process_that_ends_by_itself_are_left_alone(
    make: Make, start: Start, tmp_path: Path
) -> None:
    process = start(f"{FORK.format('pass')}  import time; time.sleep(600)\n{WAIT}")
    child = child_in(tmp_path)
    attempt = watched(make, process)
    finish(tmp_path, 0)
    try:
        assert attempt.result().exit_code == 0
        assert ticks_of(child) is not None
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_job_of_a_scheduler_that_the_process_started_is_not_ended_with_it(
    make: Make, start: Start, tmp_path: Path
) -> None:
    sleep = "  os.execve('/bin/sleep', ['sleep', '600'], {'GPU_SCHEDULER_TOKEN': 'x'})\n"
    process = start(FORK.format("pass") + sleep + WAIT)
    child = child_in(tmp_path)
    wait_for(lambda: b"GPU_SCHED" in Path(f"/proc/{child}/environ").read_bytes(), "the token")
    attempt = watched(make, process)
    attempt.stop(grace_s=60)
    try:
        assert attempt.result().cause == "cancelled"
        assert ticks_of(child) is not None
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_withdrawn_preemption_leaves_the_process_running(make: Make, start: Start, tmp_path: Path) -> None:
    process = start(IGNORE + WAIT)
    wait_for(lambda: (tmp_path / "ready").exists(), "the handler")
    attempt = watched(make, process)
    attempt.stop("preempted", 0.05, "withdraw")
    wait_for(lambda: (attempt.folder / "withdrawn").exists(), "the withdrawal")
    assert process.poll() is None
    finish(tmp_path, 0)
    assert (attempt.result().cause, attempt.result().exit_code) == (None, 0)


@pytest.mark.parametrize("executor", [DirectExecutor, ForkingExecutor])
def test_sigterm_ends_only_the_watcher_and_another_one_follows(
    make: Make, start: Start, tmp_path: Path, executor: type[DirectExecutor]
) -> None:
    process = start(WAIT)
    launcher = executor()
    try:
        attempt = make("exit 99", watch=watch_of(process.pid)).launch(launcher)
        runner = attempt.until_live().pid
        assert runner is not None
        os.kill(runner, signal.SIGTERM)
        wait_for(lambda: attempt.status().claim == "dead", "the end of the watcher")
        assert attempt.status().result is None
        assert not list(attempt.folder.glob(".result*"))
        assert process.poll() is None
        second = make("exit 99", watch=watch_of(process.pid)).launch(launcher)
        second.until_live()
        finish(tmp_path, 4)
        assert second.result().exit_code == 4
    finally:
        launcher.close()


def test_sigkill_of_the_watcher_leaves_the_process_and_no_process_of_the_attempt(
    make: Make, start: Start
) -> None:
    process = start(WAIT)
    attempt = watched(make, process)
    runner = attempt.status().pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    attempt.until_gone()
    attempt.clean()
    assert process.poll() is None


def test_the_watcher_does_not_write_to_the_log_of_the_process(
    make: Make, start: Start, tmp_path: Path
) -> None:
    process = start(WAIT)
    attempt = watched(make, process)
    finish(tmp_path, 0)
    attempt.result()
    assert attempt.output() == ""
    assert attempt.status().log == str(attempt.log)


def test_a_process_without_a_log_file_is_watched(make: Make, start: Start, tmp_path: Path) -> None:
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid), log=None).launch()
    attempt.until_live()
    finish(tmp_path, 0)
    assert attempt.result().exit_code == 0
    assert attempt.status().log is None


def test_the_process_is_watched_even_if_its_gpu_is_claimed(make: Make, start: Start, tmp_path: Path) -> None:
    claims = {"folder": str(tmp_path / "missing"), "gpus": [{"name": "GPU-a", "mib": 5, "total_mib": 10}]}
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid), gpu_claims=claims).launch()
    attempt.until_live()
    finish(tmp_path, 0)
    result = attempt.result()
    assert (result.exit_code, result.began, result.message, result.failure) == (0, True, None, None)


def test_a_watcher_imports_no_slow_modules(make: Make, start: Start, tmp_path: Path) -> None:
    notes = (
        "real = os.pidfd_open\n"
        "def noting(pid):\n"
        "    open(sys.argv[-1] + '/modules', 'w').write(' '.join(sys.modules))\n"
        "    return real(pid)\n"
        "os.pidfd_open = noting\n"
    )
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid)).launch(patched(tmp_path, notes))
    attempt.until_live()
    finish(tmp_path, 0)
    attempt.result()
    loaded = set((attempt.folder / "modules").read_text().split())
    assert "runner.watch" in loaded
    assert not {name.partition(".")[0] for name in loaded} & SLOW


def test_a_shortage_of_open_files_does_not_count_as_the_end_of_the_process(
    make: Make, start: Start, tmp_path: Path
) -> None:
    fails_once = (
        "import errno\nreal, calls = os.pidfd_open, []\n"
        "def failing(pid):\n"
        "    calls.append(pid)\n"
        "    if len(calls) == 1: raise OSError(errno.EMFILE, 'full')\n"
        "    return real(pid)\n"
        "os.pidfd_open = failing\n"
    )
    process = start(WAIT)
    attempt = make("exit 99", watch=watch_of(process.pid)).launch(patched(tmp_path, fails_once))
    attempt.until_live()
    assert attempt.status().result is None
    finish(tmp_path, 6)
    assert attempt.result().exit_code == 6
