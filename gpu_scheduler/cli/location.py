"""Locates the scheduler of a command, and formats the message printed before its first start."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app.location import Location


def location_of(options: Namespace) -> Location:
    """Returns the state file and data directory of --state-file and --data-dir."""
    return Location(options.state_file, options.data_dir)


def no_store_message(location: Location) -> str:
    """Returns the message of read-only commands before the first start."""
    return (
        f"nothing has run here yet: there is no store in {location.resolve().folder}\n"
        "`start` creates it; --state-file selects another one"
    )
