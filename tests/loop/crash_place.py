"""A folder with a store, in which a test runs schedulers that die at a failpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.processes import sweep
from tests.stress.harness import environment
from tests.stress.trace import JOB
from tests.warm import Process


@dataclass
class Place:
    """A folder with a store, in which a test runs schedulers."""

    folder: Path
    executor: str

    def __post_init__(self) -> None:
        self.store = Store(DataDir.of(str(self.folder / "state.json")), create=True)
        (self.folder / "trace.sh").write_text(JOB)
        self.codes: dict[int, int] = {}

    def add(self, code: int, seconds: float = 0.02, after: Sequence[int] = ()) -> int:
        """Inserts a job that writes to its trace file and exits with this code. after: its parents."""
        number = len(self.codes)
        command = f"sh {self.folder}/trace.sh {self.folder}/trace {number} {seconds} {code}"
        self.codes[number] = code
        return self.insert(command, after)

    def insert(self, command: str, after: Sequence[int] = ()) -> int:
        """Inserts a job that runs a shell command once the jobs `after` have completed."""
        spec = JobSpec("command", command, str(self.folder), command=command, share=500)
        parents = [Dependency(parent, DependencyKind.COMPLETED, str(parent)) for parent in after]
        return self.store.insert_job(spec, "test", dependencies=parents)

    def run(self, step: str = "", nth: int = 1, *more: str) -> int:
        """Runs a draining scheduler, which dies if it reaches this step for the nth time.

        Returns the exit code of the scheduler.
        """
        with open(self.folder / "out", "ab") as out:
            words = [step, str(nth), self.executor, *more]
            scheduler = Process(
                "tests.loop.crashing", words, self.folder, environment(), out.fileno(), out.fileno()
            )
        try:
            return scheduler.wait(60)
        finally:
            scheduler.kill()

    def recorded(self) -> dict[int, int | str | None]:
        """Returns each job's recorded exit code or, without one, its outcome or, without that, its state."""
        rows = self.store.db.rows("SELECT * FROM job ORDER BY id")
        return {
            n: row["exit_code"] if row["exit_code"] is not None else row["outcome"] or row["state"]
            for n, row in enumerate(rows)
        }

    def end_processes(self) -> None:
        """Ends the processes that a failed test left behind."""
        for row in self.store.active_attempts():
            sweep(self.store.data_dir.attempt_folder(row), row.token, term_s=0.0)
