"""The claim of a program on a GPU's memory (docs/design.md, GPU claims)."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.model.stored_value import StoredValue


@dataclass(frozen=True)
class GpuClaim(StoredValue):
    """A claim that one process holds on one GPU.

    mib: the claimed memory in MiB; None means the whole GPU. pid: the process; 0 if it is in another pid
    namespace. user: the name of its user; "" if unknown. by_scheduler: whether the process is the runner of a
    scheduler's job; otherwise it is a command that `run` started. is_turn: whether the process has no claim
    yet, but it is its turn to take the GPU, or it keeps the GPU for a job. job: the id of that job, in the
    queue whose data directory is in `folder`; None if unknown.
    """

    mib: int | None
    pid: int
    user: str = ""
    by_scheduler: bool = False
    is_turn: bool = False
    job: int | None = None
    folder: str = ""
