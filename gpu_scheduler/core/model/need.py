"""The GPU need of a job."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.model.share import WHOLE, format_share
from gpu_scheduler.core.model.units import human_mib


@dataclass(frozen=True)
class Need:
    """The need of a job on each of `count` distinct GPUs: `share` thousandths, `vram` MiB, or both.

    share 0 and vram None: not declared. exclusive: no other job of ours on them; alone: no foreign process
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
        """Returns whether no other job of ours may run on its GPUs."""
        return self.alone or self.exclusive

    def __str__(self) -> str:
        each = "" if self.count == 1 else "each of "
        many = "a GPU" if self.count == 1 else f"{self.count} GPUs"
        if self.vram is not None and self.share == WHOLE:
            free = f"{self.count} free GPU{'' if self.count == 1 else 's'}"
            return f"{free} with {human_mib(self.vram)}{'' if self.count == 1 else ' each'}"
        if self.vram is not None:
            part = f"{format_share(self.share)} and " if self.share else ""
            shared = "" if not self.exclusive else ", alone" if self.count == 1 else ", each alone"
            return f"{part}{human_mib(self.vram)} of {each}{many}{shared}"
        if self.share == WHOLE or self.alone or not self.share:
            kind = "idle" if self.alone else "free"
            return f"{self.count} {kind} GPU{'' if self.count == 1 else 's'}"
        shared = ", alone" if self.exclusive else ""
        return f"{format_share(self.share)} of {each}{many}{shared}"
