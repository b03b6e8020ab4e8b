"""Tests, on a file system of 512 KiB, that a full disk may lose log output but never the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import recorded_command
from tests.runner.attempt import PreparedAttempt, wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = "dd if=/dev/zero of={home}/filler bs=4k 2>/dev/null; head -c 100000 /dev/zero; exit 9"


def filled_before_the_claim(home: Path) -> None:
    """Launches an attempt whose claim does not fit on the disk, then frees space and prints the result."""
    attempt = PreparedAttempt(home, f"echo >> {home}/ran; exit 9")
    attempt.prepare()
    filler = os.open(home / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(filler, bytes(4096))
    executor = DirectExecutor()
    executor.launch(attempt.ref)
    wait_for(lambda: list(attempt.folder.glob(".result.*")), "the runner has begun to reserve its result")
    assert attempt.status().claim == "none"
    assert executor.running == 1
    os.truncate(filler, 0)
    result = attempt.result()
    print(json.dumps([result.exit_code, result.cause, len((home / "ran").read_text())]))


def inside(home: Path) -> None:
    """Runs an attempt that fills the file system, and prints its result."""
    attempt = PreparedAttempt(home, SCRIPT.format(home=home)).launch()
    result = attempt.result()
    print(json.dumps([result.exit_code, result.cause, attempt.log.stat().st_size]))


def filled_before_the_begin(home: Path) -> None:
    """Runs an attempt whose command.sh fills the disk. Prints whether the command could record itself."""
    attempt = PreparedAttempt(home, f"echo $$ >&2; until [ -e {home}/go ]; do sleep 0.02; done")
    attempt.command_sh = f"dd if=/dev/zero of={home}/filler bs=1k 2>/dev/null\n{attempt.command_sh}"
    attempt.launch()
    command = wait_for(lambda: recorded_command(attempt.folder, attempt.token), "the record of the command")
    leads = os.getsid(command.pid) == command.pid
    os.truncate(home / "filler", 0)
    (home / "go").touch()
    attempt.result()
    print(json.dumps([leads]))


def on_small_disk(what: str) -> list[object]:
    """Runs this module in a folder on a file system of 512 KiB. Returns the values that it prints."""
    with tempfile.TemporaryDirectory() as home:
        mount = (
            f"mount -t tmpfs -o size=512k tmpfs {home} && exec {sys.executable} -m {__name__} {home} {what}"
        )
        answer = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", mount], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert answer.returncode == 0, answer.stderr
    said: list[object] = json.loads(answer.stdout)
    return said


can_mount = pytest.mark.skipif(
    subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode != 0,
    reason="no file system can be mounted here",
)


@can_mount
def test_the_exit_code_of_a_job_is_kept_if_the_disk_is_full() -> None:
    code, cause, logged = on_small_disk("inside")
    assert (code, cause) == (9, None)
    assert isinstance(logged, int)
    assert logged < 100000


@can_mount
def test_a_runner_waits_until_there_is_disk_space_for_its_claim() -> None:
    assert on_small_disk("filled_before_the_claim") == [9, None, 1]


@can_mount
def test_a_command_records_itself_even_on_a_full_disk() -> None:
    assert on_small_disk("filled_before_the_begin") == [True]


if __name__ == "__main__":
    tries = (inside, filled_before_the_claim, filled_before_the_begin)
    {one.__name__: one for one in tries}[sys.argv[2]](Path(sys.argv[1]))
