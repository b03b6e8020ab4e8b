"""Checks that a scheduler still owns its store: same data directory, same database file, same host."""

from __future__ import annotations

import os

from gpu_scheduler.errors import NotOwnerError, SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import InstanceLock


class Ownership:
    """Ownership of an open store whose locks this process holds. Once lost, ownership stays lost."""

    def __init__(self, data_dir: DataDir, lock: InstanceLock) -> None:
        self._data_dir = data_dir
        self._lock = lock
        self._database = os.stat(data_dir.database)
        self._loss: str | None = None

    def loss(self, *, check_host: bool = False) -> str | None:
        """Returns why ownership was lost, or None. check_host: also check whether another host took over."""
        if self._loss is None:
            self._loss = self._replacement()
        if self._loss is None and check_host:
            try:
                self._data_dir.take_ownership()
            except SchedulerError as error:
                self._loss = str(error)
            except OSError:
                pass  # a failed check proves nothing, and the next write of the state file reports the error
        return self._loss

    def mark_lost(self, reason: str) -> None:
        """Marks the ownership as lost for this reason."""
        self._loss = self._loss or reason

    def check(self, *, check_host: bool = False) -> None:
        """Raises NotOwnerError if the ownership is lost."""
        lost = self.loss(check_host=check_host)
        if lost is not None:
            raise NotOwnerError(lost)

    def _replacement(self) -> str | None:
        if not self._lock.locks_folder(self._data_dir.folder):
            return f"{self._data_dir.folder} was removed or replaced"
        if not self._lock.restore_lock_file():
            return f"another scheduler has locked {self._data_dir.lock}, which was removed or replaced"
        try:
            same = os.path.samestat(os.stat(self._data_dir.database), self._database)
        except OSError:
            same = False
        return None if same else f"{self._data_dir.database} was removed or replaced"
