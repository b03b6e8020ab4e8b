"""Compares two readings of a jobs file and returns the difference as actions on jobs.

The caller supplies the lines that count, which `debounce` determines, and the states of the jobs. The actions
are only returned here; the caller performs them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.jobsfile.attributes import FLAGS, find_block_end, format_attribute
from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.text.parsing import BLANK, find_comment

# Matches the lines of the current file with the lines of the last reading.


#: For each current line, the index of the matching line in the last reading; None if the line is new.
LinePairs = tuple["int | None", ...]


def match_lines(old: Sequence[Line], new: Sequence[Line], jobs: Mapping[int, Job]) -> LinePairs:
    """Matches each new line with an old one.

    Lines in the unchanged head and tail of the file match one to one. Between these, if the number of lines
    is the same, a line matches the old line at the same position if both have the same identity. The
    remaining lines are matched by identity: lines with the same attributes first, then in order.
    """
    if not old:
        return (None,) * len(new)
    pairs: list[int | None] = [None] * len(new)
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and (old[head] is new[head] or old[head].is_equivalent_to(new[head])):
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail].is_equivalent_to(new[-1 - tail]):
        tail += 1
    if len(old) != len(new):
        head, tail = _widen_stretch(old, new, head, tail)
    for i in range(head):
        pairs[i] = i
    for i in range(1, tail + 1):
        pairs[-i] = len(old) - i
    olds, news = range(head, len(old) - tail), range(head, len(new) - tail)
    if len(old) == len(new):
        for i in news:
            if old[i].content_key == new[i].content_key:
                pairs[i] = i
    kept = set(pairs)
    _match_stretch(
        old, new, [i for i in olds if i not in kept], [i for i in news if pairs[i] is None], jobs, pairs
    )
    return tuple(pairs)


def _widen_stretch(old: Sequence[Line], new: Sequence[Line], head: int, tail: int) -> tuple[int, int]:
    """Shortens head and tail by the lines next to the changed part that are equal to a line in that part.

    This is necessary because the position of a change does not show which of several equal lines was removed.
    Returns the new lengths of head and tail.
    """
    inside = {line.content_key for line in old[head : len(old) - tail]}
    inside.update(line.content_key for line in new[head : len(new) - tail])
    while head and old[head - 1].content_key in inside:
        head -= 1
    while tail and old[-tail].content_key in inside:
        tail -= 1
    return head, tail


def _match_stretch(
    old: Sequence[Line],
    new: Sequence[Line],
    olds: list[int],
    news: list[int],
    jobs: Mapping[int, Job],
    pairs: list[int | None],
) -> None:
    for same in (attrgetter("key"), attrgetter("content_key")):
        left = _group_by(old, olds, same)
        for group, new_group in _group_by(new, news, same).items():
            old_group = left.get(group, [])
            if len(old_group) > len(new_group):
                old_group = sorted(
                    sorted(old_group, key=lambda i: _removal_rank(old[i], jobs))[-len(new_group) :]
                )
            for new_index, old_index in zip(new_group, old_group, strict=False):
                pairs[new_index] = old_index
        taken = set(pairs)
        olds = [i for i in olds if i not in taken]
        news = [i for i in news if pairs[i] is None]


def _group_by(
    lines: Sequence[Line], indices: Iterable[int], key_of: Callable[[Line], Hashable]
) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in indices:
        groups[key_of(lines[index])].append(index)
    return groups


def find_typos(old: Sequence[Line], new: Sequence[Line], pairs: LinePairs) -> dict[int, int]:
    """Maps each new malformed line, by index, to the missing line of the last reading that it replaced.

    The replaced line is one with the same text after its attribute block or, if there is none, the nearest
    missing line. Each missing line is used only once. A malformed line is left out if no missing line remains
    for it. No line replaces a missing CSV line that has an equal line in the file, because that line's job is
    not lost.
    """
    fresh = [
        i
        for i, line in enumerate(new)
        if line.identity is None and ((at := pairs[i]) is None or old[at].is_typo)
    ]
    kept = set(pairs) if fresh else set()
    here = {line.identity for line in new if line.kind == "csv"} if fresh else set()
    lost = [
        at
        for at, line in enumerate(old if fresh else ())
        if at not in kept and not line.malformed and not (line.kind == "csv" and line.identity in here)
    ]
    if not lost:
        return {}
    places = _expected_indices(pairs)
    texts: dict[str, list[int]] = defaultdict(list)
    for at in lost:
        texts[_without_block(old[at].raw)].append(at)
    found: dict[int, int] = {}
    for i in fresh:
        same = texts.get(_without_block(new[i].raw))
        if same:
            found[i] = _take_nearest(same, places[i])
    taken = set(found.values())
    rest = [at for at in lost if at not in taken]
    for i in fresh:
        if i not in found and rest:
            found[i] = _take_nearest(rest, places[i])
    return found


def _expected_indices(pairs: LinePairs) -> list[int]:
    """Returns each line's index in the last reading.

    A new line gets the index that follows the one of the line before it.
    """
    places: list[int] = []
    for at in pairs:
        places.append(at if at is not None else (places[-1] if places else -1) + 1)
    return places


def _take_nearest(ascending: list[int], index: int) -> int:
    at = bisect_left(ascending, index)
    if at == len(ascending) or (at and index - ascending[at - 1] <= ascending[at] - index):
        at -= 1
    return ascending.pop(at)


def _without_block(raw: str) -> str:
    """Returns a line without its comment and its attribute block, even if the block is malformed."""
    text = raw.strip("\ufeff\r\n" + BLANK)
    if text.startswith("["):
        end = find_block_end(text)
        text = text[(text.find("]") if end is None else end) + 1 :].strip(BLANK)
    comment = find_comment(text)
    return text if comment is None else text[:comment].strip(BLANK)


def _removal_rank(line: Line, jobs: Mapping[int, Job]) -> tuple[int, int]:
    """Returns a sort key: of several equal lines, the one with the smallest key loses its job first.

    Finished jobs come first, then running, held and queued jobs. Within each kind, newer jobs come first.
    """
    job = jobs.get(line.job_id) if line.job_id is not None else None
    if job is None or job.state is JobState.FINISHED:
        rank = 0
    elif job.state in ACTIVE:
        rank = 1
    else:
        rank = 2 if job.state is JobState.HELD else 3
    return rank, -(line.job_id or 0)


class InsertJob(Struct, frozen=True):
    """Inserts a job for line `index` of the reading. duplicate_of: the newest job with the same text."""

    index: int
    number: int
    duplicate_of: str | None = None

    def log_message(self, job_id: int) -> str:
        """Returns the message to log once the job has its id."""
        if self.duplicate_of is None:
            return f"line {self.number}: job {job_id}"
        return f"line {self.number}: job {job_id}, with the same text as {self.duplicate_of}"


class RequeueFinished(Struct, frozen=True):
    """Queues the finished job of line `index` again, with the line's attributes (`hold` holds the job)."""

    index: int
    job: Job


class LineRemoved(Struct, frozen=True):
    """Cancels a waiting job whose line was removed."""

    job_id: int


class AttributeChanged(Struct, frozen=True):
    """Changes an attribute of a waiting or finished job. value: None if the line does not set it."""

    job_id: int
    name: str
    value: Any


class CancelRunning(Struct, frozen=True):
    """Cancels a job with an open attempt, because `cancel` was added to its line."""

    job_id: int


DiffAction = InsertJob | RequeueFinished | LineRemoved | AttributeChanged | CancelRunning


class AcceptedLines(Struct, frozen=True):
    """The lines that count now, each with its index in the last reading."""

    lines: tuple[Line, ...]
    pairs: LinePairs

    def new_identities(self) -> frozenset[str]:
        """Returns the identities of the new lines, for which `ReadingDiff` needs the newest jobs."""
        new = (line for line, old in zip(self.lines, self.pairs, strict=True) if old is None)
        return frozenset(line.identity for line in new if line.identity is not None)

    def first_batch(self, limit: int) -> AcceptedLines:
        """Returns the lines up to the new line number `limit`, or all lines if an old line follows it."""
        new = [index for index, old in enumerate(self.pairs) if old is None]
        if len(new) <= limit or new[limit:] != [*range(new[limit], len(self.lines))]:
            return self
        return AcceptedLines(self.lines[: new[limit]], self.pairs[: new[limit]])


def job_order(reading: Iterable[Line]) -> tuple[int, ...]:
    """Returns the jobs of a reading in the order of their lines."""
    return tuple(line.job_id for line in reading if line.job_id is not None)


def redistribute_positions(order: Sequence[int], positions: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Reassigns the queue positions of a file's queued jobs, so that they follow the order of the lines.

    positions: the queue positions of the file's queued jobs only. Returns (job, new position) for each job
    that moves.
    """
    queued = [job for job in order if job in positions]
    free = sorted(positions[job] for job in queued)
    return tuple((job, place) for job, place in zip(queued, free, strict=True) if positions[job] != place)


class ReadingDiff:
    """The difference between the previous reading and the accepted lines.

    actions, messages: in the order of the lines; binds_lines: whether a line gets a job that exists already;
    jobs: the jobs of the previous reading; newest: for each of `accepted.new_identities()`, its newest job,
    if any, from any file or front end.
    """

    def __init__(
        self,
        previous: Reading,
        accepted: AcceptedLines,
        jobs: Mapping[int, Job],
        newest: Mapping[str, Job],
    ) -> None:
        self.lines = accepted.lines
        self.actions: list[DiffAction] = []
        self.messages: list[str] = []
        self.binds_lines = False
        self._previous, self._pairs, self._jobs, self._newest = previous, accepted.pairs, jobs, newest
        self._job_ids: list[int | None] = [None] * len(accepted.lines)
        # Of several equal lines, the first one counts.
        csv = [line for line in reversed(previous) if line.kind == "csv"]
        self._previous_lines = {line.identity: line for line in csv}
        self._previous_jobs = {line.identity: line.job_id for line in csv if line.job_id is not None}
        self._diff_removed()
        self._diff_lines()

    def to_reading(self, new_jobs: Mapping[int, int]) -> Reading:
        """Returns the reading to keep. new_jobs: the ids of the new jobs, by the index of each InsertJob."""
        kept = enumerate(zip(self.lines, self._job_ids, strict=True))
        return tuple(line.with_job(new_jobs.get(i, job)) for i, (line, job) in kept)

    def _diff_lines(self) -> None:
        lines, pairs = self.lines, self._pairs
        newly = {
            line.identity: line for line, old in zip(lines, pairs, strict=True) if old is None
        }  # the last of several equal lines
        first: dict[str, int] = {}
        for index, (line, old) in enumerate(zip(lines, pairs, strict=True)):
            if line.identity is None:
                continue
            if old is None and line.identity not in first:
                self.messages += [f"line {line.number}: {note}" for note in line.notes]
            if line.kind == "command":
                self._diff_command(index, line, None if old is None else self._previous[old])
            elif line.identity not in first:
                first[line.identity] = index
                self._diff_csv(index, line, newly.get(line.identity), old is None)
            elif old is None:
                number = lines[first[line.identity]].number
                self.messages.append(
                    f"line {line.number}: duplicate of line {number}; both lines belong to one job"
                )

    def _diff_removed(self) -> None:
        kept = {old for old in self._pairs if old is not None}
        still = {line.identity for line in self.lines if line.kind == "csv"}
        for index, line in enumerate(self._previous):
            if index in kept or line.job_id is None or line.identity in still:
                continue
            job = self._jobs.get(line.job_id)
            if job is not None and job.is_waiting:
                self.actions.append(LineRemoved(line.job_id))
            elif job is not None and job.state in ACTIVE:
                self.messages.append(
                    f"the line of job {line.job_id} was removed; the job is {job.state} and continues"
                )

    def _diff_command(self, index: int, line: Line, old: Line | None) -> None:
        if old is not None and old.job_id is not None:
            self._job_ids[index] = old.job_id
            if old.attributes != line.attributes:
                self._diff_attributes(line, self._jobs.get(old.job_id), old.attributes)
            return
        same = self._newest.get(line.identity or "")
        self.actions.append(InsertJob(index, line.number, _job_label(same) if same is not None else None))

    def _diff_csv(self, index: int, line: Line, new: Line | None, is_new: bool) -> None:
        """Handles the first line with a given identity. new: the last new line with that identity, if any."""
        assert line.identity is not None
        before = self._previous_lines.get(line.identity)
        job_id = self._previous_jobs.get(line.identity)
        if job_id is not None and new is None:
            self._job_ids[index] = job_id
            old = before.attributes if before is not None else line.attributes
            if old != line.attributes:
                self._diff_attributes(line, self._jobs.get(job_id), old)
            return
        job = self._newest.get(line.identity) or (self._jobs.get(job_id) if job_id is not None else None)
        if job is None:
            self.actions.append(InsertJob(index, line.number))
            return
        new = new or line
        self._job_ids[index] = job.id
        is_finished = job.state is JobState.FINISHED
        if is_finished and job.outcome is not Outcome.COMPLETED and not line.attributes.get("cancel"):
            self.actions.append(RequeueFinished(index, job))
            of = "" if new.attributes == line.attributes else f", with the attributes of line {line.number}"
            self.messages.append(f"line {new.number}: {_job_label(job)} is queued again{of}")
            return
        self.binds_lines = True
        if is_finished:
            self.messages.append(
                f"line {new.number}: {_state_of(job)} as job {job.id}; `retry {job.id}` runs it again"
            )
        elif is_new:
            self.messages.append(f"line {line.number}: already submitted as {_job_label(job)}")
        applied = before.attributes if before is not None else {**line.attributes, "cancel": None}
        self._diff_attributes(line, job, applied)

    def _diff_attributes(self, line: Line, job: Job | None, old: Mapping[str, Any]) -> None:
        """Applies changed attributes one by one.

        They apply to a waiting job, and to a finished one for its next run (except `hold` and `cancel`, which
        concern waiting jobs). For a job with an open attempt, only `cancel` applies.
        """
        new = line.attributes
        if job is None or old == new:
            return
        names = sorted({*old, *new})
        if bool(new.get("cancel")) and not old.get("cancel"):
            if job.state in ACTIVE:
                self.actions.append(CancelRunning(job.id))
            elif job.is_waiting:
                names = ["cancel"]
        if job.state in ACTIVE:
            return
        if not job.is_waiting:
            names = [name for name in names if name not in FLAGS]
        changed = [(name, new.get(name)) for name in names if old.get(name) != new.get(name)]
        self.actions += [AttributeChanged(job.id, *change) for change in changed]
        if changed and not job.is_waiting:
            changes = ", ".join(format_attribute(name, value) for name, value in changed)
            these = "this change" if len(changed) == 1 else "these changes"
            self.messages.append(
                f"line {line.number}: {changes} for job {job.id}, which is finished; `retry {job.id}`"
                f" runs it with {these}"
            )


def _job_label(job: Job) -> str:
    return f"job {job.id} ({_state_of(job)})"


def _state_of(job: Job) -> str:
    """Returns the outcome of a finished job, such as "timed out", or the state of any other job."""
    return str(job.outcome if job.state is JobState.FINISHED else job.state).replace("_", " ")
