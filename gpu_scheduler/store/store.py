"""Opens the store, inserts jobs, and reads jobs, attempts and GPUs.

`job_lists` lists jobs, `requests` adds and reads requests, and `pending_groups` reads wait reasons. Only the
loop changes jobs and attempts (`StoreWriter`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from msgspec.structs import asdict

from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import Database, no_store_error

if TYPE_CHECKING:
    import sqlite3

    from gpu_scheduler.config import StartOptions
    from gpu_scheduler.core.model.gpu import Gpu
    from gpu_scheduler.core.model.job import ActiveAttempt, AdoptedProcess, Attempt, Job
    from gpu_scheduler.core.model.job_spec import Dependency, JobSpec
    from gpu_scheduler.core.model.reasons import StateReason, WaitReason

#: Key in `meta` for the options of the newest scheduler.
_OPTIONS_KEY = "started_with"

_Record = TypeVar("_Record")


class RecordCache(Generic[_Record]):
    """Builds records from rows, and reuses the previous record for an unchanged row.

    A round reads the same few rows several times, and building a record costs more than reading its row.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[Any, ...], _Record] = {}

    def records(
        self, rows: Sequence[sqlite3.Row], build: Callable[[Sequence[Any]], _Record]
    ) -> list[_Record]:
        """Returns the records of these distinct rows, in order, and drops all others from the cache."""
        known = self._records
        self._records = {}
        for row in rows:
            key = tuple(row)
            self._records[key] = known[key] if key in known else build(key)
        return list(self._records.values())


class Marks(NamedTuple):
    """Tells which queries of a round would return nothing, or nothing new.

    has_delayed: whether a queued job has a time before which it is not started. newest_*, oldest_*: the ids
    in a table, 0 if it is empty.
    """

    has_requests: bool
    has_adopted: bool
    has_reservations: bool
    has_delayed: bool
    has_unsettled_dependencies: bool
    newest_group_change: int
    newest_attempt: int
    newest_measurement: int
    oldest_run_time: int
    newest_run_time: int


#: Every condition is that of a partial index, which is empty or small.
_MARKS = (
    "SELECT EXISTS (SELECT 1 FROM request WHERE answered_at IS NULL),"
    " EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND adopted IS NOT NULL),"
    " EXISTS (SELECT 1 FROM reservation),"
    " EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND not_before_boot IS NOT NULL),"
    " EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND failed_parents > 0)"
    " OR EXISTS (SELECT 1 FROM job WHERE state = 'finished' AND outcome = 'skipped' AND failed_parents = 0),"
    " coalesce((SELECT max(id) FROM group_change), 0), coalesce((SELECT max(id) FROM attempt), 0),"
    " coalesce((SELECT max(id) FROM measurement), 0),"
    " coalesce((SELECT min(id) FROM run_time), 0), coalesce((SELECT max(id) FROM run_time), 0)"
)


class Store:
    """The store of one state file. Raises SchedulerError if another host owns it.

    Methods that return records import the record classes themselves, because `pause` needs no records and
    creating the classes would take longer than the rest of the command.
    """

    def __init__(self, data_dir: DataDir, *, create: bool = False) -> None:
        data_dir.check_access()
        if create:
            data_dir.create()
        self.data_dir = data_dir
        self._learning: bool | None = None
        self._active_attempts: RecordCache[ActiveAttempt] = RecordCache()
        self._gpus: RecordCache[Gpu] = RecordCache()
        owner = None if create else data_dir.other_host()
        if owner is not None:
            # Even an SQLite reader may write to the file, and its locks have no effect on another host.
            raise SchedulerError(data_dir.refusal(owner))
        if data_dir.problem is not None and not data_dir.database.exists():
            raise SchedulerError(data_dir.problem)
        if not create:
            _refuse_lost_store(data_dir)
        self.db = Database(data_dir.database, create=create)

    def recorded_options(self) -> StartOptions:
        """Returns the options of the current or last scheduler, or the defaults if none are recorded."""
        return _parse_options(self.db.meta(_OPTIONS_KEY) or "{}")

    @property
    def learning(self) -> bool:
        """True if the newest scheduler learns undeclared needs."""
        if self._learning is None:
            self._learning = self.recorded_options().learn
        return self._learning

    def record_options(self, options: StartOptions) -> None:
        """Records the options of this scheduler.

        The paths of files that readers open must be absolute. If `learn` changed, the spec keys of the
        waiting jobs are updated.
        """
        from gpu_scheduler.core.model.job_spec import JobSpec
        from gpu_scheduler.core.text.formatting import HIDDEN, hidden_password

        has_changed, self._learning = self.learning != options.learn, None
        with self.db.transaction() as db:
            values = asdict(options)
            if options.redis is not None:
                values["redis"] = hidden_password(options.redis)
            values["notify"] = [HIDDEN] * len(options.notify)
            self.db.set_meta(_OPTIONS_KEY, json.dumps(values))
            if not has_changed:
                return
            for row in self.db.rows(
                "SELECT id, spec, min_vram_mib FROM job WHERE state IN ('queued', 'held')"
            ):
                key = self.spec_key(JobSpec.from_json(row["spec"]), row["min_vram_mib"])
                db.execute("UPDATE job SET spec_key = ? WHERE id = ?", (key, row["id"]))

    def spec_key(self, spec: JobSpec, min_vram_mib: int | None = None) -> str:
        """Returns the key of the resource spec of a job."""
        from gpu_scheduler.core.scheduling.needs import ResourceSpec

        return ResourceSpec.of(spec, min_vram_mib, learn_needs=self.learning).key()

    def close(self) -> None:
        """Closes the database."""
        self.db.close()

    def insert_job(
        self,
        spec: JobSpec,
        source: str,
        now: float | None = None,
        dependencies: Iterable[Dependency] = (),
        environment: str | None = None,
        held_because: StateReason | None = None,
        adopted: AdoptedProcess | None = None,
        gate: WaitReason | None = None,
    ) -> int:
        """Inserts a job, in the caller's transaction if there is one. Returns its id.

        The job is queued, unless its specification holds or cancels it. now: in wall seconds. dependencies:
        what it waits for, with each parent only once. environment: the key of its environment in the store;
        None for the scheduler's own environment. held_because: why it is held, if its specification holds it;
        None means that its user or its line asked for it. adopted: the running process that the job is.
        gate: why it must not start until a request lifts this.
        """
        from gpu_scheduler.core.model.job_spec import NORMAL_PRIORITY
        from gpu_scheduler.core.model.reasons import ReasonKind, StateReason

        at = time.time() if now is None else now
        state = JobState.HELD if spec.hold else JobState.QUEUED
        outcome = None
        has_line = source.startswith("file:")
        holder = ReasonKind.HELD_BY_LINE if has_line else ReasonKind.HELD_BY_USER
        reason = held_because or StateReason(holder) if spec.hold else None
        if spec.cancel:
            state, outcome = JobState.FINISHED, Outcome.CANCELLED
            reason = StateReason(ReasonKind.CANCELLED_BY_LINE)
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO job (source, kind, identity, name, text, spec, spec_key, priority, position,"
                " state, outcome, reason, held_by, created_at, finished_at, environment, adopted, queued_at,"
                " submitted_at, source_missing, line_wait)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?,"
                " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'job'), 0) + 1,"
                " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (source, spec.kind, spec.identity, spec.name, spec.text, spec.to_json(),
                 self.spec_key(spec),
                 NORMAL_PRIORITY if spec.priority is None else spec.priority, state.value,
                 outcome.value if outcome else None, reason.to_json() if reason else None,
                 ("line" if has_line else "user") if state is JobState.HELD else None,
                 at, at if outcome else None, environment,
                 None if adopted is None else adopted.to_json(), at, at,
                 gate is not None, None if gate is None else gate.to_json()),
            )  # fmt: skip
            job_id = cursor.lastrowid
            assert job_id is not None
            insert_dependencies(db, job_id, dependencies)
        return job_id

    def job(self, job_id: int) -> Job | None:
        """Returns a job, or None if it does not exist."""
        from gpu_scheduler.store.records import JOBS

        row = self.db.row(f"SELECT {JOBS.columns} FROM job WHERE id = ?", job_id)
        return None if row is None else JOBS.record(row)

    def attempt(self, attempt_id: int) -> Attempt | None:
        """Returns an attempt, or None if it does not exist."""
        return next(iter(self._attempts("id = ?", attempt_id)), None)

    def _attempts(self, where: str, *values: object) -> list[Attempt]:
        from gpu_scheduler.store.records import ATTEMPTS

        rows = self.db.rows(f"SELECT {ATTEMPTS.columns} FROM attempt WHERE {where}", *values)
        return list(map(ATTEMPTS.record, rows))

    def attempts(self, job_id: int) -> list[Attempt]:
        """Returns the attempts of a job, oldest first."""
        return self._attempts("job_id = ? ORDER BY number", job_id)

    def active_attempts(self) -> list[ActiveAttempt]:
        """Returns the attempts that are open, hold GPUs or await memory release, oldest first."""
        from gpu_scheduler.store.records import ACTIVE_ATTEMPT_COLUMNS, active_attempt

        rows = self.db.rows(
            f"SELECT {ACTIVE_ATTEMPT_COLUMNS} FROM attempt JOIN job ON job.id = attempt.job_id"
            " WHERE attempt.state <> 'closed'"
            " ORDER BY +attempt.id"  # "+" makes SQLite use the partial index instead of scanning all attempts
        )
        return self._active_attempts.records(rows, active_attempt)

    def gpus(self, *, managed_only: bool = True) -> list[Gpu]:
        """Returns the managed GPUs, or all known ones, sorted by index."""
        from gpu_scheduler.store.records import GPUS

        where = "managed" if managed_only else "TRUE"
        rows = self.db.rows(f"SELECT {GPUS.columns} FROM gpu WHERE {where} ORDER BY idx")
        return self._gpus.records(rows, GPUS.record)

    def managed_gpus(self) -> dict[int, str]:
        """Returns the UUIDs of the managed GPUs, by index."""
        return dict(map(tuple, self.db.rows("SELECT idx, uuid FROM gpu WHERE managed ORDER BY idx")))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Runs all queries of the block on one snapshot of the store, taken at the first query.

        The block must not write: its changes would not be synced.
        """
        self.db.connection.execute("BEGIN")
        self.db.is_reading = True
        try:
            yield
        finally:
            self.db.is_reading = False
            # After some errors, SQLite has already ended the transaction.
            if self.db.connection.in_transaction:
                self.db.connection.execute("ROLLBACK")

    def marks(self) -> Marks:
        """Returns what tells a round which other queries it can leave out."""
        [row] = self.db.rows(_MARKS)
        return Marks(*map(bool, row[:5]), *row[5:])

    def newest_attempts(self, job_ids: Iterable[int]) -> dict[int, Attempt]:
        """Returns the newest attempt of each of these jobs that has one, by job id."""
        found = self._attempts(
            "job_id IN (SELECT value FROM json_each(?))"
            " AND number = (SELECT max(number) FROM attempt AS one WHERE one.job_id = attempt.job_id)",
            json.dumps(list(job_ids)),
        )
        return {attempt.job_id: attempt for attempt in found}

    def gpu_indices(self) -> dict[str, int]:
        """Returns the indices of all known GPUs, managed or not, by UUID."""
        return dict(map(tuple, self.db.rows("SELECT uuid, idx FROM gpu")))

    def was_gpu_shared(self, attempt: Attempt, since: float, until: float) -> bool:
        """Returns whether another job's attempt held one of this attempt's GPUs from `since` to `until`."""
        row = self.db.row(
            "SELECT 1 FROM attempt WHERE job_id <> ? AND created_at < ? AND coalesce(ended_at, 9e99) > ?"
            " AND EXISTS (SELECT 1 FROM allocation WHERE attempt_id = attempt.id"
            " AND gpu IN (SELECT value FROM json_each(?)))",
            attempt.job_id, until, since, json.dumps(attempt.gpus),
        )  # fmt: skip
        return row is not None


def insert_dependencies(db: sqlite3.Connection, job_id: int, wanted: Iterable[Dependency]) -> None:
    """Inserts dependencies. Of several with the same parent and kind, the first one counts."""
    db.executemany(
        "INSERT OR IGNORE INTO dependency (job_id, parent_id, kind, reference) VALUES (?, ?, ?, ?)",
        [(job_id, one.parent_id, one.kind.value, one.reference) for one in wanted],
    )


@lru_cache(maxsize=1)
def _parse_options(text: str) -> StartOptions:
    from gpu_scheduler.config import StartOptions

    return StartOptions.from_values(json.loads(text))


def _refuse_lost_store(data_dir: DataDir) -> None:
    """Raises SchedulerError if the store was lost, or StoreNotFoundError if there never was one."""
    try:
        if os.stat(data_dir.database).st_size:
            return
    except OSError:
        pass
    if os.path.exists(data_dir.folder):
        from gpu_scheduler.store.backups import is_store_lost

        if is_store_lost(data_dir):
            raise SchedulerError(
                f"the store in {data_dir.folder} was lost: {data_dir.database.name} is missing or empty;"
                " `start` reports what is left of it, and `start --restore` rebuilds the store from that"
            )
    raise no_store_error(data_dir.database)
