"""P12: jobs wait for each other while schedulers, runners or all processes at once are killed at random.

The jobs form random graphs. They fail, and are cancelled, retried, held, released and given other parents;
lines of the jobs file are changed, renamed and removed. Each scheduler dies at a random step or is killed. No
job may start before its parents have ended, by its own trace. In the end, each job must have ended, or wait
for one that cannot run; once all of these are released or retried, every job must complete.

In the negative control, rounds ignore dependencies, and a trigger of the store is missing.
"""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.store.requests import add_request
from tests.stress.dependency_judge import (
    install_triggers,
    judge_counts,
    judge_outcomes,
    judge_skips,
    judge_starts,
)
from tests.stress.dependency_state import BY, judge_completion, judge_inserted, judge_lines, judge_rest
from tests.stress.dependency_trace import JobsTrace
from tests.stress.dependent_jobs import DependentUser
from tests.stress.dying_run import DyingRun
from tests.stress.dying_scheduler import IGNORES_PARENTS
from tests.stress.harness import environment, kill, pause, runner_pids, scheduler
from tests.stress.part import Findings, Order

_PROGRAM = "tests.stress.dying_scheduler"
_DRAIN_TIMEOUT_S = 120.0
#: Each drain can complete the jobs whose parents completed in the drain before it.
_MAX_DRAINS = 20


def dependencies(order: Order) -> Findings:
    """Runs 900 jobs or more under 150 schedulers, of which each is killed."""
    run = _Run(order)
    try:
        for _ in range(order.scaled(150, 5)):
            run.live_and_die()
        run.end()
        run.complete()
    finally:
        run.close()
    run.found.figures = {"scheduler kills": order.scaled(150, 5), "jobs": run.user.made, **run.found.figures}
    return run.found


class _Run(DyingRun):
    """One folder with its schedulers, its user and its store."""

    def __init__(self, order: Order) -> None:
        env = environment()
        if order.is_control:
            env[IGNORES_PARENTS] = "1"
        command = scheduler(order.folder, "--recover", program=_PROGRAM)
        super().__init__(order, "dependencies", command, env)
        install_triggers(self._store)
        if order.is_control:
            self._store.db.connection.execute("DROP TRIGGER parent_finished")
        self.user = DependentUser(self._stage, self._store, self._dice)

    def live_and_die(self) -> None:
        """Starts a scheduler, lets the user act, and kills the scheduler if it has not died at a step."""
        dice = self._dice
        self._start(0, dice.randint(1, 40), dice.randint(1, 200))
        self.user.submit(dice.randint(3, 9))
        if dice.random() < 0.5:
            self.user.edit()
        for _ in range(dice.randint(4, 10)):
            dice.choice((self.user.request, self.user.request, self.user.change_exit_code))()
            pause(dice.uniform(0.02, 0.25))
            if dice.random() < 0.06:
                self._kill_runners(runner_pids(self._stage.folder)[-1:])
        judge_counts(self._store, self.found)
        self._kill()
        if dice.random() < 0.2:
            self._kill_runners(runner_pids(self._stage.folder))
            self._kill_commands()
            self.found.count("whole trees killed")

    def _kill_runners(self, pids: list[int]) -> None:
        self.found.count("runners killed", sum(map(kill, pids)))

    def _kill_commands(self) -> None:
        """Kills the commands that have written no end."""
        for run in JobsTrace.read(self._stage.trace).runs.values():
            # Check the command line, because another process may have the pid of a job that has ended.
            if run.end is None and str(self._stage.folder) in _command_of(run.pid):
                kill(run.pid)

    def end(self) -> None:
        """Lets a scheduler run all jobs that can run, and judges the state that it leaves."""
        self._drain(_DRAIN_TIMEOUT_S)
        judge_skips(self._store, self.found)
        judge_rest(self._store, self.found)
        wrong = judge_lines(self._store, self._stage.jobs_file, self.found)
        self.found.figures["wrong lines in the end"] = len(wrong)
        self._judge()

    def complete(self) -> None:
        """Lets every job succeed, and releases and retries jobs until none is left that this helps."""
        self.user.succeed()
        for _ in range(_MAX_DRAINS):
            wrong = judge_lines(self._store, self._stage.jobs_file, self.found)
            if wrong:
                self.user.correct({line.number for line in wrong})
            if not self._requeue_all() and not wrong:
                break
            self._drain(_DRAIN_TIMEOUT_S)
        judge_completion(self._store, self.found)
        self._judge()
        judge_starts(self._store, JobsTrace.read(self._stage.trace), self.found)

    def _requeue_all(self) -> int:
        """Requests a release or retry of every held or unsuccessful job. Returns the number of requests."""
        held = self._store.db.rows("SELECT id FROM job WHERE state = 'held'")
        ended = self._store.db.rows(
            "SELECT id FROM job WHERE state = 'finished' AND outcome NOT IN ('completed', 'skipped')"
        )
        for verb, rows in (("release", held), ("retry", ended)):
            for row in rows:
                add_request(self._store, verb, str(row["id"]), BY)
        return len(held) + len(ended)

    def _judge(self) -> None:
        judge_inserted(self._store, self.user.inserted, self.found)
        judge_counts(self._store, self.found)
        judge_outcomes(self._store, JobsTrace.read(self._stage.trace), self.found)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
