"""P5: jobs that declare much memory are appended at the same time. No memory may be allocated twice.

Each round appends two jobs of 14 GiB in one write, for two GPUs of 24 GiB, and a third job at once or a
moment later. Foreign processes start, fluctuate and end, and the scheduler is killed and restarted.

A job takes its memory late and slowly, and often takes far less than it declared. A scheduler that relies on
the memory in use would therefore treat promised memory as free. A large foreign process reaches its peak
before the jobs of its round are appended, and drops before they start. Small foreign processes, for which
there is always room, start at any time.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from gpu_scheduler.store.store import Store
from gpu_scheduler.system import simulated_usage
from tests.stress import memory_judge as judging
from tests.stress.harness import Stage, pause, program_for, scheduler
from tests.stress.memory_judge import ForeignProcess, Watcher
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, outcomes_of
from tests.waiting import wait_for

_GPUS, _GPU_MIB = 2, 24 * 1024
#: Memory that the two kinds of jobs declare, in GiB.
_BIG, _SMALL = 14, 8
#: MiB that are free on a GPU beside a big job and a small one.
_BESIDE_MIB = _GPU_MIB - (_BIG + _SMALL) * 1024 - 512
_USE = Path(__file__).with_name("memory_use.py")
#: Seconds within which all appended jobs must end.
_ALL_S = 60.0


def allocations(order: Order) -> Findings:
    """Runs 200 rounds, then judges them together."""
    found, rounds = Findings(), order.scaled(200, 2)
    round_ = _Rounds(order, found)
    try:
        done = all(round_.run(number) for number in range(rounds)) and round_.until_left(0)
    finally:
        round_.close()
    found.figures = {"rounds": rounds, "jobs": len(round_.codes), **found.figures}
    if not done:
        found.fault("stuck", round_.why)
    round_.judge()
    return found


class _Rounds:
    """A scheduler, its users, and foreign processes on its GPUs.

    codes: the exit code of each job, by number; why: the reason if jobs did not end in time.
    """

    def __init__(self, order: Order, found: Findings) -> None:
        self.codes: dict[int, int] = {}
        self.why = ""
        self._sent_at: dict[int, float] = {}
        self._found, self._is_control, self._dice = found, order.is_control, order.rng("memory")
        self._stage = _stage(order)
        self._process = self._stage.start()
        self._store = None if self._is_control else self._stage.store()
        sim = self._stage.home.simulation
        sim.mkdir(exist_ok=True)
        self._foreign = _ForeignProcesses(sim, self._dice, found)
        home = None if self._is_control else self._stage.home
        self._watcher = Watcher(home, sim, _GPU_MIB, lambda: [*self._foreign.all])
        self._watcher.start()

    def close(self) -> None:
        """Kills the scheduler, and ends the foreign processes and the watcher."""
        self._foreign.end_all()
        self._process.kill()
        self._process.wait()
        if self._store is not None:
            self._store.close()
        self._watcher.stop()

    def run(self, number: int) -> bool:
        """Appends two jobs in one write, and a third job. Returns False if earlier jobs do not end.

        Of sixteen rounds, four start a large foreign process, four start a small one, and three kill the
        scheduler.
        """
        dice, kind = self._dice, number % 4
        kill = number % 16 in (1, 6, 9) and not self._is_control
        large = kind == 2 and not self._is_control
        if not self.until_left(0 if large else dice.choice((0, 1, 3, 4))):
            return False
        if large:
            self._foreign.end_all()
            # A big job really fits beside some of these processes. Beside most of them it only seems to fit,
            # while they use little memory.
            peak_mib = dice.choice((dice.randint(2000, 10_000), *[dice.randint(10_300, 16_000)] * 3))
            self._foreign.start_one(peak_mib, self._store)
            pause(dice.choice((0.0, 0.3)))
        self._append(_BIG, _BIG)
        pause(dice.choice((0.0, dice.uniform(0, 0.2), dice.uniform(0, 0.6))))
        if kill:
            self._process.kill()
            self._process.wait()
            self._found.count("scheduler kills")
        self._append(_BIG, *[_SMALL] * (dice.random() < 0.3))
        if kill:
            pause(dice.choice((0.0, dice.uniform(0, 0.4))))
            self._process = self._stage.start(ready=dice.random() < 0.5)
        if kind == 0 and not self._is_control:
            self._foreign.start_one(dice.randint(200, _BESIDE_MIB))
        if dice.random() < 0.7:
            pause(dice.uniform(0, 0.3))
            self._foreign.end_all()
        return True

    def _append(self, *sizes: int) -> None:
        lines = []
        for gib in sizes:
            number, dice = len(self.codes), self._dice
            self._sent_at[number] = time.monotonic()
            self.codes[number] = dice.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 7))
            declared = gib * 1024
            used = dice.choice((declared, dice.randint(50, declared), dice.randint(50, declared // 3)))
            ramp, hold = dice.choice((0, 0, 0, 0.1, 0.2, 0.6)), dice.choice((0, 0, 0.05, 0.1, 0.3, 0.6))
            words = f"{declared} {used} {ramp} {hold} {self.codes[number]} {dice.choice(('asks', 'takes'))}"
            job = f"{sys.executable} -I -S {_USE} job {self._stage.trace} {number} {words}"
            lines.append(f"[vram={gib}G] {job}")
        self._stage.append(lines)

    def until_left(self, jobs: int) -> bool:
        """Waits until at most `jobs` jobs are left; if it is 0, until every allocation is released.

        Returns False if the jobs do not end in time.
        """
        end = time.monotonic() + _ALL_S
        while self._left() > jobs:
            ended = self._process.poll() is not None
            if ended or time.monotonic() > end:
                what = "the scheduler ended" if ended else f"jobs were left after {_ALL_S:.0f} s"
                self.why = f"{what}; its output: {self._stage.output_file.read_text()[-2000:]}"
                return False
            pause(0.01)
        return True

    def _left(self) -> int:
        if self._store is None:
            trace = self._stage.trace
            ended = trace.read_text().count(" end ") if trace.exists() else 0
            return len(self.codes) - ended
        row = self._store.db.row(
            "SELECT (SELECT count(*) FROM job WHERE state = 'finished')"
            " - (SELECT count(*) FROM attempt WHERE released_boot IS NULL AND outcome IS NOT NULL) AS n"
        )
        assert row is not None
        return len(self.codes) - int(row["n"])

    def judge(self) -> None:
        """Adds the faults and the figures of all rounds to the findings."""
        found, others = self._found, self._foreign.all
        outcomes: dict[int, int | str | None] = {**self.codes}
        if not self._is_control:
            outcomes = outcomes_of(self._stage.status())
        judge(self._stage.trace, self.codes, outcomes, killed=False).report_to(found)
        lived, full = judging.spans_in_trace(self._stage.trace)
        for text in judging.overcommitments([*lived.values(), *others], _GPU_MIB):
            found.fault("double allocations", f"according to the jobs' traces: {text}")
        for text in self._watcher.overfull.values():
            found.fault("GPUs over-full", text)
        for number in full:
            found.fault("out of memory", f"job {number}")
        found.figures["jobs that waited"] = judging.count_waits(lived, self._sent_at)
        found.figures["samples"] = self._watcher.samples
        if not self._is_control:
            self._judge_record(lived)

    def _judge_record(self, lived: dict[int, judging.Span]) -> None:
        store = self._stage.store()
        try:
            held = judging.spans_in_store(store)
        finally:
            store.close()
        spans = [span for spans in held.values() for span in spans]
        for text in judging.overcommitments([*spans, *self._foreign.all], _GPU_MIB):
            self._found.fault("double allocations", f"according to the store: {text}")
        for text in self._watcher.double_allocations.values():
            self._found.fault("double allocations", f"observed: {text}")
        for text in judging.released_early(lived, held):
            self._found.fault("released early", text)
        self._found.figures["peak allocation (MiB)"] = self._watcher.peak_mib


class _ForeignProcesses:
    """Foreign processes, at most one on each GPU. all: every process so far, even if it has ended."""

    def __init__(self, sim: Path, dice: random.Random, found: Findings) -> None:
        self.all: list[ForeignProcess] = []
        self._sim, self._dice, self._found = sim, dice, found
        self._live: dict[int, tuple[ForeignProcess, subprocess.Popen[str]]] = {}

    def start_one(self, peak_mib: int, observed_by: Store | None = None) -> None:
        """Starts a foreign process on a GPU without one, if there is such a GPU.

        observed_by: the store that must contain the process's peak before the process counts and lowers its
        use; with None, it does both at once.
        """
        free = [gpu for gpu in range(_GPUS) if gpu not in self._live]
        if not free:
            return
        gpu = self._dice.choice(free)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_USE), "other", *map(str, (gpu, peak_mib, peak_mib // 5))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={simulated_usage.FOLDER_VARIABLE: str(self._sim)},
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        other = ForeignProcess(f"process {process.pid}", gpu, peak_mib, time.monotonic(), pid=process.pid)
        self._live[gpu] = other, process
        if process.stdout.readline() != "there\n":
            return  # the process failed; `end_all` will find its exit code
        if observed_by is not None:
            wait_for(lambda: _is_observed(observed_by, other), f"{other} is in the store")
            other.begin = time.monotonic()
        self.all.append(other)
        process.stdin.write("\n")
        process.stdin.flush()
        self._found.count("foreign processes")

    def end_all(self) -> None:
        """Ends all foreign processes."""
        for other, process in self._live.values():
            other.end = time.monotonic()
            process.communicate()
            if process.returncode != 0:
                self._found.fault("out of memory", f"{other.who}: exit code {process.returncode}")
        self._live.clear()


def _is_observed(store: Store, other: ForeignProcess) -> bool:
    held = [one for row in store.gpus() for one in row.foreign_peaks.items()]
    return any(pid == other.pid and mib >= other.mib for (pid, _), mib in held)


def _stage(order: Order) -> Stage:
    (order.folder / "jobs.txt").touch()
    if not order.is_control:
        options = ("--poll", "0.2")
        command = scheduler(order.folder, *options, gpus=_GPUS, program=program_for(order))
        return Stage(order.folder, command=command)
    stage = Stage(order.folder)
    words = map(str, (stage.jobs_file, stage.home.simulation, _GPUS, _GPU_MIB))
    return Stage(order.folder, command=[sys.executable, "-m", "tests.stress.control_memory", *words])
