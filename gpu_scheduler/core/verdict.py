"""How good a declaration of memory was, once an attempt has ended (docs/placement.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """percent: how far the peak is from what was declared, relative to that; below it: negative. mib: what
    was declared on the GPU that is judged, the one with the largest peak for what was declared there."""

    kind: Literal["within", "over", "under"]
    percent: int
    mib: int


def judge(
    peaks: Sequence[int | None],
    budgets: Sequence[int | None],
    tolerance: float,
    *,
    completed: bool,
    by_share: bool = False,
) -> Verdict | None:
    """The verdict on what was declared, from the peak and the declared MiB of each GPU (None = not known).

    by_share: a share was declared, which may mean compute; only its overuse is judged.

    None: nothing was declared, or too little is known. An attempt that did not complete may have ended before
    its peak, perhaps for want of memory, and a GPU whose peak is not known may have had a larger one: neither
    shows that the declaration was right, or that less would do.
    """
    known = [
        (peak, budget)
        for peak, budget in zip(peaks, budgets, strict=False)
        if peak is not None and budget is not None
    ]
    if not known:
        return None
    peak, budget = max(known, key=lambda one: one[0] / one[1])
    percent = round(100 * (peak - budget) / budget)
    if peak > budget * (1 + tolerance):
        return Verdict("under", percent, budget)
    if by_share or not completed or len(known) < len(peaks):
        return None
    return Verdict("within" if peak >= budget * (1 - tolerance) else "over", percent, budget)
