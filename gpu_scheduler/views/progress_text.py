"""Formats the progress of running jobs and the time at which they will finish."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.text.formatting import format_eta

if TYPE_CHECKING:
    from gpu_scheduler.core.model.attempt_status import Progress
    from gpu_scheduler.core.progress.eta import JobProgress


def short_text(shown: JobProgress | None) -> str:
    """Formats a progress for a table: "53% ETA 1h24m", "53%", "step 150"; "" if nothing is known."""
    if shown is None or shown.progress is None:
        return ""
    done = percent_text(shown) or _count_text(shown.progress)
    return done if shown.remaining_s is None else f"{done} ETA {format_eta(shown.remaining_s)}"


def long_text(shown: JobProgress | None, now: float) -> str:
    """Formats a progress for the details of a job; "" if nothing is known.

    Example: "53% (step 159 of 300), ETA 1h24m, at 19:57".
    """
    if shown is None or shown.progress is None:
        return ""
    percent, count = percent_text(shown), _count_text(shown.progress)
    done = count if not percent else percent if not count else f"{percent} ({count})"
    if shown.remaining_s is None or shown.finish_at is None:
        return done
    return f"{done}, ETA {format_eta(shown.remaining_s)}, at {finish_text(shown.finish_at, now)}"


def percent_text(shown: JobProgress) -> str:
    """Formats the finished part, rounded down: "53%"; "" if unknown."""
    return "" if shown.percent is None else f"{int(shown.percent)}%"


def finish_text(at: float, now: float) -> str:
    """Formats a local time: "19:57" today, "Tue 03:12" within six days, otherwise "2026-11-29 03:12"."""
    then = time.localtime(at)
    if time.strftime("%Y-%j", then) == time.strftime("%Y-%j", time.localtime(now)):
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if 0 <= at - now < 6 * 86400 else "%Y-%m-%d %H:%M", then)


def progress_object(shown: JobProgress | None) -> dict[str, Any] | None:
    """Returns a progress as a JSON object; None if nothing is known."""
    if shown is None or (shown.progress is None and shown.checkpoint is None):
        return None
    progress, checkpoint = shown.progress, shown.checkpoint
    return {
        "percent": None if shown.percent is None else round(shown.percent, 2),
        "current": None if progress is None else progress.current,
        "total": None if progress is None else progress.total,
        "unit": None if progress is None else progress.unit.value,
        "eta_s": None if shown.remaining_s is None else round(shown.remaining_s, 1),
        "finish_at": shown.finish_at,
        "checkpoint": None if checkpoint is None else vars(checkpoint),
    }


def _count_text(progress: Progress) -> str:
    """Formats a count such as "step 159 of 300"; "" for percent."""
    if progress.unit.value == "percent":
        return ""
    noun = "step" if progress.unit.value == "checkpoint" else progress.unit.value
    of = "" if progress.total is None else f" of {progress.total:.15g}"
    return f"{noun} {round(progress.current, 2):.15g}{of}"
