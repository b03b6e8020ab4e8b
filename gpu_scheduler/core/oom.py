"""Whether a failed job died for want of GPU memory, found in the end of its log.

The answer decides whether the job is tried again with more memory. So a line that tells of it (a table:
oomtexts.SIGNATURES) is not enough; it must be what the program died of: no other error after it, but for
errors that only report that one (a launcher's, the other ranks', one raised while it was handled), and the
program did not go on. Memory of the host is another matter and never counts. A program that catches the error
may print it in its own words, and exit with an error: these count among the last lines only.

Not counted though it looks alike: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". No allocation failed there; the length asked for does not suit the share of the card
that vLLM takes anyway, and the same line fails alike whatever memory is booked for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.core.lasterror import last_error, text_lines
from gpu_scheduler.core.oomtexts import ABOUT, BEFORE, BEHIND, HANDLED, KEY_WORDS, PHRASE, SIGNATURES

#: Lines of ordinary output that may follow: after more of them the program had gone on.
_NEAR = 40
#: The same for a line that a library logs whether or not its caller can do without the memory, or that a
#: program has worded itself.
_NEAR_LOGGED = 5
#: Characters around such words that are looked at.
_AROUND = 200
#: Lines of one traceback, from its end up to its head.
_LONGEST = 400


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: What a signature's line also holds when it tells of the host's memory, or of no failure.
_HARMLESS = re.compile(
    r"\bbytes on host\b|\bpinned (?:system )?memory\b|host_mem|_nchwc"
    r"|\bcaller indicates that this is not a failure\b"
)
#: Advice about what might happen: it stands before the signature.
_ADVICE = re.compile(r"(?i)\b(?:if|when|in case) (?:you|there)\b")
_LOGGED = re.compile(r"\b[IWE]\d* (?:tensorflow|external)/|^[IW]\d{4} |\bWARN(?:ING)?\b|Warning: ")
_RECOVERED = re.compile(
    r"(?i)(?:^\s*|[.,;:!|-]\s+|\(|\b(?:and|so|now|then|will)\s+)(?:retry(?:ing)?|reducing|decreasing|lowering|halving"
    r"|skipp(?:ing|ed)(?! tactic)|falling back|attempting to recover|trying (?:again|with|batch|a smaller))\b"
    r"|\bbatch.{0,20} (?:reduced|halved|lowered) to\b"
)
_OF_MEMORY = re.compile(r"(?i)batch|memory|\boom\b")

#: What stands before a line of one process: torchrun, MPI, Ray, vLLM's log; the margin of an exception group.
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|\[\d+,(\d+)\]<std(?:err|out)>: ?|stderr: "
    r"|\((?:\w+ )?(?:rank=\d+ )?pid=(\d+)[^()]{0,120}\) ?)?"
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?)?(?: +\| ?)?"
)
_HEADER = "Traceback (most recent call last):"
_CHAINED = ("The above exception was", "During handling of the above")
_IGNORED = ("Exception ignored", "Error in atexit", "--- Logging error", "Exception in thread")
_ERROR = re.compile(r"(?:[^\W\d]\w*\.)*\w*(?:Error|Exception)(?:\(\w+\))?(?::(?: .*)?)?")
_OTHER_ERROR = re.compile(
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
#: Errors that another process's death brings about, or a library that could not be set up.
_CONSEQUENCE = re.compile(
    r"(?i)\bnccl|\bDist(?:Store|Network)Error|HorovodInternal|Connection ?(?:closed|reset|refused)"
    r"|Broken ?pipe|\bEOFError|Socket Timeout|TCPStore|\bprocess group\b|coordination service"
    r"|Failed to get convolution algorithm|DNN library is not found|Blas \w+ launch failed|/pymp-"
)
#: SGLang kills itself when a part of it has failed; the shell says so.
_KILLED_ITSELF = "Received sigquit from a child process"
_ROOT_CAUSE = "Root Cause (first observed failure)"
_RANK_FIELD = re.compile(r"\s+rank\s*: (\d+)")
#: Lines that a dying program, or who started it, leaves behind: stacks, rules, summaries, memory maps.
_AFTERMATH = re.compile(
    r"\s|$|frame #\d|#\d+ |\[New LWP|\[bt\]|[-=*_#~^|+]{3,}|wandb: |[IWEF]\d{4} "
    r"|.*\b[IWE] (?:tensorflow|external)/|.*\bNCCL INFO\b|.*\bKilling subprocess\b"
)


class _Line(NamedTuple):
    text: str
    #: Which process of several wrote it; empty if the log does not tell.
    rank: str


def cuda_oom(tail: str) -> str | None:
    """The line by which a program that failed ran out of GPU memory; None if it died of something else.

    tail: the end of its log.
    """
    if not _has_key_word(_COLOUR.sub("", tail)):
        return None
    log = _Log([_parted(text) for text in text_lines(tail)])
    ooms = {at for at in range(len(log.lines)) if log.is_oom(at)}
    if not ooms:
        return None
    named = log.find(last_error(tail))
    ends = [at for at in range(len(log.lines)) if at in ooms or log.is_other(at, at == named)]
    cause = log.cause()
    of_cause = [at for at in ends if cause and log.lines[at].rank in ("", cause)]
    end = (of_cause or ends)[-1]
    return log.lines[end].text.strip() if end in ooms and log.ends_after(end) else None


def _has_key_word(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in KEY_WORDS)


def _is_signature(text: str) -> bool:
    """Whether a library says here that GPU memory is exhausted."""
    for row in SIGNATURES:
        found = row.pattern.search(text)
        if found is not None:
            before = text[: found.start()]
            return not _ADVICE.search(before) and not (row.is_name and ABOUT.search(before[-_AROUND:]))
    return False


def _is_own_words(text: str) -> bool:
    """Whether a program says here, in its own words, that it ran out of GPU memory."""
    if HANDLED.search(text):
        return False
    for found in PHRASE.finditer(text):
        before = text[max(0, found.start() - _AROUND) : found.start()]
        behind = text[found.end() : found.end() + _AROUND]
        if BEFORE.search(before) and BEHIND.match(behind):
            return not ABOUT.search(before) and not _ADVICE.search(before)
    return False


def _parted(text: str) -> _Line:
    prefix = _PREFIX.match(text)
    assert prefix is not None  # every part of it may be missing
    return _Line(text[prefix.end() :], next(filter(None, prefix.groups()), ""))


@dataclass(frozen=True)
class _Log:
    lines: Sequence[_Line]

    def is_oom(self, at: int) -> bool:
        """Whether the line tells that GPU memory was exhausted, and not that the program could do without."""
        text = self.lines[at].text
        if not _has_key_word(text) or self._is_source(at):
            return False
        if _HARMLESS.search(text) or _RECOVERED.search(text):
            return False
        return _is_signature(text) or _is_own_words(text)

    def is_other(self, at: int, named: bool) -> bool:
        """Whether the line tells of another end than by what stands above it, or that there was none yet.

        named: it is the error that the log's last traceback ends with, whatever it is called.
        """
        text = self.lines[at].text
        if _RECOVERED.search(text) and _OF_MEMORY.search(text):
            return True
        if not (named or _ERROR.fullmatch(text) or _OTHER_ERROR.fullmatch(text)):
            return False
        message = self._message(at)
        if _WRAPPER.search(message) or _CONSEQUENCE.search(message):
            return False
        if text == "Killed" and at and _KILLED_ITSELF in self.lines[at - 1].text:
            return False
        return not self._above(at).startswith((*_CHAINED, *_IGNORED))

    def cause(self) -> str:
        """The rank that failed first by torchrun's summary; empty if there is none."""
        told = [at for at, line in enumerate(self.lines) if _ROOT_CAUSE in line.text]
        summary = self.lines[told[-1] :][:10] if told else ()
        fields = (_RANK_FIELD.match(line.text) for line in summary)
        return next((field[1] for field in fields if field is not None), "")

    def ends_after(self, at: int) -> bool:
        """Whether the program said little more after this line."""
        text, rank = self.lines[at]
        more = (line.text for line in self.lines[at + 1 :] if line.rank in ("", rank))
        near = _NEAR_LOGGED if _LOGGED.search(text) or not _is_signature(text) else _NEAR
        return sum(not _AFTERMATH.match(text) for text in more) <= near

    def find(self, error: str | None) -> int | None:
        """Where the error stands; it may be one that is told with what follows its colon."""
        if error is None:
            return None
        for at in reversed(range(len(self.lines))):
            text = self.lines[at].text.strip()
            if text.rstrip(":") == error or (text.endswith(":") and error.startswith(text)):
                return at
        return None

    def _message(self, at: int) -> str:
        """The error, with the line on which its message begins where that is a later one."""
        text = self.lines[at].text.rstrip()
        if not text.endswith(":"):
            return text
        more = (line.text.strip() for line in self.lines[at + 1 : at + 4])
        return f"{text} {next(filter(None, more), '')}"

    def _above(self, at: int) -> str:
        """What is said above the traceback that ends here; empty if none does."""
        rank = self.lines[at].rank
        own = [line.text for line in self.lines[max(0, at - _LONGEST) : at] if line.rank == rank]
        while own and _HEADER not in own[-1]:
            if _ERROR.fullmatch(own.pop()):
                return ""
        own = own[:-1]
        return next((text.strip() for text in reversed(own[-3:]) if text.strip()), "")

    def _is_source(self, at: int) -> bool:
        """Whether this is a line of the program's text in a traceback."""
        text, rank = self.lines[at]
        above = next((line.text for line in reversed(self.lines[:at]) if line.rank == rank), "")
        return text.startswith(" ") and above.lstrip().startswith('File "')
