"""Splits the text of a shell command into words, with their positions in the text. Expands nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WHITESPACE = " \t\n"
_OPERATORS = "|&;()<>`"


@dataclass(frozen=True)
class ShellWord:
    """A word in a shell text, with its position. unquoted: the word without its quotes."""

    start: int
    end: int
    unquoted: str


def shell_words(command: str) -> list[ShellWord]:
    """Splits a shell text into words, at blanks and operators."""
    words: list[ShellWord] = []
    start, plain, i = -1, "", 0

    def close(end: int) -> None:
        nonlocal start, plain
        if start >= 0:
            words.append(ShellWord(start, end, plain))
        start, plain = -1, ""

    while i < len(command):
        char = command[i]
        if char in _WHITESPACE or char in _OPERATORS:
            close(i)
            i += 1
            continue
        start = i if start < 0 else start
        text, length = _read_piece(command, i)
        plain += text
        i += length
    close(len(command))
    return words


def _read_piece(command: str, at: int) -> tuple[str, int]:
    """Returns the next character or quoted part without its quotes, and its length in the text."""
    char = command[at]
    if char == "\\":
        return command[at + 1 : at + 2], 2
    if char == "'":
        end = command.find("'", at + 1)
        end = len(command) if end < 0 else end
        return command[at + 1 : end], end + 1 - at
    if char == '"':
        found = re.compile(r'"((?:[^"\\]|\\.)*)"?', re.DOTALL).match(command, at)
        assert found is not None
        return re.sub(r'\\([$`"\\])', r"\1", found[1]), found.end() - at
    return char, 1


def is_value_of(command: str, option: ShellWord, value: ShellWord) -> bool:
    """Returns whether a word is the value of the option before it.

    Another option is not, nor is the number of a redirected descriptor, as in `--cuda 2>log`.
    """
    between = command[option.end : value.start]
    if between.strip(_WHITESPACE) or "\n" in between or value.unquoted.startswith("-"):
        return False
    return not (value.unquoted.isdigit() and command[value.end : value.end + 1] in ("<", ">"))
