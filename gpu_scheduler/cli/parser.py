"""Parses the command line into option values.

Nothing is executed or opened here. The disk is accessed only if the first word is not a command, to check
whether it names a file. The packages that colour the help are imported only when help is printed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from gpu_scheduler import __version__, config
from gpu_scheduler.cli import arguments
from gpu_scheduler.cli.commands import COMMANDS, GROUPS
from gpu_scheduler.cli.first_word import first_word_index, jobs_file_index
from gpu_scheduler.cli.program import PROGRAM, invocation
from gpu_scheduler.cli.submit_suggestion import submit_suggestion
from gpu_scheduler.cli.suggestions import foreign_option
from gpu_scheduler.cli.values import path
from gpu_scheduler.errors import UsageError

#: The commands that accept a command after `--`.
_WITH_COMMAND = frozenset({"add", "run"})
#: Maximum number of options that an error lists if no option resembles the given one.
_MAX_SUGGESTIONS = 5


def _capitalized(group: str) -> str:
    return group[:1].upper() + group[1:]


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, and loads the help formatter only when it prints help."""

    def error(self, message: str) -> NoReturn:
        prog = self.prog.replace(PROGRAM, invocation(), 1)
        if message == "argument --resume-flag: expected one argument":
            message += "; give the option without its dashes, as in --resume-flag ckpt_path"
        if message.startswith("argument ID:"):
            does = "`hold JOB` keeps a job from starting"
            message += f"; {does if prog.endswith('pause') else '`resume --job JOB` continues a job'}"
        raise UsageError(f"{message}\n`{prog} --help` lists the accepted arguments")

    def format_help(self) -> str:
        from rich_argparse import RawDescriptionRichHelpFormatter

        class Formatter(RawDescriptionRichHelpFormatter):
            # Square brackets in the help texts enclose job attributes and are not markup.
            text_markup = False
            help_markup = False
            group_name_formatter = staticmethod(_capitalized)  # type: ignore[assignment]

        self.formatter_class = Formatter
        return super().format_help()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed options. The option `command` is the name of the command.

    Raises UsageError for a bad argument; the message shows the option, its value and the accepted values.
    Raises SystemExit(0) after printing the text for --help or --version.
    """
    try:
        at = jobs_file_index(argv, COMMANDS)
    except ValueError as error:
        build_parser([]).error(str(error))
    if at is not None:
        return _start_with_jobs_file(argv[at], [*argv[:at], "start", *argv[at + 1 :]])
    first = first_word_index(argv)
    if first is not None and argv[first] == "submit":
        return _parse_submit(argv[: first + 1], argv[first + 1 :])
    if first is not None and argv[first] == "wait" and "--" in argv:
        _Parser(prog=f"{PROGRAM} wait").error(
            "`wait` executes no command; `run -- COMMAND` waits for GPUs and executes it"
        )
    words, command = _split_at_command(_join_args_option(argv))
    options = _parse_known(build_parser(argv), words)
    if options.command == "add":
        _check_add(options, command)
    if options.command == "run":
        _check_run(options, command)
    return options


def _split_at_command(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Returns the words before the `--` of `add` or `run`, and those after it (None if there is no `--`)."""
    if "--" not in words or not _WITH_COMMAND.intersection(words[: words.index("--")]):
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _check_add(options: argparse.Namespace, command: list[str] | None) -> None:
    options.command_words = command
    parser = _Parser(prog=f"{PROGRAM} add")
    if command is None and options.script is None:
        parser.error("give a SCRIPT, or a command after `--`, as in `add -- python train.py --epochs 3`")
    if command is not None and options.script is not None:
        parser.error(
            f"got both a script, {options.script}, and a command after `--`; pass the script's arguments with"
            f" --args {_quoted_value(command)}, or put the whole command after `--`"
        )
    if command is not None and not command:
        parser.error("there is no command after `--`")
    if command is not None and options.args:
        parser.error("--args works only with a script; put the arguments of a command after `--`")


def _parse_submit(first: Sequence[str], behind: Sequence[str]) -> argparse.Namespace:
    """Parses `submit`. first: the words up to the command; behind: those after it."""
    from gpu_scheduler.cli.submit_words import split_words

    parser = _Parser(prog=f"{PROGRAM} submit", add_help=False)
    COMMANDS["submit"].declare(parser)
    _add_location_options(parser)
    with_value = {flag for flag, action in parser._option_string_actions.items() if action.nargs is None}
    try:
        words = split_words(behind, with_value)
    except ValueError as error:
        parser.error(str(error))
    options = _parse_known(build_parser(first), [*first, *words.options])
    if words.script is None and not words.command:
        parser.error(
            "give a SCRIPT, as in `submit train.py --epochs 3`, or a command after `--`, as in"
            " `submit -- python train.py --epochs 3`"
        )
    for option, value in words.own.items():
        if not arguments.set_attribute(options, option.removeprefix("--"), value):
            parser.error(f"{option} is given both before and after the script; give it once")
    options.script, options.script_arguments = words.script, words.arguments
    options.command_words = words.command
    options.own_words = [word for item in words.own.items() for word in item]
    return options


def _check_run(options: argparse.Namespace, command: list[str] | None) -> None:
    options.command_words = command
    if options.words:
        _run_error(options.words)
    if not command:
        _Parser(prog=f"{PROGRAM} run").error(f"give a command after `--`, {_RUN_EXAMPLE}\n{_QUEUE_HINT}")


_RUN_EXAMPLE = "as in `run -- python train.py --epochs 3`"
_QUEUE_HINT = "to run the jobs of the queue until none is left, use `start --drain`"


def _run_error(words: Sequence[str]) -> NoReturn:
    """Raises UsageError for a command that is not behind `--`. words: its first words."""
    import shlex

    _Parser(prog=f"{PROGRAM} run").error(
        f"put `--` before the command {shlex.join(words)}, {_RUN_EXAMPLE}\n{_QUEUE_HINT}"
    )


def _quoted_value(words: Sequence[str]) -> str:
    """Returns the words as one option value, quoted so that it can be typed into a shell."""
    import shlex

    text = shlex.join(words)
    return shlex.quote(text) if any(special in text for special in '"$`\\!') else f'"{text}"'


def _start_with_jobs_file(jobs_file: str, words: Sequence[str]) -> argparse.Namespace:
    """Parses `gpu-scheduler FILE …`.

    words: the arguments of the equivalent `start` command, without the file.
    """
    parser = build_parser(words)
    options = _parse_known(parser, words, jobs_file)
    if options.jobs_file is not None:
        parser.error(f"got two jobs files ({jobs_file} and --jobs-file {options.jobs_file}); leave one out")
    options.jobs_file = jobs_file
    options.drain = not options.watch
    return options


def _parse_known(
    parser: argparse.ArgumentParser, words: Sequence[str], jobs_file: str | None = None
) -> argparse.Namespace:
    """Parses the words. Raises UsageError for unknown arguments, with a suggestion.

    jobs_file: the jobs file, if it was given in place of a command.
    """
    listed = _separated_gpu_list(words)
    if listed is not None:
        parser.error(f"--gpus accepts one list without spaces: write --gpus {listed}")
    options, rest = parser.parse_known_args(words)
    if rest:
        command: str = options.command
        if command == "run" and options.words and words.index(options.words[0]) < words.index(rest[0]):
            _run_error([*options.words, *rest])
        meant = _suggestion(command, rest[0], jobs_file)
        if command == "add":
            meant = _suggest_for_add(words, options.script, rest) + (
                meant if not rest[0].startswith("-") else ""
            )
        if command == "run":
            meant += f"\n{_QUEUE_HINT}"
        _Parser(prog=f"{PROGRAM} {command}").error(f"unrecognized arguments: {' '.join(rest)}{meant}")
    return options


def _separated_gpu_list(words: Sequence[str]) -> str | None:
    """Returns the GPUs of `--gpus 0 1 2` as one list (0,1,2); None if the option has a single value."""
    if "--gpus" not in words:
        return None
    behind = words[words.index("--gpus") + 1 :]
    items = list(takewhile(re.compile(r"[0-9][0-9,-]*").fullmatch, behind))
    return ",".join(item.strip(",") for item in items) if len(items) > 1 else None


def _suggest_for_add(words: Sequence[str], script: str | None, rest: Sequence[str]) -> str:
    """Suggests where to put words that `add` does not accept: into --args or after `--`."""
    example = 'as in `add train.py --args "--lr 3"`'
    if script is not None and words.index(script) < words.index(rest[0]):
        if not script.endswith(".py"):
            import shlex

            return f"; put a command after `--`: `add -- {shlex.join([script, *rest])}`"
        example = f"`add {script} --args {_quoted_value(rest)}`"
    elif foreign := foreign_option("add", rest[0]):
        return foreign
    from difflib import get_close_matches

    near = get_close_matches(rest[0].partition("=")[0], _options_of("add"), 1, 0.8)
    meant = f"; did you mean `{near[0]}`? Pass" if near else "; pass"
    behind = words[words.index("add") + 1 :]
    elsewhere = "" if near else submit_suggestion(behind, script, rest, _options_of("submit"))
    return f"{meant} the script's own arguments with --args: {example}{elsewhere}"


def _options_of(command: str) -> list[str]:
    """Returns the options of a command."""
    parser = _Parser(add_help=False)
    COMMANDS[command].declare(parser)
    _add_location_options(parser)
    return list(parser._option_string_actions)


def _suggestion(command: str, word: str, jobs_file: str | None) -> str:
    """Suggests a correction for an argument that the command does not accept."""
    if jobs_file is not None and jobs_file.endswith((".py", ".sh")):
        return f"; `submit {jobs_file} …` runs a script with its arguments as one job"
    foreign = foreign_option(command, word)
    if foreign:
        return foreign
    if command == "submit":
        return "; options of `submit` come before the script, and those of the script after it"
    if not word.startswith("-"):
        if jobs_file is not None:
            return f" (the jobs file is {jobs_file}; a scheduler accepts only one jobs file)"
        if command == "start":
            return f" (use `--jobs-file {word}` to name a jobs file)"
        return " (put quotes around a name or value that contains a space)"
    given = word.partition("=")[0]
    from difflib import get_close_matches

    options = _options_of(command)
    near = get_close_matches(given, options, 1)
    if near:
        return f"; did you mean `{near[0]}`?"
    nearest = get_close_matches(
        given, [one for one in options if one.startswith("--")], _MAX_SUGGESTIONS, 0.0
    )
    more = "" if len(nearest) < _MAX_SUGGESTIONS else ", and others"
    return f"; `{command}` accepts {', '.join(nearest)}{more}"


def _join_args_option(argv: Sequence[str]) -> list[str]:
    """Rewrites `--args WORD` and `--args=WORD` as `--args= WORD`.

    Otherwise argparse would mistake a WORD that begins with - for an option, and would drop a `--`.
    """
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


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser for the whole command line.

    words: the command line; to save time, arguments are declared only for the commands in it. If it is
    None, arguments are declared for all commands.
    """
    parser = _Parser(
        prog=PROGRAM,
        add_help=False,
        allow_abbrev=False,
        description="Runs each line of jobs.txt once, on a GPU with room for it.",
        epilog=f"Example: {PROGRAM} start --screen\n"
        f"`{PROGRAM} FILE` is short for `start --jobs-file FILE --drain`.\n"
        f"`{PROGRAM} FILE --watch` keeps waiting for new lines in FILE.\n"
        f"`{PROGRAM} COMMAND --help` describes the options of a command.",
    )
    _help(parser)
    parser.add_argument(
        "--version", action="version", version=f"{PROGRAM} {__version__}", help="Print the version and exit"
    )
    _add_location_options(parser)
    # Because prog is given, argparse does not format a usage line, which would load the help formatter.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=PROGRAM)
    for name, described in COMMANDS.items():
        command = _add_command(commands, name, described.summary, described.example)
        if words is None or name in words:
            # SUPPRESS, because a default would overwrite a value that was given before the command's name.
            _add_location_options(command, argparse.SUPPRESS)
            described.declare(command)
    _group_commands(parser, commands)
    return parser


def _add_command(commands: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        add_help=False,
        allow_abbrev=False,
        prog=f"{PROGRAM} {name}",
        description=f"{summary}.",
        epilog=f"Example: {PROGRAM} {example}",
    )
    _help(parser)
    return parser


def _help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="help", help="Show this help and exit")


def _group_commands(parser: argparse.ArgumentParser, commands: Any) -> None:
    """Groups the commands by purpose in the help. Does not affect parsing."""
    parser._positionals._group_actions.remove(commands)
    listed = {action.dest: action for action in commands._choices_actions}
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        group._group_actions.extend(listed[name] for name in names)
    # The options come last, after the commands.
    parser._action_groups.append(parser._action_groups.pop(parser._action_groups.index(parser._optionals)))


def _add_location_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--state-file", metavar="PATH", default=default, type=path,
        help=f"State file of the queue (default: ${config.STATE_FILE_VARIABLE}, else {config.STATE_FILE}; if"
        " this folder has none, that of your running scheduler)",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="DIR", default=default, type=path,
        help="Data directory, which contains the store (default: next to the state file)",
    )  # fmt: skip
