#!/usr/bin/env python3
"""Runs the GPU Job Scheduler from a clone: `python3 scheduler.py start --screen`.

If this interpreter lacks the required packages, the file runs itself again with the .venv/bin/python beside
the real file (not beside a link to it). The file must run under any Python 3, and must report what is missing
even if it is the only file that was copied.
"""

import os
import sys
from importlib.util import find_spec

NEEDED = ("GPUtil", "inotify_simple", "msgspec", "pynvml", "rich", "rich_argparse")
HERE = os.path.dirname(os.path.realpath(__file__))
USAGE, INTERRUPTED = 2, 130

#: Interpreter option that marks the second run; its value is the interpreter of the first one, as typed.
#: An environment variable would be inherited by jobs.
RERUN_OPTION = "gpu_scheduler_again"


def missing_requirement() -> str:
    """Returns the packages that this interpreter lacks, and the remedy; "" if it lacks nothing."""
    package = find_spec("gpu_scheduler")
    if package is None or package.origin is None:
        return (
            f"this file does not work alone: the package gpu_scheduler is neither in {HERE} nor installed\n"
            "either clone the whole repository (git clone) and run `make install` in it, or install the"
            " package from a copy of it\n(pip install PATH), which provides the command gpu-scheduler"
        )
    missing = [name for name in NEEDED if find_spec(name) is None]
    problem = f"missing packages: {', '.join(missing)}" if missing else ""
    if sys.version_info < (3, 10):  # noqa: UP036 - the one place that an older Python reads
        problem = f"Python 3.10 or newer is needed, but this is {sys.version_info[0]}.{sys.version_info[1]}"
    if problem and not os.path.exists(os.path.join(HERE, "Makefile")):
        return f"{problem}; run `pip install PATH` on a copy of the repository to install everything needed"
    return f"{problem}; run `make install` in {HERE}, or `pip install .` there" if problem else ""


def main() -> int:
    """Runs the command and returns its exit code, or 2 if no interpreter has the required packages."""
    sys.path.insert(0, HERE)
    problem = missing_requirement()
    if problem:
        python = os.path.join(HERE, ".venv", "bin", "python")
        if os.access(python, os.X_OK) and RERUN_OPTION not in sys._xoptions:
            typed = getattr(sys, "orig_argv", ["python3"])[0]
            os.execv(python, [python, "-X", f"{RERUN_OPTION}={typed}", *sys.argv])
        sys.stderr.write(f"scheduler.py: {problem}\n")
        return USAGE
    from gpu_scheduler.cli import main as run

    return run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # during the imports
        sys.exit(INTERRUPTED)
