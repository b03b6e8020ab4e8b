"""Matches terminal escape sequences in job logs, and finds the last visible line of a log."""

from __future__ import annotations

import re

ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?"
    r"|[ -/]*[0-Z\\^-~])?"
)
#: Prefixes of the lines that the runner adds to a log: its header lines, and its last line.
_HEADER, _TRAILER = "# ", "--- "


def last_visible_line(tail: str) -> str | None:
    """Returns the last line of a log's tail that shows any text, or the newest state of a progress bar.

    Returns None if the job has printed nothing yet.
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
