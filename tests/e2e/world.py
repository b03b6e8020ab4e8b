"""A user's folder with a scheduler: its jobs file, its state file and the command line."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_scheduler.cli import main
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests import warm
from tests.fakes.conda import plant
from tests.processes import sweep
from tests.stress.harness import environment
from tests.waiting import wait_for

CONDA = Path(__file__).resolve().parents[1] / "fakes" / "conda.sh"


class World:
    """A user's folder. Tests use it through the command line, as a user does.

    If `is_warm` is set, commands are forked from a process that has already imported the program.
    """

    def __init__(
        self, folder: Path, state: str = "gpu_scheduler_state.json", *, is_warm: bool = True
    ) -> None:
        self.is_warm = is_warm
        self.folder = folder
        self.state = state
        self.jobs_file = folder / "jobs.txt"
        self.process: subprocess.Popen[bytes] | warm.Process | None = None
        self.env = environment() | {"FAKE_CONDA_ROOT": str(folder / "conda")}

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs one command and returns its result."""
        words = ("--state-file", self.state, *words)
        if not self.is_warm:
            return subprocess.run(
                [sys.executable, "-m", "gpu_scheduler", *words],
                cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return warm.run("gpu_scheduler", words, self.folder, self.env)

    def run_ok(self, *words: str) -> str:
        """Runs a command that must succeed, and returns its output."""
        done = self.cli(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *options: str, module: str = "gpu_scheduler") -> None:
        """Starts a scheduler with four simulated GPUs in the background and waits until it is ready."""
        with open(self.output_file, "ab") as out:
            at = out.tell()
            words = ["start", "--simulate", "4", "--log-dir", "logs", "--state-file", self.state, *options]
            self.process = warm.Process(module, words, self.folder, self.env, out.fileno(), out.fileno())

        def up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            return b"scheduler up" in self.output_file.read_bytes()[at:]

        wait_for(up, "scheduler up")

    @property
    def output_file(self) -> Path:
        """The file with the output of every `start`."""
        return self.folder / f"{self.state}.out"

    def output(self) -> str:
        """Returns the combined output of every `start`."""
        return self.output_file.read_text()

    def end_scheduler(self, number: int = signal.SIGTERM) -> int:
        """Signals the scheduler, waits for its end and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def append(self, *lines: str) -> None:
        """Appends lines to the jobs file, as `echo LINE >> jobs.txt` does."""
        with open(self.jobs_file, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def status(self) -> dict[str, Any]:
        """Returns the output of `status --json --all`. Runs it in this process, because tests poll it."""
        output, errors = io.StringIO(), io.StringIO()
        words = ["status", "--json", "--all", "--state-file", str(self.folder / self.state)]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(words)
        assert code == 0, f"{words}: {code}: {errors.getvalue()}"
        found: dict[str, Any] = json.loads(output.getvalue())
        return found

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Returns the jobs that `status` lists, by id."""
        return {job["id"]: job for job in self.status()["jobs"]}

    def wait_until(
        self,
        condition: Callable[[dict[int, dict[str, Any]]], object],
        description: str,
        timeout_s: float = 60,
    ) -> None:
        """Waits until the jobs meet a condition."""
        jobs: dict[int, dict[str, Any]] = {}

        def poll() -> object:
            jobs.clear()
            jobs.update(self.jobs())
            return condition(jobs)

        try:
            wait_for(poll, description, timeout_s, every_s=0.05)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\njobs: {json.dumps(jobs, indent=1)[-3000:]}\n{self.output()[-3000:]}"
            ) from None

    def wait_finished(self, *ids: int, timeout_s: float = 60) -> dict[int, dict[str, Any]]:
        """Waits until these jobs, or all jobs if none are given, have finished. Returns all jobs."""

        def met(jobs: dict[int, dict[str, Any]]) -> bool:
            wanted = ids or tuple(jobs)
            return bool(wanted) and all(i in jobs and jobs[i]["state"] == "finished" for i in wanted)

        self.wait_until(met, f"jobs {ids or 'all'} finished", timeout_s)
        return self.jobs()

    def close(self) -> None:
        """Ends the scheduler and every process of its jobs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        home = DataDir.of(str(self.folder / self.state))
        if home.database.exists():
            store = Store(home)
            for row in store.active_attempts():
                sweep(
                    store.data_dir.attempt_folder(row),
                    row.token,
                    0.0,
                )
            store.close()

    def wait_for_lines(self, name: str, count: int = 1, timeout_s: float = 60) -> list[str]:
        """Waits until a file that a job writes has `count` lines. Returns the lines."""
        path = self.folder / name

        def lines() -> list[str]:
            with contextlib.suppress(OSError):
                found = path.read_text().splitlines()
                if len(found) >= count:
                    return found
            return []

        return wait_for(lines, f"{count} lines in {name}", timeout_s)


def make_conda(folder: Path, *names: str) -> None:
    """Creates environments for the fake conda."""
    plant(folder / "conda", *names)
