"""Where everything of one state file lies. Names only; nothing is created here but by `create`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.errors import SchedulerError


@dataclass(frozen=True)
class Home:
    """The folder of ours that belongs to a state file."""

    state_file: Path
    folder: Path

    @classmethod
    def of(cls, state_file: str, data_dir: str | None = None) -> Home:
        """`X.d` beside the state file `X.json`, or `data_dir`."""
        path = Path(os.path.abspath(state_file))
        stem = path.name[: -len(".json")] if path.name.endswith(".json") else path.name
        return cls(path, Path(os.path.abspath(data_dir)) if data_dir else path.parent / f"{stem}.d")

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "scheduler.db"

    @property
    def runs(self) -> Path:
        """Parent of all attempt folders."""
        return self.folder / "runs"

    @property
    def doorbell(self) -> Path:
        """The file that a front end touches after its commit."""
        return self.folder / "doorbell"

    @property
    def lock(self) -> Path:
        """The file that the one scheduler keeps locked."""
        return self.folder / "lock"

    @property
    def simulation(self) -> Path:
        """Where simulated jobs say what they use."""
        return self.folder / "sim"

    @property
    def log(self) -> Path:
        """The main log, beside the state file."""
        return self.state_file.parent / "gpu_scheduler.log"

    def attempt(self, job_id: int, number: int, token: str) -> Path:
        """The folder of one attempt."""
        return self.runs / str(job_id) / f"{number}-{token[:8]}"

    def create(self) -> None:
        """Make the folders, private to the user. Raises SchedulerError if that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.runs.mkdir(exist_ok=True, mode=0o700)
            self.doorbell.touch(mode=0o600)
        except OSError as error:
            raise SchedulerError(
                f"cannot create {self.folder}: {error.strerror}; choose another --state-file or --data-dir"
            ) from None

    def ring(self) -> None:
        """Wake the scheduler, if one is up, after a commit."""
        try:
            os.utime(self.doorbell)
            with open(self.doorbell, "ab"):
                pass
        except OSError:
            pass  # it looks by itself within its intervals
