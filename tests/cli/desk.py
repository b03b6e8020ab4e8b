"""Provides a store in a temporary folder, and runs commands and a scheduler on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import AttemptRef, kill_runner, observe, prepare
from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.cli import main
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.command.build import REPORT_START
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter
from tests.processes import sweep
from tests.waiting import wait_for
from tests.warm import Process


class Desk:
    """A state file and its store in the folder `path`, which is the working folder."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.data_dir = DataDir.of(str(path / "gpu_scheduler_state.json"))
        self._capsys = capsys
        self._store: Store | None = None
        self.folders: dict[str, Path] = {}

    @property
    def store(self) -> Store:
        """The store. The first access creates it with two GPUs."""
        if self._store is None:
            self._store = Store(self.data_dir, create=True)
            samples = [GpuSample(f"SIM-{i}", i, "Simulated 24 GiB", 24576, 512 * i, 0.0) for i in range(2)]
            self.writer.record_gpus(samples, [gpu.uuid for gpu in samples], Clock().now())
        return self._store

    @property
    def writer(self) -> CheckedWriter:
        """The store writer that the loop uses."""
        return CheckedWriter(self._store or self.store, Settings())

    def record(self, *actions: act.Action) -> dict[int, int]:
        """Records actions as the loop does."""
        return self.writer.record(actions, Clock().now())

    def job(self, text: str = "echo hello", **values: Any) -> int:
        """Inserts a queued job and returns its id; `values` are fields of its spec."""
        spec = {"kind": "command", "text": text, "cwd": str(self.path), "command": text, **values}
        return self.store.insert_job(JobSpec(**spec), "cli")

    def job_after(self, *parents: int, kind: DependencyKind = DependencyKind.COMPLETED, **values: Any) -> int:
        """Inserts a queued job that waits for other jobs. The job 0 stands for a name that no job has."""
        wanted = [Dependency(one, kind, str(one) if one else "prep") for one in parents]
        spec = JobSpec(
            **{"kind": "command", "text": "true", "cwd": str(self.path), "command": "true", **values}
        )
        return self.store.insert_job(spec, "cli", dependencies=wanted)

    def attempt(self, job_id: int, gpu: str = "SIM-0", vram: int | None = None) -> Attempt:
        """Opens an attempt for a queued job and returns it. Does not create the attempt folder."""
        opened = self.record(act.Start(job_id, (gpu,), 500, vram=vram))
        row = self.store.attempt(opened[job_id])
        assert row is not None
        self.folders[row.token] = self.folder(row)
        return row

    def folder(self, row: Attempt) -> Path:
        """Returns the folder of an attempt."""
        return self.data_dir.attempt_folder(row)

    def run_job(self, script: str, vram: int | None = None, **values: Any) -> int:
        """Runs a bash script as a job with a real runner; `values` are fields of its spec.

        Returns the job's id when the runner has claimed it.
        """
        job_id = self.job(script, **values)
        row = self.attempt(job_id, vram=vram)
        log = self.path / f"job_{job_id}.log"
        log.touch(mode=0o600)
        prepare(
            self.folder(row),
            {
                "job": job_id, "attempt": 1, "token": row.token, "boot_id": row.boot_id,
                "cwd": str(self.path), "umask": 0o022,
                "env": {"PATH": os.environ["PATH"], "GPU_SCHEDULER_TOKEN": row.token},
                "terminal": False, "session": None, "log": str(log), "header": "",
                "timeout_s": None, "term_grace_s": 5.0,
            },
            REPORT_START + script,
        )  # fmt: skip
        self.writer.record_log(row.id, str(log), None)
        DirectExecutor().launch(AttemptRef(job_id, 1, row.token, self.folder(row)))
        wait_for(lambda: observe(self.folder(row), row.token).claim != "none", f"claim of job {job_id}")
        self.record(changes.run(row.id))
        return job_id

    @property
    def server(self) -> Location:
        """The location for a server, which runs no rounds: its requests are only recorded."""
        return Location(str(self.data_dir.state_file))

    def run_without_runner(self, vram: int | None = None) -> int:
        """Runs a job that ignores SIGTERM, and kills its runner. Returns the id of the job, which goes on."""
        job_id = self.run_job("trap '' TERM HUP; echo up; while :; do sleep 0.02; done", vram)
        log = self.path / f"job_{job_id}.log"
        wait_for(lambda: "up" in log.read_text(), "the start of the command")
        [attempt] = self.store.attempts(job_id)
        folder = self.folder(attempt)
        kill_runner(folder, attempt.token)
        wait_for(lambda: observe(folder, attempt.token).claim == "dead", "the runner's end")
        assert processes_of({attempt.token: folder})
        return job_id

    def run(self, *argv: object) -> tuple[int, str, str]:
        """Runs a command in this process. Returns its exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main([str(word) for word in argv])
        out, err = self._capsys.readouterr()
        return code, out, err

    def requests(self) -> list[tuple[str, str]]:
        """Returns the verb and target of each open request."""
        return [(row.verb, row.target) for row in open_requests(self.store)]

    def state(self, job_id: int) -> str:
        """Returns the recorded state of a job."""
        row = self.store.job(job_id)
        assert row is not None
        return str(row.state)

    def wait_until_processes_end(self) -> None:
        """Waits until no process of any attempt is left. A runner ends shortly after writing its result."""
        wait_for(lambda: not processes_of(self.folders), "end of all processes")

    @contextmanager
    def scheduler(self, *options: str) -> Iterator[int]:
        """Runs a process that holds the scheduler's lock and carries out requests. Yields its pid."""
        assert self.store
        words = [str(self.data_dir.state_file), *options]
        process = Process("tests.cli.scheduler_process", words, Path(__file__).parents[2], os.environ, 1, 2)
        try:
            wait_for(lambda: scheduler_pid(self.data_dir.lock) == process.pid, "the scheduler's lock")
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Ends the started processes and closes the store."""
        for token, folder in self.folders.items():
            assert not sweep(folder, token, 0.0, 5.0)
        if self._store is not None:
            self._store.close()
