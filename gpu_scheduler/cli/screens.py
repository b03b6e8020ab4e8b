"""`screens`: prints the Screen sessions of running jobs."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace

from gpu_scheduler.app import screens as app
from gpu_scheduler.cli.location import location_of, no_store_message
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.views.screens import to_json, to_text


def screens(options: Namespace) -> int:
    """Prints the sessions; changes nothing."""
    location = location_of(options)
    try:
        sessions = app.screens(location)
    except StoreNotFoundError:
        if not options.json:
            print(safe_text(no_store_message(location), keep_line_breaks=True))
            return 0
        sessions = app.SessionsView(time.time(), ())
    if options.json:
        sys.stdout.write(to_json(sessions))
    else:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(to_text(sessions, width or None))
    return 0
