"""`calibrate`: prints the memory use of finished jobs beside their declarations, and the suggestions."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from gpu_scheduler.app import calibrate as app
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.views.calibrate import to_json, to_text


def calibrate(options: Namespace) -> int:
    """Prints the comparison, and with --write changes the file."""
    view = app.calibrate(location_of(options), options.llm_config, write=options.write)
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(to_json(view) if options.json else to_text(view, width or None))
    return 0
