"""Plays random queues in which GPUs are reserved by queue order, with a real loop and a real store.

The attempts exist only in memory. Many steps pass the hour after which a job counts as submitted late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.attempt_history import skip_gpu_time
from gpu_scheduler.store.pending_groups import queue_reservation
from gpu_scheduler.store.requests import add_request
from tests.fakes.remote_executor import RemoteExecutor
from tests.loop.manual_clock import ManualClock
from tests.loop.rig import SETTINGS, Rig

GPUS = 4
#: Seconds that a round takes, and the number of rounds in which jobs arrive.
STEP_S, ARRIVALS = 1200.0, 18
#: Maximum number of rounds after the last arrival.
MAX_ROUNDS = 200
SETTINGS_RESERVE = replace(
    SETTINGS, aging=1, idle_budget=1.0, launch_deadline_s=3000.0, preempt_at_priority=0
)


class SchedulerDied(BaseException):
    """Ends a round at a failpoint, as SIGKILL would."""


class OrderedQueue:
    """One random queue. folder: an empty folder; seed: determines everything.

    restarts: whether another scheduler follows after every second round; dies: whether schedulers die at
    random steps.
    """

    def __init__(self, folder: Path, seed: int, *, restarts: bool = False, dies: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._restarts, self._dies = folder, restarts, dies
        self._dice = random.Random(seed)
        self._deaths = random.Random(seed)
        self._executor = RemoteExecutor()
        self._clock = ManualClock()
        #: The number of rounds that each job runs, by its id.
        self._runs: dict[int, int] = {}
        self._left: dict[str, int] = {}
        self._steps_left = 0
        self.counts: Counter[str] = Counter()
        self.history: list[object] = []
        self.faults: list[str] = []
        self._rig = self._new_rig()

    def _new_rig(self) -> Rig:
        failpoint: Callable[[str], None] = self._step if self._dies else lambda step: None
        rig = Rig(
            self._folder, GPUS, self._executor, SETTINGS_RESERVE, clock=self._clock, failpoint=failpoint
        )
        rig.loop.recorder.forget_wait_reasons()
        skip_gpu_time(rig.store, self._clock.now().wall)
        self._steps_left = self._deaths.randint(1, 60)
        return rig

    def _step(self, name: str) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise SchedulerDied(name)

    def play(self) -> OrderedQueue:
        """Plays the queue to its end."""
        for _ in range(ARRIVALS):
            for _ in range(self._dice.randint(0, 4)):
                self._add_job()
            self._act_as_user()
            self._round()
        for _ in range(MAX_ROUNDS):
            if not self._unfinished():
                break
            for row in self._rig.store.db.rows("SELECT id FROM job WHERE state = 'held'"):
                add_request(self._rig.store, "release", str(row["id"]))
            for index in range(GPUS):
                add_request(self._rig.store, "resume", str(index))
            self._round()
        else:
            self.faults.append(f"jobs did not finish: {self._unfinished()}")
        self._rig.store.close()
        return self

    def _add_job(self) -> None:
        dice = self._dice
        size = dice.choice((1, 1, 1, 2, 4))
        values: dict[str, object] = {"gpus": size, "share": dice.choice((500, 1000, 1000))}
        if dice.random() < 0.2:
            values = {"gpus": min(size, 2), "vram": dice.choice((5000, 11_000, 20_000))}
        if dice.random() < 0.1:
            values["priority"] = 100
        if dice.random() < 0.1:
            values["preempt"] = True
        runs = dice.choice((1, 2, 3, 6))
        # Jobs that run equally long have the same identity, so that their times are learned.
        spec = JobSpec("command", f"run {runs}", str(self._folder), command=f"run {runs}")
        if dice.random() < 0.1:
            spec = replace(spec, command=f"run {runs} {dice.random()}")
        job = self._rig.store.insert_job(
            replace(spec, **values),
            "test", self._clock.now().wall,
        )  # fmt: skip
        self._runs[job] = runs

    def _act_as_user(self) -> None:
        dice, store = self._dice, self._rig.store
        verb = dice.choice(("", "", "", "cancel", "hold", "release", "set", "pause", "resume", "priority"))
        job = dice.choice(sorted(self._runs)) if self._runs else 0
        number = dice.randrange(GPUS)
        reserved = queue_reservation(store)
        if reserved is not None and dice.random() < 0.5:
            job = reserved.job.job_id
        if not verb or (not job and verb not in ("pause", "resume")):
            return
        self.counts[verb] += 1
        if verb in ("pause", "resume"):
            add_request(store, verb, str(number))
        elif verb == "set":
            add_request(store, "set", str(job), name="gpus", value=number % 2 + 1)
        elif verb == "priority":
            add_request(store, "set", str(job), name="priority", value=dice.choice((100, 200, 300)))
        elif verb == "cancel":
            add_request(store, "cancel", str(job), grace_s=5.0)
        else:
            add_request(store, verb, str(job))

    def _round(self) -> None:
        """Lets time pass for the attempts, and runs rounds until nothing is left to do."""
        self._clock.boot += STEP_S
        for attempt in self._rig.store.active_attempts():
            if self._executor.attempts[attempt.token].state != "running":
                continue
            left = self._left[attempt.token] = self._left.get(attempt.token, self._runs[attempt.job_id]) - 1
            if left <= 0:
                self._end(attempt.token, attempt.started_at)
        self._rig.take_sample()
        is_over = False
        while not is_over:
            try:
                is_over = bool(self._rig.tick_once())
            except SchedulerDied:
                self.counts["scheduler killed"] += 1
                self._restart()
            # The first round of a scheduler always records something, so one of them takes more.
            if self._restarts and self._deaths.random() < 0.5:
                self._restart()
        self._look()

    def _restart(self) -> None:
        self._rig.store.close()
        self._rig = self._new_rig()

    def _end(self, token: str, started_at: float | None) -> None:
        self._executor.end(token, 0)
        one = self._executor.attempts[token]
        assert one.result is not None
        one.result = replace(one.result, started_at=started_at, ended_at=self._clock.now().wall)

    def _unfinished(self) -> list[int]:
        return [row["id"] for row in self._rig.store.db.rows("SELECT id FROM job WHERE state <> 'finished'")]

    def _look(self) -> None:
        """Notes what runs and what is reserved, and checks that no GPU is allocated beyond its size."""
        store = self._rig.store
        attempts = store.active_attempts()
        used: Counter[str] = Counter()
        for attempt in attempts:
            if attempt.state.holds_gpus:
                for one in attempt.allocations:
                    used[one.gpu] += 1000 if one.whole else one.share
        self.faults += (f"GPU {gpu} is allocated to {used[gpu]}/1000" for gpu in used if used[gpu] > 1000)
        reserved = queue_reservation(store)
        shown = None
        if reserved is not None:
            shown = reserved.job.job_id, reserved.gpus, reserved.start_at, reserved.overtakes
            self.counts["rounds with a reservation"] += 1
            row = store.job(reserved.job.job_id)
            if row is None or row.state != "queued":
                self.faults.append(f"GPUs are reserved for job {reserved.job.job_id}, which does not wait")
        rows = store.db.rows("SELECT DISTINCT job_id FROM reservation WHERE start_at IS NOT NULL")
        if len(rows) > 1:
            self.faults.append(f"GPUs are reserved for {len(rows)} jobs by queue order")
        running = sorted((attempt.job_id, attempt.gpus) for attempt in attempts)
        states = [tuple(row) for row in store.db.rows("SELECT id, state, outcome FROM job ORDER BY id")]
        self.history.append((running, shown, states))
