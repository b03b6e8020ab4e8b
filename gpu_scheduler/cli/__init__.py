"""Runs the command line. A command's module is imported only after the arguments have been parsed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gpu_scheduler.cli import program
from gpu_scheduler.errors import SchedulerError

EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Prints a user error in one or two lines on stderr. Any other exception is a bug and shows a traceback.
    """
    if argv is None:
        program.open_standard_streams()
    # Characters that the terminal's encoding lacks are printed as escapes instead of raising an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
        return code
    except SchedulerError as error:
        return _report_error(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        program.discard_output()  # the program that reads the output has ended
        return EXIT_BROKEN_PIPE
    except program.OutputError as error:
        program.discard_output()
        return _report_error(SchedulerError(f"cannot write to standard output: {error.strerror}"))
    except FileNotFoundError:
        if _working_folder_exists():
            raise
        return _report_error(
            SchedulerError("the working directory has been deleted; change to an existing directory")
        )
    except OSError as error:
        from gpu_scheduler.system.shortages import describe_shortage, shortage_of

        number = shortage_of(error)
        if number is None:
            raise
        return _report_error(SchedulerError(describe_shortage(number)))


def _run(argv: Sequence[str]) -> int:
    from gpu_scheduler.cli.commands import COMMANDS, function_name
    from gpu_scheduler.cli.parser import parse
    from gpu_scheduler.cli.program import choose_location

    try:
        options = parse(argv)
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else 0
    choose_location(options, argv)
    module = import_module(f"gpu_scheduler.cli.{COMMANDS[options.command].module}")
    code: int = getattr(module, function_name(options.command))(options)
    return code


def _working_folder_exists() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _report_error(error: SchedulerError) -> int:
    from gpu_scheduler.cli.program import print_message

    print_message(str(error))
    return error.exit_code
