"""The row of an attempt, with its job's columns, as the core knows it: the one place that spells it out."""

from __future__ import annotations

import json
import sqlite3

from gpu_scheduler.core.facts import Attempt, Cancel
from gpu_scheduler.core.sighting import Evidence, Sighting
from gpu_scheduler.core.states import JobState, Outcome


def attempt_fact(row: sqlite3.Row, seen: Sighting, evidence: Evidence | None = None) -> Attempt:
    """A row of `Store.unsettled`, and what the attempt's folder says."""
    return Attempt(
        attempt_id=row["id"],
        job_id=row["job_id"],
        token=row["token"],
        boot_id=row["boot_id"],
        job_state=JobState(row["job_state"]),
        number=row["number"],
        gpus=tuple(json.loads(row["gpus"])),
        share=row["share"],
        baseline_mib=json.loads(row["baseline"]),
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        sighting=seen,
        evidence=evidence,
        launches=row["launches"],
        launch_deadline=row["deadline_boot"],
        launch_error=row["launch_error"],
        stopping_at=row["stopping_boot"],
        signalled_at=row["signalled_boot"],
        dead_at=row["dead_boot"],
        swept_at=row["swept_boot"],
        released_at=row["released_boot"],
        cancel=Cancel(row["cancel_cause"], row["cancel_grace_s"]) if row["cancel_cause"] else None,
        launch_failures=row["launch_failures"],
        lineless=row["job_source"].startswith("file:") and not row["has_line"],
        strays=tuple(uuid for uuid, _ in json.loads(row["strays"])),
    )
