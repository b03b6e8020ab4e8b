"""Provides what all commands share: the program's name, the location, messages and the terminal's size."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_scheduler.app.location import Location
    from gpu_scheduler.views.layout import Viewport

PROGRAM = "gpu-scheduler"


def invocation() -> str:
    """Returns the words with which the user ran the program, such as "python scheduler.py"."""
    names = {"scheduler.py": "python scheduler.py", "__main__.py": "python -m gpu_scheduler"}
    return names.get(_script_name(), PROGRAM)


def program_name() -> str:
    """Returns the name that messages begin with: "scheduler.py" in a clone, otherwise "gpu-scheduler"."""
    return "scheduler.py" if _script_name() == "scheduler.py" else PROGRAM


def print_message(text: str) -> None:
    """Prints a message to the user on stderr; does nothing if stderr cannot be written.

    Line breaks in the text are kept; other control characters are made visible.
    """
    from gpu_scheduler.core.text.formatting import safe_text

    try:
        print(f"{program_name()}: {safe_text(text, keep_line_breaks=True)}", file=sys.stderr)
    except OSError:
        pass


def _script_name() -> str:
    return sys.argv[0].rpartition("/")[2]


def location_of(options: Namespace) -> Location:
    """Returns the location that --state-file and --data-dir specify."""
    from gpu_scheduler.app.location import Location

    return Location(options.state_file, options.data_dir)


def no_store_message(location: Location) -> str:
    """Returns the message that read-only commands print before the first start."""
    return (
        f"nothing has run here yet; there is no store in {location.resolve().folder}\n"
        "run `start` to create a store, or name the state file of an existing store with --state-file"
    )


def stdout_screen() -> Viewport:
    """Returns the size of the terminal on stdout and whether to use colours.

    Without a terminal, the size is unlimited and there are no colours.
    """
    from gpu_scheduler.views.layout import Viewport

    if not sys.stdout.isatty():
        return Viewport()
    from gpu_scheduler.views.colours import are_enabled

    size = os.get_terminal_size(sys.stdout.fileno())
    return Viewport(size.columns or None, size.lines or None, are_enabled(os.environ))
