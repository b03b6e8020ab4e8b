"""`import`: imports the pending jobs of a `queue.json` and prints their ids."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app.import_queue import import_queue
from gpu_scheduler.cli import standard_streams
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.views.import_report import import_warnings, to_text


def import_(options: Namespace) -> int:
    """Imports a file; prints warnings on stderr. Returns 1 if the file could not be renamed."""
    report = import_queue(location_of(options), options.file)
    standard_streams.print_done(to_text(report).rstrip("\n"))
    for warning in import_warnings(report):
        print_message(f"warning: {warning}")
    return int(report.rename_problem is not None)
