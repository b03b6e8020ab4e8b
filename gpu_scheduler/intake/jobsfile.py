"""The watcher's eye on one jobs file: what of it counts now, and what is wrong with it.

It reads the file and never writes it. It keeps no truth that a restart would miss: the last reading is given
to it, and all that it remembers is since when the file stands as it does, and lines that it has parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.core import saves, shelltext
from gpu_scheduler.core.facts import JobFact
from gpu_scheduler.core.jobline import LineResult, Malformed, Parsed, parse_line
from gpu_scheduler.core.lines import Line, ParsedLine, Reading, parsed_line
from gpu_scheduler.core.reading import Accepted
from gpu_scheduler.intake import bashcheck
from gpu_scheduler.intake.filelook import FileLook, JobsFile, being_written
from gpu_scheduler.intake.multiline import with_completions

_UTF8 = "text in UTF-8; save the file as UTF-8"


@dataclass(frozen=True)
class MalformedLine:
    """A line that is no job, to be reported until it is mended."""

    path: str
    number: int
    text: str
    reason: str
    accepted: str

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 120 else self.text[:117] + "…"
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
        return f"{self.path}:{self.number}: `{shown}`: {self.reason}\n  accepted: {self.accepted}"


@dataclass(frozen=True)
class Poll:
    """What one look at the file comes to.

    accepted   the lines that count now, to be given to `reading.diff`; None = nothing changes.
    gone       waiting jobs that must not be started because their line is not in the file as it stands.
    next_look  monotonic seconds at which something may count without a further change; None = nothing waits.
    malformed  the mistakes in the reading as it is now.
    problem    why the file cannot be read, None = it can; `missing` tells an absent file from the rest.
    """

    accepted: Accepted | None
    gone: frozenset[int]
    next_look: float | None
    malformed: tuple[MalformedLine, ...]
    problem: str | None = None
    missing: bool = False


@dataclass(frozen=True)
class _Read:
    text: str
    result: LineResult


class JobsFileReader:
    """Looks at one jobs file. cwd: the working folder of its lines; home: what `~/` stands for; known_gpus:
    the indices there are, None = any."""

    def __init__(self, path: Path, cwd: str, home: str, known_gpus: frozenset[int] | None = None) -> None:
        self.path = path
        self._file = JobsFile(path)
        self._cwd, self._home, self._known_gpus = cwd, home, known_gpus
        self._look: FileLook | None = None
        self._since = 0.0
        self._cache: dict[bytes, _Read] = {}
        self._completes: dict[str, bool] = {}
        self._lines: tuple[ParsedLine, ...] = ()
        self._quiet: Reading | None = None

    def poll(self, previous: Reading, jobs: Mapping[int, JobFact], now_s: float) -> Poll:
        """What counts now. previous: the last reading; jobs: how its jobs stand; now_s: monotonic seconds.

        An unchanged file costs one stat as long as the very same `previous` is given.
        """
        look = self._file.look()
        if look is not self._look:
            self._look, self._since, self._quiet = look, now_s, None
            if look.state == "present":
                self._lines = self._parse(look.lines, previous)
        if look.state != "present":
            mistakes = self._mistakes(previous)
            return Poll(None, frozenset(), None, mistakes, look.problem, look.state == "missing")
        if self._quiet is previous:
            return Poll(None, frozenset(), None, self._mistakes(previous))
        decision = saves.decide(previous, saves.Content(self._lines, self._since), jobs, now_s)
        late = now_s >= self._since + saves.LAST_LINE_S
        if late and decision.accepted is not None and being_written(self.path):
            content = saves.Content(self._lines, self._since, written=True)
            decision = saves.decide(previous, content, jobs, now_s)
        if decision.accepted is None and decision.next_look is None and decision.whole:
            self._quiet = previous
        lines = previous if decision.accepted is None else decision.accepted.lines
        return Poll(decision.accepted, decision.gone, decision.next_look, self._mistakes(lines))

    def _mistakes(self, lines: Sequence[Line]) -> tuple[MalformedLine, ...]:
        return tuple(
            MalformedLine(str(self.path), line.number, line.text, line.problem, line.accepted or "")
            for line in lines
            if line.problem is not None
        )

    def _parse(self, raws: Sequence[bytes], previous: Reading) -> tuple[ParsedLine, ...]:
        self._read_new(raws)
        reads = [self._cache[raw] for raw in raws]
        results = [read.result for read in reads]
        if any(isinstance(result, Malformed) for result in results):
            self._keep_known(reads, results, previous)
            texts = [read.text.rstrip("\r\n") for read in reads]
            for index, malformed in with_completions(texts, results, self._is_whole).items():
                if results[index] is not None:
                    results[index] = malformed
        before = {line.number: line for line in self._lines}
        lines = []
        for number, (read, result) in enumerate(zip(reads, results, strict=True), 1):
            if result is None:
                continue
            old = before.get(number)
            same = old is not None and old.raw == read.text and old.problem is None
            if old is not None and same and isinstance(result, Parsed) and old.spec is result.spec:
                lines.append(old)
            else:
                lines.append(parsed_line(number, read.text, result))
        return tuple(lines)

    def _read_new(self, raws: Sequence[bytes]) -> None:
        """Parse every line that is not known yet; bash is asked about all of them at once."""
        known = self._cache
        self._cache = {raw: known[raw] if raw in known else self._read(raw) for raw in raws}
        asking = {
            raw: read.result.spec.command or ""
            for raw, read in self._cache.items()
            if raw not in known and isinstance(read.result, Parsed) and read.result.ask_bash
        }
        refused = bashcheck.refusals(list(asking.values())) if asking else {}
        for raw, command in asking.items():
            if command in refused:
                refusal = refused[command]
                result = Malformed(refusal.reason, shelltext.ACCEPTED, refusal.unfinished)
                self._cache[raw] = _Read(self._cache[raw].text, result)

    def _read(self, raw: bytes) -> _Read:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text = raw.decode("utf-8", "backslashreplace")
            column = len(raw[: error.start].decode("utf-8")) + 1
            reason = f"column {column}: byte 0x{raw[error.start]:02x} is not UTF-8"
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                reason += "; the file looks like UTF-16"
            return _Read(text, Malformed(reason, _UTF8))
        return _Read(text, self._parse_text(text))

    def _keep_known(self, reads: list[_Read], results: list[LineResult], previous: Reading) -> None:
        """A line that has been a job stays one when GPUs are fewer than they were; its job waits instead."""
        good = {line.raw.rstrip("\r\n") for line in previous if not line.malformed}
        for index, read in enumerate(reads):
            if not isinstance(results[index], Malformed) or read.text.rstrip("\r\n") not in good:
                continue
            anew = parse_line(read.text, self._cwd, self._home, None)
            # What bash refuses is Parsed both times, and stays refused.
            if isinstance(anew, Parsed) and isinstance(self._parse_text(read.text), Malformed):
                results[index] = anew

    def _parse_text(self, text: str) -> LineResult:
        return parse_line(text, self._cwd, self._home, self._known_gpus)

    def _is_whole(self, text: str) -> bool:
        if len(self._completes) > 10_000:
            self._completes.clear()
        if text not in self._completes:
            self._completes[text] = bashcheck.completes(text)
        return self._completes[text]
