"""Escape sequences of terminals, as programs write them into their logs, and the last line of a log without
them."""

from __future__ import annotations

import re

ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?"
    r"|[ -/]*[0-Z\\^-~])?"
)
#: How the runner's own lines begin: the header of a log, and its last line.
_HEADER, _TRAILER = "# ", "--- "


def last_frame(tail: str) -> str | None:
    """The last line of the end of a log that is not blank; of a progress bar, its newest state.

    None: the job has printed nothing yet.
    """
    lines = tail.split("\n")
    begin = 0
    while begin < len(lines) and lines[begin].startswith(_HEADER):
        begin += 1
    for line in reversed(lines[begin:]):
        for frame in reversed(line.split("\r")):
            text = ESCAPE.sub("", frame).strip()
            if text and not text.startswith(_TRAILER):
                return text
    return None
