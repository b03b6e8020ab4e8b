"""`completion`: a script by which a shell completes our commands, options, choices, files and folders.

It is made from the command line's own parser, so that it knows what that knows.
"""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.cli.parser import program
from gpu_scheduler.cli.program import PROGRAM
from gpu_scheduler.errors import SchedulerError

#: The name of a clone's program, which is completed too where it is called by itself (./scheduler.py).
_CLONE = "scheduler.py"
#: Metavar -> what is completed. Where a path may be -, or "", that is typed.
_FILES = ("PATH", "FILE", "SCRIPT")
_FOLDERS = ("DIR",)


def completion(options: Namespace) -> int:
    """Print the script; its first lines say where to put it."""
    sys.stdout.write(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The script for bash, zsh or fish. Raises SchedulerError without a package that can write it."""
    try:
        import shtab
    except ImportError:
        raise SchedulerError("the package shtab is missing: make install, or pip install shtab") from None
    if shell not in shtab.SUPPORTED_SHELLS:
        raise SchedulerError(f"shtab {shtab.__version__} writes none for {shell}: pip install -U shtab")
    whole = program()
    for action in _actions(whole):
        if action.metavar in _FILES:
            _complete(action, shtab.FILE)
        elif action.metavar in _FOLDERS:
            _complete(action, shtab.DIRECTORY)
    return _for_the_clone(shell, f"{shtab.complete(whole, shell).rstrip()}\n")


def _for_the_clone(shell: str, text: str) -> str:
    if shell == "fish":
        return f"{text}complete -c {_CLONE} --wraps {PROGRAM}\n"
    # Where the function is bound to the program's name: the last word of these lines.
    bound = r"^(complete -o .*|#compdef|  compdef .*) " + PROGRAM + "$"
    return re.sub(bound, rf"\1 {PROGRAM} {_CLONE}", text, flags=re.MULTILINE)


def _complete(action: Any, kind: Any) -> None:
    action.complete = kind


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
