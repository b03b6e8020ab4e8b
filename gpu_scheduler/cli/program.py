"""Names the program as the user invoked it, and prints messages that begin with that name."""

from __future__ import annotations

import sys

PROGRAM = "gpu-scheduler"


def called() -> str:
    """Returns the command with which the user invoked the program, such as "python scheduler.py"."""
    names = {"scheduler.py": "python scheduler.py", "__main__.py": "python -m gpu_scheduler"}
    return names.get(_file(), PROGRAM)


def name() -> str:
    """Returns the name that messages begin with: "scheduler.py" in a clone, otherwise "gpu-scheduler"."""
    return "scheduler.py" if _file() == "scheduler.py" else PROGRAM


def complain(text: str) -> None:
    """Prints an error or a warning on stderr; does nothing if stderr cannot be written.

    Line breaks in the text are kept; other control characters are made visible.
    """
    from gpu_scheduler.views.words import visible

    try:
        print(f"{name()}: {visible(text, lines=True)}", file=sys.stderr)
    except OSError:
        pass


def _file() -> str:
    return sys.argv[0].rpartition("/")[2]
