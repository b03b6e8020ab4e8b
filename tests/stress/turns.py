"""P15: four callers of `run` that always wait and a scheduler with a long queue take turns on two GPUs.

The GPUs are simulated. Every command says when it starts and ends. No side may wait longer than twice its
fair share, which is the time in which each of the five programs gets one GPU. In the negative control, the
callers take every GPU that is free.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from gpu_scheduler.store.store import Store
from tests.stress.gated import end_scheduler
from tests.stress.harness import Stage, pause, scheduler
from tests.stress.part import Findings, Order

_GPUS, _CALLERS = 2, 4
#: The longest wait that is allowed, as a multiple of the fair share.
_MOST = 2.0
#: Run as `sh turn.sh TRACE NAME SECONDS`. /proc/uptime has the seconds since boot.
_COMMAND = """\
read at rest < /proc/uptime; echo "$2 start $at $CUDA_VISIBLE_DEVICES" >> "$1"
sleep "$3"
read at rest < /proc/uptime; echo "$2 end $at $CUDA_VISIBLE_DEVICES" >> "$1"
"""
#: A caller: notes in TRACE when NAME looks at the GPUs for the first time, and so begins to wait. Before, its
#: interpreter starts, which takes seconds on a busy machine. Run with TRACE, NAME and the arguments.
_CALLER = """\
import sys, time
from gpu_scheduler.control.claim_gpus import _GpuSearch
from gpu_scheduler.cli import main
look = _GpuSearch.choose_and_claim
def first_look(*args):
    _GpuSearch.choose_and_claim = look
    with open(sys.argv[1], "a") as file:
        file.write(f"{sys.argv[2]} looks {time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
    return look(*args)
_GpuSearch.choose_and_claim = first_look
"""
_CALL = "sys.exit(main(sys.argv[3:]))\n"
#: What makes it a caller without turns.
_UNFAIR = """\
from gpu_scheduler.system.gpu_claims import Turns
Turns.ahead = Turns.take = lambda *args: None
Turns.wait_in_line = lambda *args: None
"""


@dataclass
class _Turn:
    """One use of a GPU. asked (when a caller began to wait), start, end: seconds since boot."""

    name: str
    gpu: str
    start: float
    end: float = 0.0
    asked: float = 0.0


def turns(order: Order) -> Findings:
    """Lets the callers and the queue take turns for 10 minutes, with commands of 1 to 3 seconds."""
    found, dice = Findings(), order.rng("turns")
    with contextlib.closing(_Place(order, dice)) as place:
        jobs = order.scaled(600, 20)
        place.stage.append([place.words(f"job{number}", dice.uniform(1, 3)) for number in range(jobs)])
        process = place.stage.start()
        # Until all callers wait, the queue has both GPUs to itself.
        place.call_until(lambda: all(caller.count > 1 for caller in place.callers))
        began = _boot_s()
        place.call_until(lambda: _boot_s() > began + order.scaled(600, 30))
        end_scheduler(process)
        _judge(place.read(), place, began, found)
        place.count_lost_launches(found)
    return found


def _judge(all_turns: list[_Turn], place: _Place, began: float, found: Findings) -> None:
    judged = [one for one in all_turns if one.start >= began and one.end]
    length = max(one.end for one in judged) - began
    fair_s = (_CALLERS + 1) * length / len(judged)
    for side in ("queue", *(caller.name for caller in place.callers)):
        if side == "queue":
            starts = sorted(one.start for one in judged if one.name.startswith("job"))
            waits = [after - before for before, after in itertools.pairwise([began, *starts, began + length])]
        else:
            waits = [one.start - one.asked for one in judged if one.name.startswith(f"{side}-")]
        worst = max(waits, default=length)
        found.figures |= {f"turns of {side}": len(waits), f"longest wait of {side} (s)": round(worst, 1)}
        if worst > _MOST * fair_s:
            found.fault("waited too long", f"{side}: {worst:.1f} s, fair share {fair_s:.1f} s")
    found.figures["fair share (s)"] = round(fair_s, 1)


def urgent(order: Order) -> Findings:
    """Lets a CRITICAL job wait beside the callers, and another one preempt a job of the queue, 20 times."""
    found, dice = Findings(), order.rng("urgent")
    with contextlib.closing(_Place(order, dice)) as place:
        process = place.stage.start("--preempt-grace", "5")
        for number in range(order.scaled(20)):
            _critical(place, number, found)
            _preemption(place, number, found)
        end_scheduler(process)
        place.count_lost_launches(found)
    return found


def _critical(place: _Place, number: int, found: Findings) -> None:
    """Submits a CRITICAL job while the callers wait; it must start within two rounds of turns."""
    place.call_until(lambda: len(place.waiting()) >= _CALLERS - _GPUS and len(place.using()) == _GPUS)
    asked, name = _boot_s(), f"critical{number}"
    place.submit("CRITICAL", place.words(name, 0.5))
    if not place.call_until(lambda: place.find(name) is not None, 60):
        found.fault("never started", f"{name} did not start within 60 s beside the callers")
        return
    start = place.find(name)
    assert start is not None
    # Each of the callers may be ahead of it once, with a command of up to 3 seconds.
    longest = (_CALLERS + 1) * 3.0
    waited = start.start - asked
    figure = "longest wait of a CRITICAL job (s)"
    found.figures[figure] = round(max(waited, float(found.figures.get(figure, 0.0))), 1)
    if waited > longest:
        found.fault("waited too long", f"{name}: {waited:.1f} s")


def _preemption(place: _Place, number: int, found: Findings) -> None:
    """Fills the GPUs with jobs, and submits one that preempts another while the callers wait."""
    names = [f"long{number}-{gpu}" for gpu in range(_GPUS)]
    for name in names:
        place.submit("LOW", place.words(name, 600))
    place.call_until(lambda: all(place.find(name) for name in names), 120)
    place.call_until(lambda: len(place.waiting()) == _CALLERS, 60)
    last, before = len(place.read()), place.preempted()
    name = f"urgent{number}"
    place.submit("CRITICAL preempt", place.words(name, 0.5))
    if not place.call_until(lambda: place.find(name) is not None, 60):
        found.fault("never started", f"{name} did not start although it preempts others")
        return
    victims = place.preempted() - before
    if victims != 1:
        found.fault("victims", f"{victims} jobs were preempted for {name}")
    between = [one.name for one in place.read()[last:] if not one.name.startswith(("urgent", "long"))]
    first = place.read()[last:][0]
    if first.name != name:
        found.fault("taken by others", f"{between} started before {name}")
    found.count("preemptions")
    place.stage.run_cli("cancel", "--all", "--grace", "1")
    place.call_until(lambda: not place.store.active_attempts(), 60)


@dataclass
class _Caller:
    """A caller that always has one `run`, which is its `count`th."""

    name: str
    process: subprocess.Popen[bytes] | None = None
    count: int = 0


class _Place:
    """A scheduler's folder with two GPUs, and the callers."""

    def __init__(self, order: Order, dice: random.Random) -> None:
        folder = order.folder
        (folder / "turn.sh").write_text(_COMMAND)
        (folder / "jobs.txt").touch()
        self.stage = Stage(folder, command=scheduler(folder, "--poll", "1", gpus=_GPUS))
        self.callers = [_Caller(f"caller{number}") for number in range(_CALLERS)]
        self._dice, self._is_control = dice, order.is_control
        self._errors = (folder / "callers.err").open("ab")
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store of the scheduler, which has been started."""
        if self._store is None:
            self._store = self.stage.store()
        return self._store

    def words(self, name: str, seconds: float) -> str:
        """Returns a command that uses a GPU for this time."""
        return f"sh {self.stage.folder}/turn.sh {self.stage.trace} {name} {seconds:.2f}"

    def submit(self, attributes: str, command: str) -> None:
        """Adds a line. attributes: its priority, and perhaps `preempt`."""
        priority, _, rest = attributes.partition(" ")
        self.stage.append([f"[priority={priority} {rest}] {command}"])

    def call_until(self, condition: object, timeout_s: float = 1e9) -> bool:
        """Lets the callers call `run` again and again until the condition is true, which it returns."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for caller in self.callers:
                if caller.process is None or caller.process.poll() is not None:
                    self._call(caller)
            assert callable(condition)
            if condition():
                return True
            pause(0.01)
        return False

    def _call(self, caller: _Caller) -> None:
        caller.count += 1
        name = f"{caller.name}-{caller.count}"
        program = _CALLER + (_UNFAIR if self._is_control else "") + _CALL
        state = ["--state-file", str(self.stage.home.state_file)]
        caller.process = subprocess.Popen(
            [sys.executable, "-c", program, str(self.stage.trace), name,
             "run", "--simulate", str(_GPUS), *state, "--",
             *self.words(name, self._dice.uniform(1, 3)).split()],
            cwd=self.stage.folder, env=self.stage.env, stdin=subprocess.DEVNULL,
            stdout=self._errors, stderr=self._errors,
        )  # fmt: skip

    def read(self) -> list[_Turn]:
        """Returns the turns so far, in the order of their starts."""
        found: dict[str, _Turn] = {}
        asked: dict[str, float] = {}
        text = self.stage.trace.read_text() if self.stage.trace.exists() else ""
        for line in text.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] == "looks":
                asked[words[0]] = float(words[2])
            elif len(words) == 4 and words[1] == "start":
                found[words[0]] = _Turn(words[0], words[3], float(words[2]), asked=asked.get(words[0], 0.0))
            elif len(words) == 4 and words[0] in found:
                found[words[0]].end = float(words[2])
        return list(found.values())

    def find(self, name: str) -> _Turn | None:
        """Returns the turn of this command; None if it has not started."""
        return next((one for one in self.read() if one.name == name), None)

    def using(self) -> list[str]:
        """Returns the names of the calls whose command runs."""
        return [one.name for one in self.read() if not one.end and one.name.startswith("caller")]

    def waiting(self) -> list[str]:
        """Returns the names of the calls whose command has not started."""
        started = {one.name for one in self.read()}
        newest = [f"{caller.name}-{caller.count}" for caller in self.callers]
        return [name for name in newest if name not in started]

    def preempted(self) -> int:
        """Returns the number of attempts that were asked to stop for another job."""
        row = self.store.db.row("SELECT count(*) AS n FROM attempt WHERE preempted_for IS NOT NULL")
        assert row is not None
        return int(row["n"])

    def count_lost_launches(self, found: Findings) -> None:
        """Adds each attempt that lost its GPU to the faults."""
        for row in self.store.db.rows("SELECT job_id, reason FROM attempt WHERE outcome = 'not_started'"):
            found.fault("launches lost", f"job {row['job_id']}: {row['reason']}")

    def close(self) -> None:
        """Ends the callers, the scheduler and the jobs."""
        for caller in self.callers:
            if caller.process is not None:
                caller.process.send_signal(signal.SIGKILL)
                caller.process.wait()
        self._errors.close()
        if self._store is not None:
            self._store.close()
        self.stage.run_cli("stop", "--jobs")


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
