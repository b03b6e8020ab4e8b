"""A scheduler with a real loop, store, launcher and runners. The test itself runs its rounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.attempts.executors import DirectExecutor, Executor, Executors
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.attempts.launch import Launcher
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import GpuSample, Snapshot
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.rounds.loop import Loop, QueueTurns
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.lock_folder import ClaimFolder, find_lock_folder
from tests.changes import CheckedWriter
from tests.processes import sweep
from tests.waiting import wait_for

SETTINGS = Settings(launch_deadline_s=3.0, assign_retry_wait_s=0.05, grace_s=1.0, max_assign_attempts=3)
#: Preempted jobs have more time than a test takes.
PREEMPTING = replace(SETTINGS, preempt_grace_s=30.0)


#: All rigs, until `tests.loop.conftest` closes them: a process of a usual account may have 1,024 open files.
OPENED: list[Rig] = []


class Rig:
    """One scheduler in a folder. A second instance in the same folder represents a restarted scheduler."""

    def __init__(
        self,
        folder: Path,
        gpus: int = 2,
        executor: Executor | None = None,
        settings: Settings = SETTINGS,
        conda_sh: str | None = None,
        clock: Clock | None = None,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.folder = folder
        self.clock = clock or Clock()
        self.store = Store(DataDir.of(str(folder / "state.json")), create=True)
        self.watch = GpuWatch()
        self.gpus = gpus
        self.executor = executor or DirectExecutor()
        options = StartOptions(conda_sh=conda_sh, grace_s=settings.grace_s)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        logs = LogFolder.from_option(str(folder / "logs"))
        self.claim_folder = ClaimFolder.of(find_lock_folder(), None)
        executors = Executors(self.executor)
        recorder = CheckedWriter(self.store, settings, executors.default.name)
        self.launcher = Launcher(
            self.store, recorder, executors, options, environment, 0o022, logs, self.claim_folder
        )
        self.loop = Loop(
            self.store, self.watch, self.launcher.launch, executors, settings, self.clock, failpoint
        )
        self.loop.recorder = recorder
        self.take_sample()
        assert self.watch.snapshot is not None
        recorder.record_gpus(
            self.watch.snapshot.gpus, [g.uuid for g in self.watch.snapshot.gpus], self.clock.now()
        )
        uuids = [gpu.uuid for gpu in self.watch.snapshot.gpus]
        self.loop.turns = QueueTurns(self.claim_folder.path, uuids)
        OPENED.append(self)

    def close(self) -> None:
        """Closes the store and the files of the turns."""
        self.store.close()
        if self.loop.turns is not None:
            self.loop.turns._turns.close()

    def take_sample(self) -> None:
        """Takes a sample in which all GPUs are idle."""
        samples = tuple(GpuSample(f"U{i}", i, "card", 24576, 0, 0.0, ()) for i in range(self.gpus))
        self.watch.accept_sample(Snapshot(self.clock.now().boot, samples))

    def add_job(self, command: str, **values: object) -> int:
        """Inserts a job that runs a shell command; returns its id."""
        spec = JobSpec("command", command, str(self.folder), command=command)
        return self.store.insert_job(replace(spec, **values), "test")

    def tick(self) -> Facts:
        """Runs rounds until nothing is left to do, and returns the last facts."""
        while True:
            facts = self.tick_once()
            if facts is not None:
                return facts

    def tick_once(self) -> Facts | None:
        """Runs one round, and takes a sample if it wants one. Returns facts if nothing is left to do."""
        self.executor.reap()
        facts = self.loop.tick()
        if self.loop.sample_wanted:
            self.loop.sample_wanted = False
            self.take_sample()
            return None
        return facts

    def tick_until(
        self, condition: Callable[[], object], description: str = "", timeout_s: float = 60.0
    ) -> None:
        """Runs rounds until `condition()` is true."""

        def poll() -> object:
            self.tick()
            return condition()

        wait_for(poll, description, timeout_s)

    def job(self, job_id: int) -> Job:
        """Returns the job's row in the store."""
        row = self.store.job(job_id)
        assert row is not None
        return row

    def tick_until_ended(self, job_id: int, timeout_s: float = 60.0) -> Job:
        """Runs rounds until the job is finished or held and no attempt is active; returns the job's row."""

        def ended() -> object:
            row = self.job(job_id)
            return row.state in ("finished", "held") and not self.store.active_attempts()

        self.tick_until(ended, f"end of job {job_id}", timeout_s)
        return self.job(job_id)

    def attempt_folder(self, job_id: int) -> Path:
        """Returns the folder of the job's newest attempt."""
        row = self.store.attempts(job_id)[-1]
        return self.store.data_dir.attempt_folder(row)

    def runner_pid(self, job_id: int) -> int:
        """Runs rounds until the job is running; returns the pid of its runner."""
        self.tick_until(lambda: self.job(job_id).state == "running", f"job {job_id} running")
        [pid] = [a.status.pid for a in self.tick().attempts if a.job_id == job_id and a.state.is_open]
        assert pid is not None
        return pid

    def end_processes(self) -> None:
        """Ends the processes that attempts have left."""
        for row in self.store.active_attempts():
            sweep(self.store.data_dir.attempt_folder(row), row.token, term_s=0.0)
