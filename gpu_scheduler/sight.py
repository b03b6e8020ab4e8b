"""What the folder of an attempt says, in the words of the core. For the loop and for readers alike."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.core.sighting import ResultNote, Sighting, StopNote
from gpu_scheduler.runner.protocol import observe


def sight(folder: Path, token: str) -> Sighting:
    """What the folder of an attempt says now."""
    seen = observe(folder, token)
    stop = StopNote(seen.stop.cause, seen.stop.grace_s, seen.stop.follow) if seen.stop else None
    told = seen.result
    result = (
        ResultNote(
            told.cause, told.exit_code, told.signal, told.began, told.message, told.survivors,
            told.started_at, told.ended_at,
        )
        if told
        else None
    )  # fmt: skip
    return Sighting(seen.claim, seen.pid, seen.session, stop, seen.withdrawn, result, seen.log, seen.strange)
