"""Reads the end of a failed program's log: which error ended it, and whether that was exhausted GPU memory.

The OOM verdict decides whether the job is retried with more memory, so a line that reports exhausted memory
(one of the SIGNATURES) is not enough: it must be the error that ended the program. No other error may follow
it, except errors that only report the first one (a launcher's, another rank's, one raised while it was
handled), and the program must not have continued. Host memory never counts. A program that catches the error
may print a message of its own and exit with an error; such messages count among the last lines only.

One similar message does not count: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". No allocation failed there; the requested length does not fit the share of the GPU
that vLLM takes anyway, and the job fails in the same way whatever memory is allocated to it.
"""

from __future__ import annotations

import re
from functools import cached_property

from gpu_scheduler.core.failure.log_lines import LogLine, log_lines
from gpu_scheduler.core.failure.log_patterns import (
    AFTERMATH,
    CONSEQUENCE,
    HOST_MEMORY,
    KILLING_ERROR,
    LOGGED,
    MENTIONS_MEMORY,
    NON_PYTHON_ERROR,
    PYTHON_ERROR,
    RECOVERED,
    REPORTS_ANOTHER,
)
from gpu_scheduler.core.failure.oom_signatures import has_keyword, is_printed_oom, is_signature
from gpu_scheduler.core.failure.tracebacks import (
    Traceback,
    final_traceback,
    find_tracebacks,
    root_cause,
    with_continuation,
)

#: Lines of ordinary output that may follow an OOM; after more, the program had continued.
_MAX_LINES_AFTER = 40
#: The same limit for a line that a library logs even if its caller does not depend on the memory, and for a
#: message of the program's own.
_MAX_LINES_AFTER_LOGGED = 5
#: Number of lines at the end among which an error without a traceback counts.
_MAX_LINES_OF_LOOSE_ERROR = 20

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: SGLang kills itself when a part of it has failed; the shell then reports "Killed".
_SELF_KILL = "Received sigquit from a child process"


class LogEnd:
    """The end of the log of a program that failed."""

    def __init__(self, tail: str) -> None:
        self._tail = tail

    @cached_property
    def _lines(self) -> list[LogLine]:
        return list(log_lines(self._tail))

    @cached_property
    def _tracebacks(self) -> dict[int, Traceback]:
        """The tracebacks by the index of their errors."""
        return {one.index: one for one in find_tracebacks(self._lines)}

    @cached_property
    def _final(self) -> Traceback | None:
        return final_traceback(list(self._tracebacks.values()), self._lines)

    def error(self, max_lines_after: int | None = None) -> str | None:
        """Returns the line that names the error that ended the program; None if there is none.

        max_lines_after: a traceback followed by more lines than this did not end the program.
        """
        final = self._final
        if final is None or (
            max_lines_after is not None and len(self._lines) - final.index > max_lines_after
        ):
            index = self._loose_error()
            return None if index is None else self._lines[index].text.strip()
        return final.text

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines without their prefixes."""
        return [line.text for line in self._lines[-count:]]

    def cuda_oom(self) -> str | None:
        """Returns the line that reports GPU memory exhaustion as the end of the program, else None."""
        if not has_keyword(_COLOUR.sub("", self._tail)):
            return None
        lines = self._lines
        ooms = {index for index in range(len(lines)) if self._is_oom(index)}
        if not ooms:
            return None
        last = self._loose_error() if self._final is None else self._final.index
        ends = [i for i in range(len(lines)) if i in ooms or self._is_other_error(i, is_last=i == last)]
        first_failed = root_cause(lines).get("rank", "").partition(" ")[0]
        of_first_failed = [i for i in ends if first_failed and lines[i].rank in ("", first_failed)]
        end = (of_first_failed or ends)[-1]
        return lines[end].text.strip() if end in ooms and self._is_near_end(end) else None

    def _loose_error(self) -> int | None:
        """Returns the index of the last of the final lines that looks like an error; None without one."""
        count = len(self._lines)
        for index in range(count - 1, max(-1, count - 1 - _MAX_LINES_OF_LOOSE_ERROR), -1):
            text = self._lines[index].text
            is_python = PYTHON_ERROR.fullmatch(text.strip()) and not text.endswith(":")
            if is_python or NON_PYTHON_ERROR.fullmatch(text):
                return index
        return None

    def _is_oom(self, index: int) -> bool:
        """Returns whether the line reports exhausted GPU memory from which the program did not recover."""
        text = self._lines[index].text
        if not has_keyword(text) or self._is_source_line(index):
            return False
        if HOST_MEMORY.search(text) or RECOVERED.search(text):
            return False
        return is_signature(text) or is_printed_oom(text)

    def _is_other_error(self, index: int, *, is_last: bool) -> bool:
        """Returns whether the line shows another cause of the end than the lines above, or a recovery.

        is_last: the line is the error that ended the program, whatever its class is called.
        """
        text = self._lines[index].text
        if RECOVERED.search(text) and MENTIONS_MEMORY.search(text):
            return True
        if not (is_last or PYTHON_ERROR.fullmatch(text) or KILLING_ERROR.fullmatch(text)):
            return False
        message = with_continuation(self._lines, index)
        if REPORTS_ANOTHER.search(message) or CONSEQUENCE.search(message):
            return False
        if text == "Killed" and index and _SELF_KILL in self._lines[index - 1].text:
            return False
        traceback = self._tracebacks.get(index)
        return traceback is None or not (traceback.is_chained or traceback.is_harmless)

    def _is_near_end(self, index: int) -> bool:
        """Returns whether the program printed only little after this line."""
        text, rank, _ = self._lines[index]
        later = (line.text for line in self._lines[index + 1 :] if line.rank in ("", rank))
        near = _MAX_LINES_AFTER
        if LOGGED.search(text) or not is_signature(text):
            near = _MAX_LINES_AFTER_LOGGED
        return sum(not AFTERMATH.match(text) for text in later) <= near

    def _is_source_line(self, index: int) -> bool:
        """Returns whether the line is source code quoted in a traceback."""
        text, rank, _ = self._lines[index]
        above = next((line.text for line in reversed(self._lines[:index]) if line.rank == rank), "")
        return text.startswith(" ") and above.lstrip().startswith('File "')
