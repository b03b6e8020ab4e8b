"""Splits the words of `submit` into its own options and a script with its arguments, or a command.

The options of `submit` come before the script. After it, only `--after`, `--after-any` and `--name` belong
to `submit`; all other words are arguments of the script, even if `submit` has an option of that name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

#: The options that belong to `submit` even after the script.
OWN_OPTIONS = ("--after", "--after-any", "--name")


@dataclass(frozen=True)
class SubmitWords:
    """The words of `submit`.

    options: the words before the script or the `--`. script: None if there is none. own: the values of the
    options of `submit` after the script. arguments: the script's arguments. command: the words after a `--`
    that comes before any script; None if there is no such `--`.
    """

    options: list[str]
    script: str | None = None
    own: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    command: list[str] | None = None


def split_words(words: Sequence[str], with_value: Collection[str]) -> SubmitWords:
    """Splits the words after `submit`. with_value: the options whose value may be the next word.

    Raises ValueError if an option after the script has no value or is given twice.
    """
    at = options_end(words, with_value)
    options, rest = list(words[:at]), words[at:]
    if not rest:
        return SubmitWords(options)
    if rest[0] == "--":
        return SubmitWords(options, command=list(rest[1:]))
    own, arguments = _split_script_words(rest[1:])
    return SubmitWords(options, rest[0], own, arguments)


def options_end(words: Sequence[str], with_value: Collection[str]) -> int:
    """Returns the index of the first word that is neither an option nor its value; a `--` is no option."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        at += 2 if words[at] in with_value else 1
    return min(at, len(words))


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
        if option not in OWN_OPTIONS:
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
