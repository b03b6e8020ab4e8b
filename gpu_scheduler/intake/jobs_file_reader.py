"""Polls one jobs file to find the lines that count now and the malformed lines.

The reader never writes the file, and it holds no state that must survive a restart: the caller supplies the
last reading, and the reader remembers only the file's content and the time of the last change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_scheduler.core.jobsfile import debounce
from gpu_scheduler.core.jobsfile.diff import AcceptedLines
from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.jobsfile.references import malformed_names, uncounted_names
from gpu_scheduler.core.model.job_name import meant_by
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.intake.jobs_file_content import JobsFile, is_open_for_writing
from gpu_scheduler.intake.text_parser import ParsedText, TextParser
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind

_NONE: Mapping[str, WaitReason] = {}


@dataclass(frozen=True)
class Poll:
    """The result of one poll of the file.

    accepted   the lines that count now, for `ReadingDiff`; None if nothing changes.
    waits      the jobs that must not start because of the state of their lines, with the reasons.
    recheck_at the monotonic time in seconds at which a pending line may count even if the file does not
               change again; None if no line is pending.
    malformed  the malformed lines of the current reading.
    problem    why the file cannot be read; None if it can be read.
    uncounted  the names of lines that are malformed or do not count yet, with the reasons for which the jobs
               that refer to them must not start.
    names      the names of all well-formed lines in the file, including those that do not count yet.
    missing    whether the problem is that the file does not exist.
    has_more   whether further lines can be read immediately.
    """

    accepted: AcceptedLines | None
    waits: Mapping[int, WaitReason]
    recheck_at: float | None
    malformed: tuple[Line, ...]
    problem: str | None = None
    missing: bool = False
    has_more: bool = False
    uncounted: Mapping[str, WaitReason] = field(default_factory=dict)
    names: Collection[str] = ()


class JobsFileReader:
    """Polls one jobs file.

    cwd: the working folder of the file's lines; home: the folder that `~` stands for; known_gpus: the indices
    of the existing GPUs, or None to accept any index; batch_lines: the approximate number of appended lines
    to read at a time, or None to read all of them; trust: accept the file regardless of its owner and mode;
    exists: returns whether a reference is the id or the name of a job, or None to accept any reference.
    """

    def __init__(
        self,
        path: Path,
        cwd: str,
        home: str,
        known_gpus: frozenset[int] | None = None,
        batch_lines: int | None = None,
        *,
        trust: bool = False,
        exists: Callable[[str], bool] | None = None,
    ) -> None:
        self.path = path
        self._file = JobsFile(path, trust=trust)
        self._parser = TextParser(cwd, home, known_gpus, exists)
        self._batch_lines = batch_lines
        self._content: bytes | FileProblem | None = None
        self._unchanged_since = 0.0
        #: The parsed text. Its `lines` are the same object as the last reading if the two are equal.
        self._text = ParsedText()

    def poll(self, previous: Reading, jobs: Mapping[int, JobFact], now_s: float) -> Poll:
        """Reads the file if it has changed.

        previous: the last reading; jobs: the jobs of that reading, by id; now_s: monotonic time in seconds.
        An unchanged file costs one stat call as long as the same object `previous` is passed. If lines were
        only appended, only those lines are parsed. Raises OSError if memory, processes or open files run out.
        """
        content = self._file.read()
        if content is not self._content:
            self._content, self._unchanged_since = content, now_s
        if isinstance(content, FileProblem):
            missing = content.kind is ProblemKind.MISSING
            return Poll(None, {}, None, _malformed(previous), str(content), missing)
        if previous is not self._text.lines:
            if not _are_identical(previous, self._text.lines):
                return self._poll_whole(content, previous, jobs, now_s)
            # Drop the specs of the new jobs, because these jobs are now in the store.
            self._text = replace(self._text, lines=previous)
        if content == self._text.content and not self._parser.has_found(self._text.missing):
            return self._with_names(Poll(None, {}, None, self._text.malformed), self._text)
        if self._text.can_be_extended and content.startswith(self._text.content):
            before = self._text
            text = self._parser.parse(content, before=before, limit=self._batch_lines)
            if not any(meant_by(one, text.references.names) for one in before.missing):
                return self._poll_appended(before, text, content, now_s)
        return self._poll_whole(content, previous, jobs, now_s)

    def spec_of(self, line: Line) -> JobSpec:
        """Returns the job specification of a well-formed line from the last poll."""
        return self._parser.spec_of(line)

    def _poll_whole(
        self, content: bytes, previous: Reading, jobs: Mapping[int, JobFact], now_s: float
    ) -> Poll:
        """Compares the whole text with the last reading."""
        if content != self._text.content or self._parser.has_found(self._text.missing):
            known = previous if previous is self._text.lines else (*previous, *self._text.lines)
            self._text = self._parser.parse(content, known, accepted=previous)
        text = self._text
        decision = self._decide(previous, text.lines, jobs, now_s)
        if decision.accepted is None and decision.recheck_at is None and decision.none_missing:
            self._text = replace(self._text, lines=previous, malformed=_malformed(previous))
        reading = previous if decision.accepted is None else decision.accepted.lines
        poll = Poll(decision.accepted, decision.waits, decision.recheck_at, _malformed(reading))
        uncounted = uncounted_names(text.lines, reading, decision.recheck_at)
        return self._with_names(poll, text, uncounted)

    @staticmethod
    def _with_names(poll: Poll, text: ParsedText, uncounted: Mapping[str, WaitReason] = _NONE) -> Poll:
        """Returns the result of a poll with the names in the text."""
        wrong = malformed_names(text.references)
        return replace(poll, uncounted={**uncounted, **wrong}, names=text.references.names)

    def _poll_appended(self, before: ParsedText, text: ParsedText, content: bytes, now_s: float) -> Poll:
        """Reads the lines that were appended to the last reading, without comparing the lines before them.

        Comparing the whole file takes 12 times as long: 23 ms instead of 2 ms for 10,000 lines.
        """
        lines = text.lines[len(before.lines) :]
        decision = self._decide((), lines, {}, now_s)
        accepted = decision.accepted and replace(decision.accepted, unchanged=before.lines)
        counted = accepted.lines if accepted is not None else ()
        if len(counted) == len(lines):
            self._text = text
        elif counted:
            # The last line has no line ending yet, so it does not count yet.
            self._text = self._parser.parse(content[: content.rfind(b"\n") + 1], before=before)
        more = len(text.content) < len(content)
        mistakes = (*before.malformed, *_malformed(counted))
        poll = Poll(accepted, {}, now_s if more else decision.recheck_at, mistakes, has_more=more)
        return self._with_names(poll, text, uncounted_names(lines, counted, decision.recheck_at))

    def _decide(
        self, previous: Reading, lines: tuple[Line, ...], jobs: Mapping[int, JobFact], now_s: float
    ) -> debounce.AcceptDecision:
        current = debounce.CurrentLines(lines, self._unchanged_since)
        decision = debounce.decide_accepted(previous, current, jobs, now_s)
        late = now_s >= self._unchanged_since + debounce.LAST_LINE_DELAY_S
        if late and decision.accepted is not None and is_open_for_writing(self.path):
            return debounce.decide_accepted(previous, replace(current, open_for_writing=True), jobs, now_s)
        return decision


def _malformed(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(line for line in lines if line.malformed)


def _are_identical(one: Sequence[Line], other: Sequence[Line]) -> bool:
    return len(one) == len(other) and all(
        a is b or a.is_identical_to(b) for a, b in zip(one, other, strict=True)
    )
