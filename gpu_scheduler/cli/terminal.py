"""Measures the terminal on which a command prints."""

from __future__ import annotations

import os
import sys

from gpu_scheduler.views.layout import Viewport


def stdout_screen() -> Viewport:
    """Returns size and colours of the terminal at stdout; unlimited and colourless if there is none."""
    if not sys.stdout.isatty():
        return Viewport()
    from gpu_scheduler.views.colours import are_enabled

    size = os.get_terminal_size(sys.stdout.fileno())
    return Viewport(size.columns or None, size.lines or None, are_enabled(os.environ))
