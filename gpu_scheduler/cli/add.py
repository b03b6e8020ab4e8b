"""`add`: appends one line to a jobs file and prints it."""

from __future__ import annotations

from argparse import Namespace

from gpu_scheduler.app import add as app
from gpu_scheduler.app.add import NewLine
from gpu_scheduler.cli.arguments import given_attributes
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.cli.standard_streams import print_done
from gpu_scheduler.config import JOBS_FILE
from gpu_scheduler.errors import UsageError
from gpu_scheduler.views.line_notes import line_note_text


def add(options: Namespace) -> int:
    """Checks all options, then appends the line and prints it. Prints warnings on stderr."""
    location, new = location_of(options), _new_line(options)
    if options.output_file == "-":
        added = app.compose(location, new)
        print(added.line)  # secrets are shown, so that the user can use the line as it is printed
    else:
        added = app.add(location, new, options.output_file)
        print_done(added.line)
    for warning in added.warnings:
        print_message(f"warning: {line_note_text(warning)}")
    return 0


def _new_line(options: Namespace) -> NewLine:
    if options.script == "-":
        where = JOBS_FILE if options.output_file in (None, "-") else options.output_file
        raise UsageError(
            "`add` does not read lines from standard input, so nothing was added; append the line to the jobs"
            f" file yourself, as in `… >> {where}`"
        )
    return NewLine(
        script=options.script,
        arguments=options.args,
        command=options.command_words or (),
        conda=options.conda,
        priority=options.priority,
        gpus=options.gpus,
        attributes=given_attributes(options),
    )
