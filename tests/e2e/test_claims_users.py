"""Several users share GPUs with `run` and a scheduler, as processes of these users. Needs root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.isolation import LOCK_DIR
from tests.users import run_as
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"
#: One GPU of the fake NVML.
GPUS = {
    "cards": [
        {
            "uuid": "GPU-1", "name": "NVIDIA L40S", "bus": 1, "total": 24576, "used": 0, "load": 0,
            "compute": [], "graphics": [], "measured": [],
        }
    ]
}  # fmt: skip
#: A command that prints its GPUs and ends with its stdin.
HOLD = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec cat')
TIMEOUT_S = 60


class Account:
    """A user of the machine with a home folder, who runs our commands there."""

    def __init__(self, uid: int, place: Path) -> None:
        self.uid = uid
        self.home = place / f"home of {uid}"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, uid, uid)
        self.env = os.environ | {
            "HOME": str(self.home),
            "PATH": os.defpath,  # the folder on the tests' own PATH is private
            LOCK_DIR: str(place / "locks"),
            "FAKE_GPUS": str(place / "machine"),
            "PYTHONPATH": str(FAKES),
        }
        self._user = run_as(uid)
        self._started: list[subprocess.Popen[str]] = []

    def _words(self, *words: str) -> list[str]:
        return [*self._user, sys.executable, str(ROOT / "scheduler.py"), *words]

    def call(self, *words: str, code: int = 0) -> str:
        """Runs a command that must end with this exit code. Returns its output and its errors."""
        done = subprocess.run(
            self._words(*words), cwd=self.home, env=self.env, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}: {done.stdout}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command, whose errors go to the file `errors` in the home folder."""
        with open(self.home / "errors", "a") as errors:
            process = subprocess.Popen(
                self._words(*words), cwd=self.home, env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._started.append(process)
        return process

    def start_scheduler(self) -> subprocess.Popen[str]:
        """Starts a scheduler on the fake NVML's GPU, and waits until it is ready."""
        output = self.home / "output"
        with open(output, "w") as file:
            words = ("start", "--gpu-probe", "nvml", "--log-dir", str(self.home / "logs"))
            process = subprocess.Popen(
                self._words(*words), cwd=self.home, env=self.env, text=True,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        self._started.append(process)
        wait_for(lambda: "scheduler up" in output.read_text() or process.poll(), "scheduler up")
        assert process.returncode is None, output.read_text()
        return process

    def hold(self, *options: str) -> subprocess.Popen[str]:
        """Starts a command under `run` that holds its claim until its stdin is closed."""
        process = self.start("run", *options, *HOLD)
        assert line_of(process) == "0", self.errors()
        return process

    def refusal(self, *options: str) -> str:
        """Returns what `run` reports when it does not get its GPU at once."""
        return self.call("run", "--timeout", "0", *options, "--", "true", code=124)

    def errors(self) -> str:
        """Returns the errors of the commands that were started."""
        return (self.home / "errors").read_text()

    def claims(self) -> list[dict[str, Any]]:
        """Returns the claims on the GPU that this user sees."""
        claims: list[dict[str, Any]] = json.loads(self.call("gpus", "--json"))["gpus"][0]["claims"]
        return claims

    def job(self, number: int) -> dict[str, Any]:
        """Returns a job of this user's scheduler."""
        jobs = json.loads(self.call("status", "--json", "--all"))["jobs"]
        return next((job for job in jobs if job["id"] == number), {"state": None})

    def close(self) -> None:
        """Ends all commands that were started."""
        for process in self._started:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.fixture
def place() -> Path:
    """Makes a folder that all users can enter, with a fake machine and a lock folder for all users."""
    folder = Path(os.environ[LOCK_DIR])
    (folder / "machine").mkdir(parents=True)
    (folder / "machine" / "gpus.json").write_text(json.dumps(GPUS))
    (folder / "locks").mkdir()
    (folder / "locks").chmod(0o1777)
    return folder


@pytest.fixture
def account(place: Path) -> Iterator[Callable[[int], Account]]:
    """Returns a function that makes an account."""
    made: list[Account] = []

    def make(uid: int) -> Account:
        made.append(Account(uid, place))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def ann(account: Callable[[int], Account], other_uid: int) -> Account:
    return account(other_uid)


@pytest.fixture
def bob(account: Callable[[int], Account], other_uid: int) -> Account:
    return account(other_uid + 1)


def test_a_user_waits_for_the_gpu_of_another_user_and_gets_it_at_once(ann: Account, bob: Account) -> None:
    holder = ann.hold()
    expected = {"pid": holder.pid, "user": str(ann.uid), "mib": None, "by_scheduler": False}
    expected |= {"job": None, "folder": None}
    assert bob.claims() == [expected]
    text = f"claimed by run, pid {holder.pid}, user {ann.uid}"
    assert text in bob.refusal()
    assert text in bob.refusal("--mb", "1")
    waiting = bob.start("run", "--poll", "3600", *HOLD)
    wait_for(lambda: text in bob.errors(), "bob waits")
    holder.kill()
    assert line_of(waiting) == "0"
    assert [claim["user"] for claim in ann.claims()] == [str(bob.uid)]


def test_two_users_share_one_gpu_by_amounts_of_memory(
    ann: Account, bob: Account, account: Callable[[int], Account]
) -> None:
    ann.hold("--mb", "16000")
    bob.hold("--mb", "8000")
    root = account(0)
    assert [(claim["user"], claim["mib"]) for claim in root.claims()] == [
        (str(ann.uid), 16000),
        (str(bob.uid), 8000),
    ]
    assert f"16000 MiB claimed by run, pid {root.claims()[0]['pid']}, user {ann.uid}" in root.refusal(
        "--mb", "577"
    )
    root.hold("--mb", "576")


def test_a_lock_folder_or_lock_file_of_another_user_is_refused_with_the_remedy(
    place: Path, ann: Account, bob: Account
) -> None:
    ann.hold().kill()
    path = place / "locks" / "GPU-1"
    path.chmod(0o644)
    assert f"{path} is not writable for this user; its owner must run chmod 1666 on it" in bob.refusal()
    os.chown(place / "locks", ann.uid, ann.uid)
    (place / "locks").chmod(0o755)
    text = bob.call("run", *HOLD, code=2)
    assert f"the lock folder {place}/locks belongs to {ann.uid} and does not have the sticky bit" in text
    assert f"ask {ann.uid} to run `chmod 1777 {place}/locks`" in text


def test_a_scheduler_and_the_programs_of_another_user_respect_each_other(ann: Account, bob: Account) -> None:
    scheduler = ann.start_scheduler()
    fifo = ann.home / "go"
    os.mkfifo(fifo)
    os.chown(fifo, ann.uid, ann.uid)
    ann.call("add", "--", f"read line < '{fifo}'")
    wait_for(lambda: ann.job(1)["state"] == "running", "job 1 runs")
    [claim] = bob.claims()
    assert (claim["user"], claim["mib"], claim["by_scheduler"]) == (str(ann.uid), None, True)
    text = f"claimed by job 1 of {claim['folder']}, pid {claim['pid']}, user {ann.uid}"
    assert text in bob.refusal()
    # The claim does not depend on the scheduler.
    scheduler.send_signal(signal.SIGKILL)
    scheduler.communicate(timeout=TIMEOUT_S)
    assert text in bob.refusal()
    ann.start_scheduler()
    waiting = bob.start("run", "--poll", "3600", *HOLD)
    wait_for(lambda: text in bob.errors(), "bob waits")
    with open(fifo, "w") as file:
        file.write("\n")
    assert line_of(waiting) == "0"
    wait_for(lambda: ann.job(1)["state"] == "finished", "job 1 ends")
    ann.call("add", "--", "exit 7")
    reason = f"claimed by run, pid {waiting.pid}, user {bob.uid}"
    wait_for(lambda: reason in (ann.job(2).get("reason") or ""), "job 2 waits for bob's command")
    waiting.kill()
    wait_for(lambda: ann.job(2)["state"] == "finished", "job 2 ends")
    assert (ann.job(1)["exit_code"], ann.job(2)["exit_code"]) == (0, 7)
