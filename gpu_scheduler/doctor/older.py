"""Checks whether jobs of the older scheduler still run."""

from __future__ import annotations

from gpu_scheduler.doctor.findings import Finding, bad, ok, warn
from gpu_scheduler.intake.pauses import imports_older
from gpu_scheduler.oldsessions import STILL_RUN, WHEN_ENDED, old_sessions
from gpu_scheduler.store.home import Home


def sessions(home: Home) -> Finding:
    """Returns the finding about live sessions of the older scheduler; bad if `start` would be refused."""
    found = old_sessions()
    if not found:
        return ok("older sessions", "none: no job of the older scheduler runs in Screen")
    named = "; ".join(map(str, found))
    if imports_older(home):
        return bad("older sessions", f"{STILL_RUN}: {named}", WHEN_ENDED)
    return warn(
        "older sessions", named, "these jobs of the older scheduler use GPUs, and no store knows them"
    )
