"""A folder in which schedulers run and die, one after another, at random steps or by SIGKILL."""

from __future__ import annotations

import signal
import subprocess

from tests.stress.dying_scheduler import DIES_AT
from tests.stress.gated import end_scheduler
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order


class DyingRun:
    """One folder with its schedulers and its store. salt: makes the random numbers of the part its own.

    command: the program to run, which reads DIES_AT, in an environment with these variables. The first
    scheduler, which makes the store, does not die.
    """

    def __init__(self, order: Order, salt: str, command: list[str], env: dict[str, str]) -> None:
        self.found = Findings()
        self._dice = order.rng(salt)
        self._stage = Stage(order.folder, command=command, env={**env, DIES_AT: "0"})
        self._stage.jobs_file.touch()
        end_scheduler(self._stage.start())
        self._store = self._stage.store()
        self._scheduler: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Ends the scheduler and closes the store."""
        if self._scheduler is not None:
            end_scheduler(self._scheduler, signal.SIGKILL)
        self._store.close()

    def _start(self, *steps: int) -> None:
        """Starts a scheduler that dies at one of these steps, chosen at random; 0: it does not die."""
        self._stage.env[DIES_AT] = str(self._dice.choice(steps))
        self._scheduler = self._stage.start(ready=False)

    def _kill(self) -> None:
        """Kills the scheduler if it has not died, and counts how often that was so."""
        assert self._scheduler is not None
        self.found.count("died at a step", int(self._scheduler.poll() is not None))
        end_scheduler(self._scheduler, signal.SIGKILL)

    def _drain(self, timeout_s: float) -> None:
        """Lets a scheduler run all jobs that can run. It is a fault if that takes longer than `timeout_s`."""
        self._stage.env[DIES_AT] = "0"
        try:
            self._stage.drain(timeout_s)
        except subprocess.TimeoutExpired:
            self.found.fault("stuck", self._stage.output_file.read_text()[-2000:])
