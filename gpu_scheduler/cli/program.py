"""Provides what all commands share: the program's name, the location, messages and the terminal's size."""

from __future__ import annotations

import io
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from gpu_scheduler.errors import UsageError

if TYPE_CHECKING:
    from gpu_scheduler.show.layout import Viewport
    from gpu_scheduler.show.location import Location


PROGRAM = "gpu-scheduler"
#: With this variable, `completion` prints words of the queue that `status` would show.
WORDS_VARIABLE = "_GPU_SCHEDULER_WORDS"
#: The commands that start a scheduler or need no queue.
_FIXED = frozenset({"start", "service", "doctor", "run", "gpus", "lint", "completion"})


def invocation() -> str:
    """Returns the words with which the user ran the program, such as "python3 scheduler.py"."""
    script = sys.argv[0]
    python = str(sys._xoptions.get("gpu_scheduler_again", sys.orig_argv[0]))  # as in scheduler.py
    if _script_name() == "__main__.py":
        return shlex.join([python, "-m", "gpu_scheduler"])
    if _script_name() != "scheduler.py":
        return PROGRAM
    python = python.rpartition("/")[2] if python.startswith("/") else python  # few people type a whole path
    # A shell sets the variable _ to the program that it runs.
    is_executed = "/" in script and os.environ.get("_") == script
    return shlex.join([script] if is_executed else [python, script])


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


def choose_location(options: Namespace, argv: Sequence[str]) -> None:
    """Sets the state file and the data directory of the command, and names a queue that it found.

    argv: the command line. Raises UsageError if the user must name the queue.
    """
    from gpu_scheduler.show.location import QueueUse, find_queue

    given, command = vars(options), options.command
    of_all = {"stop": True, "clear": not given.get("jobs"), "retry": given.get("failed")}
    of_all |= dict.fromkeys(("cancel", "recover"), given.get("all"))
    of_all |= dict.fromkeys(("pause", "resume"), None in given.get("ids", ()))
    use = QueueUse.WHOLE if of_all.get(command) else QueueUse.PART
    if command in ("submit", "adopt", "import") or given.get("allow_changes"):
        use = QueueUse.ADD_JOBS
    is_fixed = command in _FIXED and not os.environ.get(WORDS_VARIABLE)
    if is_fixed or given.get("url") or (command == "wait" and not given["jobs"]) or given.get("output_file"):
        use = QueueUse.FIXED
    verdict, location, running = find_queue(use, options.state_file, options.data_dir)
    if running:
        from gpu_scheduler.show.location import choice_text

        around = (f"{invocation()} ", f" {shlex.join(argv)}") if use is QueueUse.WHOLE else ("", "")
        text = choice_text(verdict, running, *around)
        if location is None:
            raise UsageError(text)
        print_message(text)
    assert location is not None
    options.state_file, options.data_dir = location.state_file, location.data_dir


def location_of(options: Namespace) -> Location:
    """Returns the location that `choose_location` has set."""
    from gpu_scheduler.show.location import Location

    return Location(options.state_file, options.data_dir, runs_rounds=True)


def follow_simulation(options: Namespace) -> None:
    """Chooses the GPUs of the scheduler of this location, if they are simulated and no option chooses."""
    from gpu_scheduler.show.machine_gpus import simulation_of_scheduler

    location = location_of(options)
    found = simulation_of_scheduler(options.gpu_probe, options.simulate, location)
    if found is not None:
        from gpu_scheduler.show.gpu_text import simulation_text

        options.gpu_probe, options.simulate = found
        print_message(simulation_text(options.simulate, location.state_file))


def no_store_message(location: Location) -> str:
    """Returns the message that read-only commands print before the first start."""
    from gpu_scheduler.config import JOBS_FILE
    from gpu_scheduler.core.text.formatting import count_noun
    from gpu_scheduler.show.status import count_waiting_lines

    lines = count_waiting_lines()
    waiting = f"\n{count_noun(lines, 'line')} in {JOBS_FILE}: jobs for the first `start`" if lines else ""
    return (
        f"nothing has run here yet; there is no store in {location.resolve().folder}{waiting}\n"
        "run `start` to create a store, or name the state file of an existing store with --state-file"
    )


def stdout_screen() -> Viewport:
    """Returns the size of the terminal on stdout and whether to use colours.

    Without a terminal, the size is unlimited and there are no colours.
    """
    from gpu_scheduler.show.layout import Viewport

    if not sys.stdout.isatty():
        return Viewport()
    from gpu_scheduler.show.layout import are_enabled

    size = os.get_terminal_size(sys.stdout.fileno())
    return Viewport(size.columns or None, size.lines or None, are_enabled(os.environ))


# Ensures that a command has its standard streams, and distinguishes output errors from other errors.


class OutputError(OSError):
    """An error while writing to the standard output, such as a full disk, but not a closed pipe."""


class _StdoutFile(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


def open_standard_streams() -> None:
    """Opens /dev/null for each stream that the caller closed (`start >&-`), so no file gets its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The opened file gets the lowest free number, which is fd.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True
        )
    was = sys.stdout
    if was is not None and not _is_stdout(was):
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StdoutFile(1, "w", closefd=False)),
        encoding=was.encoding if was else "utf-8",
        errors="backslashreplace",
        line_buffering=os.isatty(1) or (isinstance(was, io.TextIOWrapper) and was.write_through),
        write_through=isinstance(was, io.TextIOWrapper) and was.write_through,
    )


def _is_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):
        return False


def flush_or_discard(limit_s: float = 1.0) -> bool:
    """Writes output that is not essential or, if that fails, discards it; False if nobody reads it.

    The buffer then stays locked, so that only `os._exit` ends this process; the interpreter waits for it.
    """

    from gpu_scheduler.system.own_process import within  # few commands need threads

    def flush() -> bool:
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        return True

    return within(limit_s, flush, otherwise=False)


def print_done(text: str) -> None:
    """Prints the result of what a command has done; on stderr if stdout cannot be written.

    The exit code then still says whether the command did it.
    """
    try:
        print(text, flush=True)
    except OutputError as error:
        discard_output()
        print_message(f"{text}\ncannot write to standard output: {error.strerror}")


def discard_output() -> None:
    """Discards the buffered output, so that the interpreter's flush at exit raises no error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
