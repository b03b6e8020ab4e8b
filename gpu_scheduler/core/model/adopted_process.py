"""A process that was started elsewhere and that a job has adopted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpu_scheduler.core.model.stored_value import StoredValue


@dataclass(frozen=True)
class AdoptedProcess(StoredValue):
    """An adopted process, identified by its pid, its start in kernel ticks since boot, and the boot.

    started_at: its start in wall seconds. gpus: the UUIDs of the GPUs that it uses. log: the path of the file
    to which it writes its output; None if it is not a file.
    """

    pid: int
    start_ticks: int
    boot_id: str
    started_at: float
    gpus: tuple[str, ...] = ()
    log: str | None = None

    _BUILD: ClassVar = {"gpus": tuple}

    @classmethod
    def unknown(cls, text: str) -> AdoptedProcess:
        """Returns a process that does not exist, because another version stored this text."""
        return AdoptedProcess(0, 0, "", 0.0)
