"""Finds the counter with a total in a line of a log, such as "Step 50/300", "[50/300]" or a progress bar."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpu_scheduler.core.progress.marks import Counter

# All patterns expect single blanks and bound each number, so that the time for a line grows linearly.
_NUMBER = r"\d[\d,_]{0,24}"
_OF = r" ?(?:/|of\b|out of\b) ?"
#: Step 50/300, step: 50 of 300, Iter [50/300]
_STEP = re.compile(
    r"(?i)\b(?:(?:global|train(?:ing)?|optimi[sz]er)[ _-]?)?"
    r"(?:step|iter(?:ation)?|update|batch)(?:s|es)?\b"
    rf"['\"]? ?(?:[:=#]|no\.?)? ?[\[(]? ?(?P<current>{_NUMBER}){_OF}(?P<total>{_NUMBER})"
)
#: tqdm:  50%|█████     | 150/300 [01:30<01:30,  1.67it/s]. The right end may be cut off by a narrow window.
_BAR = re.compile(
    r"\b\d{1,3}%(?:\|[^|]*\| ?| )(?P<current>[\d.]{1,24})(?P<size>[kKMGT]?)"
    r"/(?P<total>[\d.]{1,24})(?P<total_size>[kKMGT]?)"
    r"(?![\w.])(?: ?\[(?P<elapsed>\d[\d:]{0,24})<(?P<tail>[^\]]*))?"
)
#: rich: Training ━━━━━━━━━╸━━━━━━ 150/300 0:01:30. The count may also precede the bar, or be a percentage.
_RICH_BAR = re.compile(r"[━╸╺]{5,}(?P<tail>.*)")
_RICH_COUNT = re.compile(rf"(?<![\w.])(?P<current>{_NUMBER})/(?P<total>{_NUMBER})(?![\w.])")
_RICH_PERCENT = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,9})?) ?%")
_RICH_ELAPSED = re.compile(r"(?<!\S)(\d[\d:]{0,24}:\d\d) •")
#: Keras: 150/300 [=====>......] - ETA: 4s, 150/300 ━━━━━ 4s, 300/300 - 4s. It starts again with every epoch.
_KERAS = re.compile(r"\A ?(?P<current>\d+)/(?P<total>\d+) (?:\[[=>.]*\]|━|- \d+m?s\b)")
#: [50/300], [ 150/1251 ( 12%)]
_BRACKET = re.compile(rf"\[ ?(?P<current>{_NUMBER}) ?/ ?(?P<total>{_NUMBER}) ?(?:\( ?\d{{1,9}}% ?\) ?)?\]")
#: | 200/ 2983 batches |
_COUNTED = re.compile(
    rf"(?i)(?<![\w.])(?P<current>{_NUMBER}) ?/ ?(?P<total>{_NUMBER}) (?:batches|steps|iterations|updates)\b"
)
#: epoch 002:    150 / 300 loss=5.2
_BESIDE_EPOCH = re.compile(rf" ?[:,|]? ?(?P<current>{_NUMBER}) ?/ ?(?P<total>{_NUMBER})(?![\w.])")
_BYTES = re.compile(r"\b[kKMGT]?i?B(?:/s|\b)")
#: What follows the number of a command in a build, such as that of a CUDA extension: [1/3] nvcc …
_BUILD = re.compile(r"\s*(?:/\S+|c\+\+|g\+\+|gcc|clang\S*|nvcc|cc|Building|Linking|Compiling|Generating)\s")
_WORD = re.compile(r"[a-z]{2,}")
_SIZES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def find_counter(text: str, begin: int = 0, end: int = 0) -> Counter | None:
    """Returns the counter in a line; None if there is none.

    text: a line with single blanks. begin, end: the span of an epoch, which is no counter. A bar or a count
    in brackets beside an epoch starts again with every epoch; the step of a "Step 50/300" may also
    count through all of them.
    """
    has_epoch = end > begin
    for needles, pattern, build in _KINDS:
        found = pattern.search(text) if any(map(text.__contains__, needles)) else None
        if found is not None and has_epoch and begin <= found.start() < end:
            found = pattern.search(text, end)
        if found is None:
            continue
        counter = build(text, found)
        if counter is not None and _is_valid(counter):
            return counter._replace(is_inner=counter.is_inner or (has_epoch and pattern is not _STEP))
    beside = _BESIDE_EPOCH.match(text, end) if has_epoch else None
    counter = None if beside is None else _step(text, beside)
    return None if counter is None or not _is_valid(counter) else counter._replace(is_inner=True)


def _is_valid(counter: Counter) -> bool:
    return 0 <= counter.current <= counter.total and counter.total > 0


def is_build_output(text: str) -> bool:
    """Returns whether the text after a count shows that the count numbers the commands of a build."""
    return _BUILD.match(text) is not None


def parse_number(text: str) -> float:
    """Returns a number that may contain "," or "_" between its digits."""
    return float(text.replace(",", "").replace("_", ""))


def _label(text: str) -> str:
    return " ".join(_WORD.findall(text[-200:].lower())[-3:])


def _step(text: str, found: re.Match[str]) -> Counter | None:
    label = _label(text[: found.start("current")])
    return Counter(label, parse_number(found["current"]), parse_number(found["total"]))


def _bar(text: str, found: re.Match[str]) -> Counter | None:
    if _BYTES.search(found["tail"] or ""):
        return None
    try:
        current = float(found["current"]) * _SIZES[found["size"]]
        total = float(found["total"]) * _SIZES[found["total_size"]]
    except ValueError:
        return None
    elapsed = None if found["elapsed"] is None else _seconds(found["elapsed"])
    if elapsed is not None:
        elapsed += 0.5  # the bar shows only whole seconds, which are half a second short on average
    return Counter(_label(text[: found.start()]), current, total, elapsed, is_bar=True)


def _rich(text: str, found: re.Match[str]) -> Counter | None:
    tail = found["tail"]
    if _BYTES.search(tail):
        return None
    label = _label(text[: found.start()])
    count = _RICH_COUNT.search(tail) or _RICH_COUNT.search(text)
    times = _RICH_ELAPSED.search(tail)
    elapsed = None if times is None else _seconds(times[1])
    if count is not None:
        return Counter(
            label, parse_number(count["current"]), parse_number(count["total"]), elapsed, is_bar=True
        )
    percent = _RICH_PERCENT.search(tail) or _RICH_PERCENT.search(text)
    if percent is None:
        return None
    return Counter(label, float(percent[1]), 100.0, elapsed, is_bar=True, is_percent=True)


def _keras(text: str, found: re.Match[str]) -> Counter | None:
    return Counter("", parse_number(found["current"]), parse_number(found["total"]), is_inner=True)


def _bracket(text: str, found: re.Match[str]) -> Counter | None:
    if is_build_output(text[found.end() :]):
        return None
    return _step(text, found)


def _seconds(text: str) -> float | None:
    """Returns the seconds of a time such as "01:30" or "1:02:03"."""
    parts = text.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        return None
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))


#: The kinds of counters. The first one that a line contains counts. A line can contain it only if it contains
#: one of the texts before the pattern, which is much faster to find out.
_KINDS: tuple[
    tuple[tuple[str, ...], re.Pattern[str], Callable[[str, re.Match[str]], Counter | None]], ...
] = (
    (("tep", "TEP", "ter", "TER", "atch", "ATCH", "pdate", "PDATE"), _STEP, _step),
    (("%|", "% "), _BAR, _bar),
    (("]", "━", "- "), _KERAS, _keras),
    (("━", "╸", "╺"), _RICH_BAR, _rich),
    (("[",), _BRACKET, _bracket),
    (("/",), _COUNTED, _step),
)
