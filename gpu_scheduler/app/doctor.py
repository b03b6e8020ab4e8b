"""Checks whether jobs can run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.health.doctor.run_checks import run_checks


def doctor(options: StartOptions, on_wait: Callable[[str], None]) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. on_wait: called with the name of each slow check before it
    runs."""
    home = Location(options.state_file, options.data_dir).resolve()
    return map(without_secrets, run_checks(home, options, on_wait))
