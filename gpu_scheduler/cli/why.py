"""`why`: explains why a job does not start, or why it failed and what to do."""

from __future__ import annotations

import sys
from argparse import Namespace

from gpu_scheduler.app.diagnosis import diagnose
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.terminal import stdout_screen
from gpu_scheduler.views.why import to_json, to_text


def why(options: Namespace) -> int:
    """Prints the explanation."""
    diagnosis = diagnose(location_of(options), options.job)
    if options.json:
        sys.stdout.write(to_json(diagnosis))
    else:
        sys.stdout.write(to_text(diagnosis, stdout_screen().width, verbose=options.verbose))
    return 0
