"""`stop`: prints which jobs ended and which continue."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app import stop as app
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.views.stop import to_text


def stop(options: Namespace) -> int:
    """Asks the scheduler to end; with --jobs it cancels the running jobs first."""
    report = app.stop(location_of(options), end_jobs=options.jobs, grace_s=options.grace)
    print(to_text(report, with_jobs=options.jobs), end="")
    return int(report.has_failed)
