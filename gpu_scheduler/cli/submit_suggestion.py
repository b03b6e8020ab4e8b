"""Suggests `submit` to a user who gave its words to `add`, which appends to a jobs file."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence

#: Options of `add` that mean something else in `submit`, or that it does not have.
_DIFFERENT = ("--gpus", "--gpus-count", "--args", "--output-file")


def submit_suggestion(
    words: Sequence[str], script: str | None, rest: Sequence[str], submit_options: Container[str]
) -> str:
    """Returns a suggestion for words that `add` rejected; "" if `submit` would not accept them either.

    words: all words after `add`; script: its script; rest: the words that it rejected; submit_options: the
    options of `submit`.
    """
    option = rest[0].partition("=")[0]
    if option in submit_options:
        return f"; {option} is an option of `submit`, which queues a job without a jobs file"
    others = list(words)
    for word in (script, *rest):
        if word not in others:
            return ""
        others.remove(word)
    if script is None or words.index(script) > words.index(rest[0]):
        return ""
    if any(word.partition("=")[0] in _DIFFERENT for word in others):
        return ""
    return f"; or queue it without a jobs file: `{shlex.join(['submit', *others, script, *rest])}`"
