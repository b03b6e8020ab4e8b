"""How good a declaration of memory was, once an attempt has ended (document 001). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """percent: how far the largest peak is from what was declared, relative to that; below it: negative."""

    kind: Literal["within", "over", "under"]
    percent: int


def judge(
    peaks: Sequence[int | None], declared: int | None, tolerance: float, *, completed: bool
) -> Verdict | None:
    """The verdict on `declared` MiB per GPU, from the peak of each GPU (MiB; None = not known).

    None: nothing was declared, or too little is known. An attempt that did not complete may have ended before
    its peak, perhaps for want of memory, and a GPU whose peak is not known may have had a larger one: neither
    shows that the declaration was right, or that less would do.
    """
    known = [peak for peak in peaks if peak is not None]
    if declared is None or not known:
        return None
    largest = max(known)
    percent = round(100 * (largest - declared) / declared)
    if largest > declared * (1 + tolerance):
        return Verdict("under", percent)
    if not completed or len(known) < len(peaks):
        return None
    return Verdict("within" if largest >= declared * (1 - tolerance) else "over", percent)
