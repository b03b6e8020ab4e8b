"""Defines the location of a scheduler: the state file and data directory on which a use case works."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler import config
from gpu_scheduler.store.data_dir import DataDir


@dataclass(frozen=True)
class Location:
    """A scheduler's state file and data directory. data_dir: None means beside the state file."""

    state_file: str = config.STATE_FILE
    data_dir: str | None = None

    def resolve(self) -> DataDir:
        """Returns the data directory with the paths of its files. Creates nothing."""
        return DataDir.of(self.state_file, self.data_dir)
