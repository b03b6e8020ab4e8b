"""Opens the store for `start`; refuses a lost store, or restores it from a backup and the attempt folders.

Running attempts become open attempts of the restored store, and their ends are recorded as usual. A restore
signals no process, deletes no file, and never relaunches an attempt that has a folder.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_scheduler.attempts.folder import (
    LOCAL_EXECUTORS,
    AttemptRef,
    observe,
    observe_on_engine,
    void_claim,
)
from gpu_scheduler.attempts.observe import attempt_ref, observe_attempt, processes_of
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.core.model.job_spec import ENGINES
from gpu_scheduler.core.scheduling.reconcile_attempt import restore, supersede
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import backups, inspection, moved_or_copied
from gpu_scheduler.store.backups import (
    AttemptFolder,
    Backup,
    DamagedDatabaseError,
    HighestIds,
    Origin,
    highest_ids,
    is_of_development_version,
    list_attempt_folders,
    may_have_launched,
    read_origin,
    restore_backup,
    token_of,
    unknown_to_store,
)
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import development_schema_error
from gpu_scheduler.store.inspection import StoreCondition, highest_known_ids, inspect_store
from gpu_scheduler.store.new_store import forgetting_jobs
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

# Forgets all jobs for `start --fresh`, unless a job still has a living process or may still begin.


log = logging.getLogger(__name__)

#: Seconds that a runner may take to exit after it has published its result.
RUNNER_EXIT_S = 2.0
_POLL_S = 0.02
_UNRECORDED_REMEDY = "`start --restore` adds running jobs to the store again; then `stop --jobs` ends them"
_DEVELOPMENT_REMEDY = "end them with the version that started them"


@contextmanager
def jobs_forgotten(store: Store, *, copied: bool = False) -> Iterator[None]:
    """Removes all jobs from the store while the block runs, and for good if the block succeeds.

    The caller must hold the locks. If a job is active, raises SchedulerError and changes nothing. copied:
    this store is a copy, so its active jobs belong to the original and do not matter.
    """
    if not copied:
        refuse_active(store, void_claims=True)
    with forgetting_jobs(store) as jobs:
        # Even if the store was lost, the ids in folders and backups must not be reused.
        inspection.raise_id_sequences(store.db.connection, highest_known_ids(store.data_dir))
        yield
    log.info("forgot %d job%s", jobs, "s" * (jobs != 1))


def refuse_active(store: Store, *, void_claims: bool = False) -> None:
    """Raises SchedulerError with the remedy if a job is active, whatever its state in the store.

    void_claims: also claim all attempts that nobody has claimed, so that none of them can begin.
    """
    _wait_then_refuse(
        lambda: _active_jobs(store, void_claims),
        "`stop --jobs` ends the running jobs; `start` without --fresh keeps them",
    )


def refuse_unrecorded(condition: StoreCondition) -> None:
    """Raises SchedulerError if an attempt is active. condition: describes a store that cannot be read."""
    attempts = unknown_attempts(condition.folders)
    remedy = _DEVELOPMENT_REMEDY if condition.state == "development" else _UNRECORDED_REMEDY
    _wait_then_refuse(lambda: _active_jobs_of(attempts), remedy)


def _wait_then_refuse(find_active: Callable[[], dict[int, bool]], remedy: str) -> None:
    end = time.monotonic() + RUNNER_EXIT_S
    while (left := find_active()) and all(left.values()) and time.monotonic() < end:
        time.sleep(_POLL_S)
    if left:
        which = f"job {min(left)} is" if len(left) == 1 else f"jobs {', '.join(map(str, sorted(left)))} are"
        raise SchedulerError(f"{which} active; --fresh forgets nothing while jobs are active\n{remedy}")


def _active_jobs(store: Store, void_claims: bool) -> dict[int, bool]:
    """Returns for each active job, by id, whether its command has ended and only other processes are left."""
    boot_id, active = Clock().boot_id, store.active_attempts()
    elsewhere = {
        attempt.job_id: False
        for attempt in active
        if attempt.state.is_open and attempt.executor not in LOCAL_EXECUTORS
    }
    here = [one for one in active if one.boot_id == boot_id and one.executor in LOCAL_EXECUTORS]
    attempts = [attempt_ref(store, attempt) for attempt in here]
    attempts += unknown_attempts(unknown_to_store(list_attempt_folders(store.data_dir), store.db.connection))
    ended = {attempt.token for attempt in here if not attempt.state.is_open}
    return _active_jobs_of(attempts, ended, void_claims=void_claims) | elsewhere


def unknown_attempts(folders: Iterable[AttemptFolder]) -> list[AttemptRef]:
    """Returns the attempts in these folders that were launched since the last boot, or on an engine.

    Omits a folder without a token, because its attempt can never begin.
    """
    boot_id, found = Clock().boot_id, []
    for folder in folders:
        token, origin = token_of(folder), read_origin(folder)
        executor = "direct" if origin is None else origin.executor
        may_run = origin is None or origin.boot_id == boot_id or executor in ENGINES
        if token is not None and may_run:
            found.append(AttemptRef(folder.job_id, folder.number, token, folder.path, executor=executor))
    return found


def _active_jobs_of(
    attempts: Collection[AttemptRef], ended: Collection[str] = (), *, void_claims: bool = False
) -> dict[int, bool]:
    """Like `_active_jobs`, but for these attempts. ended: tokens of attempts that ended in the store."""
    folders = {one.token: one.folder for one in attempts}
    alive = processes_of(folders, unsupervised=folders) if folders else {}
    over = {one.token: one.token in ended or _is_command_over(one, void_claims) for one in attempts}
    return {one.job_id: over[one.token] for one in attempts if one.token in alive or not over[one.token]}


def _is_command_over(attempt: AttemptRef, void_claims: bool) -> bool:
    """Returns whether an attempt's command has ended or will never begin. Other processes may be left."""
    folder, token = attempt.folder, attempt.token
    if attempt.executor in ENGINES:
        # Only the agent can void its claim, because a runner may have claimed it in the shared folder.
        return observe_on_engine(folder, token).is_over
    try:
        status = observe(folder, token, attempt.runner)
        if status.result is None and status.claim == "none":
            return not void_claims or void_claim(folder, token)
    except OSError as error:
        raise SchedulerError(f"{folder}: {error.strerror}; no job was forgotten") from None
    # An attempt with an invalid claim counts as active only if it has processes.
    return status.result is not None or status.claim in ("dead", "void", "invalid")


def open_store(data_dir: DataDir, options: StartOptions) -> Store:
    """Opens, creates or restores the store for `start`. The caller must hold the locks.

    Raises SchedulerError with the remedies if the store was lost and no option says what to do.
    """
    try:
        found = inspect_store(data_dir, thorough=options.restore or options.fresh)
        if found.state == "development" and not options.fresh:
            raise development_schema_error(data_dir.database)
        if options.restore:
            return _restore(data_dir, found, options)
        if options.fresh:
            return _open_for_fresh(data_dir, found)
        if found.is_lost:
            raise SchedulerError(refusal_message(data_dir, found))
    except OSError as error:
        remedy = "; check its permissions" if isinstance(error, PermissionError) else ""
        raise SchedulerError(f"{error.filename or data_dir.folder}: {error.strerror}{remedy}") from None
    return Store(data_dir, create=True)


def refusal_message(data_dir: DataDir, condition: StoreCondition) -> str:
    """Returns a message that explains why the store cannot be used and gives the remedies."""
    count = len(condition.unknown_folders)
    folders = f"{count} attempt folder{'s' * (count != 1)} in {data_dir.runs} {'is' if count == 1 else 'are'}"
    these = "this folder" if count == 1 else "these folders"
    problem = f"{data_dir.database} is {condition.state}"
    if condition.damage:
        problem = condition.damage
    elif condition.owner is not None:
        problem = f"{data_dir.database} belongs to the data directory {condition.owner}"
    elif condition.state == "whole":
        newer = these if count else next((one.path for one in condition.backups), "")
        problem = f"{data_dir.database} is older than {newer}"
    head = f"{folders} missing from the store: {problem}" if count else f"the store was lost: {problem}"
    running = _running_jobs(condition.unknown_folders) if count else {}
    running_jobs = "its job is not running" if count == 1 else "none of their jobs is running"
    if running:
        is_one = len(running) == 1
        pids = ", ".join(map(str, sorted(pid for pid in running.values() if pid)))
        jobs = format_ranges(sorted(running.keys()))
        running_jobs = f"job {jobs} is still running" if is_one else f"jobs {jobs} are still running"
        running_jobs += f" (pid{'s' * (',' in pids)} {pids})" if pids else ""
        running_jobs += f"; `start` does not signal {'it' if is_one else 'them'}"
    middle = f"{running_jobs}\n" if count else ""
    attempts = these if count else f"the folders in {data_dir.runs}"
    source = f"{attempts} alone, because there is no backup"
    if condition.backups:
        newest = _format_time(condition.backups[0])
        source = f"the backup of {newest} in {data_dir.backups} and from {attempts}"
    forget = "forgets all jobs" + (", but only when none of them is running" if running else "")
    return f"{head}\n{middle}`start --restore` continues from {source}; `start --fresh` {forget}"


def _format_time(backup: Backup) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.made_at))


def _running_jobs(folders: Iterable[AttemptFolder]) -> dict[int, int | None]:
    """Returns, by job id, the runner's pid (None if unknown) for each attempt with live processes."""
    attempts = unknown_attempts(folders)
    paths = {one.token: one.folder for one in attempts}
    alive = processes_of(paths) if paths else {}
    running: dict[int, int | None] = {one.job_id: None for one in attempts if one.token in alive}
    for one in attempts:
        on_engine = one.executor in ENGINES
        status = (observe_on_engine if on_engine else observe)(one.folder, one.token)
        if status.claim in ("live", "unlocked") and status.result is None:
            running[one.job_id] = status.pid
    return running


def _open_for_fresh(data_dir: DataDir, condition: StoreCondition) -> Store:
    """Opens the store for `--fresh`, which forgets the jobs only after the start has succeeded.

    If the start fails, an empty database may remain beside attempt folders. It still counts as a lost store.
    """
    if condition.state in ("damaged", "development"):
        refuse_unrecorded(condition)
        _set_database_aside(data_dir)
    return Store(data_dir, create=True)


def _restore(data_dir: DataDir, condition: StoreCondition, options: StartOptions) -> Store:
    if not condition.is_lost:
        log.info("--restore: the store is intact and contains every attempt; nothing is restored")
        return Store(data_dir, create=True)
    backup, is_ours = _newest_usable_backup(condition), _is_usable(condition)
    if backup is not None or not is_ours:
        _set_database_aside(data_dir)
    if backup is not None:
        restore_backup(backup, data_dir.database)
        log.warning("the store is restored from %s, made on %s", backup.path, _format_time(backup))
    elif not is_ours:
        log.warning("there is no usable backup; the store is rebuilt from the folders in %s", data_dir.runs)
    store = Store(data_dir, create=True)
    try:
        with store.db.upgraded():
            pass  # only upgrade the schema, because the backup may be from an earlier version
        missing = backups.unknown_to_store(condition.folders, store.db.connection)
        with store.db.transaction() as db:
            _AttemptImport(store, options, missing).run(options.jobs_file)
            inspection.raise_id_sequences(db, _highest_ids(condition))
    except BaseException:
        store.close()
        raise
    return store


def _newest_usable_backup(condition: StoreCondition) -> Backup | None:
    """Returns the newest usable backup; None if there is none, or if the database contains all its jobs."""
    for backup in condition.backups:
        try:
            extent = highest_ids(backup.path, immutable=True)
        except DamagedDatabaseError as error:
            log.warning("%s; it is skipped", error)
            continue
        if is_of_development_version(backup):
            log.warning("%s is from a development version; it is skipped", backup.path)
            continue
        return None if _is_usable(condition) and condition.highest_ids.covers(extent) else backup
    return None


def _is_usable(condition: StoreCondition) -> bool:
    """Returns whether the database is intact and belongs to this data directory."""
    return condition.state == "whole" and condition.owner is None


def _set_database_aside(data_dir: DataDir) -> None:
    """Renames the database together with its log, so that both are kept."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = data_dir.database.with_name(f"{data_dir.database.name}.lost-{stamp}")
    while os.path.lexists(aside):
        aside = aside.with_name(f"{aside.name}-")
    moved = False
    # Rename the log first, because it must never be beside another database.
    for suffix in ("-wal", "-shm", ""):
        try:
            os.rename(f"{data_dir.database}{suffix}", f"{aside}{suffix}")
            moved = True
        except FileNotFoundError:
            continue
    if moved:
        log.warning("the database is kept as %s", aside)


def _highest_ids(condition: StoreCondition) -> HighestIds:
    """Returns the highest ids in the database, the backups and the folders."""
    jobs = [one.job_id for one in condition.folders]
    return HighestIds(
        max([condition.highest_ids.jobs, condition.backup_highest_ids.jobs, *jobs]),
        max(condition.highest_ids.attempts, condition.backup_highest_ids.attempts),
    )


class _AttemptImport:
    """Adds the attempts that are missing from the store, within the caller's transaction."""

    def __init__(self, store: Store, settings: Settings, folders: Collection[AttemptFolder]) -> None:
        self._store = store
        self._settings = settings
        self._now = Clock().now()
        self._writer = StoreWriter(store, settings)
        self._jobs: dict[int, list[tuple[AttemptFolder, Origin]]] = {}
        for folder in folders:
            token = token_of(folder)
            if token is None and may_have_launched(folder):
                raise SchedulerError(
                    f"cannot identify the attempt of {folder.path}: its spec.json, claim and result are"
                    " missing or unusable\nend its processes, remove its line from the jobs file if that line"
                    " has run, and move the folder away; then use `start --restore` again"
                )
            if token is not None:
                unknown = Origin(token, self._now.boot_id, None, None, "direct")
                origin = backups.read_origin(folder) or unknown
                self._jobs.setdefault(folder.job_id, []).append((folder, origin))
        here = {
            origin.token: folder.path
            for found in self._jobs.values()
            for folder, origin in found
            if origin.boot_id == self._now.boot_id
        }
        self._alive = processes_of(here, here) if here else {}
        self._without_claim = {
            origin.token
            for found in self._jobs.values()
            for folder, origin in found
            if origin.executor not in ENGINES and self._has_lost_claim(folder, origin.token)
        }

    def run(self, jobs_file: str) -> None:
        """Adds the attempts and their jobs.

        Raises SchedulerError if lines of the jobs file would run again that these attempts may already have
        run.
        """
        db = self._store.db.connection
        new = {
            job_id: found[-1] for job_id, found in self._jobs.items() if not inspection.has_job(db, job_id)
        }
        unidentified = [job_id for job_id, (_, origin) in new.items() if origin.spec is None]
        if unidentified and jobs_file:
            raise SchedulerError(
                f"the attempt folders of job{'s' * (len(unidentified) != 1)}"
                f" {format_ranges(sorted(unidentified))} in {self._store.data_dir.runs} do not show which"
                " lines they ran, so these lines would run again\n"
                f"remove the lines that have run from {jobs_file}, then"
                ' start once with --restore --jobs-file ""'
            )
        self._close_superseded()
        for job_id, (folder, origin) in new.items():
            at = min(_created_at(one, origin) for one, origin in self._jobs[job_id])
            inspection.insert_job(self._store, db, folder, origin, at)
        for turn in range(max(map(len, self._jobs.values()), default=0)):
            self._import_turn(turn)
        inspection.bind_lines(db, [(job_id, found[-1][1]) for job_id, found in self._jobs.items()])
        self._assume_location(new.values())
        count = sum(map(len, self._jobs.values()))
        if count:
            log.warning(
                "%d attempt%s added to the store from %s: job%s %s", count,
                " was" if count == 1 else "s were", "its folder" if count == 1 else "their folders",
                "s" * (len(self._jobs) != 1),
                format_ranges(sorted(self._jobs)),
            )  # fmt: skip

    def _has_lost_claim(self, folder: AttemptFolder, token: str) -> bool:
        """Returns whether an attempt has begun but its claim was lost.

        If the attempt has not begun, claims it, so that it never begins.
        """
        status = observe(folder.path, token)
        if status.claim != "none" or status.result is not None:
            return False
        if token in self._alive or status.command_began:
            return True
        void_claim(folder.path, token)
        return False

    def _close_superseded(self) -> None:
        """Ends the open attempts in the store that a later attempt of the same job has superseded."""
        active = self._store.active_attempts()
        records = [one for one in active if one.job_id in self._jobs and not one.outcome]
        data_dir = self._store.data_dir
        folders = {record.token: data_dir.attempt_folder(record) for record in records}
        alive = processes_of(folders, folders) if folders else {}
        for record in records:
            attempt = observe_attempt(self._store, record).seen(survivors=alive.get(record.token, ()))
            self._writer.record(supersede(attempt, self._now, self._settings), self._now)

    def _import_turn(self, turn: int) -> None:
        """Adds each job's attempt with this index, if the job has one."""
        db = self._store.db.connection
        tokens = {}
        for found in self._jobs.values():
            if turn < len(found):
                folder, origin = found[turn]
                inspection.insert_attempt(
                    db, folder, origin, _created_at(folder, origin), _mtime(folder.path / "claim"),
                    running=origin.token in self._without_claim,
                )  # fmt: skip
                tokens[origin.token] = turn == len(found) - 1
        for record in self._store.active_attempts():
            if record.token in tokens:
                attempt = observe_attempt(self._store, record).seen(
                    survivors=self._alive.get(record.token, ())
                )
                decide = restore if tokens[record.token] else supersede
                self._writer.record(decide(attempt, self._now, self._settings), self._now)

    def _assume_location(self, new: Iterable[tuple[AttemptFolder, Origin]]) -> None:
        """Records the store's previous location from the attempt folders, unless the store already has one.

        The data directory may have been moved or copied since then.
        """
        if moved_or_copied.recorded_location(self._store) is None:
            places = [(o.created_at, o.data_dir) for _, o in new if o.data_dir is not None]
            if places:
                moved_or_copied.assume_folder(self._store, max(places)[1])


def _created_at(folder: AttemptFolder, origin: Origin) -> float:
    return origin.created_at or _mtime(folder.path) or time.time()


def _mtime(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


# Checks at `start` whether the store is in its own folder; refuses a copy, unless it forgets all jobs.
#
# A store whose folder was moved is accepted. The processes of a copy's original are never signalled.


@contextmanager
def in_own_folder(store: Store, *, fresh: bool) -> Iterator[None]:
    """Records the store's current folder as its own while the block runs, and for good if the block succeeds.

    fresh: forget all jobs, which makes a copy a separate store. The caller must hold the locks. Raises
    SchedulerError.
    """
    if not fresh:
        moved_or_copied.refuse_copy(store)
        moved_or_copied.adopt_folder(store)
        yield
        return
    original = moved_or_copied.original_of_copy(store)
    if original is not None:
        moved_or_copied.refuse_hard_link(store, original)
    with jobs_forgotten(store, copied=original is not None):
        moved_or_copied.adopt_folder(store, new_id=original is not None)
        yield
