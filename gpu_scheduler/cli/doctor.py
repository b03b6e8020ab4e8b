"""`doctor`: prints one line per check as soon as it is done, with the remedy."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from gpu_scheduler.app import doctor as app
from gpu_scheduler.cli.terminal import stdout_screen
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.core.text.secrets import masked_values
from gpu_scheduler.views.findings import finding_object, format_finding


def doctor(options: Namespace) -> int:
    """Checks this machine; returns 1 if something will not work."""
    found = []
    for finding in app.doctor(StartOptions.from_values(vars(options)), _print_progress):
        found.append(finding)
        if not options.json:
            print(format_finding(finding, stdout_screen().width), flush=True)
    grades = [finding.grade for finding in found]
    if options.json:
        print(
            json.dumps(
                {"ok": "bad" not in grades, "checks": masked_values([finding_object(one) for one in found])},
                indent=2,
            )
        )
    else:
        print(f"\n{count_noun(grades.count('warn'), 'warning')}, {grades.count('bad')} bad")
    return 1 if "bad" in grades else 0


def _print_progress(text: str) -> None:
    """Prints the progress on a terminal; the next finding overwrites it."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        print(f"{text} …", end="\r", file=sys.stderr, flush=True)
