"""The store as front ends may use it: insert jobs and requests, and read.

Only the loop changes jobs and attempts (`StoreWriter`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import Database, no_store_error
from gpu_scheduler.store.from_rows import (
    ATTEMPT_COLUMNS,
    RecordCache,
    active_attempt_record,
    attempt_record,
    gpu_record,
    job_records,
    wait_reason,
)
from gpu_scheduler.store.records import (
    ActiveAttemptRecord,
    AttemptRecord,
    GpuRecord,
    JobRecord,
    JobsFileRecord,
    LineLocation,
    MalformedLineRecord,
)

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import JobSpec
    from gpu_scheduler.core.model.now import Now
    from gpu_scheduler.core.model.request import Request
    from gpu_scheduler.core.model.request_answer import RequestAnswer
    from gpu_scheduler.core.scheduling.facts import QueuedJob

#: Key in `meta`: whether needs are learned.
_LEARN_KEY = "learn"


class Store:
    """The store of one state file. Raises SchedulerError if another host owns it."""

    def __init__(self, data_dir: DataDir, *, create: bool = False) -> None:
        data_dir.check_access()
        if create:
            data_dir.create()
        self.data_dir = data_dir
        self._learning: bool | None = None
        self._active_attempts = RecordCache(active_attempt_record)
        self._gpus = RecordCache(gpu_record)
        owner = None if create else data_dir.other_host()
        if owner is not None:
            # Even a reader of SQLite takes locks that another host does not see, and may write into the file.
            raise SchedulerError(data_dir.refusal(owner))
        if data_dir.problem is not None and not data_dir.database.exists():
            raise SchedulerError(data_dir.problem)
        if not create:
            _refuse_lost_store(data_dir)
        self.db = Database(data_dir.database, create=create)

    @property
    def learning(self) -> bool:
        """True if the newest scheduler learns undeclared needs."""
        if self._learning is None:
            self._learning = self.db.meta(_LEARN_KEY) == "1"
        return self._learning

    def set_learning(self, learn: bool) -> None:
        """Sets whether needs are learned and updates the spec keys of the waiting jobs."""
        if self.learning == learn:
            return
        from gpu_scheduler.core.model.job_spec import JobSpec
        from gpu_scheduler.core.scheduling.needs import ResourceSpec

        with self.db.transaction() as db:
            self.db.set_meta(_LEARN_KEY, "1" if learn else "0")
            for row in self.db.rows(
                "SELECT id, spec, min_vram_mib FROM job WHERE state IN ('queued', 'held')"
            ):
                resource_spec = ResourceSpec.of(
                    JobSpec.from_json(row["spec"]), row["min_vram_mib"], learn_needs=learn
                )
                db.execute("UPDATE job SET spec_key = ? WHERE id = ?", (resource_spec.key(), row["id"]))
        self._learning = learn

    def close(self) -> None:
        """Closes the database."""
        self.db.close()

    def insert_job(self, spec: JobSpec, source: str, now: float | None = None) -> int:
        """Inserts a job in the caller's transaction if there is one; returns its id.

        It is queued, or held or cancelled if its line says so. now: wall seconds.
        """
        from gpu_scheduler.core.scheduling.needs import ResourceSpec
        from gpu_scheduler.core.scheduling.order import NORMAL_PRIORITY

        at = time.time() if now is None else now
        state = JobState.HELD if spec.hold else JobState.QUEUED
        outcome = None
        reason = StateReason(ReasonKind.HELD_BY_LINE) if spec.hold else None
        if spec.cancel:
            state, outcome = JobState.FINISHED, Outcome.CANCELLED
            reason = StateReason(ReasonKind.CANCELLED_BY_LINE)
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO job (source, kind, identity, name, text, spec, spec_key, priority, position,"
                " state, outcome, reason, held_by, created_at, finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?,"
                " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'job'), 0) + 1, ?, ?, ?, ?, ?, ?)",
                (source, spec.kind, spec.identity, spec.name, spec.text, spec.to_json(),
                 ResourceSpec.of(spec, learn_needs=self.learning).key(),
                 NORMAL_PRIORITY if spec.priority is None else spec.priority, state.value,
                 outcome.value if outcome else None, reason.to_json() if reason else None,
                 "line" if state is JobState.HELD else None,
                 at, at if outcome else None),
            )  # fmt: skip
            job_id = cursor.lastrowid
            assert job_id is not None
        return job_id

    def add_request(self, verb: str, target: str = "", by: str = "cli", **args: object) -> int:
        """Adds a request to the loop. Returns its id, for which `request_answer` gives the answer."""
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO request (verb, target, args, by, made_at) VALUES (?, ?, ?, ?, ?)",
                (verb, target, json.dumps(args), by, time.time()),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def request_answer(self, request_id: int) -> RequestAnswer | None:
        """Returns the answer to a request; None = not answered yet."""
        row = self.db.row("SELECT answer FROM request WHERE id = ?", request_id)
        if row is None or row["answer"] is None:
            return None
        from gpu_scheduler.core.model.request_answer import RequestAnswer

        return RequestAnswer.from_json(row["answer"])

    def open_requests(self) -> list[Request]:
        """Returns the requests that are not answered yet, oldest first."""
        rows = self.db.rows(
            "SELECT id, verb, target, args FROM request WHERE answered_at IS NULL ORDER BY id"
        )
        if not rows:
            return []
        from gpu_scheduler.core.model.request import Request

        return [Request(row["id"], row["verb"], row["target"], json.loads(row["args"])) for row in rows]

    def job(self, job_id: int) -> JobRecord | None:
        """Returns a job, or None."""
        row = self.db.row("SELECT * FROM job WHERE id = ?", job_id)
        return None if row is None else job_records([row])[0]

    def _jobs(self, sql: str, *values: object) -> list[JobRecord]:
        """Returns the jobs that a query on the table `job` selects. sql: all after FROM."""
        return job_records(self.db.rows(f"SELECT * FROM {sql}", *values))

    def attempt(self, attempt_id: int) -> AttemptRecord | None:
        """Returns an attempt, or None."""
        row = self.db.row(f"SELECT {ATTEMPT_COLUMNS} FROM attempt WHERE id = ?", attempt_id)
        return None if row is None else attempt_record(row)

    def attempt_with_job(self, attempt_id: int) -> tuple[AttemptRecord, JobRecord]:
        """Returns an attempt, which must exist, and its job."""
        attempt = self.attempt(attempt_id)
        assert attempt is not None
        job = self.job(attempt.job_id)
        assert job is not None
        return attempt, job

    def attempts(self, job_id: int) -> list[AttemptRecord]:
        """Returns the attempts of a job, oldest first."""
        rows = self.db.rows(f"SELECT {ATTEMPT_COLUMNS} FROM attempt WHERE job_id = ? ORDER BY number", job_id)
        return [attempt_record(row) for row in rows]

    def active_attempts(self) -> list[ActiveAttemptRecord]:
        """Returns the attempts that are open, hold GPUs or await memory release, with their jobs' part."""
        rows = self.db.rows(
            f"SELECT {ATTEMPT_COLUMNS}, job.cancel_cause, job.cancel_grace_s,"
            " job.launch_failures, job.source AS job_source, job.spec_key, job.oom_retries_used,"
            " job.fail_retries_used,"
            " EXISTS (SELECT 1 FROM line WHERE line.job_id = job.id) AS has_line"
            " FROM attempt JOIN job ON job.id = attempt.job_id WHERE attempt.state <> 'closed'"
            " ORDER BY +attempt.id"  # "+" makes SQLite use the partial index, not scan all attempts
        )
        return self._active_attempts.records(rows)

    def gpus(self) -> list[GpuRecord]:
        """Returns the managed GPUs, by index."""
        return self._gpus.records(self.db.rows("SELECT * FROM gpu WHERE managed ORDER BY idx"))

    def wait_reason_by_spec(self) -> dict[str, WaitReason | None]:
        """Returns spec key -> wait reason, if known, of the queued jobs that do not wait for their lines.

        The query is a skip scan: its cost does not grow with the queue.
        """
        rows = self.db.rows(
            "WITH RECURSIVE queued (spec_key) AS (SELECT min(spec_key) FROM job WHERE state = 'queued'"
            " UNION ALL SELECT (SELECT min(spec_key) FROM job WHERE state = 'queued'"
            " AND job.spec_key > queued.spec_key) FROM queued WHERE queued.spec_key IS NOT NULL)"
            " SELECT spec_key, reason FROM queued LEFT JOIN pending_group USING (spec_key) WHERE EXISTS"
            " (SELECT 1 FROM job WHERE state = 'queued' AND job.spec_key = queued.spec_key"
            " AND source_missing = 0)"
        )
        return {row["spec_key"]: wait_reason(row["reason"]) for row in rows}

    def startable_jobs(self, spec_key: str, boot: float, boot_id: str, limit: int) -> list[QueuedJob]:
        """Returns the first queued jobs of a resource spec that wait only for GPUs, in queue order."""
        from gpu_scheduler.core.scheduling.facts import QueuedJob

        rows = self.db.rows(
            "SELECT id, priority, position, bypassed_at FROM job WHERE state = 'queued' AND spec_key = ?"
            " AND source_missing = 0"
            " AND (not_before_boot IS NULL OR not_before_boot <= ? OR boot_id <> ?)"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id"
            " AND attempt.state = 'ended' AND attempt.state <> 'closed')"
            " ORDER BY priority, position, id LIMIT ?",
            spec_key, boot, boot_id, limit,
        )  # fmt: skip
        return [
            QueuedJob(id, priority, position, since is not None) for id, priority, position, since in rows
        ]

    def next_retry(self, now: Now) -> float | None:
        """Returns the next boot time after now at which a failed launch may be retried, or None."""
        row = self.db.row(
            "SELECT min(not_before_boot) AS at FROM job WHERE state = 'queued' AND boot_id = ?"
            " AND not_before_boot > ?",
            now.boot_id,
            now.boot,
        )
        return row["at"] if row else None

    def wait_reasons(self) -> Mapping[str, WaitReason]:
        """Returns spec key -> why its jobs wait, where that is known."""
        rows = self.db.rows("SELECT spec_key, reason FROM pending_group")
        found = {row["spec_key"]: wait_reason(row["reason"]) for row in rows}
        return {key: reason for key, reason in found.items() if reason is not None}

    def newest_jobs(self, identities: Iterable[str]) -> dict[str, JobRecord]:
        """Returns identity -> its newest job, whatever its source."""
        rows = self.db.rows(
            "SELECT job.* FROM json_each(?) AS wanted JOIN job"
            " ON job.id = (SELECT max(id) FROM job WHERE identity = wanted.value)",
            json.dumps(list(identities)),
        )
        return {job.identity: job for job in job_records(rows)}

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Runs all queries of the block on one snapshot of the store, taken at the first of them."""
        self.db.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.db.connection.execute("COMMIT")

    def withdraw_request(self, request_id: int) -> bool:
        """Withdraws a request that is not answered yet; returns False if it was."""
        from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer

        with self.db.transaction() as db:
            cursor = db.execute(
                "UPDATE request SET answered_at = ?, answer = ? WHERE id = ? AND answered_at IS NULL",
                (time.time(), RequestAnswer(AnswerCode.WITHDRAWN).to_json(), request_id),
            )
        return cursor.rowcount == 1

    def state_counts(self) -> dict[str, int]:
        """Returns state -> number of jobs."""
        rows = self.db.rows("SELECT state, jobs FROM job_count WHERE jobs > 0")
        return {row["state"]: row["jobs"] for row in rows}

    def unsuccessful_counts(self) -> dict[str, int]:
        """Returns outcome -> number of finished jobs, without `completed`."""
        rows = self.db.rows(
            "SELECT outcome, count(*) AS n FROM job WHERE state = 'finished' AND outcome <> 'completed'"
            " GROUP BY outcome"
        )
        return {row["outcome"]: row["n"] for row in rows}

    def open_jobs(self, states: Collection[JobState], limit: int | None = None) -> list[JobRecord]:
        """Returns the jobs in these states, which must not include `finished`, in queue order."""
        marks = ", ".join("?" * len(states))
        return self._jobs(
            f"job WHERE state <> 'finished' AND state IN ({marks}) ORDER BY priority, position, id LIMIT ?",
            *(state.value for state in states),
            -1 if limit is None else limit,
        )

    def jobs_named(self, name: str) -> list[JobRecord]:
        """Returns the jobs of this name: unfinished ones by id, then finished ones, newest end first."""
        return self._jobs(
            "job WHERE name = ?"
            " ORDER BY state = 'finished', CASE state WHEN 'finished' THEN -finished_at ELSE id END, id DESC",
            name,
        )

    def job_ids_in(self, numbers: range) -> list[int]:
        """Returns the ids of the existing jobs in this range."""
        rows = self.db.rows(
            "SELECT id FROM job WHERE id BETWEEN ? AND ? ORDER BY id", numbers[0], numbers[-1]
        )
        return [row["id"] for row in rows]

    def failed_jobs(self) -> list[JobRecord]:
        """Returns the finished jobs that failed, newest end first."""
        outcomes = json.dumps(sorted(FAILED))
        return self._jobs(
            "job WHERE state = 'finished'"
            " AND outcome IN (SELECT value FROM json_each(?)) ORDER BY finished_at DESC, id DESC",
            outcomes,
        )

    def finished_jobs(self, limit: int | None = None) -> list[JobRecord]:
        """Returns the finished jobs, newest end first."""
        return self._jobs(
            "job WHERE state = 'finished' ORDER BY finished_at DESC, id DESC LIMIT ?",
            -1 if limit is None else limit,
        )

    def jobs_of_file(self, path: str) -> list[JobRecord]:
        """Returns the jobs that are not finished, and all jobs with a line in this jobs file."""
        return self._jobs(
            "job WHERE state <> 'finished' OR id IN (SELECT job_id FROM line WHERE path = ?)", path
        )

    def job_count(self) -> int:
        """Returns the number of jobs."""
        count: int = self.db.rows("SELECT count(*) AS n FROM job")[0]["n"]
        return count

    def newest_attempts(self, job_ids: Iterable[int]) -> dict[int, AttemptRecord]:
        """Returns job id -> newest attempt, for those of these jobs that have one."""
        rows = self.db.rows(
            f"SELECT {ATTEMPT_COLUMNS} FROM attempt WHERE job_id IN (SELECT value FROM json_each(?))"
            " AND number = (SELECT max(number) FROM attempt AS one WHERE one.job_id = attempt.job_id)",
            json.dumps(list(job_ids)),
        )
        return {row["job_id"]: attempt_record(row) for row in rows}

    def gpu_indices(self) -> dict[str, int]:
        """Returns UUID -> index of every known GPU, also of unmanaged ones."""
        return {row["uuid"]: row["idx"] for row in self.db.rows("SELECT uuid, idx FROM gpu")}

    def malformed_lines(self) -> list[MalformedLineRecord]:
        """Returns the malformed lines of the last readings, by file and line."""
        rows = self.db.rows(
            "SELECT path, number, text, raw, problem, accepted_form FROM line WHERE problem IS NOT NULL"
            " ORDER BY path, position"
        )
        return [MalformedLineRecord(*row) for row in rows]

    def line_of(self, job_id: int) -> LineLocation | None:
        """Returns where a job's line is; None if it has none."""
        row = self.db.row("SELECT path, number FROM line WHERE job_id = ? ORDER BY position LIMIT 1", job_id)
        return None if row is None else LineLocation(*row)

    def jobs_ahead_of(self, job: JobRecord, limit: int) -> tuple[int, list[int]]:
        """Returns the number of queued jobs ahead of this one, and the ids of the first `limit` of them."""
        where = "FROM job WHERE state = 'queued' AND (priority, position, id) < (?, ?, ?)"
        key = (job.priority, job.position, job.id)
        count = self.db.row(f"SELECT count(*) AS n {where}", *key)
        rows = self.db.rows(f"SELECT id {where} ORDER BY priority, position, id LIMIT ?", *key, limit)
        return (count["n"] if count else 0), [row["id"] for row in rows]

    def jobs_files(self) -> list[JobsFileRecord]:
        """Returns the jobs files."""
        rows = self.db.rows("SELECT path, cwd, problem FROM jobs_file ORDER BY path")
        return [JobsFileRecord(*row) for row in rows]

    def jobs_file(self, path: str) -> JobsFileRecord | None:
        """Returns a jobs file; None if the scheduler has not read it."""
        row = self.db.row("SELECT path, cwd, problem FROM jobs_file WHERE path = ?", path)
        return None if row is None else JobsFileRecord(*row)

    def was_gpu_shared(self, attempt: AttemptRecord, since: float, until: float) -> bool:
        """Returns whether an attempt of another job held one of these GPUs in this time (wall seconds)."""
        row = self.db.row(
            "SELECT 1 FROM attempt WHERE job_id <> ? AND created_at < ? AND coalesce(ended_at, 9e99) > ?"
            " AND EXISTS (SELECT 1 FROM allocation WHERE attempt_id = attempt.id"
            " AND gpu IN (SELECT value FROM json_each(?)))",
            attempt.job_id, until, since, json.dumps(attempt.gpus),
        )  # fmt: skip
        return row is not None


def _refuse_lost_store(data_dir: DataDir) -> None:
    """Raises SchedulerError if the store was lost, or StoreNotFoundError if there never was one."""
    try:
        if os.stat(data_dir.database).st_size:
            return
    except OSError:
        pass
    from gpu_scheduler.store.inspection import is_store_lost

    if is_store_lost(data_dir):
        raise SchedulerError(
            f"the store in {data_dir.folder} was lost: {data_dir.database.name} is missing or empty;"
            " `start` reports what is left of it, `start --restore` continues from that"
        )
    raise no_store_error(data_dir.database)
