"""`completion`: prints a script with which a shell completes commands, options and their values.

The script is generated from the command-line parser, so it always matches the accepted arguments. It runs
`completion` again, with a variable in its environment, for the jobs, GPUs and conda environments.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.cli.parser import build_parser
from gpu_scheduler.cli.program import PROGRAM, WORDS_VARIABLE, location_of
from gpu_scheduler.errors import SchedulerError

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


def completion(options: Namespace) -> int:
    """Prints the script; its first lines explain where to put it. With the variable, prints words instead."""
    if kind := os.environ.get(WORDS_VARIABLE):
        from gpu_scheduler.app.job_refs import completion_words

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
            _set_completion(action, shtab.FILE)
        elif action.metavar in _FOLDER_METAVARS:
            _set_completion(action, shtab.DIRECTORY)
        elif kind := _WORDS.get(str(action.metavar)):
            function = f"_gpu_scheduler_{kind}"
            _set_completion(
                action, {"bash": function, "zsh": function, "fish": f"({_ASK.format(kind, PROGRAM)})"}
            )
    functions = "".join(_FUNCTIONS.get(shell, "").format(kind) for kind in sorted({*_WORDS.values()}))
    return _add_clone_program(shell, f"{shtab.complete(whole, shell, preamble=functions).rstrip()}\n")


def _add_clone_program(shell: str, text: str) -> str:
    if shell == "fish":
        return f"{text}complete -c {_CLONE_PROGRAM} --wraps {PROGRAM}\n"
    # Each matched line binds the completion function to the program's name, the last word of the line.
    bound = r"^(complete -o .*|#compdef|  compdef .*) " + PROGRAM + "$"
    return re.sub(bound, rf"\1 {PROGRAM} {_CLONE_PROGRAM}", text, flags=re.MULTILINE)


def _set_completion(action: Any, kind: Any) -> None:
    action.complete = kind


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
