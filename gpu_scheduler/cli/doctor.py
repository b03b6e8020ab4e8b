"""`doctor`: prints one line per check as soon as it is done, with the remedy."""

from __future__ import annotations

import sys
from argparse import Namespace

from gpu_scheduler.app import doctor as app
from gpu_scheduler.cli.terminal import stdout_screen
from gpu_scheduler.config import StartOptions
from gpu_scheduler.views.findings import findings_to_json, format_finding, summary_text


def doctor(options: Namespace) -> int:
    """Checks this machine; returns 1 if something will not work."""
    found = []
    for finding in app.doctor(StartOptions.from_values(vars(options)), _print_progress):
        found.append(finding)
        if not options.json:
            print(format_finding(finding, stdout_screen().width), flush=True)
    print(findings_to_json(found) if options.json else f"\n{summary_text(found)}")
    return int(any(finding.grade == "bad" for finding in found))


def _print_progress(text: str) -> None:
    """Prints the progress on a terminal; the next finding overwrites it."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        print(f"{text} …", end="\r", file=sys.stderr, flush=True)
