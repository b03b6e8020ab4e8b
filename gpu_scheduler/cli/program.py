"""Names the program as the user invoked it, and prints messages that begin with that name."""

from __future__ import annotations

import sys

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
