"""P11: eight callers of `run` and a scheduler share four simulated GPUs. No memory may be held twice.

The callers take whole GPUs and parts of them, one or two at once. The jobs declare shares, memory or nothing.
Commands, runners and the scheduler are killed at random. The judge reads what the commands wrote about
themselves, with the locks that the kernel showed them. In the negative control, the callers check which GPUs
are free, but claim nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import time
from pathlib import Path

from gpu_scheduler.runner.locks import Refusal, Wanted, claim_gpus, release
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.lock_folder import VARIABLE, simulated_folder
from tests.stress.claim_judge import Holding, Promise, Trace, broken_promises, held_twice
from tests.stress.gated import end_scheduler
from tests.stress.harness import Stage, pause, program_for, scheduler
from tests.stress.held_locks import has_locks, held_mib
from tests.stress.part import Findings, Order
from tests.stress.run_callers import Box, RunCallers
from tests.stress.trace import judge, outcomes_of

_GPUS, _GPU_MIB = 4, 24 * 1024
#: Maximum number of jobs that wait, and the seconds without any progress after which the test gives up.
_WAITING_JOBS, _STUCK_S = 20, 60.0
#: Seconds between two checks of the locks of all running commands, and of the launches.
_CHECK_EVERY_S = 0.05


def sharing(order: Order) -> Findings:
    """Runs 400 jobs beside the callers. Kills 60 commands of `run`, 30 runners and 12 schedulers."""
    found = Findings()
    with contextlib.closing(_Sharing(order, found)) as shared:
        if not shared.run():
            found.fault("stuck", shared.why())
        shared.end_scheduler()
        shared.judge()
    found.figures = {"jobs": len(shared.codes), "calls of run": shared.calls, **found.figures}
    return found


class _Sharing:
    """A scheduler with its jobs, and the callers. codes: the exit code of each job, by number."""

    def __init__(self, order: Order, found: Findings) -> None:
        self.codes: dict[int, int] = {}
        self._order, self._found, self._dice = order, found, order.rng("sharing")
        (order.folder / "jobs.txt").touch()
        command = scheduler(order.folder, "--poll", "0.2", gpus=_GPUS, program=program_for(order))
        self._stage = stage = Stage(order.folder, command=command)
        locks = simulated_folder(Path(os.environ[VARIABLE]), str(stage.home.simulation))
        self._box = Box(_GPUS, _GPU_MIB, stage.trace, stage.home.simulation, locks)
        self._promises: dict[int, Promise] = {}
        #: Time of the kill of its holder, by the number of the command.
        self._killed: dict[int, float] = {}
        self._lost_launches: set[int] = set()
        self._kills = _planned_kills(order, self._dice)
        self._trace = Trace(stage.trace)
        self._scheduler: subprocess.Popen[bytes] | None = stage.start()
        self._restart_at = self._checked_at = self._progress_at = time.monotonic()
        self._store = stage.store()
        self._callers = RunCallers(stage, self._box, self._dice, is_control=order.is_control)

    def run(self) -> bool:
        """Runs all jobs and their neighbours. Returns False if nothing happens any more."""
        count = self._order.scaled(400, 10)
        while True:
            ended = self._callers.step()
            if self._trace.read() or ended:
                self._progress_at = time.monotonic()
            jobs_over = _jobs_over(self._store)
            self._callers.is_closed = jobs_over >= count
            if self._callers.is_closed and not self._callers.running:
                return True
            if len(self.codes) < min(count, jobs_over + _WAITING_JOBS):
                self._append(self._dice.randint(1, min(10, count - len(self.codes))))
            self._restart_scheduler()
            self._kill_one(jobs_over)
            if time.monotonic() >= self._checked_at + _CHECK_EVERY_S:
                self._checked_at = time.monotonic()
                self._check_locks()
                self._check_launches()
            if time.monotonic() > self._progress_at + _STUCK_S:
                return False
            pause(0.01)

    @property
    def calls(self) -> int:
        """The number of calls of `run` so far."""
        return len(self._callers.calls)

    def end_scheduler(self) -> None:
        """Ends the scheduler, and checks that every claim is gone."""
        if self._scheduler is not None:
            end_scheduler(self._scheduler)
        names = [Wanted(f"SIM-{gpu}", None, None) for gpu in range(_GPUS)]
        answer = claim_gpus(str(self._box.locks), names)
        if isinstance(answer, Refusal):
            self._found.fault("claims left", f"{answer.name} is claimed by pid {answer.pid}")
        else:
            release(answer)

    def close(self) -> None:
        """Kills the scheduler and the callers."""
        if self._scheduler is not None:
            end_scheduler(self._scheduler, signal.SIGKILL)
        self._callers.close()
        self._store.close()

    def why(self) -> str:
        """Describes what the scheduler and the callers were doing."""
        waiting = [self._callers.calls[number] for number in self._callers.running]
        errors = (self._stage.folder / "callers.err").read_text()[-1500:]
        output = self._stage.output_file.read_text()[-1500:]
        return f"{_jobs_over(self._store)} jobs are over; calls left: {waiting}\n{errors}\n{output}"

    def _append(self, count: int) -> None:
        lines = []
        for _ in range(count):
            number, dice = len(self.codes), self._dice
            self.codes[number] = dice.choice((0, 0, 0, 0, 1, 7))
            attributes, self._promises[number] = _random_need(dice)
            most = self._promises[number].mib or _GPU_MIB
            used = dice.choice((0, dice.randint(50, most * 3 // 4)))
            seconds = dice.uniform(0.05, 0.7)
            command = self._box.command(number, seconds, self.codes[number], used, claims=True)
            lines.append(" ".join([attributes, *command]).lstrip())
        self._stage.append(lines)

    def _restart_scheduler(self) -> None:
        if self._scheduler is None:
            if time.monotonic() >= self._restart_at:
                self._scheduler = self._stage.start(ready=False)
        elif self._scheduler.poll() is not None:
            self._found.fault("scheduler ended", self._stage.output_file.read_text()[-1500:])
            self._scheduler = None

    def _kill_one(self, jobs_over: int) -> None:
        """Makes one of the planned kills that are due, if there is something to kill."""
        for kill in self._kills:
            at, what = kill
            if at <= jobs_over and self._kill(what):
                self._kills.remove(kill)
                self._found.count(f"{what}s killed")
                return

    def _kill(self, what: str) -> bool:
        if what == "scheduler":
            return self._kill_scheduler()
        if what == "runner":
            return self._kill_runner()
        return self._kill_caller(is_waiting=what == "waiting caller")

    def _kill_scheduler(self) -> bool:
        if self._scheduler is None:
            return False
        end_scheduler(self._scheduler, signal.SIGKILL)
        self._scheduler = None
        self._restart_at = time.monotonic() + self._dice.uniform(0, 1.5)
        return True

    def _kill_runner(self) -> bool:
        victim = self._victim(is_job=True)
        if victim is None:
            return False
        try:
            fd = os.pidfd_open(victim.holder)
        except ProcessLookupError:
            return False
        try:
            # The process may have got the pid of a runner that has ended.
            if str(self._stage.folder) not in _command_of(victim.holder):
                return False
            self._killed[victim.number] = time.monotonic()
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [])
        finally:
            os.close(fd)
        self._check_freed(victim.holder)
        return True

    def _kill_caller(self, *, is_waiting: bool) -> bool:
        if is_waiting:
            victims = [number for number in self._callers.running if number not in self._trace.holdings]
            number = self._dice.choice(victims) if victims else None
        else:
            victim = self._victim(is_job=False)
            number = None if victim is None else victim.number
        if number is None:
            return False
        self._killed[number] = time.monotonic()
        self._check_freed(self._callers.kill(number))
        return True

    def _victim(self, *, is_job: bool) -> Holding | None:
        """Returns a random running command, of a job or of a caller, whose holder has not been killed."""
        open_ones = [one for one in self._trace.open() if one.number not in self._killed]
        if is_job:
            found = [one for one in open_ones if one.number in self.codes and one.holder]
        else:
            found = [one for one in open_ones if one.number in self._callers.running]
        return self._dice.choice(found) if found else None

    def _check_freed(self, pid: int) -> None:
        """Checks that a process that was killed has no locks. The process has ended."""
        if has_locks(pid):
            self._found.fault("claims left", f"pid {pid} still has locks after it was killed")

    def _check_locks(self) -> None:
        """Checks that every running command still has the locks that it had at its start."""
        before = [one for one in self._trace.open() if one.holder and one.number not in self._killed]
        held = [held_mib(one.holder, str(self._box.locks), _GPU_MIB) for one in before]
        self._trace.read()
        # A command that has not written its end by now was running while the locks were read.
        for one, now in zip(before, held, strict=True):
            if one.code is None:
                self._found.count("claims checked")
                self._found.count("claims checked while no scheduler ran", self._scheduler is None)
                if now != {f"SIM-{gpu}": mib for gpu, mib in one.held.items()}:
                    self._found.fault("claims lost", f"{one} has locked {now}")

    def _check_launches(self) -> None:
        """Notes the jobs with a failed launch that counts. The number is reset when a launch succeeds."""
        rows = self._store.db.rows("SELECT id FROM job WHERE launch_failures > 0")
        self._lost_launches.update(int(row["id"]) for row in rows)

    def judge(self) -> None:
        """Adds the faults and the figures of the whole run to the findings."""
        found, calls = self._found, self._callers.calls
        self._trace.read()
        promises = {**self._promises, **{number: call.promise for number, call in calls.items()}}
        for text in held_twice(self._trace, promises, self._killed, _GPU_MIB):
            found.fault("held twice", text)
        if not self._order.is_control:
            for text in broken_promises(self._trace, promises, self._killed, _GPU_MIB):
                found.fault("broken promises", text)
        self._judge_jobs()
        self._judge_shares()
        self._judge_calls()

    def _judge_jobs(self) -> None:
        recorded = outcomes_of(self._stage.status())
        for is_killed in (False, True):
            codes = {n: code for n, code in self.codes.items() if (n in self._killed) == is_killed}
            judge(self._stage.trace, codes, recorded, killed=is_killed).report_to(self._found)
        for row in self._store.db.rows("SELECT job_id, reason FROM attempt WHERE outcome = 'not_started'"):
            if "gpu_claimed" in (row["reason"] or ""):
                self._found.count("claims that a job lost to a caller")
            else:
                self._found.fault("launches lost", f"job {row['job_id']}: {row['reason']}")
        for job in self._lost_launches:
            self._found.fault("launches lost", f"a failed launch of job {job} was counted")

    def _judge_shares(self) -> None:
        shares = [
            one
            for one in self._trace.all()
            if one.number in self.codes and self._promises[one.number].is_share
        ]
        cut = [
            one for one in shares if min(one.held.values(), default=0) < (self._promises[one.number].mib or 0)
        ]
        self._found.figures["jobs with less memory than their share"] = len(cut)
        if len(shares) >= 10 and len(cut) == len(shares):
            self._found.fault("broken promises", "no job has claimed the memory of its share")

    def _judge_calls(self) -> None:
        calls, ended, found = self._callers.calls, self._callers.ended, self._found
        timed_out = {n for n, code in ended.items() if code == 124 and calls[n].may_time_out}
        for number in timed_out & self._trace.holdings.keys():
            found.fault("wrong codes", f"{calls[number]} timed out, but ran")
        codes = {n: call.code for n, call in calls.items() if n in ended and n not in timed_out}
        recorded: dict[int, int | str | None] = {**ended}
        judge(self._stage.trace, codes, recorded, killed=False).report_to(found)
        if not found.clean:
            found.messages.append((self._stage.folder / "callers.err").read_text()[-1500:])
        found.figures["calls that timed out"] = len(timed_out)


def _planned_kills(order: Order, dice: random.Random) -> list[tuple[int, str]]:
    """Returns what to kill, each with the number of jobs that must be over before, in this order."""
    count = order.scaled(400, 10)
    numbers = {"scheduler": 12, "runner": 30, "command": 60, "waiting caller": 20}
    kills = [
        (dice.randint(0, count * 9 // 10), what)
        for what, full in numbers.items()
        for _ in range(order.scaled(full))
    ]
    return sorted(kills)


def _random_need(dice: random.Random) -> tuple[str, Promise]:
    """Returns the attributes of a random job, and what they promise it."""
    count = 2 if dice.random() < 0.15 else 1
    gpus = frozenset(range(_GPUS))
    words = ["gpus=2"] * (count == 2)
    if dice.random() < 0.2:
        gpus = frozenset(dice.sample(sorted(gpus), 2))
        words.append(f"allowed={','.join(map(str, sorted(gpus)))}")
    kind = dice.choice(("share", "share", "vram", "vram", "both", "exclusive", "nothing"))
    mib = dice.randint(2000, 18_000)
    share = dice.choice((250, 500, 750))
    if kind in ("vram", "both", "exclusive"):
        words.append(f"vram={mib}")
    if kind in ("share", "both"):
        words.append(f"share={share / 1000}")
    if kind == "exclusive":
        words.append("exclusive")
    attributes = f"[{' '.join(words)}]" if words else ""
    if kind == "share":
        return attributes, Promise(count, share * _GPU_MIB // 1000, gpus, is_share=True)
    return attributes, Promise(count, mib if kind in ("vram", "both") else None, gpus)


def _jobs_over(store: Store) -> int:
    """Returns the number of jobs that have ended or, after their runner was killed, are held."""
    row = store.db.row("SELECT count(*) AS n FROM job WHERE state IN ('finished', 'held')")
    assert row is not None
    return int(row["n"])


def _command_of(pid: int) -> str:
    """Returns the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
