"""Names the state file and data directory on which a use case works."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler import config
from gpu_scheduler.store.data_dir import DataDir


@dataclass(frozen=True)
class Location:
    """The state file of a scheduler, and its data directory (None: beside the state file)."""

    state_file: str = config.STATE_FILE
    data_dir: str | None = None

    def resolve(self) -> DataDir:
        """Returns the data directory with its files. Nothing is created."""
        return DataDir.of(self.state_file, self.data_dir)
