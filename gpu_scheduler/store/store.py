"""What front ends may do with the record: insert jobs and wishes, and read.

Changing a job or an attempt is the loop's alone (`recorder.py`).
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.states import FAILED, JobState, Outcome
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.database import Database, no_record
from gpu_scheduler.store.home import Home

if TYPE_CHECKING:
    from gpu_scheduler.core.jobspec import JobSpec
    from gpu_scheduler.core.now import Now

#: The columns of a job in a list of jobs: those that are shown, or decide how.
_LISTED = (
    "id, source, name, text, spec, ask, priority, place, state, outcome, exit_code, signal, reason,"
    " not_before_boot, boot_id, line_wait, created_at, finished_at"
)


#: Where it is said whether needs are learned.
_LEARN = "learn"


class Store:
    """The record of one state file.

    foreign    the host that it belongs to, where that is not this one: then it is read from a copy, and what
               would be written raises SchedulerError.
    """

    def __init__(self, home: Home, *, create: bool = False) -> None:
        home.check_access()
        if create:
            home.create()
        self.home = home
        self._learning: bool | None = None
        self.foreign = None if create else home.foreign()
        if self.foreign is None:
            if home.problem is not None and not home.database.exists():
                raise SchedulerError(home.problem)
            if not create:
                _refuse_lost(home)
            self.db = Database(home.database, create=create)
        else:
            from gpu_scheduler.store.foreign import copy_of

            refusal = home.refusal(self.foreign)
            if home.moved:
                raise SchedulerError(refusal)  # it lies on a disk of that host
            self._copy = copy_of(home.database, refusal)
            try:
                self.db = Database(Path(self._copy.name) / home.database.name, refusal=refusal)
            except BaseException:
                self._copy.cleanup()
                raise

    @property
    def learning(self) -> bool:
        """Whether needs that no line says are learned, as the newest scheduler was told."""
        if self._learning is None:
            self._learning = self.db.meta(_LEARN) == "1"
        return self._learning

    def set_learning(self, learn: bool) -> None:
        """Say whether needs are learned; the waiting jobs ask accordingly from now on."""
        if self.learning == learn:
            return
        from gpu_scheduler.core.jobspec import JobSpec
        from gpu_scheduler.core.needs import Ask

        with self.db.transaction() as db:
            self.db.set_meta(_LEARN, "1" if learn else "0")
            for row in self.db.rows("SELECT id, spec, raised_mib FROM job WHERE state IN ('queued', 'held')"):
                ask = Ask.of(JobSpec.from_json(row["spec"]), row["raised_mib"], learn=learn)
                db.execute("UPDATE job SET ask = ? WHERE id = ?", (ask.key(), row["id"]))
        self._learning = learn

    def close(self) -> None:
        """Close the database."""
        self.db.close()
        if self.foreign is not None:
            self._copy.cleanup()

    def insert_job(self, spec: JobSpec, source: str, now: float | None = None) -> int:
        """A new job, queued or held, in the caller's transaction if there is one. Returns its id."""
        from gpu_scheduler.core.needs import Ask  # readers need neither
        from gpu_scheduler.core.order import NORMAL

        at = time.time() if now is None else now
        state = JobState.HELD if spec.hold else JobState.QUEUED
        outcome = None
        reason = "held by its line" if spec.hold else None
        if spec.cancel:
            state, outcome, reason = JobState.FINISHED, Outcome.CANCELLED, "cancelled by its line"
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO job (source, kind, identity, name, text, spec, ask, priority, place, state,"
                " outcome, reason, held_by, created_at, finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?,"
                " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'job'), 0) + 1, ?, ?, ?, ?, ?, ?)",
                (source, spec.kind, spec.identity, spec.name, spec.text, spec.to_json(),
                 Ask.of(spec, learn=self.learning).key(),
                 NORMAL if spec.priority is None else spec.priority, state.value,
                 outcome.value if outcome else None, reason, "line" if state is JobState.HELD else None,
                 at, at if outcome else None),
            )  # fmt: skip
            job_id = cursor.lastrowid
            assert job_id is not None
        return job_id

    def wish(self, verb: str, target: str = "", by: str = "cli", **args: object) -> int:
        """Ask the loop for something. Returns the wish's id; `answer` tells what came of it."""
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO wish (verb, target, args, by, made_at) VALUES (?, ?, ?, ?, ?)",
                (verb, target, json.dumps(args), by, time.time()),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def answer(self, wish_id: int) -> str | None:
        """What came of a wish; None = not carried out yet."""
        row = self.db.row("SELECT answer FROM wish WHERE id = ?", wish_id)
        return row["answer"] if row else None

    def open_wishes(self) -> list[sqlite3.Row]:
        """Wishes that are not carried out yet, oldest first."""
        return self.db.rows("SELECT * FROM wish WHERE done_at IS NULL ORDER BY id")

    def job(self, job_id: int) -> sqlite3.Row | None:
        """One job."""
        return self.db.row("SELECT * FROM job WHERE id = ?", job_id)

    def attempts(self, job_id: int) -> list[sqlite3.Row]:
        """The attempts of a job, oldest first."""
        return self.db.rows("SELECT * FROM attempt WHERE job_id = ? ORDER BY number", job_id)

    def unsettled(self) -> list[sqlite3.Row]:
        """Attempts that are open, hold GPUs, or whose memory is not back, with their job's columns."""
        return self.db.rows(
            "SELECT attempt.*, job.state AS job_state, job.cancel_cause, job.cancel_grace_s,"
            " job.launch_failures, job.source AS job_source, job.ask AS job_ask, job.oom_used, job.fail_used,"
            " EXISTS (SELECT 1 FROM line WHERE line.job_id = job.id) AS has_line"
            " FROM attempt JOIN job ON job.id = attempt.job_id WHERE attempt.settled = 0"
            " ORDER BY +attempt.id"  # + : by the index of these, not through all attempts there ever were
        )

    def gpus(self) -> list[sqlite3.Row]:
        """The managed GPUs, by index."""
        return self.db.rows("SELECT * FROM gpu WHERE managed ORDER BY idx")

    def asks(self) -> dict[str, str | None]:
        """The distinct asks of the queued jobs that do not wait for their lines, and why the jobs of each
        wait, where that is known (a skip scan: its cost does not grow with the queue)."""
        rows = self.db.rows(
            "WITH RECURSIVE asks (ask) AS (SELECT min(ask) FROM job WHERE state = 'queued' UNION ALL"
            " SELECT (SELECT min(ask) FROM job WHERE state = 'queued' AND job.ask > asks.ask) FROM asks"
            " WHERE asks.ask IS NOT NULL) SELECT ask, reason FROM asks LEFT JOIN waiting USING (ask)"
            " WHERE EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND job.ask = asks.ask AND gone = 0)"
        )
        return {row["ask"]: row["reason"] for row in rows}

    def startable(self, ask: str, boot: float, boot_id: str, limit: int) -> list[sqlite3.Row]:
        """The first queued jobs of an ask that nothing but GPUs keeps from starting, in order."""
        return self.db.rows(
            "SELECT id, priority, place, passed_at FROM job WHERE state = 'queued' AND ask = ? AND gone = 0"
            " AND (not_before_boot IS NULL OR not_before_boot <= ? OR boot_id <> ?)"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id AND settled = 0"
            " AND outcome IS NOT NULL AND released_boot IS NULL)"
            " ORDER BY priority, place, id LIMIT ?",
            ask, boot, boot_id, limit,
        )  # fmt: skip

    def next_retry(self, now: Now) -> float | None:
        """The boot time, after now, at which the next failed launch may be tried again."""
        row = self.db.row(
            "SELECT min(not_before_boot) AS at FROM job WHERE state = 'queued' AND boot_id = ?"
            " AND not_before_boot > ?",
            now.boot_id,
            now.boot,
        )
        return row["at"] if row else None

    def waiting(self) -> Mapping[str, str]:
        """Why the jobs of each ask wait."""
        return {row["ask"]: row["reason"] for row in self.db.rows("SELECT * FROM waiting")}

    def needs(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the known need of each ask with waiting jobs: the fields of `core.needs.Need`."""
        rows = self.db.rows("SELECT ask, need FROM waiting WHERE need IS NOT NULL")
        return {row["ask"]: json.loads(row["need"]) for row in rows}

    def newest_of(self, identities: Iterable[str]) -> dict[str, sqlite3.Row]:
        """The newest job of each identity, whatever it came from."""
        rows = self.db.rows(
            "SELECT job.* FROM json_each(?) AS wanted JOIN job"
            " ON job.id = (SELECT max(id) FROM job WHERE identity = wanted.value)",
            json.dumps(list(identities)),
        )
        return {row["identity"]: row for row in rows}

    def history(self, job_id: int) -> list[dict[str, Any]]:
        """The states that a job went through, oldest first."""
        rows = self.db.rows("SELECT at, state, reason FROM history WHERE job_id = ? ORDER BY rowid", job_id)
        return [dict(row) for row in rows]

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """All queries inside see the record as it was at the first of them."""
        self.db.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.db.connection.execute("COMMIT")

    def withdraw(self, wish_id: int) -> bool:
        """Take back a wish that is not carried out yet. False: it was."""
        with self.db.transaction() as db:
            cursor = db.execute(
                "UPDATE wish SET done_at = ?, answer = 'taken back' WHERE id = ? AND done_at IS NULL",
                (time.time(), wish_id),
            )
        return cursor.rowcount == 1

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        rows = self.db.rows("SELECT state, jobs FROM tally WHERE jobs > 0")
        return {row["state"]: row["jobs"] for row in rows}

    def unsuccessful(self) -> dict[str, int]:
        """How many finished jobs have each outcome but `completed`."""
        rows = self.db.rows(
            "SELECT outcome, count(*) AS n FROM job WHERE state = 'finished' AND outcome <> 'completed'"
            " GROUP BY outcome"
        )
        return {row["outcome"]: row["n"] for row in rows}

    def open_jobs(self, states: Collection[JobState], limit: int | None = None) -> list[sqlite3.Row]:
        """The jobs in these states (`finished` is none of them), in the order in which they are tried; of
        each what is listed of it."""
        marks = ", ".join("?" * len(states))
        return self.db.rows(
            f"SELECT {_LISTED} FROM job WHERE state <> 'finished' AND state IN ({marks})"
            " ORDER BY priority, place, id LIMIT ?",
            *(state.value for state in states),
            -1 if limit is None else limit,
        )

    def named(self, name: str) -> list[sqlite3.Row]:
        """The jobs of this name: the open ones by their ids, then the finished ones, newest end first."""
        return self.db.rows(
            f"SELECT {_LISTED} FROM job WHERE name = ?"
            " ORDER BY state = 'finished', CASE state WHEN 'finished' THEN -finished_at ELSE id END, id DESC",
            name,
        )

    def ids_within(self, numbers: range) -> list[int]:
        """The ids of the jobs there are among these numbers."""
        rows = self.db.rows(
            "SELECT id FROM job WHERE id BETWEEN ? AND ? ORDER BY id", numbers[0], numbers[-1]
        )
        return [row["id"] for row in rows]

    def failed_jobs(self) -> list[sqlite3.Row]:
        """The finished jobs that failed, newest end first."""
        outcomes = json.dumps(sorted(FAILED))
        return self.db.rows(
            f"SELECT {_LISTED} FROM job WHERE state = 'finished'"
            " AND outcome IN (SELECT value FROM json_each(?)) ORDER BY finished_at DESC, id DESC",
            outcomes,
        )

    def finished_jobs(self, limit: int | None = None) -> list[sqlite3.Row]:
        """The finished jobs, newest end first."""
        return self.db.rows(
            f"SELECT {_LISTED} FROM job WHERE state = 'finished' ORDER BY finished_at DESC, id DESC LIMIT ?",
            -1 if limit is None else limit,
        )

    def newest_attempts(self, job_ids: Iterable[int]) -> dict[int, sqlite3.Row]:
        """The newest attempt of each of these jobs that has one."""
        rows = self.db.rows(
            "SELECT attempt.*, max(number) FROM attempt WHERE job_id IN (SELECT value FROM json_each(?))"
            " GROUP BY job_id",
            json.dumps(list(job_ids)),
        )
        return {row["job_id"]: row for row in rows}

    def infeasible(self) -> frozenset[str]:
        """The asks that could not fit on the managed GPUs."""
        return frozenset(row["ask"] for row in self.db.rows("SELECT ask FROM waiting WHERE infeasible"))

    def indices(self) -> dict[str, int]:
        """UUID -> index of every GPU ever seen, also of those that are not managed."""
        return {row["uuid"]: row["idx"] for row in self.db.rows("SELECT uuid, idx FROM gpu")}

    def malformed(self) -> list[sqlite3.Row]:
        """The malformed lines of the last readings, by file and line."""
        return self.db.rows(
            "SELECT path, number, text, raw, problem, accepted FROM line WHERE problem IS NOT NULL"
            " ORDER BY path, position"
        )

    def line_of(self, job_id: int) -> sqlite3.Row | None:
        """Where the line of a job stands now; None for a job without one."""
        return self.db.row("SELECT path, number FROM line WHERE job_id = ? ORDER BY position LIMIT 1", job_id)

    def before(self, job: sqlite3.Row, limit: int) -> tuple[int, list[int]]:
        """How many queued jobs come before this one in the order, and the first of them."""
        where = "FROM job WHERE state = 'queued' AND (priority, place, id) < (?, ?, ?)"
        key = (job["priority"], job["place"], job["id"])
        count = self.db.row(f"SELECT count(*) AS n {where}", *key)
        rows = self.db.rows(f"SELECT id {where} ORDER BY priority, place, id LIMIT ?", *key, limit)
        return (count["n"] if count else 0), [row["id"] for row in rows]

    def jobs_files(self) -> list[sqlite3.Row]:
        """The jobs files, with the working folder of their lines and why one cannot be read now."""
        return self.db.rows("SELECT * FROM jobs_file ORDER BY path")


def _refuse_lost(home: Home) -> None:
    """Raises SchedulerError where a record was lost, NoRecordError where none was made; readers make none."""
    try:
        if os.stat(home.database).st_size:
            return
    except OSError:
        pass
    from gpu_scheduler.store.condition import is_lost

    if is_lost(home):
        raise SchedulerError(
            f"the record in {home.folder} was lost: {home.database.name} is missing or empty;"
            " `start` tells what is left of it, `start --restore` goes on from it"
        )
    raise no_record(home.database)
