"""Reads the end of a failed program's log: its lines and tracebacks, the error, and the kind of failure.

It also decides whether the program ended because GPU memory was exhausted, because such a job is retried with
more memory. A line that reports exhausted memory (because it matches one of the SIGNATURES) is therefore not
enough. That error must also have ended the program: the program must not have continued after it, and no
other error may follow, except one that results from it (an error of a launcher or of another rank, or one
that was raised while the first error was being handled). Exhausted host memory never counts. A program that
catches the error may print its own message and exit with an error; such a message counts only among the last
lines.

One similar message does not count: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". In that case no allocation has failed. The requested length does not fit into the part
of the GPU that vLLM always takes, so the job would fail again with any amount of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.core.text.job_output import ESCAPE

# Patterns for log lines: errors of programs, and the words around a report of exhausted GPU memory.


#: A line that contains one of these texts is about host memory or does not report a failure, even if a
#: signature matches it.
HOST_MEMORY = re.compile(
    r"\bbytes on host\b|\bpinned (?:system )?memory\b|host_mem|_nchwc"
    r"|\bcaller indicates that this is not a failure\b"
)
#: Words before a signature that show that the line only gives advice about a possible error.
ADVICE = re.compile(r"(?i)\b(?:if|when|in case) (?:you|there)\b")
#: Lines that a library also logs when its caller can do without the memory.
LOGGED = re.compile(r"\b[IWE]\d* (?:tensorflow|external)/|^[IW]\d{4} |\bWARN(?:ING)?\b|Warning: ")
#: Words that show that the program continues.
RECOVERED = re.compile(
    r"(?i)(?:^\s*|[.,;:!|-]\s+|\(|\b(?:and|so|now|then|will)\s+)(?:retry(?:ing)?|reducing|decreasing|lowering|halving"
    r"|skipp(?:ing|ed)(?! tactic)|falling back|attempting to recover|trying (?:again|with|batch|a smaller))\b"
    r"|\bbatch.{0,20} (?:reduced|halved|lowered) to\b"
)
MENTIONS_MEMORY = re.compile(r"(?i)batch|memory|\boom\b")
#: The last line of a traceback, or an error that is printed in the same form.
PYTHON_ERROR = re.compile(r"(?:[^\W\d]\w*\.)*\w*(?:Error|Exception)(?:\(\w+\))?(?::(?: .*)?)?")
#: The last lines of programs that abort or are killed.
KILLING_ERROR = re.compile(
    r"(?s)\s+what\(\):  .*|\S+: error: .*|panic: .*|Killed|.*: line \d+: +\d+ Killed\b.*|.*[Oo]om[-_]kill.*"
    r"|.*\bOut of memory: Kill.*"
)
#: Errors that only report that another process or an inner engine has failed.
REPORTS_ANOTHER = re.compile(
    r"ChildFailedError|BrokenProcessPool|TerminatedWorkerError|TrainingFailedError|TuneError|SignalException"
    r"|ShardCannotStart|ActorDiedError|\bEngine (?:core|process)\b|\bEngineCore\b|\bWorkerProc\b"
    r"|\bWorker failed with error|\bnon-?zero\b|\b[Ee]xit (?:code|status)\b|\breturn code\b"
    r"|\b(?:died|exited) unexpectedly|in DataLoader worker|\b[Pp]rocess \d+ terminated with"
    r"|\btask \S+ Terminated|\bInitialization failed|\bfor LlamaCpp\b"
    r"|(?i:\b(?:failed|unable|could not)\b.{0,6}\b(?:load|create)\b.{0,20}\b(?:model|llama))"
)
#: Errors that follow from the death of another process, or from a library that could not be set up.
CONSEQUENCE = re.compile(
    r"(?i)\bnccl|\bDist(?:Store|Network)Error|HorovodInternal|Connection ?(?:closed|reset|refused)"
    r"|Broken ?pipe|\bEOFError|Socket Timeout|TCPStore|\bprocess group\b|coordination service"
    r"|Failed to get convolution algorithm|DNN library is not found|Blas \w+ launch failed|/pymp-"
)
#: Lines that a failing program or its launcher prints at the end: stack traces, separators, summaries and
#: memory maps.
AFTERMATH = re.compile(
    r"\s|$|frame #\d|#\d+ |\[New LWP|\[bt\]|[-=*_#~^|+]{3,}|wandb: |[IWEF]\d{4} "
    r"|.*\b[IWE] (?:tensorflow|external)/|.*\bNCCL INFO\b|.*\bKilling subprocess\b"
)
#: Text that a program prints after it has caught the error. The same words occur in help texts, settings and
#: statistics, so they count as a report of exhausted memory only between CLAUSE_START and CLAUSE_END.
PRINTED_ERROR = re.compile(
    r"(?i:\b(?:CUDA|HIP) out of memory\b)"
    r"|(?<![\w.])(?:(?:CUDA |torch\.(?:cuda\.)?)?OutOfMemoryError)\b(?!: (?!.{0,200}(?:CUDA|HIP|GPU)\b))"
)
#: Start of a clause: the start of the line, a log's time or level, punctuation, some verbs, or the message
#: field of a JSON log.
CLAUSE_START = re.compile(
    r"(?i)(?:^\W*|[:\]>|!*)]\s*|[^\w\s\x00-\x7f]\s*|[.-]\s+|\d\d:\d\d(?::[\d.,]+)?\s+|<class '"
    r"|\b(?:error|exception|fatal|critical|warning|info|caught|got|hit|encountered|raised|due to|because of"
    r"|caused by|(?:failed|crashed|died|ended|exit(?:ed|ing)|abort(?:ed|ing)|stopp(?:ed|ing)|terminated)"
    r" (?:with|on|by|from))\s+(?:an? |the )?|\"(?:message|msg|error|exception|event|reason)\": ?\")$"
)
#: End of a clause, or words that introduce the time or place of the error.
CLAUSE_END = re.compile(
    r"(?i)(?:'>|\(\))?(?:\s+(?:error|exception))?"
    r"(?:\s*$|[.!]+(?:[\s\"')*]|$)|\s*[;)*\"]|,\s|\s+\(|\s+[^\w\s|]+\s|:\s+(?![\d.]+\b)\S+\s+\S"
    r"|\s+(?:encountered|occurred|detected|raised|caught|during|while|at|in|on|for|with)\b)"
)
#: Words before the name of an error that show that the line only mentions the error, as in a setting, a list
#: item, advice or a remark about another run.
MENTION = re.compile(
    r"(?i)(?:^\s*-\s+|^\W*(?:if|when|in case|note|hint|tip|to avoid)\b.*|[=(\[{,/`]\s*(?:<class )?['\"]?"
    r"|\b(?:previous|earlier|prior|last (?:run|try|attempt|time)|of a run|expected|known|simulat\w+)\b.*"
    r"|(?:^|[\W_])(?:on|catch(?:es|ing)?|except|handl\w*|retry\w*|retries|ignor\w*|skip\w*|notes?|hints?"
    r"|tips?|see|faq|examples?|patterns?|match\w*|expect\w*|avoid\w*|prevent\w*|recover\w*|common|possible"
    r"|oom_\w+)\W*|\w_oom\W*)$"
)
#: Words that show that the program handled the error and continued, or that it counts such errors.
HANDLED = re.compile(
    r"(?i)\b(?:handl(?:ed|ers?|ing)|recover(?:ed|ing|y)|ignor(?:ed|ing)|continuing|resum(?:ed|ing)|survived"
    r"|counte?r?|events?|policy|hook|callback|enabled|disabled|supported)\b|\w=(?:True|False|None)\b"
)
#: Errors that are not Python exceptions: those of the shell, of argparse and similar parsers, of a Python
#: interpreter that cannot open its script, and of C++ programs that abort.
NON_PYTHON_ERROR = re.compile(
    r"(?s).*: (?:command not found|No such file or directory|Permission denied|Is a directory"
    r"|Address already in use|Too many open files|cannot execute.*)"
    r"|.*: Exec format error|\S+: error: .*|.*can't open file .*|\s+what\(\):  .*|.*Fatal Python error: .*"
)


# Splits the end of a log into lines, and separates the prefixes that launchers add to them.


#: Prefixes with which torch, torchrun, accelerate, MPI and Ray mark the lines of each process, and the prefix
#: of vLLM's log lines, which may follow them.
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|\[\d+,(\d+)\]<std(?:err|out)>: ?|stderr: "
    r"|\((?:\w+ )?(?:rank=\d+ )?pid=(\d+)[^()]{0,120}\) ?)?"
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?)?"
)
#: The left margin of a printed exception group.
_MARGIN = re.compile(r"( +)(?:\| ?|\+(?: |$)|\+[-+]{3,}.*)")


class LogLine(NamedTuple):
    """A line without its prefix and margin.

    rank: the rank or pid of the process that wrote the line; "" if unknown. depth: the number of blanks
    before the margin; -1 if there is no margin.
    """

    text: str
    rank: str = ""
    depth: int = -1


def rendered_lines(tail: str) -> list[str]:
    """Returns a log's lines without colours, and with only the last state of each progress bar."""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", tail).split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    # This line comes from the runner, not from the job.
    if shown and shown[-1].startswith("--- "):
        shown.pop()
    return shown


def log_line(text: str) -> LogLine:
    """Returns a line of a log without its prefix and margin."""
    prefix = _PREFIX.match(text)
    assert prefix is not None  # the pattern always matches, because all its parts are optional
    rank = next(filter(None, prefix.groups()), "")
    text = text[prefix.end() :]
    margin = _MARGIN.match(text)
    return LogLine(text, rank) if margin is None else LogLine(text[margin.end() :], rank, len(margin[1]))


# Finds the Python tracebacks in a log, including chains, exception groups and output of several ranks.


#: Maximum number of lines of one traceback that are searched for its end.
_MAX_LINES = 400
#: Maximum number of lines above a traceback that may connect it with an earlier one.
_MAX_LINES_ABOVE = 3
#: Beginnings of the lines that Python prints above errors that did not end the program, and between chained
#: errors.
_HARMLESS_HEADERS = ("Exception ignored", "Error in atexit", "--- Logging error", "Exception in thread")
_CHAINED_HEADERS = ("The above exception was", "During handling of the above")

_HEADER = re.compile(r"(?:Exception Group |Original )?Traceback \(most recent call last\):")
_NAME = r"[^\W\d][\w.]*(?:\.<locals>[\w.]*)*"
_ERROR = re.compile(rf"{_NAME}(?::(?: .*)?)?")
#: Errors with which a launcher only reports that another process failed.
_LAUNCHER_ERROR = re.compile(r"(?:.*\.)?(?:ChildFailedError|CalledProcessError)\b.*")
_ROOT_CAUSE = "Root Cause (first observed failure)"
_SUMMARY_FIELD = re.compile(r"\s+(rank|exitcode|traceback)\s*: (.*)")


class Traceback(Struct, frozen=True):
    """The end of one traceback.

    text: the error; index: the index of the error's line; rank: the process that printed it; is_chained:
    another error led to this one; is_harmless: the error did not end the program.
    """

    text: str
    index: int
    rank: str
    is_chained: bool
    is_harmless: bool


def find_tracebacks(lines: Sequence[LogLine]) -> list[Traceback]:
    """Returns the tracebacks in order. The errors in an exception group are a part of its traceback."""
    found: list[Traceback] = []
    group: int | None = None
    for index, line in enumerate(lines):
        header = _HEADER.search(line.text)
        if header is None:
            continue
        if group is not None and line.depth > group:
            continue
        group = None
        end = _error_index(lines, index, line)
        if end is None:
            continue
        text = with_continuation(lines, end)
        if header[0].startswith("Exception Group"):
            group = line.depth
            text += _first_group_error(lines, end, line.depth)
        above = _line_above(lines, index)
        is_chained = above.startswith(_CHAINED_HEADERS)
        is_harmless = above.startswith(_HARMLESS_HEADERS) or (
            is_chained and bool(found) and found[-1].is_harmless
        )
        found.append(Traceback(text, end, line.rank, is_chained, is_harmless))
    return found


def with_continuation(lines: Sequence[LogLine], index: int) -> str:
    """Returns an error's line. If the message begins only on the next line of text, that line is appended."""
    text = lines[index].text.strip()
    if not text.endswith(":"):
        return text
    for line in lines[index + 1 : index + 4]:
        more = line.text.strip()
        if _HEADER.search(more):
            break
        if re.search(r"\w", more):
            return f"{text} {more}"
    return text.rstrip(":")


def _error_index(lines: Sequence[LogLine], header: int, header_line: LogLine) -> int | None:
    """Returns the index of the error line of the traceback that begins at `header`; None if it has none."""
    base: int | None = None
    for index in range(header + 1, min(len(lines), header + 1 + _MAX_LINES)):
        line = lines[index]
        if line.rank != header_line.rank:
            continue  # a line of another process
        if line.depth >= 0 > header_line.depth:
            continue  # what looks like a margin is a vertical bar in source code
        if line.depth != header_line.depth or _HEADER.search(line.text):
            return None
        text = line.text.lstrip(" ")
        indent = len(line.text) - len(text)
        if base is None and text.startswith('File "'):
            base = max(0, indent - 2)
        if text and indent <= (base or 0) and _ERROR.fullmatch(text):
            return index
    return None


def _first_group_error(lines: Sequence[LogLine], index: int, depth: int) -> str:
    for line in lines[index + 1 : index + 1 + _MAX_LINES]:
        if line.depth < 0:
            break
        if line.depth > depth and ":" in line.text and not line.text.startswith(" "):
            if _HEADER.search(line.text):
                continue
            if _ERROR.fullmatch(line.text):
                return f": {line.text}"
    return ""


def _line_above(lines: Sequence[LogLine], header: int) -> str:
    """Returns the nearest nonblank line above a header, among three lines of the same process, or ""."""
    above = (lines[index] for index in range(header - 1, -1, -1))
    own = (line.text.strip() for line in above if line.rank == lines[header].rank)
    return next(filter(None, islice(own, _MAX_LINES_ABOVE)), "")


#: An error without a traceback counts only if it is among this many lines at the end.
_MAX_LINES_OF_LOOSE_ERROR = 20


class LogEnd:
    """The end of the log of a program that failed."""

    def __init__(self, tail: str) -> None:
        self.tail = tail

    @cached_property
    def lines(self) -> list[LogLine]:
        """The lines without their prefixes, each with the process that wrote it."""
        return list(map(log_line, rendered_lines(self.tail)))

    @cached_property
    def tracebacks(self) -> dict[int, Traceback]:
        """The tracebacks, by the index of the line that names the error."""
        return {one.index: one for one in find_tracebacks(self.lines)}

    @cached_property
    def final_traceback(self) -> Traceback | None:
        """The traceback that ended the program; None if there is none.

        It is the last one that does not merely report another error.
        """
        tracebacks = list(self.tracebacks.values())
        serious = [one for one in tracebacks if not one.is_harmless] or tracebacks
        if not serious or not _LAUNCHER_ERROR.fullmatch(serious[-1].text):
            return serious[-1] if serious else None
        own = [one for one in serious if not _LAUNCHER_ERROR.fullmatch(one.text)]
        if own:
            of_rank = [one for one in own if one.rank and one.rank == self.first_failed_rank]
            return (of_rank or own)[-1]
        last, cause = serious[-1], self.root_cause
        if not cause:
            return last
        name = last.text.partition(":")[0].rpartition(".")[2]
        details = [cause.get("exitcode", "?"), cause.get("traceback", "")]
        details = [text for text in details if text and not text.startswith("To enable traceback")]
        text = f"{name}: rank {cause.get('rank', '?')}: exit code {': '.join(details)}"
        return Traceback(text, last.index, "", last.is_chained, False)

    @cached_property
    def root_cause(self) -> dict[str, str]:
        """The fields of torchrun's summary of the first process that failed; empty if it is missing."""
        lines = [line.text for line in self.lines]
        index = next((i for i in reversed(range(len(lines))) if _ROOT_CAUSE in lines[i]), len(lines))
        fields = filter(None, map(_SUMMARY_FIELD.fullmatch, lines[index + 1 : index + 10]))
        return {field[1]: field[2].strip() for field in fields}

    @property
    def first_failed_rank(self) -> str:
        """The rank of the first process that failed; "" if unknown."""
        return self.root_cause.get("rank", "").partition(" ")[0]

    def error(self, max_lines_after: int | None = None) -> str | None:
        """Returns the line that names the error that ended the program; None if there is none.

        max_lines_after: if more lines than this follow a traceback, it did not end the program.
        """
        final = self.final_traceback
        if final is None or (max_lines_after is not None and len(self.lines) - final.index > max_lines_after):
            index = self.loose_error_index()
            return None if index is None else self.lines[index].text.strip()
        return final.text

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines without their prefixes."""
        return [line.text for line in self.lines[-count:]]

    def loose_error_index(self) -> int | None:
        """Returns the index of the last line near the end that looks like an error; None if there is none."""
        numbered = [*enumerate(self.lines)][-_MAX_LINES_OF_LOOSE_ERROR:]
        for index, (text, _, _) in reversed(numbered):
            is_python = PYTHON_ERROR.fullmatch(text.strip()) and not text.endswith(":")
            if is_python or NON_PYTHON_ERROR.fullmatch(text):
                return index
        return None


# Determines the kinds of failures that fit the error, the log and the exit code.


_WRONG_CALL, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_PRECEDENCE = tuple(FailureKind)

#: The messages of Python, the shell, CUDA and other libraries that name a cause. Each counts as the "error"
#: that ended the program. One with "end" also counts near the end of a log that has no such error, or one
#: that follows from another; one with "log" counts anywhere in it, because other errors follow from it.
_CAUSES = tuple(
    (kind, where, re.compile(pattern, re.IGNORECASE))
    for kind, where, pattern in (
        (FailureKind.CUDA_OPTION_UNKNOWN, "end",
         r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).{0,200}--cuda\b"),
        (FailureKind.GPU_USED_TWICE, "log", r"Duplicate GPU detected"),
        (FailureKind.CUDA_FORKED, "error", r"Cannot re-initialize CUDA in forked subprocess"),
        (FailureKind.GPU_ECC, "end", r"uncorrectable ECC error|ECC_?UNCORRECTABLE|CUDA[ _]error:? \(?214\b"),
        (FailureKind.GPU_BUSY, "end", r"busy or unavailable|Devices?_?Unavailable|CUDA[ _]error:? \(?46\b"),
        (FailureKind.FABRIC_NOT_READY, "log", r"system not yet initialized|SYSTEM_?NOT_?READY\b"),
        (FailureKind.DEVICE_ERROR, "end",
         r"GPU is lost|GPU_IS_LOST|fallen off the bus|\bdevice lost\b|(?-i:\bXid\b)"
         r"|CUDA.{0,80}\binitialization error|cudaErrorInitializationError|driver initialization failed"
         r"|CUDA unknown error|CUDA[ _]error:? \(?3\b"),
        (FailureKind.INVALID_GPU_NUMBER, "end",
         r"invalid device (?:ordinal|id)\b|cudaErrorInvalidDevice\b|device >= 0 && device < num_gpus"
         r"|listed an invalid (?:GPU|Device) id|device:GPU:\d+ unknown device"),
        (FailureKind.NO_KERNEL_IMAGE, "end",
         r"no kernel image is available|NoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (FailureKind.KERNEL_FAULT, "end",
         r"device-side assert triggered|illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"
         r"|cudaErrorIllegalAddress"),
        (FailureKind.HOST_OOM, "error", r"(?<!OutOf)MemoryError|Cannot allocate memory"),
        (FailureKind.CRLF, "log",
         r"\$'[^'\n]{0,200}\\r'|\^M: bad interpreter|env: \S{0,100}\\r\W{0,3}: No such file"),
        (FailureKind.CONDA_NOT_INITIALISED, "log",
         r"Run '(?:conda|mamba) init' before|not been properly configured to use '(?:conda|mamba) activate"
         r"|(?:mamba|critical libmamba).{0,60}(?:running as a subprocess|Shell not initialized)"),
        (FailureKind.MODULE_MISSING, "error", r"ModuleNotFoundError|ImportError"),
        (FailureKind.ADDRESS_IN_USE, "error",
         r"Address already in use|EADDRINUSE|failed to listen on any local network address"),
        (FailureKind.TOO_MANY_FILES, "end", r"Too many open files|\bErrno 24\b|received 0 items of ancdata"),
        (FailureKind.SHARED_MEMORY, "error", r"/dev/shm|(?<!resource: )shared memory"),
        (FailureKind.SHARED_MEMORY, "end",
         r"NCCL WARN Call to (?:posix_fallocate|shm_open) failed|creating shared memory segment"
         r"|failed to extend /dev/shm|insufficient shared memory"),
        (FailureKind.NOT_LOGGED_IN, "error",
         r"api[_ ]key (?:is )?not (?:configured|set)|No API key|requires an API key|MissingApiToken"
         r"|Missing API token|GatedRepo|gated repo|LocalTokenNotFound|Token is required"
         r"|Invalid (?:user )?token|ClearML configuration could not be found|\b401 Client Error"),
        (FailureKind.END_OF_INPUT, "error", r"EOF when reading a line"),
        (FailureKind.COMMAND_NOT_FOUND, "error", r"command not found"),
        (FailureKind.DISK_FULL, "error", r"No space left on device|Disk quota exceeded"),
        (FailureKind.FILE_MISSING, "error", r"FileNotFoundError|No such file or directory|can't open file"),
        (FailureKind.PERMISSION, "error", r"PermissionError|Permission denied"),
        (FailureKind.NO_GPU_VISIBLE, "end",
         r"No CUDA GPUs are available|no CUDA-capable device|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
         r"|not compiled with CUDA enabled"),
        (FailureKind.GPU_DRIVER, "error",
         r"CUDA driver version is insufficient|driver on your system is too old|NVIDIA driver"),
        (FailureKind.WRONG_USAGE, "end",
         r": error: (?:unrecognized arguments|the following arguments are required|argument -)"
         r"|arguments are not used by the HfArgumentParser"),
        (FailureKind.PROGRAM, "error",
         r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|AttributeError|TypeError"
         r"|KeyError|IndexError|ZeroDivisionError|NotImplementedError)\b"),
    )
)  # fmt: skip
#: The line with which a parser of arguments begins its help.
_USAGE = re.compile(r"^usage:", re.IGNORECASE | re.MULTILINE)
_SIGNALS: dict[int, FailureKind] = {
    **dict.fromkeys((SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT), FailureKind.CRASHED),
    SIGKILL: FailureKind.KILLED,
    **dict.fromkeys((SIGTERM, SIGINT, SIGHUP), FailureKind.TERMINATED),
}


def failure_kinds(
    exit_code: int | None, signal: int | None, error: str, log: str = "", end: Sequence[str] = ()
) -> list[FailureKind]:
    """Returns every kind that fits the failure.

    error: the program's error message; "" if none was found. log: the text of its log; end: the last lines.
    """
    kinds = [kind for kind, _, pattern in _CAUSES if pattern.search(error)]
    kinds += [kind for kind, where, pattern in _CAUSES if where == "log" and pattern.search(log)]
    if not error or CONSEQUENCE.search(error) or REPORTS_ANOTHER.search(error):
        near = "\n".join(end)
        kinds += [kind for kind, where, pattern in _CAUSES if where == "end" and pattern.search(near)]
    if exit_code == _NOT_FOUND:
        kinds.append(FailureKind.COMMAND_NOT_FOUND)
    elif exit_code == _NOT_EXECUTABLE:
        kinds.append(FailureKind.NOT_EXECUTABLE)
    elif exit_code == _WRONG_CALL:
        kinds.append(FailureKind.WRONG_USAGE if _USAGE.search(log) else FailureKind.PROGRAM)
    elif signal == SIGBUS:
        kinds.append(FailureKind.SHARED_MEMORY)
    # A shell whose program was killed by a signal exits with 128 plus the signal's number.
    number = signal if signal is not None else (exit_code or 0) - 128
    return [*kinds, _SIGNALS[number]] if number in _SIGNALS else kinds


def telling_line(lines: Sequence[str]) -> str | None:
    """Returns the last line that names a cause although it does not have the form of an error, if any."""
    told = (pattern for _, where, pattern in _CAUSES if where != "error")
    found = {index for pattern in told for index, line in enumerate(lines) if pattern.search(line)}
    return lines[max(found)].strip() if found else None


def most_specific(kinds: Iterable[FailureKind]) -> FailureKind | None:
    """Returns the kind with the most helpful remedy; None if there are no kinds."""
    return min(kinds, key=_PRECEDENCE.index, default=None)


# Messages with which libraries report exhausted GPU memory, as quoted by users of these libraries.


#: The messages, by library. tests/golden/oom/signatures.txt has an example of each.
SIGNATURES = {
    name: re.compile(pattern)
    for name, pattern in (
        ("PyTorch",
         r"(?:CUDA|HIP) out of memory(?:\.? Tried to allocate| occurred when)"
         r"|(?:Error|Exception): (?:CUDA|HIP) out of memory"),
        ("PyTorch, the class",
         r"\btorch\.(?:cuda\.)?OutOfMemoryError(?::\s*\S|$)|\bOutOfMemoryError: Allocation on device"),
        ("PyTorch without NVML figures",
         r'NVML_SUCCESS == .{0,200}INTERNAL ASSERT FAILED at ".{0,200}CUDACachingAllocator\.cpp"'),
        ("accelerate", r"\bNo executable batch size found\b"),
        ("CUDA, message", r"(?i:\b(?:cuda|hip|rocm) (?:runtime |driver )?error\b.{0,200}?\bout of memory)"),
        ("CUDA, error name", r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"),
        ("cudaMalloc (ggml, MXNet, Faiss, PyCUDA)",
         r"\b(?:(?:cuda|hip)Malloc(?!Host)\w*|cuMem\w+)(?:\(.{0,200}?\))?(?: retry)?"
         r" (?:failed(?: with error)?:?|error) out of memory"),
        ("CUDA failed (CTranslate2, NCCL, ONNX Runtime)",
         r"(?i:\bcuda fail(?:ed|ure)\b.{0,200}?\bout of memory)"),
        ("NCCL", r"\bFailed to CUDA calloc\b"),
        ("CUDA libraries",
         r"\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE|TENSOR)_STATUS_ALLOC_FAILED"
         r"|\b(?:CU|HIP)FFT_ALLOC_FAILED|\bCURAND_STATUS_ALLOCATION_FAILED"),
        ("cuDNN, out of memory",
         r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)\b.{0,200}?\bout of memory"),
        ("XLA",
         r"\bOut of memory while trying to allocate\b|\bFailed to allocate \d+ bytes for new constant"
         r"|\bFailed to allocate request for .{0,60} on device ordinal"),
        ("TensorFlow", r"OOM when allocating tensor[^/]{0,1000}/\S{0,200}[Gg][Pp][Uu]:\d"),
        ("TensorFlow's allocator", r"Allocator \(GPU_\d+_bfc\) ran out of memory"),
        ("CuPy",
         r"\bOut of memory allocating [\d,]+ bytes \(allocated so far"
         r"|\bout of memory to allocate \d+ bytes \(total|\bcupy\.cuda\.memory\.OutOfMemoryError"),
        ("RMM (cuDF, cuML)",
         r"std::bad_alloc: out_of_memory|\bRMM_ERROR_OUT_OF_MEMORY\b"
         r"|\bRMM failure.{0,300}pool size exceeded"),
        ("PaddlePaddle", r"\bOut of memory error on GPU \d"),
        ("ONNX Runtime",
         r"BFCArena::AllocateRawInternal.{0,300}Failed to allocate memory for requested buffer"),
        ("TensorRT", r"Cuda Runtime \(out of memory\)|\bError Code 2: OutOfMemory\b"),
        ("Triton server", r"(?i:\bfailed to allocate (?:GPU|CUDA) memory\b)"),
        ("vLLM",
         r"\bNo available memory for the cache blocks\b"
         r"|\bFree memory on device\b.{0,100}\bis less than desired GPU memory utilization\b"),
        ("SGLang", r"\bNot enough memory\. Please try .{0,40}--mem-fraction-static"),
        ("Text Generation Inference", r"\bNot enough memory to handle \d+ (?:prefill|total) tokens"),
        ("bitsandbytes", r"\bError out of memory at line \d+ in file\b"),
        ("CatBoost", r"\bTOutOfMemoryError\b|\bError: Out of memory\. Requested [\d.]+(?: MB)?; Free\b"),
        ("LightGBM", r"\[CUDA\] out of memory\b"),
        ("OpenCV", r"Gpu API call(?:\) | \()out of memory"),
        ("CUDA.jl, Blender", r"(?i:\bout of GPU memory\b)"),
        ("Vulkan", r"\bErrorOutOfDeviceMemory\b"),
    )
}  # fmt: skip
#: The signature that is the name of an error, which also occurs in settings and in prose.
_ERROR_NAME = "PyTorch, the class"

#: Every line that matches a signature contains at least one of these, in upper or lower case.
KEYWORDS = (
    *("out of memory", "outofmemory", "out_of_memory", "out of gpu memory"),
    *("outofdevicememory", "memoryallocation", "cudacachingallocator"),
    *("oom when allocating", "alloc_failed", "allocation_failed", "failed to allocate", "cuda calloc"),
    *("no available memory", "free memory on device", "not enough memory"),
    *("no executable batch size", "pool size exceeded"),
)

#: Number of characters on each side of a report that are searched for context.
_CONTEXT_CHARS = 200


def has_keyword(text: str) -> bool:
    """Returns whether the text may match a signature."""
    lower = text.lower()
    return any(word in lower for word in KEYWORDS)


def is_signature(text: str) -> bool:
    """Returns whether the line is a library's report that GPU memory is exhausted."""
    for name, pattern in SIGNATURES.items():
        if found := pattern.search(text):
            before = text[: found.start()]
            is_mention = name == _ERROR_NAME and MENTION.search(before[-_CONTEXT_CHARS:])
            return not ADVICE.search(before) and not is_mention
    return False


def is_printed_oom(text: str) -> bool:
    """Returns whether the line is a program's own message that it ran out of GPU memory."""
    if HANDLED.search(text):
        return False
    for found in PRINTED_ERROR.finditer(text):
        before = text[max(0, found.start() - _CONTEXT_CHARS) : found.start()]
        behind = text[found.end() : found.end() + _CONTEXT_CHARS]
        if CLAUSE_START.search(before) and CLAUSE_END.match(behind):
            return not MENTION.search(before) and not ADVICE.search(before)
    return False


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
    of_first_failed = [
        i for i in ends if end.first_failed_rank and lines[i].rank in ("", end.first_failed_rank)
    ]
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
