"""Parses the command line, and generates the script that completes it in a shell.

Nothing is executed or opened here. The disk is accessed only if the first word is not a command, to check
whether it names a file. The packages that colour the help are imported only when help is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from gpu_scheduler import config
from gpu_scheduler.cli.commands import COMMANDS, GROUPS, set_attribute
from gpu_scheduler.cli.program import PROGRAM, WORDS_VARIABLE, invocation, location_of
from gpu_scheduler.cli.values import path
from gpu_scheduler.errors import SchedulerError, UsageError

#: The options that are accepted before the command: those that need a value, and those that do not.
_OPTIONS_WITH_VALUE = ("--state-file", "--data-dir")
_FLAGS = ("-h", "--help", "--version")
#: The options that belong to `submit` even after the script.
_OWN_OPTIONS = ("--after", "--after-any", "--name")


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
            group_name_formatter = staticmethod(lambda title: title[:1].upper() + title[1:])  # type: ignore[assignment]

        self.formatter_class = Formatter
        return super().format_help()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed options. The option `command` is the name of the command.

    Raises UsageError for a bad argument; the message shows the option, its value and the accepted values.
    Raises SystemExit(0) after printing the text for --help or --version.
    """
    try:
        at = first_word_index(argv)
        file = None if at is None or argv[at] in COMMANDS else _jobs_file(argv[at], argv[at + 1 :])
    except ValueError as error:
        build_parser([]).error(str(error))
    if at is not None and file is not None:
        return _start_with_jobs_file(file, [*argv[:at], "start", *argv[at + 1 :]])
    first, behind = (argv, ()) if at is None else (argv[: at + 1], argv[at + 1 :])
    command = first[-1] if at is not None else None
    if command in ("run", "submit"):
        return (_parse_submit if command == "submit" else _parse_run)(first, behind)
    if command == "wait" and "--" in argv:
        _Parser(prog=f"{PROGRAM} wait").error(
            "`wait` executes no command; `run -- COMMAND` waits for GPUs and executes it"
        )
    if command == "service":
        options = _parse_known(build_parser(argv), argv)
        rest = list(behind)
        while rest[0].startswith(_OPTIONS_WITH_VALUE):
            del rest[: 1 if "=" in rest[0] else 2]
        if rest[0] != options.action:  # an option's value could be taken for the action
            _Parser(prog=f"{PROGRAM} service").error("the action comes directly after `service`")
        options.words = _start_words(behind)
        return options
    if command != "add":
        return _parse_known(build_parser(argv), argv)
    words = _join_args_option(argv)
    end = words.index("--", len(first)) if "--" in words[len(first) :] else len(words)
    options = _parse_known(build_parser(argv), words[:end])
    _check_add(options, words[end + 1 :] if end < len(words) else None)
    return options


def _start_words(words: Sequence[str]) -> list[str]:
    """Returns the words of `service` that `start` gets as they are. Those with URLs may contain passwords."""
    from gpu_scheduler.cli.commands import SERVICE, declare

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_location_options(parser)
    declare(parser, SERVICE)
    parser.add_argument("action")
    parser.add_argument("--yes", action="store_true")
    for name in ("--notify", "--redis"):
        parser.add_argument(name, nargs="?")
    return parser.parse_known_args(words)[1]


def first_word_index(words: Sequence[str]) -> int | None:
    """Returns the index of the command, or of the jobs file in its place; None if there is neither.

    Raises ValueError if an option that belongs after it comes before it.
    """
    rest = iter(enumerate(words))
    for index, word in rest:
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return index
        elif word == "-":
            raise ValueError(f"standard input cannot be a jobs file; {config.PIPE_REMEDY}")
        elif word == "--" or word.startswith(tuple(f"{name}=" for name in _OPTIONS_WITH_VALUE)):
            continue
        elif word not in _FLAGS:
            raise ValueError(f"{word}: the command or the jobs file comes first{_in_order(words[index:])}")
    return None


def _in_order(words: Sequence[str]) -> str:
    """Returns words that begin with an option, with the command or the jobs file before it."""
    import shlex

    first = next((one for one in words if one in COMMANDS or os.path.isfile(one)), None)
    if first is None:
        return ", as in `start --jobs-file jobs.txt`"
    at = words.index(first)
    return f", as in `{shlex.join([first, *words[:at], *words[at + 1 :]])}`"


def _jobs_file(word: str, behind: Sequence[str]) -> str:
    """Returns the word if it is a file. Raises ValueError otherwise; behind: the words after it."""
    if os.path.exists(word):
        return word
    from gpu_scheduler.cli.suggestions import meant_commands

    meant = " or ".join(f"`{command}`" for command in meant_commands(word, behind))
    question = f"; did you mean {meant}?" if meant else ""
    raise ValueError(f"{word!r} is neither a command nor an existing file{question}")


def _check_add(options: argparse.Namespace, command: list[str] | None) -> None:
    options.command_words = command
    parser = _Parser(prog=f"{PROGRAM} add")
    if command is None and options.script is None:
        parser.error("give a SCRIPT, or a command after `--`, as in `add -- python train.py --epochs 3`")
    if command is not None and options.script is not None:
        from gpu_scheduler.cli.suggestions import quoted_value

        parser.error(
            f"got both a script, {options.script}, and a command after `--`; pass the script's arguments with"
            f" --args {quoted_value(command)}, or put the whole command after `--`"
        )
    if command is not None and not command:
        parser.error("there is no command after `--`")
    if command is not None and options.args:
        parser.error("--args works only with a script; put the arguments of a command after `--`")


def _parse_submit(first: Sequence[str], behind: Sequence[str]) -> argparse.Namespace:
    """Parses `submit`. first: the words up to the command; behind: those after it.

    The options of `submit` come before the script. After it, only `_OWN_OPTIONS` belong to `submit`; all
    other words are arguments of the script, even if `submit` has an option of that name.
    """
    at = _options_end("submit", behind)
    options = _parse_known(build_parser(first), [*first, *behind[:at]], typed=[*first, *behind])
    parser = _Parser(prog=f"{PROGRAM} submit")
    rest = behind[at:]
    if not rest or list(rest) == ["--"]:
        parser.error(
            "give a SCRIPT, as in `submit train.py --epochs 3`, or a command after `--`, as in"
            " `submit -- python train.py --epochs 3`"
        )
    options.script, options.script_arguments, options.own_words = None, (), []
    options.command_words = list(rest[1:]) if rest[0] == "--" else None
    if options.command_words is None:
        try:
            own, options.script_arguments = _split_script_words(rest[1:])
        except ValueError as error:
            parser.error(str(error))
        for option, value in own.items():
            if not set_attribute(options, option.removeprefix("--"), value):
                parser.error(f"{option} is given both before and after the script; give it once")
        options.script = rest[0]
        options.own_words = [word for item in own.items() for word in item]
    return options


def _split_script_words(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the values of the own options among the words after the script, and the script's arguments.

    A `--` ends the own options. It is an argument too, unless it is the first word that could be one.
    """
    own: dict[str, str] = {}
    arguments: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return own, (*arguments, *([word] if arguments else []), *rest)
        option, given, value = word.partition("=")
        if option not in _OWN_OPTIONS:
            arguments.append(word)
            continue
        value = value if given else next(rest, "")
        if not value:
            raise ValueError(f"{option} after the script needs a value{_TO_THE_SCRIPT}")
        if option in own:
            raise ValueError(f"{option} is given twice after the script; give it once{_TO_THE_SCRIPT}")
        own[option] = value
    return own, tuple(arguments)


_TO_THE_SCRIPT = "; to pass it to the script, put `--` between the script and its arguments"


def _parse_run(first: Sequence[str], behind: Sequence[str]) -> argparse.Namespace:
    """Parses `run`. first: the words up to the command; behind: those after it."""
    at = _options_end("run", behind)
    options = _parse_known(build_parser(first), [*first, *behind[:at]])
    is_marked, words = behind[at : at + 1] == ["--"], behind[at:]
    options.command_words = list(words[1:])
    if is_marked and options.command_words:
        return options
    import shlex

    problem = "give a command after `--`" if is_marked or not words else "put `--` before the command"
    words = ["python", "train.py", "--epochs", "3"] if is_marked or not words else words
    example = shlex.join(["run", *behind[:at], "--", *words])
    _Parser(prog=f"{PROGRAM} run").error(f"{problem}, as in `{example}`\n{_QUEUE_HINT}")


_QUEUE_HINT = "to run the jobs of the queue until none is left, use `start --drain`"


def _options_end(command: str, words: Sequence[str]) -> int:
    """Returns the index of the first word that is neither an option of a command nor its value.

    A `--` is no option.
    """
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[command].declare(parser)
    _add_location_options(parser)
    with_value = {flag for flag, action in parser._option_string_actions.items() if action.nargs is None}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        at += 2 if words[at] in with_value else 1
    return at


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
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    jobs_file: str | None = None,
    typed: Sequence[str] = (),
) -> argparse.Namespace:
    """Parses the words. Raises UsageError for unknown arguments, with a suggestion.

    jobs_file: the jobs file, if it was given in place of a command; typed: the whole command line, if it has
    more words.
    """
    listed = _separated_gpu_list(words)
    if listed is not None:
        parser.error(f"--gpus accepts one list without spaces: write --gpus {listed}")
    options, rest = parser.parse_known_args(words)
    if rest:
        from gpu_scheduler.cli.suggestions import correction

        command: str = options.command
        typed = typed or words
        script = options.script if command == "add" else None
        meant = correction(typed[typed.index(command) :], rest, script, jobs_file)
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
    version = f"{PROGRAM} {config.VERSION}"
    parser.add_argument("--version", action="version", version=version, help="Print the version and exit")
    _add_location_options(parser)
    # Because prog is given, argparse does not format a usage line, which would load the help formatter.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=PROGRAM)
    for name, described in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=described.summary,
            add_help=False,
            allow_abbrev=False,
            prog=f"{PROGRAM} {name}",
            description=f"{described.summary}.",
            epilog=f"Example: {PROGRAM} {described.example}",
        )
        _help(command)
        if words is None or name in words:
            # SUPPRESS, because a default would overwrite a value that was given before the command's name.
            _add_location_options(command, argparse.SUPPRESS)
            described.declare(command)
    _group_commands(parser, commands)
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


# `completion` generates the script from the parser, so that it always matches the accepted arguments. The
# script runs `completion` again, with a variable in its environment, for jobs, GPUs and conda environments.


#: The program in a clone. Its arguments are completed too if it is called directly (./scheduler.py).
_CLONE_PROGRAM = "scheduler.py"
#: Shells complete an argument as a file if its metavar begins with one of these words, and as a folder if its
#: metavar is one of the others. Users must type the special values - and "" themselves.
_FILE_METAVARS = ("PATH", "FILE", "SCRIPT")
_FOLDER_METAVARS = ("DIR",)
#: The kinds of words that complete an argument, by its metavar.
_WORDS = {"JOB": "jobs", "JOBS": "jobs", "ID": "gpus", "LIST": "gpus", "ENV": "environments"}
#: The command that prints words of a kind, silent about errors, and the functions that offer these words.
_ASK = f"env {WORDS_VARIABLE}={{}} {{}} completion bash 2>/dev/null"
_FUNCTIONS = {
    "bash": f"""_gpu_scheduler_{{0}}() {{{{
  compgen -W "$({_ASK.format("{0}", '"${{COMP_WORDS[0]}}"')})" -- "$1"
}}}}
""",
    "zsh": f"""_gpu_scheduler_{{0}}() {{{{ compadd "$@" -- $({_ASK.format("{0}", PROGRAM)}) }}}}
""",
}


def completion(options: argparse.Namespace) -> int:
    """Prints the script; its first lines explain where to put it. With the variable, prints words instead."""
    if kind := os.environ.get(WORDS_VARIABLE):
        from gpu_scheduler.show.job_refs import completion_words

        print("\n".join(completion_words(location_of(options), kind)))
        return 0
    sys.stdout.write(completion_script(options.shell))
    return 0


def completion_script(shell: str) -> str:
    """Returns the script for bash, zsh or fish. Raises SchedulerError if shtab cannot generate it."""
    try:
        import shtab
    except ImportError:
        raise SchedulerError(
            "the package shtab is missing; run `make install` or `pip install shtab`"
        ) from None
    if shell not in shtab.SUPPORTED_SHELLS:
        raise SchedulerError(
            f"shtab {shtab.__version__} does not support {shell}; run `pip install -U shtab`"
        )
    whole = build_parser()
    for action in _actions(whole):
        if str(action.metavar).partition(" ")[0] in _FILE_METAVARS:
            action.complete = shtab.FILE
        elif action.metavar in _FOLDER_METAVARS:
            action.complete = shtab.DIRECTORY
        elif kind := _WORDS.get(str(action.metavar)):
            function = f"_gpu_scheduler_{kind}"
            asks = f"({_ASK.format(kind, PROGRAM)})"
            action.complete = {"bash": function, "zsh": function, "fish": asks}
    functions = "".join(_FUNCTIONS.get(shell, "").format(kind) for kind in sorted({*_WORDS.values()}))
    return _add_clone_program(shell, f"{shtab.complete(whole, shell, preamble=functions).rstrip()}\n")


def _add_clone_program(shell: str, text: str) -> str:
    if shell == "fish":
        return f"{text}complete -c {_CLONE_PROGRAM} --wraps {PROGRAM}\n"
    # Each matched line binds the completion function to the program's name, the last word of the line.
    bound = r"^(complete -o .*|#compdef|  compdef .*) " + PROGRAM + "$"
    return re.sub(bound, rf"\1 {PROGRAM} {_CLONE_PROGRAM}", text, flags=re.MULTILINE)


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
