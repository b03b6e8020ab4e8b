"""P4: jobs end in every possible way while runners are killed at any point. Each outcome must be right.

The true outcome follows from the jobs' traces, from the signals that this part sent, and from the attempt
folder of each killed runner: if it has the runner's claim but no result, only `interrupted` is right.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_scheduler.runner.folder import START
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.requests import add_request
from tests.stress.harness import Stage, environment, kill, pause, program_for, scheduler
from tests.stress.part import Findings, Order
from tests.stress.trace import number_of

#: Run as `sh end.sh TRACE N SECONDS END`. END is an exit code, a signal (such as `s9`) that the shell sends
#: to itself, or `b` to leave its work in the background and exit 0, so that the job has failed.
_JOB = """\
ulimit -c 0
echo "$2 start $$ ${GPU_SCHEDULER_JOB:-0}" >> "$1"
sleep "$3"
echo "$2 end $4" >> "$1"
case "$4" in
s*) kill -"${4#s}" $$; sleep 5 ;;
b) sleep 60 & exit 0 ;;
*) exit "$4" ;;
esac
"""
#: The ways in which this part ends jobs from outside. With any other ending, a job ends by itself.
_ENDED_FROM_OUTSIDE = ("cancel", "SIGTERM", "SIGTERM to the group", "random signal")


@dataclass
class JobFacts:
    """The facts about a job that are known without the store.

    runner_died: the runner died after it had claimed the attempt, and left no result.
    """

    way: str
    end: str
    at: float
    starts: int = 0
    pid: int = 0
    job_id: int = 0
    ended: str | None = None
    sent: set[int] = field(default_factory=set)
    cancelled: bool = False
    end_requested: bool = False
    runner_died: bool = False


def direct(order: Order) -> Findings:
    """Runs 2,000 jobs without a terminal and kills 670 runners."""
    return _endings(order, order.scaled(2000), order.scaled(670))


def lying_screen(order: Order) -> Findings:
    """Runs 1,000 jobs and kills 330 runners, with a fake Screen that reports false information."""
    real = shutil.which("screen")
    assert real is not None
    (order.folder / "bin").mkdir()
    fake = order.folder / "bin" / "screen"
    fake.write_text(Path(__file__).with_name("fake_screen.sh").read_text().replace("@REAL@", real))
    fake.chmod(0o755)
    env = environment()
    env["PATH"] = f"{order.folder / 'bin'}:{env['PATH']}"
    return _endings(order, order.scaled(1000), order.scaled(330), env, "--screen")


def _endings(order: Order, count: int, kills: int, env: dict[str, str] | None = None, *mode: str) -> Findings:
    found, dice = Findings(), order.rng("endings")
    (order.folder / "end.sh").write_text(_JOB)
    (order.folder / "jobs.txt").touch()
    command = scheduler(order.folder, *mode, program=program_for(order))
    if order.is_control:
        control = ["tests.stress.control_scheduler", "jobs.txt", "control.json", "16", "--wrapped"]
        command = [sys.executable, "-m", *control]
    stage = Stage(order.folder, command=command, env=env)
    facts = {n: _fact(dice) for n in range(count)}
    lines = [_line(order, stage, n, fact, dice) for n, fact in facts.items()]
    disturber = _Disturber(order, stage, facts, kills, dice)
    victim = stage.start()
    (order.folder / "lie").touch()
    try:
        while lines or disturber.busy():
            stage.append(lines[:10])
            del lines[:10]
            disturber.turn()
            pause(0.03)
    finally:
        victim.terminate()
        victim.wait(60)
    disturber.read_trace()
    for job in disturber.status():
        _judge(number_of(job["command"]), facts[number_of(job["command"])], job, found)
    found.figures = {"jobs": count, **found.figures, **disturber.figures}
    return found


def _fact(dice: random.Random) -> JobFacts:
    ways = ["code", "own signal", "pipe", "background", *_ENDED_FROM_OUTSIDE]
    way = dice.choices(ways, [38, 15, 8, 4, 12, 8, 8, 7])[0]
    if way == "background":
        return JobFacts(way, "b", 0.0)
    if way == "pipe":  # 141 would show that its pipe was closed
        return JobFacts(way, str(dice.choice([0, dice.randint(1, 140)])), 0.0)
    if way == "own signal":
        return JobFacts(way, f"s{dice.randint(2, 15)}", 0.0)  # with --screen, commands ignore SIGHUP
    return JobFacts(way, str(dice.choice([0, 0, dice.randint(0, 255)])), dice.uniform(0, 0.3))


def _line(order: Order, stage: Stage, number: int, fact: JobFacts, dice: random.Random) -> str:
    # The negative control has lost track of some jobs; wait until these end by themselves. So do shells that
    # get SIGINT while they wait for a program.
    longest = 3 if order.is_control else 60 if order.full_length else 8
    seconds = longest if fact.way in _ENDED_FROM_OUTSIDE else dice.uniform(0, 0.2)
    line = f"sh {order.folder}/end.sh {stage.trace} {number} {seconds:.3f} {fact.end}"
    line += " | cat" if fact.way == "pipe" else ""
    return line if order.is_control else f"[share=0.125] {line}"


class _Disturber:
    """Ends jobs and kills runners, and records what it did."""

    def __init__(
        self, order: Order, stage: Stage, facts: dict[int, JobFacts], kills: int, dice: random.Random
    ) -> None:
        self._order, self._stage, self._facts, self._dice = order, stage, facts, dice
        self._kills, self._read, self._state_at = kills, 0, 0.0
        self._open = len(facts)
        self.figures: dict[str, int | float | str] = dict.fromkeys(
            [
                "runners killed", "killed before the claim", "killed after the result", "jobs interrupted",
                *(f"ended by {way}" for way in _ENDED_FROM_OUTSIDE),
            ],
            0,
        )  # fmt: skip

    def busy(self) -> bool:
        """Returns whether the state of some job can still change. Reads the store at most twice a second."""
        now = time.monotonic()
        if now >= self._state_at:
            self._state_at = now + 0.5
            store = None if self._order.is_control else self._stage.store()
            if store is None:
                done = {number_of(job["command"]) for job in self.status()}
                self._open = sum(
                    # A job whose shell was killed before the job began will never begin.
                    number not in done or (fact.starts > 0 and fact.ended is None and not fact.sent)
                    for number, fact in self._facts.items()
                )
            else:
                counts = state_counts(store)
                self._open = len(self._facts) - counts.get("finished", 0) - counts.get("held", 0)
                store.close()
        return self._open > 0

    def turn(self) -> None:
        """Reads the trace, ends jobs whose time has come, and kills a runner now and then."""
        self.read_trace()
        now = time.monotonic()
        for fact in self._facts.values():
            if fact.way in _ENDED_FROM_OUTSIDE and fact.pid and now >= fact.at and not fact.end_requested:
                self._end(fact)
        if self._kills > int(self.figures["runners killed"]) and self._dice.random() < 0.8:
            self._kill_a_runner()

    def read_trace(self) -> None:
        """Reads what jobs have written into the trace since the last call."""
        if not self._stage.trace.exists():
            return
        with self._stage.trace.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            words = line.split()
            fact = self._facts[int(words[0])]
            if words[1] == "start":
                fact.starts += 1
                fact.pid, fact.job_id = int(words[2]), int(words[3])
                fact.at += time.monotonic()
            else:
                fact.ended = words[2]

    def _end(self, fact: JobFacts) -> None:
        fact.end_requested = True
        way = "SIGTERM" if self._order.is_control and fact.way == "cancel" else fact.way
        if way == "cancel":
            store = self._stage.store()
            add_request(store, "cancel", str(fact.job_id), "stress", grace_s=5.0)
            store.data_dir.ring_doorbell()
            store.close()
            fact.cancelled = True
        else:
            number = self._dice.randint(1, 15) if way == "random signal" else int(signal.SIGTERM)
            fact.sent.add(number)
            # Check the command line, because another process may have the pid of a job that has ended.
            if str(self._order.folder).encode() in _command_of(fact.pid):
                if way == "SIGTERM to the group":
                    os.killpg(os.getpgid(fact.pid), number)
                else:
                    kill(fact.pid, number)
        figure = f"ended by {fact.way}"
        self.figures[figure] = int(self.figures[figure]) + 1

    def _kill_a_runner(self) -> None:
        runners = self._runners()
        if not runners:
            return
        pid, folder = self._dice.choice(runners)
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if str(self._order.folder).encode() not in _command_of(pid):
                return
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], 10)
        except ProcessLookupError:
            return
        finally:
            os.close(process)
        self._record_death(pid, folder)

    def _record_death(self, pid: int, folder: str) -> None:
        """Records the point at which a runner was killed, according to the files in the attempt folder."""
        self.figures["runners killed"] = int(self.figures["runners killed"]) + 1
        if self._order.is_control:
            return
        path = Path(folder)
        claim = (path / "claim").read_text() if (path / "claim").exists() else ""
        if f'"pid": {pid},' not in claim:
            kind = "killed before the claim"
            if claim:
                # This was a second runner, or the first runner's child just before it executed the command.
                self._facts_of(path).sent.add(int(signal.SIGKILL))
        elif (path / "result").exists():
            kind = "killed after the result"
        else:
            kind = "jobs interrupted"
            self._facts_of(path).runner_died = True
        self.figures[kind] = int(self.figures[kind]) + 1

    def _facts_of(self, folder: Path) -> JobFacts:
        store = self._stage.store()
        row = store.job(int(folder.parent.name))
        store.close()
        assert row is not None
        return self._facts[number_of(row.text)]

    def _runners(self) -> list[tuple[int, str]]:
        """Returns (pid, folder) of each live runner; in the negative control, of each shell around a job."""
        mark = b"; echo $?" if self._order.is_control else START.encode()
        here = str(self._order.folder).encode()
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                command = _command_of(int(path.name))
                # The command line of SCREEN also contains the runner's.
                if mark in command and here in command and b"-dmS" not in command:
                    # In the command line of a forked runner, blanks separate the arguments.
                    found.append((int(path.name), os.fsdecode(command.rpartition(mark)[2].strip(b"\0 "))))
        return found

    def status(self) -> list[dict[str, Any]]:
        """Returns the jobs as the scheduler reports them."""
        if not self._order.is_control:
            jobs: list[dict[str, Any]] = self._stage.status()["jobs"]
            return jobs
        path = self._stage.folder / "control.json"
        state = json.loads(path.read_text()) if path.exists() else {}
        return [
            {"command": line, "state": "finished", "exit_code": None if job["code"] > 128 else job["code"],
             "signal": job["code"] - 128 if job["code"] > 128 else None,
             "outcome": "completed" if job["code"] == 0 else "failed"}
            for line, job in state.items()
            if job["code"] is not None
        ]  # fmt: skip


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _judge(number: int, fact: JobFacts, job: dict[str, Any], found: Findings) -> None:
    """Checks that everything that the scheduler reports about a job has really happened."""
    report = f"job {number} ({fact}) is {job['state']} {job['outcome']} {job['exit_code']} {job['signal']}"
    code, number_sent = job["exit_code"], job["signal"]
    if fact.starts > 1:
        found.fault("run twice", report)
    elif job["state"] not in ("finished", "held"):
        found.fault("stuck", report)
    elif job["outcome"] == "completed":
        if fact.ended != "0" or code != 0 or fact.runner_died:
            found.fault("false successes", report)
    elif job["outcome"] == "cancelled":
        if not fact.cancelled:
            found.fault("wrong ends", report)
    elif fact.runner_died or job["state"] == "held":
        if not (fact.runner_died and job["state"] == "held"):
            found.fault("wrong ends", report)
    elif number_sent is not None:
        if number_sent not in fact.sent and fact.ended != f"s{number_sent}":
            found.fault("wrong codes", report)
    elif fact.starts == 0:
        found.fault("lost", report)
    elif fact.ended == "b":
        if (job["outcome"], code) != ("failed", 0):
            found.fault("wrong codes", report)
    elif fact.ended != str(code) or code == 0:
        found.fault("wrong codes", report)
