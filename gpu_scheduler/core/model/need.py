"""The GPU need of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """The need of a job on each of `count` distinct GPUs: `share` thousandths, `vram` MiB, or both.

    share 0 and vram None: not declared. exclusive: none of our other jobs on them; alone: no foreign process
    either. learned: vram is the observed use of its workload class. assumed: neither the line nor the entry
    of its model sets share or vram, so that the default applies, or an idle GPU; this is not a declaration,
    and its accuracy is never judged.
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
        """Returns whether none of our other jobs may run on its GPUs."""
        return self.alone or self.exclusive
