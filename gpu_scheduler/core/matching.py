"""Which line is which: the lines of the file as it stands against those of the last reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from gpu_scheduler.core.facts import JobFact
from gpu_scheduler.core.lines import Line
from gpu_scheduler.core.states import ACTIVE, JobState

#: For each line as it stands, the index of its line in the last reading; None = it is new.
Pairs = tuple["int | None", ...]


def match(old: Sequence[Line], new: Sequence[Line], jobs: Mapping[int, JobFact]) -> Pairs:
    """The unchanged head and tail keep their lines, and so does a changed stretch of unchanged length, line
    by line; what is left of it is matched by identity: same attributes first, then in order."""
    if not old:
        return (None,) * len(new)
    pairs: list[int | None] = [None] * len(new)
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head].same_as(new[head]):
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail].same_as(new[-1 - tail]):
        tail += 1
    if len(old) != len(new):
        head, tail = _widened(old, new, head, tail)
    for i in range(head):
        pairs[i] = i
    for i in range(1, tail + 1):
        pairs[-i] = len(old) - i
    olds, news = range(head, len(old) - tail), range(head, len(new) - tail)
    if len(old) == len(new):
        for i in news:
            if old[i].what == new[i].what:
                pairs[i] = i
    kept = set(pairs)
    _match_stretch(
        old, new, [i for i in olds if i not in kept], [i for i in news if pairs[i] is None], jobs, pairs
    )
    return tuple(pairs)


def _widened(old: Sequence[Line], new: Sequence[Line], head: int, tail: int) -> tuple[int, int]:
    """Head and tail without the lines that touch the stretch and are equal to one of it: which of several
    equal lines went is not told by where the file differs."""
    inside = {line.what for line in old[head : len(old) - tail]}
    inside.update(line.what for line in new[head : len(new) - tail])
    while head and old[head - 1].what in inside:
        head -= 1
    while tail and old[-tail].what in inside:
        tail -= 1
    return head, tail


def _match_stretch(
    old: Sequence[Line],
    new: Sequence[Line],
    olds: Iterable[int],
    news: Iterable[int],
    jobs: Mapping[int, JobFact],
    pairs: list[int | None],
) -> None:
    olds, news = list(olds), list(news)

    def by_key(line: Line) -> Hashable:
        return line.key

    def by_identity(line: Line) -> Hashable:
        return line.what

    for same in (by_key, by_identity):
        left = _grouped(old, olds, same)
        for group, wanting in _grouped(new, news, same).items():
            having = left.get(group, [])
            if len(having) > len(wanting):
                having = sorted(sorted(having, key=lambda i: _loses(old[i], jobs))[-len(wanting) :])
            for here, there in zip(wanting, having, strict=False):
                pairs[here] = there
        taken = set(pairs)
        olds = [i for i in olds if i not in taken]
        news = [i for i in news if pairs[i] is None]


def _grouped(
    lines: Sequence[Line], indices: Iterable[int], same: Callable[[Line], Hashable]
) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in indices:
        groups[same(lines[index])].append(index)
    return groups


def _loses(line: Line, jobs: Mapping[int, JobFact]) -> tuple[int, int]:
    """Of several equal lines, the one with the smallest value loses its job first: a finished job, then a
    running, then a held, then the newest queued one."""
    job = jobs.get(line.job_id) if line.job_id is not None else None
    if job is None or job.state is JobState.FINISHED:
        rank = 0
    elif job.state in ACTIVE:
        rank = 1
    else:
        rank = 2 if job.state is JobState.HELD else 3
    return rank, -(line.job_id or 0)
