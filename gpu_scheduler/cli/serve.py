"""`serve`: runs the web server of a queue in this process."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.cli.program import location_of, print_message


def serve(options: Namespace) -> int:
    """Serves the API until SIGTERM or Ctrl-C. Returns 0."""
    from dataclasses import fields

    from gpu_scheduler.web.server import ServeOptions, run

    chosen = ServeOptions(**{one.name: getattr(options, one.name) for one in fields(ServeOptions)})
    run(location_of(options), chosen, print_message)
    return 0
