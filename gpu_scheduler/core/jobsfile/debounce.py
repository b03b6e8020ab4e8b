"""Debounces changes to a jobs file: decides which lines count now, and when the other changes will count.

Editors and programs write files in pieces, so additions count early and removals count late. The section
"Jobs file" of docs/design.md explains the delays. The decision depends only on the last reading, the current
lines and the time for which the file has been unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.attributes import FLAGS
from gpu_scheduler.core.jobsfile.diff import AcceptedLines, LinePairs, find_typos, match_lines
from gpu_scheduler.core.jobsfile.job_line import Malformed, looks_like_csv
from gpu_scheduler.core.jobsfile.reading import Line, Reading, line_from_result
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import ACTIVE

# Detects a torn append: a second line that was appended to a last line without a line ending.
#
# Such a last line has grown since it was read: either somebody has edited it, or a program has appended
# another line to it. Only the text can show which of the two happened, so the answer is wrong if one case
# looks like the other.


REASON = "a second line was appended to a line that had no line ending"
_TORN_APPEND = Malformed(REASON, "two separate lines or, if it is meant as a single line, [] in front of it")

_PROGRAMS = re.compile(
    r"(?:python|pypy|bash|sh|zsh|env|conda|mamba|micromamba|torchrun|accelerate|deepspeed|uv|uvx|poetry|pipenv"
    r"|make|nohup|time|timeout|nice|cd|echo|printf|sleep|export|source|srun|mpirun|mpiexec|jupyter|papermill"
    r"|Rscript|julia|perl|ruby|node|docker|podman|apptainer|singularity|wget|curl|rsync|cp|mv|rm|mkdir|git"
    r"|for|if|while|until|test|true|false)[0-9.]*"
)
_ASSIGNMENTS = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*=\S*[ \t]+)*")
_BLOCK = re.compile(r"\[(?P<items>[^\]]*)\][ \t]+\S")
_SECOND_IS_PATH = re.compile(r'[+-]?[0-9]*[ \t]*,(?:[ \t]*")?[^,"]*?(?:\.py|/)')
_SCRIPT = re.compile(r"(?:\.|~)/\S+")


def mark_torn_appends(previous: Reading, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Marks a line as malformed if it has grown since it was read and contains a second line."""
    known = {line.raw.rstrip("\r\n") for line in previous if line.problem == REASON}
    open_line = next((line for line in previous if not line.has_newline and not line.malformed), None)
    if open_line is not None and any(line.key == open_line.key for line in lines):
        open_line = None
    if open_line is None and not known:
        return lines
    programs = {_first_word(line.text) for line in previous if line.kind == "command"}
    return tuple(
        line_from_result(line.number, line.raw, _TORN_APPEND)
        if line.raw.rstrip("\r\n") in known
        or (open_line is not None and _contains_second_line(open_line, line, programs))
        else line
        for line in lines
    )


def _first_word(command: str) -> str:
    """Returns the first word of a command after its variable assignments."""
    words = command[_ASSIGNMENTS.match(command).end() :].split(None, 1)  # type: ignore[union-attr]
    return words[0] if words else ""


def _contains_second_line(before: Line, now: Line, programs: Collection[str]) -> bool:
    """Returns whether `now` consists of `before`, which had no line ending, and the start of another line.

    programs: words that begin commands elsewhere in the file.
    """
    grown = now.raw.rstrip("\r\n")
    old = before.raw.rstrip("\r\n")
    return grown.startswith(old) and starts_a_line(grown[len(old) :], {*programs, _first_word(before.text)})


def starts_a_line(tail: str, programs: Collection[str]) -> bool:
    """Returns whether text that was appended to a line looks like the beginning of another line."""
    if not tail or tail[0] in " \t#":
        return False
    tail = tail.removeprefix("\ufeff")
    block = _BLOCK.match(tail)
    if block is not None:
        return all("=" in item or item in FLAGS for item in block["items"].split())
    if looks_like_csv(tail) and _SECOND_IS_PATH.match(tail):
        return True
    word = _first_word(tail)
    assigned = bool(word) and not tail.startswith(word)
    return assigned or word in programs or bool(_PROGRAMS.fullmatch(word) or _SCRIPT.fullmatch(word))


#: Seconds for which the file must have been present and unchanged before a new or changed line counts; an
#: appended line counts at once.
CHANGED_DELAY_S = 2.0
#: Seconds for which the file must have been unchanged before a last line without a line ending counts.
LAST_LINE_DELAY_S = 5.0
#: Seconds for which the file must have been present and unchanged before removed or reordered lines count.
REMOVED_DELAY_S = 10.0
#: Seconds after which a file that a process has open for writing is read again.
WRITER_RECHECK_S = 1.0


class CurrentLines(Struct, frozen=True):
    """The current lines of the file, without comments and blank lines.

    unchanged_since: the monotonic time since which the file has been present and unchanged; open_for_writing:
    whether another process has the file open for writing.
    """

    lines: tuple[Line, ...]
    unchanged_since: float
    open_for_writing: bool = False


class AcceptDecision(Struct, frozen=True):
    """The result of `decide_accepted`.

    accepted: the lines that count now; None if nothing changes. waits: for each job that must not start, the
    reason: its line is missing or malformed, or has changed attributes that do not count yet. recheck_at: the
    monotonic time, in seconds, at which a change may begin to count even if the file stays the same; None for
    never. none_missing: whether the file still contains every line of the last reading.
    """

    accepted: AcceptedLines | None
    waits: Mapping[int, WaitReason]
    recheck_at: float | None
    none_missing: bool


def decide_accepted(
    previous: Reading, current: CurrentLines, jobs: Mapping[int, Job], now: float
) -> AcceptDecision:
    """Decides which lines count now. jobs: the jobs of the previous reading.

    A line that has become malformed stays in the reading, with its job, until it is fixed. Every other
    missing line counts as removed once its delay is over.
    """
    if current.lines == previous:
        return AcceptDecision(None, {}, None, none_missing=True)
    lines = mark_torn_appends(previous, current.lines)
    counted, last_due = _drop_unfinished(previous, lines, current, now)
    pairs = match_lines(previous, counted, jobs)
    malformed = find_typos(previous, counted, pairs)
    kept = set(pairs)
    lost = [i for i, line in enumerate(previous) if i not in kept and not line.malformed]
    olds = [old for old in pairs if old is not None and not previous[old].malformed]
    removed = [old for old in lost if old not in set(malformed.values())]
    removal_due = current.unchanged_since + REMOVED_DELAY_S
    due: float | None = None
    removed_at: float | None = None
    if not removed and olds == sorted(olds):
        accepted = _lines_as_in_file(previous, counted, pairs, malformed)
        due = None if _is_append_only(previous, counted, pairs) else current.unchanged_since + CHANGED_DELAY_S
    elif current.open_for_writing or now < removal_due:
        accepted = _merge_with_previous(previous, counted, pairs, malformed)
        due = current.unchanged_since + CHANGED_DELAY_S
        removed_at = removal_due if now < removal_due else None
        recheck_at = now + WRITER_RECHECK_S if removed_at is None else removed_at
        last_due = recheck_at if last_due is None else min(last_due, recheck_at)
    else:
        accepted = _lines_as_in_file(previous, counted, pairs, malformed)
        removed = []  # these lines count as removed now, and `diff` reports them
    waits = _waits_for_lost_lines(previous, counted, removed, removed_at, malformed, jobs)
    if due is not None and now < due:
        waits = {**_waits_for_changes(previous, accepted, jobs, due), **waits}
        return AcceptDecision(None, waits, due if _differs(previous, accepted) else last_due, not lost)
    return AcceptDecision(accepted if _differs(previous, accepted) else None, waits, last_due, not lost)


def _drop_unfinished(
    previous: Reading, lines: tuple[Line, ...], current: CurrentLines, now: float
) -> tuple[tuple[Line, ...], float | None]:
    """Returns the lines, except a new last line without a line ending, and when that last line will count."""
    if not lines or lines[-1].has_newline:
        return lines, None
    last = lines[-1].key
    before = sum(1 for line in previous if line.key == last)
    if before > sum(1 for line in lines[:-1] if line.key == last):
        return lines, None
    due = current.unchanged_since + LAST_LINE_DELAY_S
    if now < due:
        return lines[:-1], due
    return (lines[:-1], now + WRITER_RECHECK_S) if current.open_for_writing else (lines, None)


def _is_append_only(previous: Reading, counted: Sequence[Line], pairs: LinePairs) -> bool:
    return pairs[: len(previous)] == tuple(range(len(previous))) and all(
        old is line or old.is_equivalent_to(line) for old, line in zip(previous, counted, strict=False)
    )


def _with_typo_flag(line: Line, is_typo: bool) -> Line:
    return line if line.is_typo == is_typo else replace(line, is_typo=is_typo)


def _lines_as_in_file(
    previous: Reading, counted: Sequence[Line], pairs: LinePairs, malformed: Mapping[int, int]
) -> AcceptedLines:
    """Returns the lines in file order; a line that has become malformed follows its last valid version."""
    lines: list[Line] = []
    olds: list[int | None] = []
    for i, (line, old) in enumerate(zip(counted, pairs, strict=True)):
        if i in malformed:
            lines.append(previous[malformed[i]])
            olds.append(malformed[i])
        lines.append(_with_typo_flag(line, i in malformed))
        olds.append(old)
    return AcceptedLines(tuple(lines), tuple(olds))


def _merge_with_previous(
    previous: Reading, counted: Sequence[Line], pairs: LinePairs, malformed: Mapping[int, int]
) -> AcceptedLines:
    """Merges the lines of the last reading, in their order, with the current ones.

    Each old line has its current text or, if it is missing, its old text. It is followed by the malformed
    line that has replaced it, if any, and by the new lines that follow it in the file.
    """
    written: dict[int, Line] = {}
    behind: dict[int, list[Line]] = {}
    at = -1
    for i, (line, old) in enumerate(zip(counted, pairs, strict=True)):
        if old is not None:
            at = old
            written[old] = _with_typo_flag(line, i in malformed)
        else:
            at = malformed.get(i, at)
            behind.setdefault(at, []).append(_with_typo_flag(line, i in malformed))
    lines: list[Line] = []
    olds: list[int | None] = []
    for i in range(-1, len(previous)):
        if i >= 0 and (i in written or not previous[i].malformed):
            lines.append(written.get(i) or previous[i])
            olds.append(i)
        lines += behind.get(i, [])
        olds += [None] * len(behind.get(i, []))
    return AcceptedLines(tuple(lines), tuple(olds))


def _waits_for_lost_lines(
    previous: Reading,
    counted: Sequence[Line],
    removed: Collection[int],
    removed_at: float | None,
    malformed: Mapping[int, int],
    jobs: Mapping[int, Job],
) -> dict[int, WaitReason]:
    """Returns wait reasons for missing or malformed lines, by job.

    A missing line affects waiting jobs only. A malformed line affects jobs in every state, because a retry
    may queue a job before its line is fixed. A CSV job that has another equal line is not affected.
    """
    lost = {old: WaitReason(WaitKind.LINE_REMOVED, due_at=removed_at) for old in removed}
    lost |= {
        old: WaitReason(WaitKind.LINE_MALFORMED, line_number=counted[i].number)
        for i, old in malformed.items()
    }
    here = {line.identity for line in counted if line.kind == "csv"} if lost else set()
    waits: dict[int, WaitReason] = {}
    for old, wait in lost.items():
        job = jobs.get(previous[old].job_id or 0)
        if job is None or previous[old].identity in here:
            continue
        if wait.kind is WaitKind.LINE_MALFORMED or job.is_waiting:
            waits[job.id] = wait
    return waits


def _waits_for_changes(
    previous: Reading, accepted: AcceptedLines, jobs: Mapping[int, Job], due: float
) -> dict[int, WaitReason]:
    """Returns wait reasons for changed attributes, by job. Jobs with an open attempt are left out.

    Finished jobs are included, because a `retry` may queue them before the change counts.
    """
    waits: dict[int, WaitReason] = {}
    for line, old in zip(accepted.lines, accepted.pairs, strict=True):
        if old is not None and not line.is_equivalent_to(previous[old]):
            job = jobs.get(previous[old].job_id or 0)
            if job is not None and job.state not in ACTIVE:
                waits[job.id] = WaitReason(WaitKind.LINE_CHANGED, line_number=line.number, due_at=due)
    return waits


def _differs(previous: Reading, accepted: AcceptedLines) -> bool:
    """Returns whether the reading would change, even if only in the number or line ending of a line."""
    return len(previous) != len(accepted.lines) or any(
        old != i or not (line is previous[i] or line.is_identical_to(previous[i]))
        for i, (line, old) in enumerate(zip(accepted.lines, accepted.pairs, strict=True))
    )
