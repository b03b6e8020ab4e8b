"""`adopt`: makes a running process a job."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app import adopt as app
from gpu_scheduler.cli import standard_streams
from gpu_scheduler.cli.arguments import given_attributes
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.views.adopt import note_text, to_text


def adopt(options: Namespace) -> int:
    """Adopts the process and prints its job. Prints notes on stderr."""
    job = app.adopt(
        location_of(options),
        app.Adoption(
            options.pid,
            given_attributes(options),
            options.vram,
            options.gpus,
            options.gpu_probe,
            options.simulate,
        ),
    )
    standard_streams.print_done(to_text(job).rstrip("\n"))
    for line in note_text(job):
        print_message(line)
    return 0
