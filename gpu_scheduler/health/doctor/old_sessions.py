"""Checks whether jobs of the older scheduler still run."""

from __future__ import annotations

from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.health.old_sessions import REFUSAL, REMEDY, old_sessions
from gpu_scheduler.intake.pauses import imports_old_state_file
from gpu_scheduler.store.data_dir import DataDir


def sessions(data_dir: DataDir) -> Finding:
    """Returns the finding about live sessions of the older scheduler; bad if `start` would be refused."""
    found = old_sessions()
    if not found:
        return ok(Check.OLDER_SESSIONS, "none: no job of the older scheduler runs in Screen")
    named = "; ".join(map(str, found))
    if imports_old_state_file(data_dir):
        return bad(Check.OLDER_SESSIONS, f"{REFUSAL}: {named}", REMEDY)
    return warn(
        Check.OLDER_SESSIONS, named, "these jobs of the older scheduler use GPUs, and no store knows them"
    )
