"""Matches the lines of the current file with the lines of the last reading."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter

from gpu_scheduler.core.jobsfile.attributes import find_block_end
from gpu_scheduler.core.jobsfile.reading import Line
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.text.quoting import BLANK, find_comment

#: For each current line, the index of the matching line in the last reading; None if the line is new.
LinePairs = tuple["int | None", ...]


def match_lines(old: Sequence[Line], new: Sequence[Line], jobs: Mapping[int, JobFact]) -> LinePairs:
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
    while head < shorter and old[head].is_equivalent_to(new[head]):
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
    jobs: Mapping[int, JobFact],
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
        i for i, line in enumerate(new) if line.malformed and ((at := pairs[i]) is None or old[at].is_typo)
    ]
    kept = set(pairs)
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


def _removal_rank(line: Line, jobs: Mapping[int, JobFact]) -> tuple[int, int]:
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
