"""Tests that a running process is read from /proc, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.system.procfs import ProcessProblem, RunningProcess, read_running_process
from tests.processes import has_arguments, is_zombie, started_at
from tests.users import User
from tests.waiting import wait_for

CODE = "import time; time.sleep(600)"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process in the test's folder with a log file, and kills it after the test."""
    with open(tmp_path / "out.log", "wb") as log:
        started = subprocess.Popen(
            ["python", "-I", "-S", "-c", CODE, "--name", "two words", "--empty="],
            executable=sys.executable,
            cwd=tmp_path,
            env={"PATH": "/nowhere", "WORDS": "a=b\nc", "BYTES": os.fsdecode(b"\xff")},
            stdout=log,
        )
    wait_for(lambda: has_arguments(started.pid))
    yield started
    started.kill()
    started.wait()


def read(pid: int) -> RunningProcess:
    found = read_running_process(pid)
    assert isinstance(found, RunningProcess), found
    return found


def test_reads_the_command_folder_environment_log_and_start_of_a_process(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    found = read(process.pid)
    assert found.arguments == ("python", "-I", "-S", "-c", CODE, "--name", "two words", "--empty=")
    assert found.executable == os.path.realpath(sys.executable)
    assert found.cwd == str(tmp_path)
    assert found.environment == {"PATH": "/nowhere", "WORDS": "a=b\nc", "BYTES": os.fsdecode(b"\xff")}
    assert found.log == str(tmp_path / "out.log")
    assert (found.start_ticks, found.boot_id) == (ticks_of(process.pid), boot_id())
    assert abs(found.started_at - started_at(process.pid)) < 1
    assert "WORDS" not in repr(found)


def test_a_deleted_or_replaced_log_is_no_log(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "out.log").unlink()
    assert read(process.pid).log is None
    (tmp_path / "out.log").touch()
    assert read(process.pid).log is None
    # The kernel names the deleted file like this one.
    (tmp_path / "out.log (deleted)").touch()
    assert read(process.pid).log is None


@pytest.mark.parametrize("output", [subprocess.DEVNULL, subprocess.PIPE])
def test_a_process_whose_output_is_no_file_has_no_log(output: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=output) as process:
        wait_for(lambda: has_arguments(process.pid))
        assert read(process.pid).log is None
        process.kill()


def test_a_deleted_program_file_keeps_its_path(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o700)
    with subprocess.Popen([program, "600"]) as process:
        program.unlink()
        assert read(process.pid).executable == str(program)
        process.kill()


def test_a_process_that_is_gone_or_a_zombie_is_no_running_process() -> None:
    process = subprocess.Popen(["/bin/true"])
    wait_for(lambda: is_zombie(process.pid))
    assert read_running_process(process.pid) is ProcessProblem.ENDED
    process.wait()
    assert read_running_process(process.pid) is ProcessProblem.GONE


def test_a_pid_that_no_process_can_have_is_gone() -> None:
    assert read_running_process(2**31 - 1) is ProcessProblem.GONE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_the_process_of_another_user_is_refused() -> None:
    user = User(54321)
    try:
        assert user.call(time.time) > 0
        assert read_running_process(user.pid) is ProcessProblem.OTHER_USER
        assert user.call(read_running_process, os.getpid()) is ProcessProblem.OTHER_USER
    finally:
        user.kill()


@pytest.mark.skipif(not Path("/proc/2/stat").exists(), reason="a container does not show kernel threads")
def test_a_kernel_thread_is_refused() -> None:
    if int(Path("/proc/2/stat").read_text().rpartition(")")[2].split()[6]) & 0x00200000 == 0:
        pytest.skip("process 2 is no kernel thread")
    assert read_running_process(2) is ProcessProblem.KERNEL_THREAD
