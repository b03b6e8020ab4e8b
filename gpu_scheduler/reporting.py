"""What `start` prints and the main log keeps: one line for everything that happens to a job."""

from __future__ import annotations

import json
import logging

from gpu_scheduler.core import actions as act
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.core.strays import stray_words
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)


class Reporter:
    """Tells actions as they are performed; called after they are on the record."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def told(self, action: act.Action) -> None:
        """One action of a round."""
        if isinstance(action, act.Start):
            self._started(action)
        elif isinstance(action, act.Close):
            self._closed(action)
        elif isinstance(action, act.Relaunch):
            log.warning("attempt %s was claimed by no runner in time; launched again", self._attempt(action))
        elif isinstance(action, act.NoteDead):
            log.warning("the runner of attempt %s is gone without a result", self._attempt(action))
        elif isinstance(action, act.NoteStray):
            self._strayed(action)
        elif isinstance(action, act.KillRunner):
            log.warning("the runner of attempt %s did not end in time and is killed", self._attempt(action))
        elif isinstance(action, act.Finish):
            log.info("job %d %s: %s", action.job_id, action.outcome, action.reason)
        elif isinstance(action, act.Hold):
            log.info("job %d held: %s", action.job_id, action.reason)
        elif isinstance(action, act.Requeue):
            log.info("job %d queued: %s", action.job_id, action.reason)
        elif isinstance(action, act.OpenCancel):
            log.info("job %d is being stopped (%g s grace)", action.job_id, action.grace_s)
        elif isinstance(action, act.SetPaused):
            row = self._store.db.row("SELECT idx FROM gpu WHERE uuid = ?", action.uuid)
            log.info(
                "GPU %s %s", row["idx"] if row else action.uuid, "paused" if action.paused else "resumed"
            )
        elif isinstance(action, act.Wait) and action.infeasible:
            for row in self._store.db.rows(
                "SELECT id FROM job WHERE state = 'queued' AND ask = ? ORDER BY id LIMIT 5", action.ask
            ):
                log.warning("job %d waits, %s", row["id"], action.reason)

    def _attempt(self, action: act.Relaunch | act.NoteDead | act.KillRunner) -> str:
        row = self._store.db.row("SELECT job_id, number FROM attempt WHERE id = ?", action.attempt_id)
        return f"{row['number']} of job {row['job_id']}" if row else "?"

    def _started(self, action: act.Start) -> None:
        row = self._store.job(action.job_id)
        assert row is not None
        by_uuid = {gpu["uuid"]: gpu["idx"] for gpu in self._store.gpus()}
        gpus = ",".join(str(by_uuid.get(uuid, uuid)) for uuid in action.gpus)
        log.info("job %d started on GPU %s: %s", action.job_id, gpus, row["text"])

    def _strayed(self, action: act.NoteStray) -> None:
        row = self._store.db.row("SELECT gpus FROM attempt WHERE id = ?", action.attempt_id)
        assert row is not None
        index = self._store.indices()
        given = [index.get(uuid, -1) for uuid in json.loads(row["gpus"])]
        log.warning("%s", stray_words(action.job_id, given, index.get(action.uuid, -1), action.pid))

    def _closed(self, action: act.Close) -> None:
        row = self._store.db.row(
            "SELECT started_at, ended_at, log, survivors FROM attempt WHERE id = ?", action.attempt_id
        )
        assert row is not None
        took = ""
        if row["started_at"] is not None and row["ended_at"] is not None:
            took = f" after {max(0.0, row['ended_at'] - row['started_at']):.1f} s"
        good = action.outcome in (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.ENDED)
        level = logging.INFO if good else logging.WARNING
        why = f": {action.reason}" if action.reason else ""
        then = {
            JobState.QUEUED: "; queued again",
            JobState.HELD: "; held",
        }
        where = f" (log: {row['log']})" if row["log"] and not good else ""
        log.log(
            level,
            "job %d %s%s%s%s%s",
            action.job_id,
            str(action.job_outcome or action.outcome).replace("_", " "),
            took,
            why,
            then.get(action.state, ""),
            where,
        )
        survivors = json.loads(row["survivors"])
        if survivors:
            log.warning("job %d left processes that do not end: %s", action.job_id, survivors)
