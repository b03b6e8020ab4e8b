"""The words of the command line into values. Nothing is done or opened here, and nothing looked up but
whether a first word that is no command is a file.

The packages that colour help are imported when help is printed, never before.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from gpu_scheduler import __version__, config
from gpu_scheduler.cli import options as of
from gpu_scheduler.cli.forms import jobs_file_at
from gpu_scheduler.cli.program import PROGRAM, called
from gpu_scheduler.cli.values import path
from gpu_scheduler.errors import UsageError

#: Of each command: its name, what it does, an example, and what declares its options.
_COMMANDS: tuple[tuple[str, str, str, Callable[[argparse.ArgumentParser], None]], ...] = (
    ("start", "runs the scheduler until it is asked to end; a jobs file in its place, until that is done",
     "start --screen --jobs-file jobs.txt", of.start),
    ("add", "appends one well-formed line to the jobs file and prints it: a script, or a command behind `--`",
     'add --vram 18G --name bert -- python train.py --epochs 3', of.add),
    ("lint", "says what each line of a jobs file will do; nothing is queued", "lint jobs.txt", of.lint),
    ("status", "shows GPUs, jobs and malformed lines; works without a scheduler", "status --json", of.status),
    ("show", "tells everything about one job: its line, its attempts, its history", "show 3", of.show),
    ("why", "tells why a job does not start, check by check, or why it failed", "why 3", of.why),
    ("pause", "keeps new jobs off GPUs; running jobs go on", "pause 0 2", of.gpus),
    ("resume", "lets GPUs take new jobs again", "resume 0 2", of.gpus),
    ("screens", "lists the Screen sessions of running jobs, and how to open each", "screens", of.screens),
    ("attach", "opens the Screen session of a running job (leave it with Ctrl-A d)", "attach 3", of.one_job),
    ("logs", "prints the log of a job's newest attempt, or of another", "logs 3 -f", of.logs),
    ("events", "prints what happened, an event a line; works without a scheduler", "events -f", of.events),
    ("cancel", "ends queued or running jobs; works with no scheduler up", "cancel 3 4 --grace 30", of.cancel),
    ("retry", "queues finished or held jobs once more", "retry --failed", of.retry),
    ("hold", "keeps queued jobs from starting", "hold 3", of.jobs),
    ("release", "queues held jobs again", "release 3", of.jobs),
    ("priority", "gives waiting jobs another priority; lower numbers run first", "priority 3 0", of.priority),
    ("stop", "asks the scheduler to end; running jobs go on", "stop", of.stop),
    ("calibrate", "compares what finished jobs used with what was declared; changes nothing by itself",
     "calibrate --write", of.calibrate),
    ("doctor", "looks for what could go wrong on this machine; changes nothing", "doctor", of.doctor),
    ("completion", "prints a script that completes commands and options in a shell", "completion bash",
     of.completion),
)  # fmt: skip


#: Options that are named where none is like the one that was given.
_OFFERED = 5


def _titled(group: str) -> str:
    return group[:1].upper() + group[1:]


class _Parser(argparse.ArgumentParser):
    """Mistakes become UsageError; help is formatted late."""

    def error(self, message: str) -> NoReturn:
        prog = self.prog.replace(PROGRAM, called(), 1)
        raise UsageError(f"{message}\n`{prog} --help` says what is accepted")

    def format_help(self) -> str:
        from rich_argparse import RawDescriptionRichHelpFormatter

        class Formatter(RawDescriptionRichHelpFormatter):
            # Brackets in our texts are attributes of jobs, not markup.
            text_markup = False
            help_markup = False
            group_name_formatter = staticmethod(_titled)  # type: ignore[assignment]

        self.formatter_class = Formatter
        return super().format_help()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options. `command` names it.

    Raises UsageError for bad words, naming option, value and what is accepted; SystemExit(0) after --help and
    --version have printed.
    """
    try:
        at = jobs_file_at(argv, [name for name, *_ in _COMMANDS])
    except ValueError as error:
        program([]).error(str(error))
    if at is not None:
        return _start_of_file(argv[at], [*argv[:at], "start", *argv[at + 1 :]])
    words, command = _before_command(_joined(argv))
    options = _parsed(program(argv), words)
    if options.command == "add":
        _check_add(options, command)
    return options


def _before_command(words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before the `--` of `add`, and those behind it; None: there is none."""
    if "--" not in words or "add" not in words[: words.index("--")]:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _check_add(options: argparse.Namespace, command: list[str] | None) -> None:
    options.command_words = command
    parser = _Parser(prog=f"{PROGRAM} add")
    if command is None and options.script is None:
        parser.error("name a SCRIPT, or a command behind `--`, as in `add -- python train.py --epochs 3`")
    if command is not None and options.script is not None:
        parser.error(
            f"both a script, {options.script}, and a command behind `--` are named; arguments of a script"
            f" stand in --args {_in_quotes(command)}, and a command stands behind `--` with all its words"
        )
    if command is not None and not command:
        parser.error("no command stands behind `--`")
    if command is not None and options.args:
        parser.error("--args are those of a script; the words of a command stand behind `--`")


def _in_quotes(words: Sequence[str]) -> str:
    """The words as the value of one option, as it is typed."""
    import shlex

    text = shlex.join(words)
    return shlex.quote(text) if any(special in text for special in '"$`\\!') else f'"{text}"'


def _start_of_file(file: str, words: Sequence[str]) -> argparse.Namespace:
    """`gpu-scheduler FILE …`. words: those of the `start` that it is, less the file."""
    parser = program(words)
    options = _parsed(parser, words, file)
    if options.jobs_file is not None:
        parser.error(f"two jobs files are named, {file} and --jobs-file {options.jobs_file}; leave one out")
    options.jobs_file = file
    options.drain = not options.watch
    return options


def _parsed(
    parser: argparse.ArgumentParser, words: Sequence[str], file: str | None = None
) -> argparse.Namespace:
    """file: the jobs file that stands in the place of the command."""
    listed = _spread_list(words)
    if listed is not None:
        parser.error(f"--gpus takes one list, without blanks: write --gpus {listed}")
    options, rest = parser.parse_known_args(words)
    if rest:
        command: str = options.command
        meant = _meant(command, rest[0], file)
        if command == "add":
            meant = _own_words(words, options.script, rest) + (meant if not rest[0].startswith("-") else "")
        _Parser(prog=f"{PROGRAM} {command}").error(f"unrecognized arguments: {' '.join(rest)}{meant}")
    return options


def _spread_list(words: Sequence[str]) -> str | None:
    """The GPUs of `--gpus 0 1 2` as one list; None where it has one value."""
    if "--gpus" not in words:
        return None
    behind = words[words.index("--gpus") + 1 :]
    items = list(takewhile(re.compile(r"[0-9][0-9,-]*").fullmatch, behind))
    return ",".join(item.strip(",") for item in items) if len(items) > 1 else None


def _own_words(words: Sequence[str], script: str | None, rest: Sequence[str]) -> str:
    """Where words that `add` does not know belong: to the script, or to a command."""
    example = 'as in `add train.py --args "--lr 3"`'
    if script is not None and words.index(script) < words.index(rest[0]):
        if not script.endswith(".py"):
            import shlex

            return f"; a command stands behind `--`: `add -- {shlex.join([script, *rest])}`"
        example = f"`add {script} --args {_in_quotes(rest)}`"
    from difflib import get_close_matches

    taken = _Parser(add_help=False)
    of.add(taken)
    near = get_close_matches(rest[0].partition("=")[0], taken._option_string_actions, 1, 0.8)
    meant = f"; did you mean `{near[0]}`? Words" if near else "; words"
    return f"{meant} of the script's own stand in --args: {example}"


def _meant(command: str, word: str, file: str | None) -> str:
    """What may have been meant by a word that a command does not take."""
    if not word.startswith("-"):
        if file is not None:
            return f" (the jobs file is {file}; a scheduler takes one)"
        if command == "start":
            return f" (`--jobs-file {word}` names a jobs file)"
        return " (a name or value with a blank in it stands in quotes)"
    from difflib import get_close_matches

    taken = _Parser(add_help=False)
    next(declare for name, _, _, declare in _COMMANDS if name == command)(taken)
    _where(taken, "", None)
    given, options = word.partition("=")[0], list(taken._option_string_actions)
    near = get_close_matches(given, options, 1)
    if near:
        return f"; did you mean `{near[0]}`?"
    nearest = get_close_matches(given, [one for one in options if one.startswith("--")], _OFFERED, 0.0)
    more = "" if len(nearest) < _OFFERED else ", and others"
    return f"; `{command}` takes {', '.join(nearest)}{more}"


def _joined(argv: Sequence[str]) -> list[str]:
    """`--args WORD` and `--args=WORD` as `--args= WORD`: argparse would take a WORD that begins with - for an
    option, and would lose a `--`."""
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            return [*words, word, *rest]
        value = next(rest, None) if word == "--args" else None
        if word.startswith("--args="):
            value = word.partition("=")[2]
        words.append(word if value is None else f"--args= {value}")
    return words


def program(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line. words: options are declared of commands among these only, which saves the time
    for the others."""
    program = _Parser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Runs every line of jobs.txt once, on the right GPU, in its own Screen session.",
        epilog=f"Example: {PROGRAM} start --screen\n"
        f"`{PROGRAM} FILE` is `start --jobs-file FILE --drain`; with --watch it goes on for new lines.\n"
        f"`{PROGRAM} COMMAND --help` tells more of each command.",
    )
    program.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _where(program, config.STATE_FILE, None)
    # With prog given argparse need not format a usage line, which would load the help formatter.
    commands = program.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=PROGRAM)
    for name, does, example, declare in _COMMANDS:
        command = _command(commands, name, does, example)
        if words is None or name in words:
            # SUPPRESS: a default here would overwrite what was given before the command's name.
            _where(command, argparse.SUPPRESS, argparse.SUPPRESS)
            declare(command)
    return program


def _command(commands: Any, name: str, does: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=does,
        allow_abbrev=False,
        prog=f"{PROGRAM} {name}",
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"Example: {PROGRAM} {example}",
    )
    return parser


def _where(parser: argparse.ArgumentParser, state_file: str, data_dir: str | None) -> None:
    parser.add_argument(
        "--state-file", metavar="PATH", default=state_file, type=path,
        help=f"state file of the scheduler (default: {config.STATE_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="DIR", default=data_dir, type=path,
        help="folder of the record (default: beside the state file)",
    )  # fmt: skip
