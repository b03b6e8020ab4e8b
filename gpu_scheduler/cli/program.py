"""The name by which the program was called, and errors that begin with it."""

from __future__ import annotations

import sys

PROGRAM = "gpu-scheduler"


def called() -> str:
    """The command line that calls the program as the user called it: "python scheduler.py"."""
    names = {"scheduler.py": "python scheduler.py", "__main__.py": "python -m gpu_scheduler"}
    return names.get(_file(), PROGRAM)


def name() -> str:
    """The program's name, for the beginning of a message: "scheduler.py" in a clone, else "gpu-scheduler"."""
    return "scheduler.py" if _file() == "scheduler.py" else PROGRAM


def complain(text: str) -> None:
    """Print an error or a warning on stderr, if that can be written.

    Its line breaks are ours; user text in it is made visible.
    """
    from gpu_scheduler.views.words import visible

    try:
        print(f"{name()}: {visible(text, lines=True)}", file=sys.stderr)
    except OSError:
        pass


def _file() -> str:
    return sys.argv[0].rpartition("/")[2]
