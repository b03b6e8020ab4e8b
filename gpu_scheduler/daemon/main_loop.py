"""Assembles the parts of a scheduler, runs its rounds, and waits for events and deadlines between them.

`Daemon` is the scheduler, `FileInputs` its input files (llm_config.json, the jobs file and the state file),
and `Wakeups` all that wakes it: file changes, ended processes, probe answers and signals.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from inotify_simple import INotify, flags
from msgspec.structs import replace

from gpu_scheduler.attempts.executors import Executors
from gpu_scheduler.attempts.folder import LOCAL_EXECUTORS
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.attempts.launch import Launcher
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions

# Needed when a job fails. Loaded at the start, because a newer version may have replaced the files by then.
from gpu_scheduler.core.explain import log_end as _log_end  # noqa: F401
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.scheduling.actions import AnswerRequest
from gpu_scheduler.core.scheduling.facts import EngineState, Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import is_drained, stopped_exit_code
from gpu_scheduler.core.scheduling.plan import next_deadline
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.daemon.companions import Companions, companions_of
from gpu_scheduler.daemon.log_output import Console
from gpu_scheduler.daemon.reporter import DrainReport, EventReporter
from gpu_scheduler.errors import NotOwnerError, SchedulerError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient
from gpu_scheduler.gpus.sampling import Sampler
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.health.storage import LOG_FOLDER_KEY, STORAGE_ERRORS
from gpu_scheduler.health.storage_monitor import StorageMonitor
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.rounds.loop import Loop, QueueTurns
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store import backups, state_file
from gpu_scheduler.store.attempt_history import skip_gpu_time
from gpu_scheduler.store.database import damaged_error, is_damage
from gpu_scheduler.store.events import newest_event_id
from gpu_scheduler.store.job_lists import interrupted_jobs
from gpu_scheduler.store.pending_groups import next_retry, set_engine_state, wait_reason_by_spec
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import Ownership
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import set_redis_problem
from gpu_scheduler.system.gpu_claims import LOCK_FOLDER_KEY
from gpu_scheduler.system.lock_folder import ClaimFolder
from gpu_scheduler.system.safe_file import is_shared, kind_of
from gpu_scheduler.system.shortages import describe_shortage, shortage_of

log = logging.getLogger(__name__)

#: Seconds from the start to the first backup, long enough for the first jobs to be launched before it.
_FIRST_BACKUP_S = 3.0
_BACKUP_EVERY_S = 86_400.0
#: Seconds until a failed backup is retried.
BACKUP_RETRY_S = 3_600.0


class BackupTimer:
    """Backs up the store soon after the start and then once a day.

    again_at: when the next backup is due, in seconds since boot.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._failure: str | None = None
        self.again_at = clock.now().boot + _FIRST_BACKUP_S

    def back_up_if_due(self) -> None:
        """Makes a backup if one is due. Logs repeated failures for the same reason only once."""
        now = self._clock.now().boot
        if now < self.again_at:
            return
        try:
            made = backups.make_backup(self._store.db.connection, self._store.data_dir)
        except (OSError, sqlite3.Error, SchedulerError) as error:
            self.again_at = now + BACKUP_RETRY_S
            if str(error) != self._failure:
                log.warning("cannot back up the store: %s", error)
            self._failure = str(error)
            return
        self.again_at = now + _BACKUP_EVERY_S
        self._failure = None
        log.debug("store backed up to %s", made.path)


def record_lock_folder(store: Store, folder: Path, boot_id: str) -> None:
    """Records the folder with the lock files of the scheduler's GPUs, for other commands and the next start.

    Logs a warning if running jobs hold their claims in another folder. boot_id: the current boot.
    """
    before = store.db.meta(LOCK_FOLDER_KEY)
    store.db.set_meta(LOCK_FOLDER_KEY, str(folder))
    if before in (None, str(folder)):
        return
    running = [
        one
        for one in store.active_attempts()
        if one.state.is_open and one.boot_id == boot_id and one.executor in LOCAL_EXECUTORS
    ]
    if running:
        log.warning(
            "the lock folder has changed from %s to %s; `run` does not see the claims of running jobs (%d)"
            " until they end",
            before,
            folder,
            len(running),
        )


#: Seconds until a round that could not be recorded is repeated.
RETRY_S = 1.0


class _Failure(NamedTuple):
    """The reason why a round could not be recorded, and the message to log when the problem is over."""

    problem: str
    over: str


def _failure_of(error: BaseException) -> _Failure:
    number = shortage_of(error)
    if number is None:
        return _Failure(str(error), "writing to the data directory works again")
    return _Failure(describe_shortage(number), "the shortage is over; scheduling continues")


def _with_absolute_paths(options: StartOptions, llm_config: Path) -> StartOptions:
    """Returns the options with absolute paths. llm_config: the path of the file in use."""
    return replace(
        options,
        llm_config=str(llm_config),
        conda_sh=options.conda_sh and os.path.abspath(options.conda_sh),
        jobs_file=options.jobs_file and os.path.abspath(options.jobs_file),
        slurm_dir=options.slurm_dir and os.path.abspath(options.slurm_dir),
    )


class Daemon:
    """One scheduler process: assembles its parts, runs its rounds, and waits between them."""

    def __init__(
        self,
        options: StartOptions,
        store: Store,
        ownership: Ownership,
        umask: int,
        console: Console,
        failpoint: Callable[[str], None],
        executors: Executors,
        claim_folder: ClaimFolder,
    ) -> None:
        self._options = options
        self._clock = Clock()
        self._executors = executors
        self._config = LlmConfigFile(options.llm_config, trust=options.trust_files)
        home, self._store = store.data_dir, store
        self._ownership = ownership
        self._watch = GpuWatch()
        self._sampler = Sampler(
            ProbeClient(options.gpu_probe, options.simulate, str(home.simulation)),
            self._watch,
            self._clock,
            options.poll_s,
        )
        self._loop = Loop(self._store, self._watch, self._launch, executors, options, self._clock, failpoint)
        self._loop.check_owner = ownership.check
        logs = LogFolder.from_option(options.log_dir)
        self._storage = self._loop.storage = StorageMonitor(
            home, logs, self._clock, trust=options.trust_files
        )
        self._reporter = EventReporter(
            store, self._clock, options, logs if options.log_dir else None, self._loop.progress,
            verbose=options.verbose, on_attempt_end=console.finish_attempt,
        )  # fmt: skip
        self._store.db.set_meta(LOG_FOLDER_KEY, logs.to_json())
        record_lock_folder(self._store, claim_folder.path, self._clock.boot_id)
        resolved = _with_absolute_paths(options, self._config.path)
        store.record_options(resolved)
        set_redis_problem(store, None)
        self._launcher = Launcher(
            store, self._loop.recorder, executors, resolved, dict(os.environ), umask, logs, claim_folder,
            failpoint,
        )  # fmt: skip
        self._launcher.check_owner = ownership.check
        self._launcher.llm_config = lambda: self._config.current
        self._outcomes = DrainReport(store, resolved.jobs_file, self._clock)
        self._console = console
        self._signal: int | None = None
        self._wake_keys: set[str] = set()
        self._wakeups = Wakeups()
        # A folder that is watched already need not be observed again before the scheduler waits.
        self._launcher.before_start = self._wakeups.watch_attempt
        self._backups = BackupTimer(store, self._clock)
        companions = companions_of(options, home, newest_event_id(store))
        self._companions = Companions(companions, home.main_log, trust=options.trust_files)
        self._is_interruption_reported = False
        self._sampler.begin(options.gpus, self._store, self._loop.recorder, simulated=options.simulated)
        self._loop.turns = self._turns = QueueTurns(claim_folder.path, store.managed_gpus().values())
        snapshot = self._watch.snapshot
        known = frozenset(gpu.index for gpu in snapshot.gpus) if snapshot is not None else None
        self._inputs = FileInputs(options, store, self._loop, self._config, known)

    def _launch(self, attempt_id: int) -> None:
        attempt = self._launcher.launch(attempt_id)
        self._sampler.sample_frequently()
        if not self._options.screen:
            self._console.follow_attempt(attempt)

    def close(self) -> None:
        """Closes everything but the store. Does not affect running jobs."""
        try:
            if self._ownership.loss() is None:
                self._inputs.state.write(self._clock.now().boot, at_once=True)
                self._reporter.close()
        except STORAGE_ERRORS as error:
            log.error("%s; the state file may be out of date", error)
        self._loop.progress.close()
        self._sampler.close()
        self._executors.close()
        self._companions.close()
        self._wakeups.close()

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Runs rounds until the scheduler ends; returns the exit code.

        on_ready: called before the first round. A full disk or a shortage does not end the scheduler. It then
        repeats the round every second.
        """
        self._set_up()
        on_ready()
        code: int | None = None
        failing: _Failure | None = None
        while code is None:
            try:
                code = self._cycle()
                if failing is not None:
                    log.info("%s", failing.over)
                failing = None
            except NotOwnerError as error:
                log.error("%s\nno more jobs are started; running jobs continue", error)
                return 1
            except (*STORAGE_ERRORS, MemoryError) as error:
                self._storage.issue()
                self._store.db.shrink()
                failure = _failure_of(error)
                if failure != failing:
                    log.error("%s; retrying every second; running jobs continue", failure.problem)
                failing = failure
                self._wake_keys |= self._wakeups.wait(RETRY_S)
                if self._signal is not None or self._loop.stop_requested:
                    code = self._shut_down()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                problem = str(damaged_error(self._store.data_dir.database, error))
                self._ownership.mark_lost(problem)
                log.error("%s\nno more jobs are started", problem)
                return 1
        return code

    def _set_up(self) -> None:
        self._loop.on_recorded = self._reporter.actions_recorded
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # If the user chose to ignore a signal, for example with `nohup`, keep ignoring it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        home, recorder = self._store.data_dir, self._loop.recorder
        log.info(
            "scheduler up, pid %d; state file %s, data directory %s",
            os.getpid(),
            home.state_file,
            home.folder,
        )
        kind = kind_of(home.folder)
        if is_shared(kind):
            log.warning(
                "%s is on %s, where the database is not safe; choose another --data-dir", home.folder, kind
            )
        late = [request for request in open_requests(self._store) if request.verb == "stop"]
        recorder.record(
            [
                AnswerRequest(request.request_id, RequestAnswer(AnswerCode.SCHEDULER_ENDED))
                for request in late
            ],
            self._clock.now(),
        )
        recorder.forget_wait_reasons()
        for engine in self._executors.engines:
            set_engine_state(self._store, engine, EngineState())  # what an earlier agent said
        skip_gpu_time(self._store, self._clock.now().wall)
        self._loop.set_line_waits({})
        self._wakeups.watch_fd(self._sampler.fd, "probe")
        self._wakeups.watch(home.doorbell, "doorbell")
        self._inputs.start(self._wakeups, self._clock.now().boot)
        self._wake_keys = {"config", "jobs"}

    def _cycle(self) -> int | None:
        """Reads new input, runs rounds until nothing is left to do, and waits.

        Returns the exit code if the scheduler must end, otherwise None.
        """
        now = self._clock.now().boot
        self._ownership.check(check_host=self._inputs.is_state_due(self._wake_keys, now))
        self._executors.reap()
        self._sampler.read(self._loop.recorder)
        self._inputs.read(self._wake_keys, now)
        # The memory that belonged to a claim is free now, or soon.
        self._loop.sample_wanted |= "claim" in self._wake_keys
        self._wake_keys = set()
        facts = self._run_rounds()
        if facts is not None and facts.storage_issue is not None:
            self._store.db.shrink()
        self._inputs.state.write(self._clock.now().boot)
        self._reporter.update(facts)
        self._report_interrupted(facts)
        if facts is None or self._loop.stop_requested or self._signal is not None:
            return self._shut_down()
        if self._options.drain and self._is_drained(facts):
            return self._outcomes.report()
        has_new_attempt = self._wakeups.watch_attempts(self._watched_folders(facts))
        claiming = {claim.pid for gpu in facts.gpus for claim in gpu.claims if claim.pid}  # 0 if unknown
        if self._wakeups.watch_claims(claiming) or has_new_attempt:
            return None
        self._backups.back_up_if_due()
        self._companions.update(self._clock.now().boot)
        self._wakeups.watch_companions(self._companions.pids)
        self._wait(self._next_deadline(facts))
        return None

    def _wait(self, due_at: float) -> None:
        """Waits for an event or the deadline. Checks for events once even if the deadline has passed."""
        while True:
            left = max(0.0, due_at - self._clock.now().boot)
            self._wake_keys = self._wakeups.wait(min(left, self._turns.look_every_s))
            if self._inputs.is_own_write(self._wake_keys):
                self._wake_keys = set()
            if self._turns.have_changed():
                self._wake_keys.add("turn")
            if self._wake_keys or left == 0.0:
                return

    def _run_rounds(self) -> Facts | None:
        """Runs rounds until nothing is left to do, and requests a GPU sample when the loop needs one.

        Returns the facts of the last round; None if a signal arrived before the end.
        """
        while True:
            facts = self._loop.tick()
            if self._sampler.query(self._loop.sample_wanted):
                self._loop.sample_wanted = False
            if facts is not None or self._signal is not None:
                return facts

    def _report_interrupted(self, facts: Facts | None) -> None:
        """Logs once, when the ends of earlier attempts are recorded, how many interrupted jobs are held."""
        if facts is None or self._is_interruption_reported:
            return
        if any(attempt.state.is_open and has_ended(attempt, facts.now) for attempt in facts.attempts):
            return
        self._is_interruption_reported = True
        count = len(interrupted_jobs(self._store))
        if count:
            log.warning(
                "%s %s held: `recover --all` queues %s again", count_noun(count, "interrupted job"),
                *(("is", "it") if count == 1 else ("are", "them")),
            )  # fmt: skip

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = number

    def _next_deadline(self, facts: Facts) -> float:
        """Returns the next deadline known after the last round, in seconds since boot."""
        times = [
            self._sampler.due_at,
            *self._inputs.due_times(),
            self._reporter.next_write_at,
            self._backups.again_at,
            self._companions.due_at,
            next_deadline(facts, next_retry(self._store, facts.now)),
        ]
        return min(at for at in times if at is not None)

    def _watched_folders(self, facts: Facts) -> dict[Path, int | None]:
        home = self._store.data_dir
        return {
            home.attempt_folder(a): a.status.pid
            if a.status.claim in ("live", "unlocked", "unclaimed")
            else None
            for a in facts.attempts
            if a.state.is_open
        }

    def _is_drained(self, facts: Facts) -> bool:
        is_waiting = facts.attempts or self._inputs.recheck_at is not None
        if is_waiting or self._store.marks().has_unsettled_dependencies:
            return False
        specs = [ResourceSpec.from_key(key) for key in wait_reason_by_spec(self._store)]
        return is_drained(facts, specs, next_retry(self._store, facts.now) is not None)

    def _shut_down(self) -> int:
        log.info("scheduler ends (%s)", signal.Signals(self._signal).name if self._signal else "requested")
        running = [attempt for attempt in self._store.active_attempts() if attempt.outcome is None]
        for attempt in running:
            has_window = attempt.session and not attempt.window_closed
            where = f"`attach {attempt.job_id}`" if has_window else f"log {attempt.log}"
            log.info("job %d keeps running: %s", attempt.job_id, where)
        if running:
            log.info("`status` shows the running jobs; run the same command again to continue")
        return stopped_exit_code(drain=self._options.drain, signal=self._signal)


class FileInputs:
    """The input files of one scheduler. Passes their changes on to the loop. Times are in seconds since boot.

    Each file is read after an event for it, and at intervals in case an event was missed. The argument
    `woken` of the methods contains the keys of the events: "config", "jobs" or "state". known_gpus: the
    indices of the GPUs that lines of the jobs file may name; None if unknown.
    """

    def __init__(
        self,
        options: StartOptions,
        store: Store,
        loop: Loop,
        config: LlmConfigFile,
        known_gpus: frozenset[int] | None,
    ) -> None:
        self._options = options
        self._data_dir = store.data_dir
        self._loop = loop
        self._config = config
        self.state = StateFileWatcher(store, trust=options.trust_files)
        self._jobs = (
            JobsFileWatcher(
                store, options.jobs_file, known_gpus, lambda: config.current, trust=options.trust_files,
                wait_text=wait_text,
            )
            if options.jobs_file
            else None
        )  # fmt: skip
        self._state_due_at = self._files_due_at = 0.0

    @property
    def recheck_at(self) -> float | None:
        """When a change of the jobs file that is not yet accepted is read again; None if there is none."""
        return None if self._jobs is None else self._jobs.recheck_at

    def start(self, wakeups: Wakeups, now: float) -> None:
        """Watches the files, and reads the state file for the first time."""
        wakeups.watch(self._data_dir.state_file, "state")
        wakeups.watch(state_file.link_target(self._data_dir.state_file), "state")
        wakeups.watch(self._config.path, "config")
        if self._jobs is not None:
            wakeups.watch(self._jobs.path, "jobs")
        self.state.start(now)

    def is_state_due(self, woken: set[str], now: float) -> bool:
        """Returns whether it is time to read the state file."""
        again_at = self.state.due_at
        return "state" in woken or now >= self._state_due_at or (again_at is not None and now >= again_at)

    def read(self, woken: set[str], now: float) -> None:
        """Reads the files that are due to be read."""
        if self.is_state_due(woken, now):
            self._state_due_at = now + self._options.state_interval_s
            self.state.check(now)
        if "config" in woken or "jobs" in woken or now >= self._files_due_at:
            self._files_due_at = now + self._options.monitor_interval_s
            if self._config.refresh():
                self._loop.config = self._config.current
            self._read_jobs_file(now)
        elif self.recheck_at is not None and now >= self.recheck_at:
            self._read_jobs_file(now)

    def is_own_write(self, woken: set[str]) -> bool:
        """Returns whether the only cause of these events is that this scheduler wrote the state file."""
        return woken == {"state"} and self.state.is_unchanged()

    def due_times(self) -> list[float | None]:
        """Returns when each file is next due, in seconds since boot; None for a file that is not due."""
        return [self._state_due_at, self._files_due_at, self.state.due_at, self.recheck_at]

    def _read_jobs_file(self, now: float) -> None:
        if self._jobs is not None:
            self._jobs.check(now)
            self._loop.set_line_waits(self._jobs.waits)
            self._loop.placing = not self._jobs.loading


_MASK = flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.CREATE | flags.DELETE | flags.ATTRIB
#: The files in an attempt folder whose creation wakes the scheduler. `stop` is not among them, because the
#: scheduler writes it.
WATCHED_NAMES = ("claim", "result", "withdrawn")


class Wakeups:
    """The event sources of the scheduler. `wait` returns the keys under which they were registered.

    Watches the folder of each file, because editors replace files. Other files in the folder do not wake the
    scheduler.

    If the kernel allows no more file watches, logs a warning once. The scheduler then finds changes by
    polling.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._warned = False
        self._inotify: INotify | None = None
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            self._warn_of_limit(error)
        else:
            self._selector.register(self._inotify.fileno(), selectors.EVENT_READ, "files")
        self._signals, self._signal_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._signals, selectors.EVENT_READ, "signal")
        self._names: dict[int, dict[str, str]] = {}
        self._attempt_watches: dict[Path, int] = {}
        self._runners = _ProcessWatch(self._selector, "runner")
        self._claims = _ProcessWatch(self._selector, "claim")
        self._companions = _ProcessWatch(self._selector, "companion")
        signal.set_wakeup_fd(self._signal_in, warn_on_full_buffer=False)

    def close(self) -> None:
        """Closes all watches and descriptors."""
        signal.set_wakeup_fd(-1)
        for watch in (self._runners, self._claims, self._companions):
            watch.close()
        for fd in (self._signals, self._signal_in):
            os.close(fd)
        if self._inotify is not None:
            self._inotify.close()
        self._selector.close()

    def watch(self, path: Path, key: str) -> bool:
        """Watches for changes to the file with this path. Returns False if its folder cannot be watched."""
        wd = self._add_watch(path.parent, _MASK)
        if wd is None:
            return False
        self._names.setdefault(wd, {})[path.name] = key
        return True

    def watch_fd(self, fd: int, key: str) -> None:
        """Watches a descriptor for input. Call this only once per descriptor."""
        self._selector.register(fd, selectors.EVENT_READ, key)

    def watch_attempts(self, folders: Mapping[Path, int | None]) -> bool:
        """Watches exactly these attempt folders and the pids of their runners.

        Returns True if a folder is new, or if a runner cannot be watched. The caller must then observe the
        attempts again, because they may have changed before.
        """
        for folder in [f for f in self._attempt_watches if f not in folders]:
            self._remove_watch(self._attempt_watches.pop(folder))
        new = [self.watch_attempt(folder) for folder in folders if folder not in self._attempt_watches]
        return self._runners.watch({pid for pid in folders.values() if pid}) or any(new)

    def watch_attempt(self, folder: Path) -> bool:
        """Watches an attempt folder before its runner is started. Returns False if it cannot be watched."""
        if folder in self._attempt_watches:  # the folder was made again
            self._remove_watch(self._attempt_watches.pop(folder))
        wd = self._add_watch(folder, flags.MOVED_TO | flags.CREATE)
        if wd is None:
            return False
        self._attempt_watches[folder] = wd
        self._names[wd] = dict.fromkeys(WATCHED_NAMES, "attempt")
        return True

    def watch_claims(self, pids: Collection[int]) -> bool:
        """Watches exactly these processes, which claim GPUs; their end has the key "claim".

        Returns True if one cannot be watched, for example because it has ended. The caller must then read the
        claims again.
        """
        return self._claims.watch(pids)

    def watch_companions(self, pids: Collection[int]) -> None:
        """Watches exactly these companions of the scheduler; their end has the key "companion"."""
        self._companions.watch(pids)

    def wait(self, timeout_s: float | None) -> set[str]:
        """Waits for events and returns their keys. timeout_s: the maximum time to wait; None for no limit."""
        keys: set[str] = set()
        for key, _ in self._selector.select(timeout_s):
            if key.data == "files" and self._inotify is not None:
                for event in self._inotify.read(timeout=0):
                    keys |= self._keys_of(event)
            elif key.data == "signal":
                os.read(self._signals, 4096)
                keys.add("signal")
            else:
                if key.data in (self._runners.key, self._claims.key, self._companions.key):
                    self._selector.unregister(key.fd)
                keys.add(key.data)
        return keys

    def _keys_of(self, event: Any) -> set[str]:
        names = self._names.get(event.wd)
        if event.mask & flags.Q_OVERFLOW:
            return {key for known in self._names.values() for key in known.values()}
        if names is None:
            return set()
        return {names[event.name]} if event.name in names else set()

    def _remove_watch(self, wd: int) -> None:
        self._names.pop(wd, None)
        if self._inotify is None:
            return
        with suppress(OSError):  # the folder was removed, and the kernel removed the watch with it
            self._inotify.rm_watch(wd)

    def _add_watch(self, folder: Path, mask: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            watch: int = self._inotify.add_watch(str(folder), mask)
            return watch
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._warn_of_limit(error)
            return None

    def _warn_of_limit(self, error: OSError) -> None:
        if not self._warned:
            limit = "watches=65536" if error.errno == errno.ENOSPC else "instances=1024"
            log.warning(
                "cannot watch files (%s), so the scheduler polls for changes; to raise the limit, run"
                " `sudo sysctl fs.inotify.max_user_%s`",
                error.strerror,
                limit,
            )
            self._warned = True


class _ProcessWatch:
    """Watches processes for their end, through pidfds that are registered under one key."""

    def __init__(self, selector: selectors.BaseSelector, key: str) -> None:
        self.key = key
        self._selector = selector
        self._pidfds: dict[int, int] = {}
        #: The processes that could not be watched at the last attempt, with the errno.
        self._unwatched: dict[int, int] = {}

    def watch(self, pids: Collection[int]) -> bool:
        """Watches exactly these processes; returns whether there is a new one that cannot be watched.

        One that has ended since a shortage kept it from being watched is new, too. The end of a process that
        is watched now wakes the scheduler, even if it has ended since it was seen.
        """
        for pid in [p for p in self._pidfds if p not in pids]:
            self._drop(pid)
        missing = [pid for pid in pids if pid not in self._pidfds]
        known, self._unwatched = self._unwatched, {}
        for pid in missing:
            error = self._add(pid)
            if error:
                self._unwatched[pid] = error
        return any(
            pid not in known or (error == errno.ESRCH and known[pid] != error)
            for pid, error in self._unwatched.items()
        )

    def close(self) -> None:
        """Ends the watch."""
        for pid in list(self._pidfds):
            self._drop(pid)

    def _add(self, pid: int) -> int:
        """Watches a process. Returns the errno if it has ended or something runs out, otherwise 0."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            self._selector.register(fd, selectors.EVENT_READ, self.key)
        except OSError as error:
            os.close(fd)
            return error.errno or errno.EIO
        self._pidfds[pid] = fd
        return 0

    def _drop(self, pid: int) -> None:
        fd = self._pidfds.pop(pid)
        with suppress(KeyError, ValueError):  # the process has ended
            self._selector.unregister(fd)
        os.close(fd)
