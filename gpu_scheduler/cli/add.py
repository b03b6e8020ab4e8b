"""`add`: appends a line to a jobs file, or one for each combination of a grid, and prints it."""

from __future__ import annotations

import shlex
from argparse import Namespace

from gpu_scheduler.app import add as app
from gpu_scheduler.app.add import NewLine
from gpu_scheduler.app.new_line import expand_grid
from gpu_scheduler.cli.arguments import given_attributes
from gpu_scheduler.cli.program import location_of, print_done, print_message
from gpu_scheduler.config import JOBS_FILE
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import UsageError
from gpu_scheduler.views.submissions import line_note_text


def add(options: Namespace) -> int:
    """Checks all options, then appends the line and prints it. Prints warnings on stderr."""
    location, new = location_of(options), _new_line(options)
    try:
        lines = expand_grid(new, options.grid, is_zip=options.zip)
    except UsageError as error:
        raise UsageError(f"{error}; nothing was added") from None
    if options.output_file == "-":
        added = app.compose(location, lines)
        print("\n".join(one.line for one in added))  # with secrets, so that the user can use them as printed
    else:
        added = app.add(location, lines, options.output_file)
        print_done("\n".join(safe_text(one.line) for one in added))
        for text in dict.fromkeys(line_note_text(note) for one in added for note in one.notes):
            print_message(text)
    for text in dict.fromkeys(line_note_text(warning) for one in added for warning in one.warnings):
        print_message(f"warning: {text}")
    return 0


def _new_line(options: Namespace) -> NewLine:
    if options.script == "-":
        where = JOBS_FILE if options.output_file in (None, "-") else options.output_file
        raise UsageError(
            "`add` does not read lines from standard input, so nothing was added; append the line to the jobs"
            f" file yourself, as in `… >> {shlex.quote(where)}`"
        )
    return NewLine(
        script=options.script,
        arguments=options.args,
        command=options.command_words or (),
        priority=options.priority,
        attributes=given_attributes(options),
    )
