#!/usr/bin/env python3
"""Runs the GPU Job Scheduler from a clone: `python scheduler.py start --screen`.

Under an interpreter without the packages it runs itself again with .venv/bin/python beside the real file.
Any Python 3 must be able to read this file, to be told what it lacks.
"""

import os
import sys
from importlib.util import find_spec

NEEDED = ("GPUtil", "inotify_simple", "psutil", "pynvml", "rich", "rich_argparse")
HERE = os.path.dirname(os.path.realpath(__file__))

#: Says, on the command line of the second run alone, that there was a first: a variable would reach the jobs.
AGAIN = "gpu_scheduler_again"


def lacks() -> str:
    """What this interpreter lacks to run us, in words; "" if nothing."""
    if sys.version_info < (3, 10):  # noqa: UP036 - the one place that an older Python reads
        return f"Python 3.10 or newer is needed, this is {sys.version_info[0]}.{sys.version_info[1]}"
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"missing packages: {', '.join(missing)}" if missing else ""


def main() -> int:
    """Runs the command; the exit code is its own, 1 if the packages are missing everywhere."""
    problem = lacks()
    if problem:
        python = os.path.join(HERE, ".venv", "bin", "python")
        if os.access(python, os.X_OK) and AGAIN not in sys._xoptions:
            os.execv(python, [python, "-X", AGAIN, os.path.abspath(__file__), *sys.argv[1:]])
        sys.stderr.write(f"scheduler.py: {problem}; run `make install` in {HERE}, or `pip install .`\n")
        return 1
    sys.path.insert(0, HERE)
    from gpu_scheduler.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
