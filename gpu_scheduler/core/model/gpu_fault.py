"""Defines the faults of GPUs. A GPU with a fault accepts no new jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from gpu_scheduler.core.model.stored_value import StoredValue

#: Number of consecutive good samples after which a lost GPU is used again.
GOOD_SAMPLES_NEEDED = 3


class FaultKind(str, Enum):
    """The kind of a fault. UNREADABLE: no GPU can be read now, so this one may or may not be faulty."""

    LOST = "lost"
    UNLISTED = "unlisted"
    QUERY_FAILED = "query failed"
    MIG_MODE = "mig mode"
    PROHIBITED = "prohibited"
    RECOVERING = "recovering"
    UNREADABLE = "unreadable"
    #: A fault that only another version defines; `cause` is its stored text.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class GpuFault(StoredValue):
    """A fault.

    cause: for QUERY_FAILED and UNREADABLE, the reported cause; good_samples: for RECOVERING, the number of
    good samples in a row.
    """

    kind: FaultKind
    cause: str = ""
    good_samples: int = 0

    _BUILD: ClassVar = {"kind": FaultKind}

    def __str__(self) -> str:
        """Returns the fault as a phrase that follows the name of the GPU."""
        if self.kind is FaultKind.QUERY_FAILED:
            return f"query failed: {self.cause}"
        if self.kind is FaultKind.RECOVERING:
            return f"recovering: {self.good_samples} of {GOOD_SAMPLES_NEEDED} good samples"
        if self.kind is FaultKind.UNKNOWN:
            return self.cause
        if self.kind is FaultKind.UNREADABLE:
            return f"the GPUs cannot be read: {self.cause}"
        return _PHRASES[self.kind]

    @property
    def is_lost(self) -> bool:
        """True if the state "lost" describes the fault completely."""
        return self.kind is FaultKind.LOST

    @classmethod
    def unknown(cls, text: str) -> GpuFault:
        """Returns the fault that another version stored as this text."""
        return GpuFault(FaultKind.UNKNOWN, text)


LOST = GpuFault(FaultKind.LOST)
UNLISTED = GpuFault(FaultKind.UNLISTED)
#: In MIG mode a job would get one slice of the GPU instead of its share.
MIG_MODE = GpuFault(FaultKind.MIG_MODE)
PROHIBITED = GpuFault(FaultKind.PROHIBITED)
_PHRASES = {
    FaultKind.LOST: "lost",
    FaultKind.UNLISTED: "lost: the driver no longer lists it",
    FaultKind.MIG_MODE: "in MIG mode, which is not supported (`sudo nvidia-smi -i GPU -mig 0` turns it off)",
    FaultKind.PROHIBITED: "in compute mode Prohibited: no process can use it (`sudo nvidia-smi -i GPU -c 0`)",
}
