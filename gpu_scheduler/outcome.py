"""How a draining scheduler ends: which jobs count, what is listed, with which code."""

from __future__ import annotations

import logging

from gpu_scheduler.core.actions import Action, Close, Finish
from gpu_scheduler.core.draining import Ending, exit_code
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)


class Outcomes:
    """The jobs that this run finished; at the end also those of the lines in the file and all that wait."""

    def __init__(self, store: Store, jobs_file: str) -> None:
        self._store = store
        self._jobs_file = jobs_file
        self._finished: set[int] = set()

    def told(self, action: Action) -> None:
        """One action of a round."""
        if isinstance(action, (Close, Finish)):
            self._finished.add(action.job_id)

    def finish(self) -> int:
        """List what is held or cannot run, and return the exit code."""
        rows = self._store.db.rows(
            "SELECT id, state, outcome, exit_code, signal, reason, ask, text FROM job"
            " WHERE state <> 'finished' OR id IN (SELECT job_id FROM line WHERE path = ?) ORDER BY id",
            self._jobs_file,
        )
        known = {row["id"]: row for row in rows}
        for job_id in self._finished - known.keys():
            row = self._store.job(job_id)
            if row is not None:
                known[job_id] = row
        reasons = self._store.waiting()
        for row in known.values():
            if row["state"] != "finished":
                why = row["reason"] or reasons.get(row["ask"], "")
                log.warning("job %d is left %s: %s: %s", row["id"], row["state"], why, row["text"])
        malformed = self._store.db.row(
            "SELECT count(*) AS n FROM line WHERE problem IS NOT NULL AND path = ?", self._jobs_file
        )
        bad = malformed["n"] if malformed else 0
        code = exit_code(
            [
                Ending(
                    JobState(row["state"]),
                    Outcome(row["outcome"]) if row["outcome"] else None,
                    row["exit_code"],
                    row["signal"],
                )
                for row in known.values()
            ],
            bad > 0,
        )
        done = sum(row["outcome"] == "completed" for row in known.values())
        if not self._finished and code:
            log.info("nothing was run: `retry JOB` runs a job once more, `start --fresh` all of them")
        log.info(
            "drained: %d of %d jobs completed%s; exit code %d",
            done, len(known), f", {bad} malformed line{'s' * (bad != 1)}" if bad else "", code,
        )  # fmt: skip
        return code
