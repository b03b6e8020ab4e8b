"""`show`: prints everything known about one job."""

from __future__ import annotations

import sys
from argparse import Namespace

from gpu_scheduler.app.job_detail import job_detail
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.views.job_detail import to_json, to_text


def show(options: Namespace) -> int:
    """Prints the job."""
    detail = job_detail(location_of(options), options.job)
    sys.stdout.write(to_json(detail) if options.json else to_text(detail))
    return 0
