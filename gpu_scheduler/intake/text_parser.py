"""Parses the text of a jobs file into lines, incrementally.

Only changes are parsed: unchanged text at the beginning and at the end keeps its lines, so the cost depends
on the size of the change, not on the length of the file.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gpu_scheduler.core.jobsfile import shell_syntax, torn_append
from gpu_scheduler.core.jobsfile.job_line import LineResult, Malformed, ParsedJob, parse_line
from gpu_scheduler.core.jobsfile.reading import Line, Reading, line_from_result
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.intake import bash_check
from gpu_scheduler.intake.continuations import MAX_LINES_AHEAD, find_continuations

_UTF8_FORM = "text in UTF-8; save the file as UTF-8"
#: Maximum number of cached mistakes, and of cached results of bash.
_MAX_CACHED = 10_000


@dataclass(frozen=True)
class ParsedText:
    """A parsed text. count: the number of its lines, including blank ones and comments; lines: those that are
    jobs or mistakes; mistakes: the malformed ones among them."""

    content: bytes = b""
    line_count: int = 0
    lines: tuple[Line, ...] = ()
    malformed: tuple[Line, ...] = ()

    @property
    def can_be_extended(self) -> bool:
        """True if no appended line can be part of an existing one or change its meaning."""
        if not self.content.endswith(b"\n"):
            return not self.content
        if not self.malformed:
            return True
        near = self.malformed[-1].number > self.line_count - MAX_LINES_AHEAD
        continued = self.content[-1024:].rstrip().endswith(b"\\")
        return (
            not near and not continued and all(line.problem != torn_append.REASON for line in self.malformed)
        )


class TextParser:
    """Parses the successive texts of one jobs file.

    cwd: the working folder of its lines; home: the expansion of `~/`; known_gpus: the existing GPU indices,
    None accepts any.
    """

    def __init__(self, cwd: str, home: str, known_gpus: frozenset[int] | None) -> None:
        self._cwd, self._home, self._known_gpus = cwd, home, known_gpus
        #: The result for a raw line on its own, for lines that ended up as mistakes: bash checks them once.
        self._parsed_alone: dict[bytes, LineResult] = {}
        self._completeness: dict[str, bool] = {}

    def parse(self, content: bytes, before: ParsedText, previous: Reading) -> ParsedText:
        """Parses a new version of the text. before: the version before; previous: the last reading."""
        head, tail = _unchanged_ends(before.content, content)
        raws = list(io.BytesIO(content[head : len(content) - tail]))
        first, after = _count_lines(content[:head]), _count_lines(content[len(content) - tail :])
        count = first + len(raws) + after
        kept = before.lines[: _count_up_to(before.lines, first)]
        moved = before.lines[_count_up_to(before.lines, before.line_count - after) :]
        last = tuple(line.with_number(line.number + count - before.line_count) for line in moved)
        read = self._parse_lines(raws)
        if not before.malformed and not any(isinstance(result, Malformed) for result in read):
            lines = (*kept, *_make_lines(raws, first, read), *last)
        else:
            raws = list(io.BytesIO(content))
            results: list[LineResult | Line] = [None] * count
            results[first : first + len(read)] = read
            for line in (*kept, *last):
                results[line.number - 1] = line
            wrong = [line.number - 1 for line in (*kept, *last) if line.malformed]
            for index, result in zip(wrong, self._parse_lines([raws[i] for i in wrong]), strict=True):
                results[index] = result
            lines = _make_lines(raws, 0, self._apply_context(raws, 0, results, previous))
        if not before.lines:
            lines = _reuse_known(lines, previous)
        return ParsedText(content, count, lines, tuple(line for line in lines if line.malformed))

    def parse_appended(
        self, content: bytes, before: ParsedText, previous: Reading, limit: int | None
    ) -> tuple[ParsedText, tuple[Line, ...]]:
        """Parses about `most` lines (None: all) that `content` adds to `before`.

        Returns the extended text and the lines added. before: the beginning of `content`; it has to be
        closed.
        """
        stream = io.BytesIO(content)
        stream.seek(len(before.content))
        raws: list[bytes] = []
        read: list[LineResult] = []
        while True:
            more = list(islice(stream, MAX_LINES_AHEAD if raws else limit))
            raws += more
            read += self._parse_lines(more)
            lines = _make_lines(
                raws, before.line_count, self._apply_context(raws, before.line_count, read, previous)
            )
            mistakes = (*before.malformed, *(line for line in lines if line.malformed))
            text = ParsedText(
                content[: stream.tell()], before.line_count + len(raws), (*before.lines, *lines), mistakes
            )
            if text.can_be_extended or len(text.content) == len(content):
                return text, lines

    def spec_of(self, line: Line) -> JobSpec:
        """Returns the job of a well-formed line, parsing the line again if it does not keep its job."""
        if line.spec is not None:
            return line.spec
        for known in (self._known_gpus, None):
            result = parse_line(line.raw, self._cwd, self._home, known)
            if isinstance(result, ParsedJob):
                return result.spec
        raise AssertionError(f"no job: {line}")

    def _parse_lines(self, raws: Sequence[bytes]) -> list[LineResult]:
        """Parses each line on its own; bash checks all of them at once."""
        found: dict[bytes, LineResult] = {}
        asking: dict[bytes, str] = {}
        for raw in raws:
            if raw in found:
                continue
            found[raw] = result = (
                self._parsed_alone[raw] if raw in self._parsed_alone else self._parse_one(raw)
            )
            if isinstance(result, ParsedJob) and result.needs_bash_check and raw not in self._parsed_alone:
                asking[raw] = result.spec.command or ""
        refused = bash_check.find_refusals(list(asking.values())) if asking else {}
        for raw, command in asking.items():
            if command in refused:
                refusal = refused[command]
                found[raw] = Malformed(refusal.reason, shell_syntax.ACCEPTED_FORM, refusal.unfinished)
        return [found[raw] for raw in raws]

    def _parse_one(self, raw: bytes) -> LineResult:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            column = len(raw[: error.start].decode("utf-8")) + 1
            reason = f"column {column}: byte 0x{raw[error.start]:02x} is not UTF-8"
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                reason += "; the file looks like UTF-16"
            return Malformed(reason, _UTF8_FORM)
        return parse_line(text, self._cwd, self._home, self._known_gpus)

    def _apply_context(
        self, raws: Sequence[bytes], lines_before: int, alone: Sequence[LineResult | Line], previous: Reading
    ) -> Sequence[LineResult | Line]:
        """Corrects the results of lines parsed on their own by their context.

        before: the number of lines of the file before them. A Line among the results is an unchanged line.
        """
        if not any(isinstance(result, Malformed) for result in alone):
            return alone
        texts = [_decode(raw).rstrip("\r\n") for raw in raws]
        results = list(alone)
        self._keep_accepted(texts, results, previous)
        for index, malformed in find_continuations(texts, results, self._is_complete, lines_before).items():
            if results[index] is not None:
                results[index] = malformed
        if len(self._parsed_alone) > _MAX_CACHED:
            self._parsed_alone.clear()
        for raw, result, by_itself in zip(raws, results, alone, strict=True):
            if isinstance(result, Malformed) and not isinstance(by_itself, Line):
                self._parsed_alone[raw] = by_itself
        return results

    def _keep_accepted(
        self, texts: Sequence[str], results: list[LineResult | Line], previous: Reading
    ) -> None:
        """Keeps a line that has been a job valid when GPUs are removed; its job waits instead."""
        good = {line.raw.rstrip("\r\n") for line in previous if not line.malformed}
        for index, text in enumerate(texts):
            if not isinstance(results[index], Malformed) or text not in good:
                continue
            reparsed = parse_line(text, self._cwd, self._home, None)
            # A line that bash refuses is Parsed both times, and stays refused.
            now = parse_line(text, self._cwd, self._home, self._known_gpus)
            if isinstance(reparsed, ParsedJob) and isinstance(now, Malformed):
                results[index] = reparsed

    def _is_complete(self, text: str) -> bool:
        if len(self._completeness) > _MAX_CACHED:
            self._completeness.clear()
        if text not in self._completeness:
            self._completeness[text] = bash_check.is_complete(text)
        return self._completeness[text]


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _make_lines(
    raws: Sequence[bytes], lines_before: int, results: Sequence[LineResult | Line]
) -> tuple[Line, ...]:
    """Returns the lines that follow the first `before` ones, without blank lines and comments."""
    return tuple(
        result if isinstance(result, Line) else line_from_result(number, _decode(raw), result)
        for number, (raw, result) in enumerate(zip(raws, results, strict=True), lines_before + 1)
        if result is not None
    )


def _reuse_known(lines: tuple[Line, ...], previous: Reading) -> tuple[Line, ...]:
    """Returns the lines, reusing equal ones of the last reading to save memory."""
    same = [
        old if line.is_identical_to(old) and not line.malformed else line
        for line, old in zip(lines, previous, strict=False)
    ]
    return (*same, *lines[len(same) :])


def _count_up_to(lines: Sequence[Line], number: int) -> int:
    """Returns how many of the lines are among the first `number` lines of the file."""
    return bisect_right(lines, number, key=lambda line: line.number)


def _count_lines(content: bytes) -> int:
    """Returns the number of lines of a text that begins with a complete one."""
    return content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))


def _unchanged_ends(old: bytes, new: bytes) -> tuple[int, int]:
    """Returns how many bytes, in whole lines, two texts share at their beginning, and then at their end."""
    head = new.rfind(b"\n", 0, _common_prefix(old, new, min(len(old), len(new)))) + 1
    most = min(len(old), len(new)) - head
    tail = _common_suffix(old, new, most)
    if not (_begins_line(old, len(old) - tail) and _begins_line(new, len(new) - tail)):
        tail = len(new) - (new.find(b"\n", len(new) - tail) + 1) if b"\n" in new[len(new) - tail :] else 0
    return head, tail


def _begins_line(content: bytes, at: int) -> bool:
    return at == 0 or content[at - 1 : at] == b"\n"


def _common_prefix(one: bytes, other: bytes, limit: int) -> int:
    """Returns the length of the common beginning, by bisection, which compares at memory speed."""
    low = 0
    while low < limit:
        middle = (low + limit + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            limit = middle - 1
    return low


def _common_suffix(one: bytes, other: bytes, limit: int) -> int:
    low = 0
    while low < limit:
        middle = (low + limit + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            limit = middle - 1
    return low
