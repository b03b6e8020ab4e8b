"""Reads a jobs file from disk, and parses its text into lines.

A line that was read before is not parsed again, so an unchanged line in a changed file costs only a look-up:
reading 20,000 lines again takes 25 ms. Commands are checked with `bash -n`, which runs nothing.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.attributes import find_block_end
from gpu_scheduler.core.jobsfile.job_line import (
    COMMAND_FORM,
    SUBSCRIPT,
    LineResult,
    Malformed,
    ParsedJob,
    looks_like_csv,
    parse_line,
)
from gpu_scheduler.core.jobsfile.reading import (
    REFERENCE_FORM,
    JobShell,
    Line,
    Reading,
    TextReferences,
    find_wrong_references,
    line_from_result,
    references_of,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.text.parsing import mask_quoted
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind
from gpu_scheduler.system.shortages import reraise_shortage

#: Maximum size of a jobs file, in bytes and in lines. Each line takes about 2 KiB of memory.
MAX_BYTES = 64 * 1024 * 1024
MAX_LINES = 250_000
#: Two changes to a file within this many nanoseconds may produce the same timestamps, which are coarse.
_RACY_WINDOW_NS = 2_000_000_000


class JobsFile:
    """A jobs file that is read repeatedly. trust: accept the file regardless of its owner and mode."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self._trust = trust
        self._last_version: tuple[int, ...] | None = None
        self._last_content: bytes | FileProblem = FileProblem(ProblemKind.MISSING)

    def read(self) -> bytes | FileProblem:
        """Reads the file. Returns the same object as the last time if the file has not changed.

        Raises OSError if memory, processes or open files run out, which does not mean that the file is bad.
        """
        try:
            if self._last_version == safe_file.file_version(os.stat(self.path)):
                return self._last_content
        except OSError:
            pass  # the read below returns the reason
        found = safe_file.read(self.path, MAX_BYTES, trust=self._trust)
        if isinstance(found, FileProblem):
            reraise_shortage(found.as_error(self.path))
            self._last_version = None
            content: bytes | FileProblem = found
        else:
            changed_ns = max(found.status.st_mtime_ns, found.status.st_ctime_ns)
            settled = abs(time.time_ns() - changed_ns) > _RACY_WINDOW_NS
            self._last_version = safe_file.file_version(found.status) if settled else None
            content = _check_content(found.data)
        if content != self._last_content:
            self._last_content = content
        return self._last_content


def read_standard_input(fd: int) -> bytes | FileProblem:
    """Reads standard input, such as a pipe, to its end in place of a jobs file."""
    try:
        found = safe_file.read_descriptor(fd, MAX_BYTES)
    except OSError as error:
        return safe_file.problem_from_error(error)
    return found if isinstance(found, FileProblem) else _check_content(found)


def _check_content(content: bytes) -> bytes | FileProblem:
    """Returns the content, or the reason why it cannot be a jobs file."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return FileProblem(ProblemKind.WRONG_CONTENT, "is UTF-16 text; save it as UTF-8")
    if b"\0" in content:
        return FileProblem(ProblemKind.WRONG_CONTENT, "is binary: it contains NUL bytes")
    lines = content.count(b"\n")
    if lines > MAX_LINES:
        problem = f"has {lines:,} lines; a jobs file may have at most {MAX_LINES:,}"
        return FileProblem(ProblemKind.WRONG_CONTENT, problem)
    return content


def is_open_for_writing(path: Path) -> bool:
    """Returns whether a process has the file open for writing.

    If one has, the kernel refuses a read lease. Otherwise, it grants the lease, which is released at once.
    Returns False where leases are unavailable (on another user's file or on a network file system). Raises
    OSError if memory, processes or open files run out.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reraise_shortage(error)
        return False
    try:
        # If a process opens the file at this moment, the kernel breaks the lease and sends a signal. SIGURG
        # is ignored by default, whereas SIGIO would kill this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


# Parses the text.


_UTF8_FORM = "text in UTF-8; save the file as UTF-8"
#: Maximum number of malformed lines whose results are remembered.
_MAX_REMEMBERED = 10_000


class ParsedText(Struct, frozen=True):
    """A parsed text.

    lines: the lines that are jobs or mistakes; references: the names of the lines and those that they wait
    for; missing: the ids and names that malformed lines wait for and that no job had.
    """

    content: bytes = b""
    lines: tuple[Line, ...] = ()
    references: TextReferences = field(default_factory=TextReferences)
    missing: frozenset[str] = frozenset()


class TextParser:
    """Parses the successive texts of one jobs file.

    cwd: the working folder of the file's lines; home: the folder that `~` stands for; known_gpus: the indices
    of the existing GPUs, or None to accept any index; exists: returns whether a reference is the id or the
    name of a job, or None to accept any reference.
    """

    def __init__(
        self,
        cwd: str,
        home: str,
        known_gpus: frozenset[int] | None,
        exists: Callable[[str], bool] | None = None,
    ) -> None:
        self._cwd, self._home, self._known_gpus, self._exists = cwd, home, known_gpus, exists
        #: The results of parsing malformed lines alone, kept so that bash checks these lines only once.
        self._parsed_alone: dict[str, LineResult] = {}
        #: The commands that were not checked because too many others are wrong.
        self._not_checked: set[str] = set()
        #: The lines of the last text that only a reference makes wrong, as they are without it.
        self._with_wrong_reference: dict[str, Line] = {}

    def parse(self, content: bytes, known: Iterable[Line] = (), accepted: Reading = ()) -> ParsedText:
        """Parses a text.

        known: lines that were read before, which are not parsed again. A line that was a job therefore stays
        a job when its GPUs are removed, and that job waits. accepted: the last reading, whose lines may refer
        to names that are no longer in the text.
        """
        raws = list(io.StringIO(content.decode("utf-8", "surrogateescape"), newline="\n"))
        valid = {line.raw: line for line in known if line.identity is not None}
        lines = self._parse_lines(raws, {**valid, **self._with_wrong_reference})
        lines, missing = self._check_references(lines, accepted)
        return ParsedText(content, lines, TextReferences.of(lines), missing)

    def has_found(self, missing: Iterable[str]) -> bool:
        """Returns whether one of these ids and names now has a job."""
        return self._exists is not None and any(self._exists(one) for one in missing)

    def spec_of(self, line: Line) -> JobSpec:
        """Returns the job specification of a well-formed line. Parses the line again if necessary."""
        if line.spec is not None:
            return line.spec
        for known in (self._known_gpus, None):
            result = parse_line(line.raw, self._cwd, self._home, known)
            if isinstance(result, ParsedJob):
                return result.spec
        raise AssertionError(f"not a job: {line}")

    def _parse_lines(self, raws: Sequence[str], known: Mapping[str, Line]) -> tuple[Line, ...]:
        """Parses the lines of a file. Omits blank lines and comments."""
        alone: list[LineResult | Line] = [known.get(raw) for raw in raws]
        new = [index for index, line in enumerate(alone) if line is None]
        for index, result in zip(new, self._parse_alone([raws[index] for index in new]), strict=True):
            alone[index] = result
        wrong = [index for index in new if isinstance(alone[index], Malformed)]
        if wrong and known:
            # Perhaps only the line ending is new, because another line was appended after this one.
            same = {raw.rstrip("\r\n"): line for raw, line in known.items()}
            for index in wrong:
                line = same.get(raws[index].rstrip("\r\n"))
                if line is not None:
                    alone[index] = replace(line, raw=raws[index])
        results = self._apply_context(raws, alone)
        return tuple(
            result.with_number(number)
            if isinstance(result, Line)
            else line_from_result(number, _printable(raw) if isinstance(result, Malformed) else raw, result)
            for number, (raw, result) in enumerate(zip(raws, results, strict=True), 1)
            if result is not None
        )

    def _check_references(
        self, lines: tuple[Line, ...], accepted: Reading
    ) -> tuple[tuple[Line, ...], frozenset[str]]:
        """Returns the lines, with those marked that have a wrong reference, and the jobs that these miss."""
        if self._exists is None:
            return lines, frozenset()
        problems = find_wrong_references(lines, self._exists, accepted)
        self._with_wrong_reference = {lines[index].raw: lines[index] for index in problems}
        if not problems:
            return lines, frozenset()
        checked = list(lines)
        for index, problem in problems.items():
            line = lines[index]
            checked[index] = line_from_result(line.number, line.raw, Malformed(problem, REFERENCE_FORM))
        wanted = {one for index in problems for one in references_of(lines[index])}
        return tuple(checked), frozenset(one for one in wanted if not self._exists(one))

    def _parse_alone(self, raws: Sequence[str]) -> list[LineResult]:
        """Parses each line on its own. bash checks all the commands at once."""
        found: dict[str, LineResult] = {}
        unchecked: dict[str, str] = {}
        for raw in raws:
            if raw in found:
                continue
            if raw in self._parsed_alone:
                found[raw] = self._parsed_alone[raw]
                continue
            found[raw] = result = self._parse_one(raw)
            if isinstance(result, ParsedJob) and result.needs_bash_check:
                unchecked[raw] = result.spec.command or ""
        refused = find_refusals(list(unchecked.values())) if unchecked else {}
        self._not_checked = set()
        for raw, command in unchecked.items():
            if command in refused:
                refusal = refused[command]
                if refusal is NOT_CHECKED:
                    self._not_checked.add(raw)
                found[raw] = Malformed(refusal.reason, COMMAND_FORM, refusal.unfinished)
        return [found[raw] for raw in raws]

    def _parse_one(self, raw: str) -> LineResult:
        try:
            raw.encode()
        except UnicodeEncodeError as error:
            reason = f"column {error.start + 1}: byte 0x{ord(raw[error.start]) - 0xDC00:02x} is not UTF-8"
            if raw.startswith(("\udcff\udcfe", "\udcfe\udcff")):
                reason += "; the file looks like UTF-16"
            return Malformed(reason, _UTF8_FORM)
        return parse_line(raw, self._cwd, self._home, self._known_gpus)

    def _apply_context(
        self, raws: Sequence[str], alone: Sequence[LineResult | Line]
    ) -> Sequence[LineResult | Line]:
        """Returns the results, with each line that continues an unfinished command marked as a mistake.

        alone: the result of each line on its own, or the Line itself if it was read before.
        """
        if not any(isinstance(result, Malformed) for result in alone):
            return alone
        results = list(alone)
        texts = [raw.rstrip("\r\n") for raw in raws]
        for index, malformed in find_continuations(texts, alone).items():
            if results[index] is not None:
                results[index] = malformed
        if len(self._parsed_alone) > _MAX_REMEMBERED:
            self._parsed_alone.clear()
        for raw, result, by_itself in zip(raws, results, alone, strict=True):
            if (
                isinstance(result, Malformed)
                and not isinstance(by_itself, Line)
                and raw not in self._not_checked
            ):
                self._parsed_alone[raw] = by_itself
        return results


def _printable(raw: str) -> str:
    """Returns the line with each byte that is not UTF-8 replaced by an escape."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def parse_job_line(line: str, cwd: str, known_gpus: frozenset[int] | None) -> tuple[JobSpec, tuple[str, ...]]:
    """Returns the job specification that a line of a jobs file describes, and notes about the line.

    cwd: the absolute path of the working folder; known_gpus: the indices of the existing GPUs, or None to
    accept any index. Raises ValueError if the line is malformed.
    """
    parser = TextParser(cwd, os.path.expanduser("~"), known_gpus)
    [read] = parser.parse(f"{line}\n".encode()).lines
    if read.problem is not None:
        raise ValueError(read.problem)
    return parser.spec_of(read), read.notes


# Checks the syntax of commands, and describes the shell that runs jobs. One bash process checks many commands
# at once: for 20,000 lines this takes 0.5 s, whereas one process for each command would take 50 s. A command
# that spans several lines is reported as one mistake.


#: Timeout of one check, in seconds. If bash does not finish in time, the command is not rejected.
_TIMEOUT_S = 20.0
#: Exit codes that bash returns after it has read all of its input.
_CONCLUSIVE_EXIT_CODES = (0, 1, 2)
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}
#: Maximum number of lines searched for the end of a command.
MAX_LINES_AHEAD = 60
#: Matches a line that may end a compound command or, if it consists of one word, a here-document.
_CLOSES = re.compile(r"\b(?:done|fi|esac)\b|[})`]|^\w+$")
#: After this many rejections, the remaining suspect commands are treated as rejected without another check.
_MAX_REFUSALS = 200
#: Maximum number of commands that one bash process checks, far fewer than it manages before its timeout.
_MAX_BATCH = 5000
_FUNCTION, _END = "BASH_FUNC_", "%%"
_MESSAGE_PREFIX = re.compile(r"^bash: (?:-c: )?(?:line \d+: |warning: )*")


class BashRefusal(Struct, frozen=True):
    """The reason why bash rejects a command.

    unfinished: whether more lines could complete the command. False for an open quote, because quoted text
    never spans several lines of a jobs file.
    """

    reason: str
    unfinished: bool


#: The refusal of a command that was not checked, because too many others are wrong.
NOT_CHECKED = BashRefusal(
    f"not checked, because bash rejects {_MAX_REFUSALS} other commands in the file; fix those first", False
)


def find_refusals(commands: Sequence[str]) -> dict[str, BashRefusal]:
    """Returns the refusal of each command that bash rejects, by command; empty if bash is not installed.

    Raises OSError if memory, processes or open files run out.
    """
    found: dict[str, BashRefusal] = {}
    waiting: list[list[str]] = []
    together: list[str] = []
    for command in dict.fromkeys(commands):
        if _can_be_batched(command):
            together.append(command)
        else:
            waiting.append([command])
    waiting += [together[first : first + _MAX_BATCH] for first in range(0, len(together), _MAX_BATCH)]
    while waiting:
        some = waiting.pop()
        if len(found) >= _MAX_REFUSALS:
            found.update((command, NOT_CHECKED) for command in some)
        elif len(some) == 1:
            refusal = _check_one(some[0])
            if refusal is not None:
                found[some[0]] = refusal
        elif _syntax_error("".join(_ENCLOSED.format(command=command) for command in some)):
            half = len(some) // 2
            waiting += [some[:half], some[half:]]
    return found


#: Encloses each command of a batch in brackets. bash then rejects a command that closes a bracket it did not
#: open, and a command that leaves something open, because the closing brackets do not match. A command that
#: closes exactly these brackets and opens them again would pass, so `_can_be_batched` excludes it.
_ENCLOSED = "{{ ( {{ ( {command}\n) }} ) }}\n"
#: Matches a `[[ ]]` test with a missing operand. `bash -n` reports neither this error nor any error after it.
_EMPTY_TEST = re.compile(r"(?:\[\[|!|&&|\|\|)\s*\]\]")
_BRACKETS = re.compile(r"[(){}]")
#: Matches a substitution that begins inside double quotes. It may contain further quotes: `"$(echo "a")"`.
_QUOTED_SUBSTITUTION = re.compile(r'"[^"]*(?:\$[({]|`)')


def _can_be_batched(command: str) -> bool:
    """Returns whether bash checks the text after this command even if the command is wrong.

    May return False for a correct command, which is then checked alone.
    """
    bare = mask_quoted(command)
    if bare is None or "<<" in bare or _EMPTY_TEST.search(bare) or SUBSCRIPT.search(bare):
        return False
    # bash first looks for the end of a substitution, so the quoted brackets count too.
    text = command if _QUOTED_SUBSTITUTION.search(command) else bare
    count = text.count
    if count("(") != count(")") or count("{") != count("}") or count("`") % 2 or count('"') % 2:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "({" else -1
        if depth < 0:
            return False
    return True


@lru_cache(maxsize=1024)
def is_complete(text: str) -> bool:
    """Returns whether a text of one or more lines consists of complete commands.

    Raises OSError if memory, processes or open files run out.
    """
    return _syntax_error(text + "\n") == ""


def _syntax_error(script: str) -> str:
    """Returns the errors that bash reports for a script, or "" if there are none.

    Raises OSError if memory, processes or open files run out.
    """
    try:
        process = subprocess.run(
            ["bash", "--norc", "--noprofile", "-n"],
            input=script.encode("utf-8", "surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            reraise_shortage(error)
        return ""
    if process.returncode not in _CONCLUSIVE_EXIT_CODES:
        # bash could not be loaded or was killed, because memory or open files ran out.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "bash")
    return process.stderr.decode("utf-8", "replace").strip() or ("refused" if process.returncode else "")


def _check_one(command: str) -> BashRefusal | None:
    complaint = _syntax_error(command + "\n")
    if not complaint:
        return None
    lines = [_MESSAGE_PREFIX.sub("", line) for line in complaint.splitlines()]
    quote = any("looking for matching `\"'" in line or "looking for matching `''" in line for line in lines)
    ends_early = re.search(r"unexpected end of file|unexpected EOF|here-document", complaint)
    reason = lines[0].removeprefix("syntax error: ").removeprefix("syntax error ")
    return BashRefusal(f"bash rejects the command: {reason}", bool(ends_early) and not quote)


def find_continuations(texts: Sequence[str], results: Sequence[object]) -> dict[int, Malformed]:
    """Returns a mistake for each line that continues an unfinished command, by the index of the line.

    The lines that would complete an unfinished command are part of the same mistake, so the body of a loop
    never runs as a separate job. texts: the lines without their endings; results: the result for each line,
    which is a Malformed for a mistake.
    """
    found: dict[int, Malformed] = {}
    for index, result in enumerate(results):
        if index in found or not isinstance(result, Malformed) or not result.unfinished:
            continue
        reason = f"this line belongs to line {index + 1}, which is not a complete command"
        for other in range(index + 1, _command_end(texts, index)):
            found[other] = Malformed(reason, result.accepted_form)
    return found


def _command_end(texts: Sequence[str], start: int) -> int:
    """Returns the index after the last line of the command that begins at `start`.

    Returns start + 1 if no line completes the command.
    """
    behind = start
    while behind + 1 < len(texts) and _ends_in_backslash(texts[behind]):
        behind += 1
    if behind > start:
        return behind + 1
    first = texts[start].strip()
    if first.startswith("["):
        # bash would take the attribute block for a command and the rest of the line for its arguments.
        first = first[(find_block_end(first) or 0) + 1 :]
    for last in range(start + 1, min(len(texts), start + 1 + MAX_LINES_AHEAD)):
        text = texts[last].strip()
        if text.startswith("[") or looks_like_csv(text):
            return start + 1
        likely = last == start + 1 or _CLOSES.search(text)
        if likely and is_complete("\n".join([first, *texts[start + 1 : last + 1]])):
            return last + 1
    return start + 1


def _ends_in_backslash(text: str) -> bool:
    bare = text.rstrip(" \t")
    return bare.endswith("\\") and (len(bare) - len(bare.rstrip("\\"))) % 2 == 1


def job_shell(env: Mapping[str, str]) -> JobShell | None:
    """Returns the shell that runs the jobs of a scheduler with this environment.

    Returns None if bash would first source a user's file (BASH_ENV) or if the PATH is unknown. The result
    caches the programs that it has looked up, so create a new one for a later check.
    """
    if env.get("BASH_ENV") or "PATH" not in env:
        return None
    folders = env["PATH"].split(os.pathsep)
    known: dict[tuple[str, str], bool] = {}

    def finds(name: str, cwd: str) -> bool:
        if (name, cwd) not in known:
            paths = (os.path.join(cwd, folder, name) for folder in folders)
            known[name, cwd] = os.path.exists(os.path.join(cwd, name)) or any(
                os.path.isfile(path) and os.access(path, os.X_OK) for path in paths
            )
        return known[name, cwd]

    names = (name.removeprefix(_FUNCTION).removesuffix(_END) for name in env if name.startswith(_FUNCTION))
    return JobShell(finds, frozenset(names))
