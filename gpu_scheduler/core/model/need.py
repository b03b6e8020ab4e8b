"""The GPU need of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """The need of a job on each of `count` distinct GPUs: `share` thousandths, `vram` MiB, or both.

    A count of 0 means that the job needs no GPU. A share of 0 or a vram of None means that it was not
    declared. exclusive: no other job of this scheduler may use the GPUs; alone: foreign processes may not use
    them either. learned: vram is the observed use of the job's workload class. assumed: neither the line nor
    the model's entry sets share or vram, so the job gets the default or an idle GPU; this is not a
    declaration, and its accuracy is never judged.
    """

    count: int
    share: int = 0
    alone: bool = False
    vram: int | None = None
    exclusive: bool = False
    learned: bool = False
    assumed: bool = False

    @property
    def whole(self) -> bool:
        """True if no other job of this scheduler may use the same GPUs."""
        return self.alone or self.exclusive
