"""The kind of GPUs, simulated or real, that a record was made on; why a start on the other kind is refused.

The managed GPUs on the record tell the kind, so records of every version do. Nothing finer is told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.core.gpu import is_simulated
from gpu_scheduler.store.database import peek


@dataclass(frozen=True)
class Recorded:
    """The jobs and the kind of GPUs of a record. simulated: None = it knows no GPUs."""

    simulated: bool | None
    jobs: int

    def is_other_than(self, simulated: bool) -> bool:
        """Whether jobs of it belong to the other kind of GPUs."""
        return self.jobs > 0 and self.simulated is not None and self.simulated is not simulated

    def refusal(self, folder: Path) -> tuple[str, str]:
        """Why a start on the other kind is refused, and the three ways on."""
        made, asked = ("simulated", "real") if self.simulated else ("real", "simulated")
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return (
            f"the record in {folder} has {jobs} of a run on {made} GPUs, and this start is on {asked} ones:"
            " a line that has run there does not run again",
            "--state-file OTHER.json begins a record beside it, --fresh forgets these jobs,"
            " --keep-history goes on with them",
        )


def recorded(database: Path) -> Recorded | None:
    """The kind and the number of jobs in a database, which is not changed; None: there is none, or it cannot
    be read now."""
    gpus = peek(database, "SELECT uuid FROM gpu WHERE managed")
    jobs = peek(database, "SELECT count(*) AS n FROM job")
    if gpus is None or not jobs:
        return None
    return Recorded(any(is_simulated(row["uuid"]) for row in gpus) if gpus else None, jobs[0]["n"])
