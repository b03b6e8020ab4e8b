"""Assembles the parts of a scheduler, runs its rounds, and waits for events and deadlines between them."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.backuptimer import BackupTimer
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.console import Console
from gpu_scheduler.core.actions import Action, WishDone
from gpu_scheduler.core.draining import drained
from gpu_scheduler.core.facts import Facts, Settings
from gpu_scheduler.core.needs import Ask
from gpu_scheduler.errors import NotOwnerError
from gpu_scheduler.executors import Executor
from gpu_scheduler.gpus import GpuWatch
from gpu_scheduler.intake.jobswatch import JobsWatch
from gpu_scheduler.intake.statewatch import StateWatch
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.launching import Launcher
from gpu_scheduler.llmconfig import LlmConfigFile
from gpu_scheduler.loop import Loop, due
from gpu_scheduler.outcome import Outcomes
from gpu_scheduler.probes.asked import AskedProbe
from gpu_scheduler.sampling import Sampler
from gpu_scheduler.shortages import described, shortage_of
from gpu_scheduler.storage import FAILURES, LOG_FOLDER
from gpu_scheduler.storagewatch import StorageWatch
from gpu_scheduler.store import statefile
from gpu_scheduler.store.database import damaged, is_damage
from gpu_scheduler.store.filesystem import is_shared, kind_of
from gpu_scheduler.store.started import note
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.tenure import Tenure
from gpu_scheduler.telling import Telling
from gpu_scheduler.wakeups import Wakeups
from gpu_scheduler.wiring import launch_options_of, started_of

log = logging.getLogger(__name__)

#: Seconds before a round that could not be recorded is tried again.
RETRY_S = 1.0
_WRITTEN_AGAIN = "writing to the data directory works again"
_SHORTAGE_OVER = "the shortage is over; scheduling continues"


class Daemon:
    """One scheduler process: its parts, its rounds, and the wait between them."""

    def __init__(
        self,
        options: StartOptions,
        store: Store,
        tenure: Tenure,
        umask: int,
        console: Console,
        reached: Callable[[str], None],
        settings: Settings,
        executor: Executor,
    ) -> None:
        self._options = options
        self._clock = Clock()
        self._executor = executor
        self._config = LlmConfigFile(options.llm_config, trust=options.trust_files)
        home, self._store = store.home, store
        store.set_learning(options.learn)
        self._tenure = tenure
        self._watch = GpuWatch()
        self._sampler = Sampler(
            AskedProbe(options.gpu_probe, options.simulate, str(home.simulation)),
            self._watch,
            self._clock,
            options.poll_s,
        )
        self._loop = Loop(self._store, self._watch, self, settings, self._clock, reached)
        self._loop.check_owner = tenure.check
        logs = LogFolder.of(options.log_dir)
        self._storage = self._loop.storage = StorageWatch(home, logs, self._clock, trust=options.trust_files)
        self._telling = Telling(
            store, self._clock, settings, logs if options.log_dir else None,
            verbose=options.verbose, ended=console.finish,
        )  # fmt: skip
        self._store.db.set_meta(LOG_FOLDER, logs.to_json())
        note(self._store, started_of(options, str(self._config.path)))
        self._launcher = Launcher(
            self._store,
            self._loop.recorder,
            self._executor,
            launch_options_of(options, home, umask, settings.grace_s),
            reached,
            logs,
        )
        self._launcher.check_owner = tenure.check
        jobs_file = os.path.abspath(options.jobs_file) if options.jobs_file else ""
        self._outcomes = Outcomes(self._store, jobs_file, self._clock)
        self._console = console
        self._signal: int | None = None
        self._woken: set[str] = set()
        self._wakeups = Wakeups()
        self._state_at = self._files_at = 0.0
        self._backups = BackupTimer(store, self._clock)
        self._sampler.begin(options.gpus, self._store, self._loop.recorder, simulated=options.simulated)
        self._state = StateWatch(self._store, trust=options.trust_files)
        self._jobs = self._jobs_watch(options.jobs_file)

    def _jobs_watch(self, path: str) -> JobsWatch | None:
        if not path:
            return None
        snapshot = self._watch.snapshot
        known = frozenset(gpu.index for gpu in snapshot.gpus) if snapshot is not None else None
        return JobsWatch(
            self._store, path, known, lambda: self._config.current, trust=self._options.trust_files
        )

    def launch(self, attempt_id: int) -> None:
        """Launches an attempt for the loop; see Launcher.launch."""
        self._launcher.launch(attempt_id)
        self._sampler.watch_closely()
        if not self._options.screen:
            self._console.follow(attempt_id, self._store)

    def close(self) -> None:
        """Closes everything but the store; running jobs are not affected."""
        try:
            if self._tenure.lost() is None:
                self._state.write(self._clock.now().boot, at_once=True)
                self._telling.close()
        except FAILURES as error:
            log.error("%s; the state file may be out of date", error)
        self._sampler.close()
        self._executor.close()
        self._wakeups.close()

    def serve(self, up: Callable[[], None] = lambda: None) -> int:
        """Runs rounds until the end and returns the exit code. on_ready: called before the first round.

        A full disk or a shortage does not end the scheduler: the round is tried again every second.
        """
        self._begin()
        up()
        code: int | None = None
        failing: str | None = None
        over = ""
        while code is None:
            try:
                code = self._turn()
                if failing is not None:
                    log.info("%s", over)
                failing = None
            except NotOwnerError as error:
                log.error("%s\nno more jobs are started; running jobs continue", error)
                return 1
            except (*FAILURES, MemoryError) as error:
                self._storage.trouble()
                self._store.db.shrink()
                number = shortage_of(error)
                problem = str(error) if number is None else described(number)
                over = _WRITTEN_AGAIN if number is None else _SHORTAGE_OVER
                if problem != failing:
                    log.error("%s; retrying every second, running jobs continue", problem)
                failing = problem
                self._woken |= self._wakeups.wait(RETRY_S)
                code = self._farewell() if self._signal is not None or self._loop.ending else None
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                problem = str(damaged(self._store.home.database, error))
                self._tenure.end(problem)
                log.error("%s\nno more jobs are started", problem)
                return 1
        return code

    def _begin(self) -> None:
        self._loop.told = self._tell
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A signal that the user chose to ignore, as `nohup` does, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        home, recorder = self._store.home, self._loop.recorder
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
        late = [request for request in self._store.open_wishes() if request["verb"] == "stop"]
        recorder.record(
            [WishDone(request["id"], "the scheduler had already ended") for request in late],
            self._clock.now(),
        )
        recorder.forget_waits()
        self._loop.hold_back({})
        self._watch_files()
        self._state.begin(self._clock.now().boot)
        self._woken = {"config", "jobs"}

    def _turn(self) -> int | None:
        """Reads new input, runs rounds until nothing is left to do, and waits.

        Returns the exit code when the scheduler is to end, else None.
        """
        self._tenure.check(host=self._is_state_due())
        self._take_in()
        self._woken = set()
        facts = self._rounds()
        if facts is not None and facts.trouble is not None:
            self._store.db.shrink()
        self._state.write(self._clock.now().boot)
        self._telling.turn(facts)
        if facts is None or self._loop.ending or self._signal is not None:
            return self._farewell()
        if self._options.drain and self._is_drained(facts):
            return self._outcomes.finish()
        if self._wakeups.follow(self._folders(facts)):
            return None
        self._backups.turn()
        self._wait(self._due_at(facts))
        return None

    def _is_state_due(self) -> bool:
        again_at, now = self._state.again_at, self._clock.now().boot
        return "state" in self._woken or now >= self._state_at or (again_at is not None and now >= again_at)

    def _wait(self, due_at: float) -> None:
        """Waits until an event or the deadline; polls for events at least once even if it has passed."""
        while True:
            left = max(0.0, due_at - self._clock.now().boot)
            self._woken = self._wakeups.wait(left)
            if self._woken == {"state"} and self._state.is_as_seen():
                self._woken = set()  # written by this scheduler
            if self._woken or left == 0.0:
                return

    def _rounds(self) -> Facts | None:
        """Runs rounds until nothing is left to do, and requests GPU samples when the loop wants one.

        Returns the last facts; None if a signal ended the rounds.
        """
        while True:
            facts = self._loop.tick()
            if self._sampler.ask(self._loop.sample_wanted):
                self._loop.sample_wanted = False
            if facts is not None or self._signal is not None:
                return facts

    def _tell(self, action: Action) -> None:
        self._telling.told(action)
        self._outcomes.told(action)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = number

    def _watch_files(self) -> None:
        home = self._store.home
        self._wakeups.watch_fd(self._sampler.fd, "probe")
        self._wakeups.watch(home.doorbell, "doorbell")
        self._wakeups.watch(home.state_file, "state")
        self._wakeups.watch(statefile.target(home.state_file), "state")
        self._wakeups.watch(self._config.path, "config")
        if self._jobs is not None:
            self._wakeups.watch(self._jobs.path, "jobs")

    def _take_in(self) -> None:
        woken, now = self._woken, self._clock.now().boot
        self._executor.reap()
        self._sampler.read(self._loop.recorder)
        if self._is_state_due():
            self._state_at = now + self._options.state_interval_s
            self._state.look(now)
        if "config" in woken or "jobs" in woken or now >= self._files_at:
            self._files_at = now + self._options.monitor_interval_s
            if self._config.look():
                self._loop.config = self._config.current
            self._look_at_jobs(now)
        elif self._jobs is not None and self._jobs.again_at is not None and now >= self._jobs.again_at:
            self._look_at_jobs(now)

    def _look_at_jobs(self, now: float) -> None:
        if self._jobs is not None:
            self._jobs.look(now)
            self._loop.hold_back(self._jobs.waits)
            self._loop.placing = not self._jobs.loading

    def _due_at(self, facts: Facts) -> float:
        """Returns the boot time of the next deadline, according to the last round."""
        times = [
            self._sampler.due_at,
            self._state_at,
            self._files_at,
            self._state.again_at,
            self._jobs.again_at if self._jobs else None,
            self._telling.again_at,
            self._backups.again_at,
            due(facts, self._store.next_retry(facts.now)),
        ]
        return min(at for at in times if at is not None)

    def _folders(self, facts: Facts) -> dict[Path, int | None]:
        home = self._store.home
        return {
            home.attempt(a.job_id, a.number, a.token): a.sighting.pid
            if a.sighting.claim in ("live", "unlocked", "unclaimed")
            else None
            for a in facts.attempts
            if a.outcome is None
        }

    def _is_drained(self, facts: Facts) -> bool:
        if self._jobs is not None and self._jobs.pending:
            return False
        asks = [Ask.from_key(key) for key in self._store.asks()]
        return drained(facts, asks, self._store.next_retry(facts.now) is not None)

    def _farewell(self) -> int:
        log.info("scheduler ends (%s)", signal.Signals(self._signal).name if self._signal else "requested")
        running = [row for row in self._store.unsettled() if row["outcome"] is None]
        for row in running:
            has_window = row["session"] and not row["window_closed"]
            where = f"`attach {row['job_id']}`" if has_window else f"log {row['log']}"
            log.info("job %d keeps running: %s", row["job_id"], where)
        if running:
            log.info("`status` shows the running jobs; run the same command again to continue")
        if not self._options.drain:
            return 0
        return 128 + self._signal if self._signal else 1
