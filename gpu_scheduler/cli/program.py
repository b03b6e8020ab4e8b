"""Names the program, locates the scheduler of a command, prints errors, and measures the terminal."""

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
    """Returns the command with which the user invoked the program, such as "python scheduler.py"."""
    names = {"scheduler.py": "python scheduler.py", "__main__.py": "python -m gpu_scheduler"}
    return names.get(_script_name(), PROGRAM)


def program_name() -> str:
    """Returns the name that messages begin with: "scheduler.py" in a clone, otherwise "gpu-scheduler"."""
    return "scheduler.py" if _script_name() == "scheduler.py" else PROGRAM


def print_error(text: str) -> None:
    """Prints an error or a warning on stderr; does nothing if stderr cannot be written.

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
    """Returns the state file and data directory of --state-file and --data-dir."""
    from gpu_scheduler.app.location import Location

    return Location(options.state_file, options.data_dir)


def no_store_message(location: Location) -> str:
    """Returns the message of read-only commands before the first start."""
    return (
        f"nothing has run here yet: there is no store in {location.resolve().folder}\n"
        "`start` creates it; --state-file selects another one"
    )


def stdout_screen() -> Viewport:
    """Returns size and colours of the terminal at stdout; unlimited and colourless if there is none."""
    from gpu_scheduler.views.layout import Viewport

    if not sys.stdout.isatty():
        return Viewport()
    from gpu_scheduler.views.colours import are_enabled

    size = os.get_terminal_size(sys.stdout.fileno())
    return Viewport(size.columns or None, size.lines or None, are_enabled(os.environ))
