"""Determines the exit code of a draining scheduler and logs what is left."""

from __future__ import annotations

import logging
import sqlite3

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.actions import Action, Close, Finish
from gpu_scheduler.core.draining import Ending, exit_code
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.jobs import Context, shown
from gpu_scheduler.views.left import left_words
from gpu_scheduler.views.report import JobShown, MalformedShown

log = logging.getLogger(__name__)


class Outcomes:
    """Collects the jobs that this run finished.

    At the end, the unfinished jobs and those of the lines in the jobs file count too.
    """

    def __init__(self, store: Store, jobs_file: str, clock: Clock) -> None:
        self._store = store
        self._jobs_file = jobs_file
        self._clock = clock
        self._finished: set[int] = set()

    def told(self, action: Action) -> None:
        """Takes note of an action of a round."""
        if isinstance(action, (Close, Finish)):
            self._finished.add(action.job_id)

    def finish(self) -> int:
        """Logs what is left and returns the exit code."""
        jobs = self._jobs()
        malformed = [
            MalformedShown(row["path"], row["number"], row["text"], row["problem"], row["accepted"])
            for row in self._store.malformed()
            if row["path"] == self._jobs_file
        ]
        left = left_words(malformed, [job for job in jobs if job.state != JobState.FINISHED.value])
        if left:
            log.warning("left: %s", left)
        code = exit_code(map(_ending, jobs), bool(malformed))
        done = sum(job.outcome == Outcome.COMPLETED.value for job in jobs)
        if not self._finished and code:
            log.info("no job was run: `retry JOB` runs a job again, `start --fresh` all of them")
        bad = len(malformed)
        log.info(
            "drained: %d of %d jobs completed%s; exit code %d",
            done, len(jobs), f", {bad} malformed line{'s' * (bad != 1)}" if bad else "", code,
        )  # fmt: skip
        return code

    def _jobs(self) -> list[JobShown]:
        """Returns the jobs that count, by id."""
        rows = self._store.db.rows(
            "SELECT * FROM job WHERE state <> 'finished' OR id IN (SELECT job_id FROM line WHERE path = ?)",
            self._jobs_file,
        )
        known: dict[int, sqlite3.Row] = {row["id"]: row for row in rows}
        for job_id in self._finished - known.keys():
            row = self._store.job(job_id)
            if row is not None:
                known[job_id] = row
        context = Context(
            self._clock.now(), reasons=self._store.waiting(), infeasible=self._store.infeasible()
        )
        return [shown(row, None, context) for _, row in sorted(known.items())]


def _ending(job: JobShown) -> Ending:
    return Ending(
        JobState(job.state),
        Outcome(job.outcome) if job.outcome else None,
        job.exit_code,
        job.signal,
        malformed=job.line_wait is not None and job.line_wait.kind == "malformed",
    )
