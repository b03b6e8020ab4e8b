"""Callers of `run`, each of which runs one command after another on random GPUs."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.stress.claim_judge import Promise
from tests.stress.harness import Stage

#: Number of callers, and the maximum pause between two calls of one caller, in seconds.
CALLERS, _MAX_PAUSE_S = 8, 1.0
#: The number of the first command of a caller. Jobs have lower numbers.
FIRST = 1_000_000


@dataclass(frozen=True)
class Box:
    """The simulated GPUs, and where their users find each other.

    trace: the trace of all commands; sim: the simulation's folder; locks: the folder with the lock files.
    """

    gpus: int
    total_mib: int
    trace: Path
    sim: Path
    locks: Path

    def command(self, number: int, seconds: float, code: int, used_mib: int, *, claims: bool) -> list[str]:
        """Returns the command that uses GPU memory (tests.stress.claimed_command)."""
        script = str(Path(__file__).with_name("claimed_command.py"))
        words = (self.trace, number, f"{seconds:.3f}", code, used_mib, self.total_mib, self.sim)
        return [sys.executable, "-I", "-S", script, *map(str, words), str(self.locks) if claims else "-"]


@dataclass(frozen=True)
class Call:
    """One call of `run`. options: the options for `run`; may_time_out: whether they have a timeout."""

    number: int
    promise: Promise
    options: tuple[str, ...]
    code: int
    command: tuple[str, ...]
    may_time_out: bool


def random_call(number: int, box: Box, dice: random.Random, *, claims: bool = True) -> Call:
    """Returns a call for one or two whole GPUs or parts of GPUs, among all or some of the GPUs."""
    count = 2 if dice.random() < 0.2 else 1
    mib = None if dice.random() < 0.3 else dice.randint(1000, 16_000)
    allowed = set(range(box.gpus))
    options = ["--count", str(count)]
    if dice.random() < 0.3:
        chosen = set(dice.sample(sorted(allowed), 2))
        is_only = dice.random() < 0.5
        options += ["--only" if is_only else "--exclude", ",".join(map(str, sorted(chosen)))]
        allowed = chosen if is_only else allowed - chosen
    if mib is None:
        # Whole GPUs depend on claims alone, so the end of a claim must wake the caller.
        options += ["--poll", "3600"]
    else:
        options += ["--poll", "0.3", "--mb", str(mib)]
    may_time_out = dice.random() < 0.1
    if may_time_out:
        options += ["--timeout", f"{dice.uniform(0, 1):.2f}"]
    code, seconds = dice.choice((0, 0, 0, 1, 7, 42)), dice.uniform(0.05, 0.7)
    used = dice.choice((0, dice.randint(50, mib or box.total_mib)))
    command = box.command(number, seconds, code, used, claims=claims)
    promise = Promise(count, mib, frozenset(allowed))
    return Call(number, promise, tuple(options), code, tuple(command), may_time_out)


class RunCallers:
    """Eight callers. Each pauses for a random time between two calls.

    calls: every call so far, by its number; ended: the exit code of each call that was not killed, by number.
    """

    def __init__(self, stage: Stage, box: Box, dice: random.Random, *, is_control: bool) -> None:
        self.calls: dict[int, Call] = {}
        self.ended: dict[int, int] = {}
        self.is_closed = False
        self._stage, self._box, self._dice, self._is_control = stage, box, dice, is_control
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        #: When each caller that has no call makes its next one, in monotonic seconds.
        self._pauses = [0.0] * CALLERS
        self._errors = (stage.folder / "callers.err").open("ab")

    @property
    def running(self) -> list[int]:
        """The numbers of the calls that have not ended."""
        return list(self._running)

    def step(self) -> int:
        """Notes the calls that have ended and, unless the callers are closed, starts the next ones.

        Returns the number of calls that have ended.
        """
        over = [number for number, process in self._running.items() if process.poll() is not None]
        for number in over:
            self.ended[number] = self._remove(number).returncode
        if not self.is_closed:
            due = [at for at in self._pauses if at <= time.monotonic()]
            self._pauses = [at for at in self._pauses if at not in due]
            for _ in due:
                self._start()
        return len(over)

    def kill(self, number: int) -> int:
        """Kills a call and waits for its end; returns its pid."""
        process = self._remove(number)
        process.kill()
        process.wait()
        return process.pid

    def close(self) -> None:
        """Kills every call that is left."""
        for number in self.running:
            self.kill(number)
        self._errors.close()

    def _remove(self, number: int) -> subprocess.Popen[bytes]:
        self._pauses.append(time.monotonic() + self._dice.uniform(0, _MAX_PAUSE_S))
        return self._running.pop(number)

    def _start(self) -> None:
        number = FIRST + len(self.calls)
        call = random_call(number, self._box, self._dice, claims=not self._is_control)
        self.calls[number] = call
        program = self._control_program if self._is_control else self._program
        self._running[number] = subprocess.Popen(
            [*program(call), *call.command],
            cwd=self._stage.folder, env=self._stage.env, stdin=subprocess.DEVNULL,
            stdout=self._errors, stderr=self._errors,
        )  # fmt: skip

    def _program(self, call: Call) -> list[str]:
        state = ["--state-file", str(self._stage.home.state_file)]
        simulated = ["--simulate", str(self._box.gpus), *state]
        return [sys.executable, "-m", "gpu_scheduler", "run", *call.options, *simulated, "--"]

    def _control_program(self, call: Call) -> list[str]:
        mib = self._box.total_mib if call.promise.mib is None else call.promise.mib
        words = (self._box.sim, self._box.locks, self._box.total_mib, call.promise.count, mib)
        gpus = ",".join(map(str, sorted(call.promise.allowed)))
        return [sys.executable, "-m", "tests.stress.control_run", *map(str, words), gpus]
