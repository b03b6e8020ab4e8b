"""Determines how accurate a memory declaration was, once its attempt has ended (docs/placement.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DeclarationAccuracy:
    """The accuracy of a declaration on the GPU with the largest ratio of peak to declaration.

    percent: how far the peak is from the declaration, negative if it is below; mib: the memory declared on
    this GPU.
    """

    kind: Literal["within", "over", "under"]
    percent: int
    mib: int


def judge_declaration(
    peaks: Sequence[int | None],
    declared: Sequence[int | None],
    tolerance: float,
    *,
    completed: bool,
    by_share: bool = False,
) -> DeclarationAccuracy | None:
    """Returns a declaration's accuracy, from the peak and the declared MiB on each GPU (None if unknown).

    by_share: a share was declared. It may refer to compute, so only overuse is judged.

    Returns None if nothing was declared or too little is known. An attempt that did not complete may have
    ended before its peak, perhaps because memory ran out. A GPU with an unknown peak may have had a larger
    peak than the others. In both cases, it is unknown whether the declaration was right or too large.
    """
    known = [
        (peak, budget)
        for peak, budget in zip(peaks, declared, strict=False)
        if peak is not None and budget is not None
    ]
    if not known:
        return None
    peak, budget = max(known, key=lambda one: one[0] / one[1])
    percent = round(100 * (peak - budget) / budget)
    if peak > budget * (1 + tolerance):
        return DeclarationAccuracy("under", percent, budget)
    if by_share or not completed or len(known) < len(peaks):
        return None
    return DeclarationAccuracy("within" if peak >= budget * (1 - tolerance) else "over", percent, budget)
