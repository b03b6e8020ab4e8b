"""Reads whether a store was made with simulated or real GPUs, and refuses a start with the other kind.

The managed GPUs in the store give the kind, so this works for a store of every version.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.core.model.gpu import is_simulated
from gpu_scheduler.store.read_only import query_read_only


@dataclass(frozen=True)
class RecordedGpus:
    """Number of jobs and kind of GPUs of a store. simulated: None = the store has no GPUs."""

    simulated: bool | None
    jobs: int

    def conflicts_with(self, simulated: bool) -> bool:
        """Returns whether the store has jobs that ran on the other kind of GPUs."""
        return self.jobs > 0 and self.simulated is not None and self.simulated is not simulated

    def refusal(self, folder: Path) -> tuple[str, str]:
        """Returns why a start on the other kind is refused, and the three remedies."""
        made, asked = ("simulated", "real") if self.simulated else ("real", "simulated")
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return (
            f"the store in {folder} has {jobs} from {made} GPUs, but this start uses {asked} GPUs:"
            " lines that have run already would not run again",
            "--state-file OTHER.json creates a separate store, --fresh forgets these jobs,"
            " --keep-history keeps them",
        )


def recorded_gpus(database: Path) -> RecordedGpus | None:
    """Returns the kind of GPUs and the number of jobs in a database without changing it.

    Returns None if there is no database or it cannot be read at the moment.
    """
    gpus = query_read_only(database, "SELECT uuid FROM gpu WHERE managed")
    jobs = query_read_only(database, "SELECT count(*) AS n FROM job")
    if gpus is None or not jobs:
        return None
    return RecordedGpus(any(is_simulated(row["uuid"]) for row in gpus) if gpus else None, jobs[0]["n"])
