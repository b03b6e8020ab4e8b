"""Makes attempts with real folders, runners and processes for tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gpu_scheduler.attempts.executors import DirectExecutor, Executor
from gpu_scheduler.attempts.folder import AttemptRef, observe, prepare, request_stop
from gpu_scheduler.attempts.observe import processes_of, sweep_once
from gpu_scheduler.core.command.build import REPORT_START
from gpu_scheduler.core.model.job import AttemptResult, AttemptStatus, OnTimeout, StopRequest
from gpu_scheduler.runner.folder import START, boot_id

T = TypeVar("T")


def wait_for(condition: Callable[[], T | bool | None], description: str, deadline_s: float = 60.0) -> T:
    """Calls `condition` until its result is true, and returns it.

    Fails at the deadline and shows the last result.
    """
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer  # type: ignore[return-value]
        assert time.monotonic() < end, f"not in {deadline_s} s: {description}; last answer {answer!r}"
        time.sleep(0.005)


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Makes a folder with a short path for Screen's sockets. Removes it once no SCREEN uses it."""
    folder = Path(tempfile.mkdtemp(prefix="scr", dir="/tmp"))
    mark = f"SCREENDIR={folder}".encode()
    yield folder
    wait_for(lambda: not _any_process_with(mark), f"no process with {mark!r}")
    shutil.rmtree(folder)


def _any_process_with(variable: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            # Kernel threads, zombies and processes inside exec have an empty environment.
            if variable in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


class PreparedAttempt:
    """An attempt. Its command.sh writes the begin byte and then runs the bash text `script`."""

    def __init__(self, home: Path, script: str, name: str = "1-abc", **spec: object) -> None:
        self.token = secrets.token_hex(16)
        self.folder = home / "runs" / "7" / name
        self.log = home / f"{self.token}.log"
        self.log.touch(mode=0o600)
        self.spec: dict[str, object] = {
            "job": 7,
            "attempt": 1,
            "token": self.token,
            "boot_id": boot_id(),
            "cwd": str(home),
            "umask": 0o022,
            "env": {"PATH": os.environ["PATH"], "GPU_SCHEDULER_TOKEN": self.token},
            "terminal": False,
            "session": None,
            "log": str(self.log),
            "header": "",
            "timeout_s": None,
            "term_grace_s": 10.0,
            **spec,
        }
        self.command_sh = REPORT_START + script

    @property
    def ref(self) -> AttemptRef:
        """The reference by which an executor identifies the attempt."""
        return AttemptRef(7, 1, self.token, self.folder)

    def prepare(self) -> None:
        """Makes the attempt folder."""
        prepare(self.folder, self.spec, self.command_sh)

    def launch(self, executor: Executor | None = None) -> PreparedAttempt:
        """Makes the attempt folder and starts a runner."""
        self.prepare()
        (executor or DirectExecutor()).launch(self.ref)
        return self

    def status(self) -> AttemptStatus:
        """Returns the attempt status that the folder shows."""
        return observe(self.folder, self.token)

    def result(self, deadline_s: float = 60.0) -> AttemptResult:
        """Waits for the result and returns it."""
        return wait_for(lambda: self.status().result, f"a result in {self.status()}", deadline_s)

    def until_live(self) -> AttemptStatus:
        """Waits until the claim is live; returns the attempt status."""
        return wait_for(lambda: self.status().claim == "live" and self.status(), f"a claim: {self.status()}")

    def until_logged(self, text: str) -> None:
        """Waits until the log contains this text."""
        wait_for(lambda: text in self.output(), f"{text!r} in the log")

    def output(self) -> str:
        """Returns the content of the log."""
        return self.log.read_bytes().decode("utf-8", "surrogateescape")

    def body(self) -> str:
        """Returns the content of the log up to the last line, which the runner writes."""
        return self.output().rpartition("--- ")[0]

    def stop(
        self,
        cause: str = "cancelled",
        grace_s: float = 5.0,
        follow: OnTimeout = "kill",
        stop_id: str = "",
        signal: str = "TERM",
    ) -> bool:
        """Asks the runner to end the command. Returns whether the request reached a live runner."""
        return request_stop(self.folder, self.token, StopRequest(cause, grace_s, follow, stop_id, signal))

    def pids(self) -> tuple[int, ...]:
        """Returns the pids of the attempt's live processes."""
        return processes_of({self.token: self.folder}).get(self.token, ())

    def until_gone(self) -> None:
        """Waits until the attempt has no processes."""
        wait_for(lambda: not self.pids(), f"the end of {self.pids()}")

    def clean(self) -> None:
        """Ends all remaining processes of the attempt."""
        wait_for(lambda: not sweep_once(self.folder, self.token, signal.SIGKILL), "sweep")


def patched(home: Path, patch: str) -> DirectExecutor:
    """Returns an executor whose runners first run the Python code `patch` (it may replace `os` functions)."""
    start = home / f"start_{secrets.token_hex(4)}.py"
    start.write_text(f"import os, sys\n{patch}\n__file__ = {START!r}\nexec(open({START!r}).read())\n")
    return DirectExecutor(sys.executable, str(start))


def killed_at(home: Path, function: str) -> DirectExecutor:
    """Returns an executor whose runners kill themselves instead of calling `function` ("os.unlink")."""
    return patched(home, f"{function} = lambda *a, **k: os.kill(os.getpid(), 9)")
