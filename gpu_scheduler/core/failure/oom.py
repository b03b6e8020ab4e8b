"""Decides from the end of a failed job's log whether the job ran out of GPU memory.

The answer decides whether the job is retried with more memory, so a line that reports exhausted memory (one
of the SIGNATURES) is not enough: it must be what ended the program. No other error may follow it, except
errors that only report the first one (a launcher's, another rank's, one raised while it was handled), and the
program must not have gone on. Host memory never counts. A program that catches the error may print a message
of its own and exit with an error; such messages count among the last lines only.

One similar message does not count: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". No allocation failed there; the requested length does not fit the share of the GPU
that vLLM takes anyway, and the job fails in the same way whatever memory is allocated to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.core.failure.last_error import last_error, rendered_lines
from gpu_scheduler.core.failure.oom_signatures import (
    CLAUSE_END,
    CLAUSE_START,
    HANDLED,
    KEYWORDS,
    MENTION,
    PRINTED_ERROR,
    SIGNATURES,
)

#: Lines of ordinary output that may follow the error; after more, the program had gone on.
_MAX_LINES_AFTER = 40
#: The same limit for a line that a library logs even if its caller can do without the memory, and for a
#: message of the program's own.
_MAX_LINES_AFTER_LOGGED = 5
#: Characters that are searched on each side of such a message.
_CONTEXT_CHARS = 200
#: Most lines of one traceback, searched from its end up to its header.
_MAX_TRACEBACK_LINES = 400


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: A line that holds one of these reports host memory, or no failure, although a signature matches it.
_HARMLESS = re.compile(
    r"\bbytes on host\b|\bpinned (?:system )?memory\b|host_mem|_nchwc"
    r"|\bcaller indicates that this is not a failure\b"
)
#: Words before a signature that make it advice about a possible error.
_ADVICE = re.compile(r"(?i)\b(?:if|when|in case) (?:you|there)\b")
_LOGGED = re.compile(r"\b[IWE]\d* (?:tensorflow|external)/|^[IW]\d{4} |\bWARN(?:ING)?\b|Warning: ")
_RECOVERED = re.compile(
    r"(?i)(?:^\s*|[.,;:!|-]\s+|\(|\b(?:and|so|now|then|will)\s+)(?:retry(?:ing)?|reducing|decreasing|lowering|halving"
    r"|skipp(?:ing|ed)(?! tactic)|falling back|attempting to recover|trying (?:again|with|batch|a smaller))\b"
    r"|\bbatch.{0,20} (?:reduced|halved|lowered) to\b"
)
_MENTIONS_MEMORY = re.compile(r"(?i)batch|memory|\boom\b")

#: Prefix of a line of one process (torchrun, MPI, Ray, vLLM's log), and the margin of an exception group.
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|\[\d+,(\d+)\]<std(?:err|out)>: ?|stderr: "
    r"|\((?:\w+ )?(?:rank=\d+ )?pid=(\d+)[^()]{0,120}\) ?)?"
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?)?(?: +\| ?)?"
)
_HEADER = "Traceback (most recent call last):"
_CHAINED_ERROR_HEADERS = ("The above exception was", "During handling of the above")
_IGNORED_ERROR_HEADERS = ("Exception ignored", "Error in atexit", "--- Logging error", "Exception in thread")
_ERROR = re.compile(r"(?:[^\W\d]\w*\.)*\w*(?:Error|Exception)(?:\(\w+\))?(?::(?: .*)?)?")
_NON_PYTHON_ERROR = re.compile(
    r"\s+what\(\):  .*|\S+: error: .*|panic: .*|Killed|.*: line \d+: +\d+ Killed\b.*|.*[Oo]om[-_]kill.*"
    r"|.*\bOut of memory: Kill.*"
)
#: Errors that report that another process, or an inner engine, failed.
_WRAPPER = re.compile(
    r"ChildFailedError|BrokenProcessPool|TerminatedWorkerError|TrainingFailedError|TuneError|SignalException"
    r"|ShardCannotStart|ActorDiedError|\bEngine (?:core|process)\b|\bEngineCore\b|\bWorkerProc\b"
    r"|\bWorker failed with error|\bnon-?zero\b|\b[Ee]xit (?:code|status)\b|\breturn code\b"
    r"|\b(?:died|exited) unexpectedly|in DataLoader worker|\b[Pp]rocess \d+ terminated with"
    r"|\btask \S+ Terminated|\bInitialization failed|\bfor LlamaCpp\b"
    r"|(?i:\b(?:failed|unable|could not)\b.{0,6}\b(?:load|create)\b.{0,20}\b(?:model|llama))"
)
#: Errors that follow from the death of another process, or from a library that could not be set up.
_CONSEQUENCE = re.compile(
    r"(?i)\bnccl|\bDist(?:Store|Network)Error|HorovodInternal|Connection ?(?:closed|reset|refused)"
    r"|Broken ?pipe|\bEOFError|Socket Timeout|TCPStore|\bprocess group\b|coordination service"
    r"|Failed to get convolution algorithm|DNN library is not found|Blas \w+ launch failed|/pymp-"
)
#: SGLang kills itself when a part of it has failed; the shell then reports "Killed".
_SELF_KILL = "Received sigquit from a child process"
_ROOT_CAUSE = "Root Cause (first observed failure)"
_RANK_FIELD = re.compile(r"\s+rank\s*: (\d+)")
#: Lines that a dying program or its launcher prints: stacks, rules, summaries, memory maps.
_AFTERMATH = re.compile(
    r"\s|$|frame #\d|#\d+ |\[New LWP|\[bt\]|[-=*_#~^|+]{3,}|wandb: |[IWEF]\d{4} "
    r"|.*\b[IWE] (?:tensorflow|external)/|.*\bNCCL INFO\b|.*\bKilling subprocess\b"
)


class _Line(NamedTuple):
    text: str
    #: The rank of the process that wrote the line; empty if unknown.
    rank: str


def cuda_oom(tail: str) -> str | None:
    """Returns the line that reports GPU memory exhaustion as the end of a failed program, else None.

    tail: the end of the program's log.
    """
    if not _has_keyword(_COLOUR.sub("", tail)):
        return None
    log = _Log([_split_prefix(text) for text in rendered_lines(tail)])
    ooms = {index for index in range(len(log.lines)) if log.is_oom(index)}
    if not ooms:
        return None
    named = log.index_of(last_error(tail))
    ends = [
        index for index in range(len(log.lines)) if index in ooms or log.is_other_error(index, index == named)
    ]
    first_failed = log.first_failed_rank()
    of_first_failed = [
        index for index in ends if first_failed and log.lines[index].rank in ("", first_failed)
    ]
    end = (of_first_failed or ends)[-1]
    return log.lines[end].text.strip() if end in ooms and log.is_near_end(end) else None


def _has_keyword(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in KEYWORDS)


def _is_signature(text: str) -> bool:
    """Returns whether the line is a library's report that GPU memory is exhausted."""
    for row in SIGNATURES:
        found = row.pattern.search(text)
        if found is not None:
            before = text[: found.start()]
            return not _ADVICE.search(before) and not (
                row.is_error_name and MENTION.search(before[-_CONTEXT_CHARS:])
            )
    return False


def _is_printed_oom(text: str) -> bool:
    """Returns whether the line is a program's own message that it ran out of GPU memory."""
    if HANDLED.search(text):
        return False
    for found in PRINTED_ERROR.finditer(text):
        before = text[max(0, found.start() - _CONTEXT_CHARS) : found.start()]
        behind = text[found.end() : found.end() + _CONTEXT_CHARS]
        if CLAUSE_START.search(before) and CLAUSE_END.match(behind):
            return not MENTION.search(before) and not _ADVICE.search(before)
    return False


def _split_prefix(text: str) -> _Line:
    prefix = _PREFIX.match(text)
    assert prefix is not None  # every part of the pattern is optional
    return _Line(text[prefix.end() :], next(filter(None, prefix.groups()), ""))


@dataclass(frozen=True)
class _Log:
    lines: Sequence[_Line]

    def is_oom(self, index: int) -> bool:
        """Returns whether the line reports exhausted GPU memory from which the program did not recover."""
        text = self.lines[index].text
        if not _has_keyword(text) or self._is_source_line(index):
            return False
        if _HARMLESS.search(text) or _RECOVERED.search(text):
            return False
        return _is_signature(text) or _is_printed_oom(text)

    def is_other_error(self, index: int, is_last_error: bool) -> bool:
        """Returns whether the line shows another cause of the end than the lines above, or a recovery.

        is_last_error: the line is the error that ends the log's last traceback, whatever its class is called.
        """
        text = self.lines[index].text
        if _RECOVERED.search(text) and _MENTIONS_MEMORY.search(text):
            return True
        if not (is_last_error or _ERROR.fullmatch(text) or _NON_PYTHON_ERROR.fullmatch(text)):
            return False
        message = self._message(index)
        if _WRAPPER.search(message) or _CONSEQUENCE.search(message):
            return False
        if text == "Killed" and index and _SELF_KILL in self.lines[index - 1].text:
            return False
        return not self._line_above_traceback(index).startswith(
            (*_CHAINED_ERROR_HEADERS, *_IGNORED_ERROR_HEADERS)
        )

    def first_failed_rank(self) -> str:
        """Returns the rank that failed first according to torchrun's summary; empty without a summary."""
        starts = [index for index, line in enumerate(self.lines) if _ROOT_CAUSE in line.text]
        summary = self.lines[starts[-1] :][:10] if starts else ()
        fields = (_RANK_FIELD.match(line.text) for line in summary)
        return next((field[1] for field in fields if field is not None), "")

    def is_near_end(self, index: int) -> bool:
        """Returns whether the program printed only little after this line."""
        text, rank = self.lines[index]
        later = (line.text for line in self.lines[index + 1 :] if line.rank in ("", rank))
        near = (
            _MAX_LINES_AFTER_LOGGED if _LOGGED.search(text) or not _is_signature(text) else _MAX_LINES_AFTER
        )
        return sum(not _AFTERMATH.match(text) for text in later) <= near

    def index_of(self, error: str | None) -> int | None:
        """Returns the error's index in the lines; `error` may include text from after its line's colon."""
        if error is None:
            return None
        for index in reversed(range(len(self.lines))):
            text = self.lines[index].text.strip()
            if text.rstrip(":") == error or (text.endswith(":") and error.startswith(text)):
                return index
        return None

    def _message(self, index: int) -> str:
        """Returns the error, with a later line if its own ends with a colon and its message begins there."""
        text = self.lines[index].text.rstrip()
        if not text.endswith(":"):
            return text
        more = (line.text.strip() for line in self.lines[index + 1 : index + 4])
        return f"{text} {next(filter(None, more), '')}"

    def _line_above_traceback(self, index: int) -> str:
        """Returns the text above the traceback that ends here; empty if no traceback ends here."""
        rank = self.lines[index].rank
        own = [
            line.text
            for line in self.lines[max(0, index - _MAX_TRACEBACK_LINES) : index]
            if line.rank == rank
        ]
        while own and _HEADER not in own[-1]:
            if _ERROR.fullmatch(own.pop()):
                return ""
        own = own[:-1]
        return next((text.strip() for text in reversed(own[-3:]) if text.strip()), "")

    def _is_source_line(self, index: int) -> bool:
        """Returns whether the line is source code quoted in a traceback."""
        text, rank = self.lines[index]
        above = next((line.text for line in reversed(self.lines[:index]) if line.rank == rank), "")
        return text.startswith(" ") and above.lstrip().startswith('File "')
