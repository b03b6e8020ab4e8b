"""Plays random queues in which jobs preempt others, and finds what goes wrong.

The loop and the store are real; the attempts exist only in memory, so that a queue takes a second. The
scheduler dies at random steps, and the next one continues. Between the rounds, jobs arrive, end, save their
work or refuse to, and the user cancels, holds, releases and preempts jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.store.pending_groups import reserved_jobs
from gpu_scheduler.store.requests import add_request
from tests.fakes.remote_executor import RemoteExecutor
from tests.loop.manual_clock import ManualClock
from tests.loop.preemption_judge import history_faults
from tests.loop.rig import SETTINGS, Rig

GPUS = 4
PRIORITIES = (0, 100, 200, 300)
#: Seconds that a round takes.
STEP_S = 5.0
GRACE_S = 20.0
#: Maximum number of rounds after the last arrival.
MAX_ROUNDS = 400
_SETTINGS = replace(SETTINGS, preempt_at_priority=0, preempt_grace_s=GRACE_S, launch_deadline_s=1000.0)


class SchedulerDied(BaseException):
    """Ends a round at a failpoint, as SIGKILL would."""


class Queue:
    """One random queue. folder: an empty folder; seed: determines everything.

    reserves: False for a negative control, in which all reservations are lost after each round.
    """

    def __init__(self, folder: Path, seed: int, *, reserves: bool = True) -> None:
        self._reserves = reserves
        self._dice = random.Random(seed)
        self._folder = folder
        self._executor = RemoteExecutor()
        self._executor.obeys = False
        self._clock = ManualClock()
        self._steps_left = 0
        #: How many rounds each attempt, by its token, still runs, and saves its work once it must stop.
        self._rounds: dict[str, int] = {}
        self._saves: dict[str, int] = {}
        #: Jobs that the user has cancelled, held or changed since they were inserted.
        self._touched: set[int] = set()
        self.counts: Counter[str] = Counter()
        self._faults: list[str] = []
        self._rig = self._new_rig()

    def _new_rig(self) -> Rig:
        rig = Rig(self._folder, GPUS, self._executor, _SETTINGS, clock=self._clock, failpoint=self._step)
        self._steps_left = self._dice.choice((0, 0, self._dice.randint(1, 60)))
        return rig

    def _step(self, name: str) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise SchedulerDied(name)

    def play(self) -> list[str]:
        """Plays the queue to its end; returns what went wrong: GPUs, victims, jobs or reservations."""
        for _ in range(self._dice.randint(6, 14)):
            for _ in range(self._dice.randint(1, 3)):
                self._add_job()
            self._round()
            if self._dice.random() < 0.4:
                self._act_as_user()
        for _ in range(MAX_ROUNDS):
            if not self._unfinished():
                break
            self._release_held()
            self._round()
        unfinished = self._unfinished()
        if unfinished:
            self._faults.append(f"jobs did not finish: {unfinished}")
        self._faults += (f"job {one.job_id} holds GPUs" for one in self._rig.store.active_attempts())
        self._faults += history_faults(self._rig.store, self._touched, self.counts)
        self._rig.store.close()
        return self._faults

    def _add_job(self) -> None:
        dice = self._dice
        small = dice.random() < 0.6  # backfill
        values: dict[str, object] = {"priority": dice.choice(PRIORITIES[2:] if small else PRIORITIES)}
        if small:
            values["share"] = dice.choice((250, 500, 1000))
        elif dice.random() < 0.3:
            values |= {"vram": dice.choice((2000, 6000, 11_000, 20_000)), "share": dice.choice((100, 500))}
        elif dice.random() < 0.5:
            values |= {"gpus": dice.randint(1, GPUS), "share": dice.choice((500, 1000))}
        else:
            values |= {"gpus": dice.randint(1, 3)}
        values["preempt"] = not small and dice.random() < 0.6
        if dice.random() < 0.2:
            values["fail_retries"] = 1
        self._rig.add_job(f"job {dice.random()}", **values)

    def _round(self) -> None:
        """Lets time pass for the attempts, and runs rounds until nothing is left to do."""
        self._clock.boot += STEP_S
        self._let_attempts_progress()
        self._rig.take_sample()
        while True:
            try:
                self._rig.tick()
                break
            except SchedulerDied:
                self.counts["scheduler killed"] += 1
                self._rig.store.close()
                self._rig = self._new_rig()
                if self._dice.random() < 0.3:
                    self._clock.boot += STEP_S
        if not self._reserves:
            with self._rig.store.db.transaction() as db:
                db.execute("DELETE FROM reservation")
        self._check_now()

    def _let_attempts_progress(self) -> None:
        dice = self._dice
        for token, attempt in self._executor.attempts.items():
            if attempt.state != "running":
                continue
            left = self._rounds[token] = self._rounds.setdefault(token, dice.randint(1, 30)) - 1
            if attempt.stop is not None:
                # A command without rounds left to save ignores the signal, and the runner kills it.
                saves = self._saves[token] = self._saves.setdefault(token, dice.randint(0, 6)) - 1
                if saves <= 0:
                    self._executor.end(token, dice.choice((0, None, None)), attempt.stop.cause)
            elif left <= 0:
                self._executor.end(token, 1 if dice.random() < 0.2 else 0)

    def _act_as_user(self) -> None:
        jobs = [row["id"] for row in self._rig.store.db.rows("SELECT id FROM job WHERE state <> 'finished'")]
        if not jobs:
            return
        reserved = [one.job.job_id for one in reserved_jobs(self._rig.store, self._clock.now())]
        job = self._dice.choice(reserved if reserved and self._dice.random() < 0.5 else jobs)
        verb = self._dice.choice(("cancel", "hold", "preempt", "set"))
        args: dict[str, Any] = {}
        if verb == "cancel":
            args = {"grace_s": 5.0}
        elif verb == "preempt":
            args = {"grace_s": 10.0, "on_timeout": "kill", "stop_id": f"user-{self._dice.random()}"}
        elif verb == "set":
            args = {"name": "allowed", "value": [self._dice.randrange(GPUS)]}
        self._touched.add(job)
        self.counts[f"requests: {verb}"] += 1
        add_request(self._rig.store, verb, str(job), **args)

    def _release_held(self) -> None:
        for row in self._rig.store.db.rows("SELECT id, held_by FROM job WHERE state = 'held'"):
            add_request(self._rig.store, "retry", str(row["id"]))
        # A job that may no longer use enough GPUs would wait for ever.
        for row in self._rig.store.db.rows("SELECT id, spec FROM job WHERE state = 'queued'"):
            if (
                '"allowed"' in row["spec"]
                and '"allowed": null' not in row["spec"]
                and row["id"] in self._touched
            ):
                add_request(self._rig.store, "set", str(row["id"]), name="allowed", value=None)

    def _unfinished(self) -> list[int]:
        return [row["id"] for row in self._rig.store.db.rows("SELECT id FROM job WHERE state <> 'finished'")]

    def _check_now(self) -> None:
        """Checks that no GPU is allocated beyond its size, and no victim outranks its preemptor."""
        used: Counter[str] = Counter()
        for attempt in self._rig.store.active_attempts():
            if attempt.state.holds_gpus:
                for one in attempt.allocations:
                    used[one.gpu] += 1000 if one.whole else one.share
            preemptor = attempt.preempted_for
            if preemptor is not None and attempt.job.priority <= self._rig.job(preemptor).priority:
                self._faults.append(f"job {preemptor} preempts job {attempt.job_id}, which outranks it")
        self._faults += (f"GPU {gpu} is allocated to {used[gpu]}/1000" for gpu in used if used[gpu] > 1000)
