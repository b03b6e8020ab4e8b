"""Decides from the end of a log whether a failed program ended because GPU memory was exhausted.

A job that ran out of GPU memory is retried with more memory. A line that reports exhausted memory (because it
matches one of the SIGNATURES) is therefore not enough. That error must also have ended the program: the
program must not have continued after it, and no other error may follow, except one that results from it (an
error of a launcher or of another rank, or one that was raised while the first error was being handled).
Exhausted host memory never counts. A program that catches the error may print its own message and exit with
an error; such a message counts only among the last lines.

One similar message does not count: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". In that case no allocation has failed. The requested length does not fit into the part
of the GPU that vLLM always takes, so the job would fail again however much memory the scheduler allocated to
it.
"""

from __future__ import annotations

import re

from gpu_scheduler.core.failure.log_end import LogEnd
from gpu_scheduler.core.failure.log_patterns import (
    AFTERMATH,
    CONSEQUENCE,
    HOST_MEMORY,
    KILLING_ERROR,
    LOGGED,
    MENTIONS_MEMORY,
    PYTHON_ERROR,
    RECOVERED,
    REPORTS_ANOTHER,
)
from gpu_scheduler.core.failure.oom_signatures import has_keyword, is_printed_oom, is_signature
from gpu_scheduler.core.failure.tracebacks import root_cause, with_continuation

#: Maximum number of ordinary output lines after an out-of-memory error; if more lines follow, the program
#: must have continued.
_MAX_LINES_AFTER = 40
#: The same limit for lines that a library also logs when its caller can do without the memory, and for the
#: program's own messages.
_MAX_LINES_AFTER_LOGGED = 5

#: PyTorch's figures for a failed allocation.
_UNALLOCATED = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?) ([KMG]iB|bytes) is allocated by PyTorch.{0,200}?"
    r" (\d{1,9}(?:\.\d{1,9})?) ([KMG]iB|bytes) is reserved by PyTorch but unallocated"
)
_BYTES = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
#: Part of the allocated memory from which on unallocated memory is much.
_MUCH = 0.1

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: SGLang prints this when one of its processes has failed. It then kills itself, and the shell reports
#: "Killed".
_SELF_KILL = "Received sigquit from a child process"


def cuda_oom(end: LogEnd) -> str | None:
    """Returns the line that reports the GPU memory error that ended the program; None if there is none."""
    if not has_keyword(_COLOUR.sub("", end.tail)):
        return None
    lines = end.lines
    ooms = {index for index in range(len(lines)) if _is_oom(end, index)}
    if not ooms:
        return None
    last = end.loose_error_index() if end.final_traceback is None else end.final_traceback.index
    ends = [i for i in range(len(lines)) if i in ooms or _is_other_error(end, i, is_last=i == last)]
    first_failed = root_cause(lines).get("rank", "").partition(" ")[0]
    of_first_failed = [i for i in ends if first_failed and lines[i].rank in ("", first_failed)]
    index = (of_first_failed or ends)[-1]
    return lines[index].text.strip() if index in ooms and _is_near_end(end, index) else None


def is_fragmented(tail: str) -> bool:
    """Returns whether PyTorch held much memory that it could not use when memory ran out.

    tail: the end of the log. The last of several such errors counts.
    """
    found = _UNALLOCATED.findall(tail)
    if not found:
        return False
    used, used_unit, unused, unused_unit = found[-1]
    return float(unused) * _BYTES[unused_unit] > _MUCH * float(used) * _BYTES[used_unit]


def _is_oom(end: LogEnd, index: int) -> bool:
    """Returns whether the line reports exhausted GPU memory from which the program did not recover."""
    text = end.lines[index].text
    if not has_keyword(text) or _is_source_line(end, index):
        return False
    if HOST_MEMORY.search(text) or RECOVERED.search(text):
        return False
    return is_signature(text) or is_printed_oom(text)


def _is_other_error(end: LogEnd, index: int, *, is_last: bool) -> bool:
    """Returns whether the line shows a recovery, or a different cause of the end than the lines above.

    is_last: whether this error ended the program. If so, the line counts whatever the error's class is
    called.
    """
    text = end.lines[index].text
    if RECOVERED.search(text) and MENTIONS_MEMORY.search(text):
        return True
    if not (is_last or PYTHON_ERROR.fullmatch(text) or KILLING_ERROR.fullmatch(text)):
        return False
    message = with_continuation(end.lines, index)
    if REPORTS_ANOTHER.search(message) or CONSEQUENCE.search(message):
        return False
    if text == "Killed" and index and _SELF_KILL in end.lines[index - 1].text:
        return False
    traceback = end.tracebacks.get(index)
    return traceback is None or not (traceback.is_chained or traceback.is_harmless)


def _is_near_end(end: LogEnd, index: int) -> bool:
    """Returns whether only a few lines of output follow this line."""
    text, rank, _ = end.lines[index]
    later = (line.text for line in end.lines[index + 1 :] if line.rank in ("", rank))
    near = _MAX_LINES_AFTER
    if LOGGED.search(text) or not is_signature(text):
        near = _MAX_LINES_AFTER_LOGGED
    return sum(not AFTERMATH.match(text) for text in later) <= near


def _is_source_line(end: LogEnd, index: int) -> bool:
    """Returns whether the line is source code quoted in a traceback."""
    text, rank, _ = end.lines[index]
    above = next((line.text for line in reversed(end.lines[:index]) if line.rank == rank), "")
    return text.startswith(" ") and above.lstrip().startswith('File "')
