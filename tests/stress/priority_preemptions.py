"""P14: jobs with real processes preempt each other, while schedulers die at random steps.

Each job needs whole GPUs and locks a file for each of them, so that a job that gets a GPU too early notices
it. In the negative control, a trigger of the store deletes each reservation.
"""

from __future__ import annotations

import sys
from collections import Counter

from gpu_scheduler.core.model.states import JobState, Outcome
from tests.loop.preemption_judge import history_faults
from tests.stress.dying_run import DyingRun
from tests.stress.harness import environment, pause, scheduler
from tests.stress.part import Findings, Order

#: Run as `python job.py FOLDER N SECONDS SAVE_S`. If SAVE_S is negative, the job ignores SIGTERM.
_JOB = """\
import fcntl, os, signal, sys, time
folder, number, seconds, save_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
trace = os.open(folder + "/trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def say(what):
    os.write(trace, f"{number} {what}\\n".encode())
def save(*_):
    say("term")
    if save_s >= 0:
        time.sleep(save_s)
        os._exit(0)
signal.signal(signal.SIGTERM, save)
locks = [open(f"{folder}/gpu{gpu}", "w") for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
say("start")
for lock in locks:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("clash")
end = time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.02)
say("end")
"""
_GPUS = 4
_GRACE_S = 1.0
_DRAIN_TIMEOUT_S = 300.0


def jobs(order: Order) -> Findings:
    """Runs 400 jobs or so under 100 schedulers, most of which die at a random step."""
    run = _Run(order)
    try:
        for _ in range(order.scaled(100, 4)):
            run.live_and_die()
        run.end()
    finally:
        run.close()
    return run.found


class _Run(DyingRun):
    """One folder with its schedulers and jobs."""

    def __init__(self, order: Order) -> None:
        self._number = 0
        self._touched: set[int] = set()
        folder = order.folder
        (folder / "job.py").write_text(_JOB)
        options = ("--preempt-grace", str(_GRACE_S), "--poll", "0.2")
        command = scheduler(folder, *options, gpus=_GPUS, program="tests.stress.dying_scheduler")
        super().__init__(order, "priority preemptions", command, environment())
        if order.is_control:
            self._store.db.connection.execute(
                "CREATE TRIGGER lost AFTER INSERT ON reservation BEGIN DELETE FROM reservation; END"
            )

    def live_and_die(self) -> None:
        """Starts a scheduler, adds jobs, cancels one now and then, and kills the scheduler."""
        dice = self._dice
        self._start(0, dice.randint(10, 150), dice.randint(60, 400))
        for _ in range(dice.randint(1, 3)):
            self._stage.append([self._line() for _ in range(dice.randint(1, 4))])
            pause(dice.uniform(0.6, 2.0))
        if dice.random() < 0.2:
            self._cancel()
        self._kill()
        self.found.count("schedulers")

    def _line(self) -> str:
        dice, self._number = self._dice, self._number + 1
        if dice.random() < 0.65:
            block, seconds = f"priority={dice.choice(('NORMAL', 'LOW'))}", dice.uniform(0.5, 5.0)
        else:
            priority, seconds = dice.choice(("CRITICAL", "HIGH")), dice.uniform(0.1, 0.8)
            block = f"gpus={dice.randint(1, _GPUS)} priority={priority} preempt"
        save_s = dice.choice((0.0, 0.1, 0.5, 5.0, -1.0))
        words = f"{self._stage.folder} {self._number} {seconds:.2f} {save_s}"
        return f"[share=1 {block}] {sys.executable} -I -S {self._stage.folder}/job.py {words}"

    def _cancel(self) -> None:
        rows = self._store.db.rows("SELECT id FROM job WHERE state <> 'finished'")
        if rows:
            job = self._dice.choice(rows)["id"]
            self._touched.add(job)
            self._stage.run_cli("cancel", str(job))

    def end(self) -> None:
        """Lets a scheduler run all jobs to their end, and judges the store and what the jobs wrote."""
        self._drain(_DRAIN_TIMEOUT_S)
        counts: Counter[str] = Counter()
        for text in history_faults(self._store, self._touched, counts):
            self.found.fault("history", text)
        self.found.figures |= {"jobs": self._number, **counts}
        lines = self._stage.trace.read_text().splitlines()
        for line in (line for line in lines if line.endswith(" clash")):
            self.found.fault("clash", f"two jobs had one GPU: {line}")
        for row in self._store.db.rows("SELECT id, state, outcome, text FROM job"):
            good = (row["state"], row["outcome"]) == (JobState.FINISHED, Outcome.COMPLETED)
            if row["id"] not in self._touched and not good:
                self.found.fault("end", f"job {row['id']}: {row['state']}, {row['outcome']}")
            number = row["text"].split()[-3]
            # A job that ignores SIGTERM may have written its end and run again, because it was preempted.
            if good and f"{number} end" not in lines:
                self.found.fault("end", f"job {row['id']} completed, but wrote no end")
