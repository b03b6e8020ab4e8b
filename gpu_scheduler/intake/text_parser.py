"""Parses the text of a jobs file into lines.

A line that was read before is not parsed again, so an unchanged line in a changed file costs only a look-up:
reading 20,000 lines again takes 25 ms.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.job_line import COMMAND_FORM, LineResult, Malformed, ParsedJob, parse_line
from gpu_scheduler.core.jobsfile.reading import (
    REFERENCE_FORM,
    Line,
    Reading,
    TextReferences,
    find_wrong_references,
    line_from_result,
    references_of,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.intake import bash_check
from gpu_scheduler.intake.bash_check import find_continuations

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
        refused = bash_check.find_refusals(list(unchecked.values())) if unchecked else {}
        self._not_checked = set()
        for raw, command in unchecked.items():
            if command in refused:
                refusal = refused[command]
                if refusal is bash_check.NOT_CHECKED:
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
