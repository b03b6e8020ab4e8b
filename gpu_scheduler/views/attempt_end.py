"""Describes the resource use of an ended attempt and the accuracy of its declaration."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.core.model.event import AttemptEnded
from gpu_scheduler.core.model.units import share_text
from gpu_scheduler.core.scheduling.declaration_accuracy import judge_declaration


def outcome_label(outcome: str) -> str:
    """Returns the label of an outcome in the log: "OK", "TIMED OUT"."""
    return "OK" if outcome == "completed" else outcome.replace("_", " ").upper()


def format_seconds(seconds: float) -> str:
    """Formats a run time: "3.2s", "1774s"."""
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def memory_source(*, learned: bool, assumed: bool = False) -> str:
    """Returns where the memory value of an attempt comes from: "default", "learned" or "declared"."""
    return "default" if assumed else "learned" if learned else "declared"


def usage_parts(ended: AttemptEnded, tolerance: float) -> Iterator[str]:
    """Yields texts with an attempt's peaks, the accuracy of its declaration, and its mean GPU load."""
    if not ended.gpus:
        return
    if any(peak is not None for peak in ended.peaks):
        each = zip(ended.gpus, ended.peaks, strict=True)
        known = ", ".join(f"gpu{gpu}:{'n/a' if mib is None else f'{mib} MiB'}" for gpu, mib in each)
        yield f"peak vram {known}"
    else:
        yield "peak vram n/a"
    yield _accuracy_text(ended, tolerance)
    if ended.load is not None:
        yield f"avg gpu util {ended.load:.0f}%"


def _accuracy_text(ended: AttemptEnded, tolerance: float) -> str:
    """Describes what the attempt declared, and how accurate that was."""
    if ended.budgets is None:
        return "no declaration"
    by_share, completed = ended.declared is None, ended.outcome == "completed"
    accuracy = judge_declaration(
        ended.peaks, ended.budgets, tolerance, completed=completed, by_share=by_share
    )
    if by_share:
        declared = f"declared {share_text(ended.share, accuracy.mib if accuracy else None)}"
    else:
        declared = f"{memory_source(learned=ended.learned)} {ended.declared} MiB"
    if accuracy is None:
        return declared
    if accuracy.kind == "within":
        return f"{declared} → within ±{100 * tolerance:g}%"
    if accuracy.kind == "under":
        return f"{declared} → under-declared ({accuracy.percent:+d}%)"
    return f"{declared} → over-declared ({accuracy.percent:+d}%); lowering it frees packing headroom"
