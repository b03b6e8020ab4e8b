"""Decides which of the marks in the last lines of a log shows the progress of the whole run.

These rules apply, in this order:

1. Counters of other work never count: downloads, loading, validation and the like, unless the command itself
   contains that word, as `python eval.py` does; and bars that another bar encloses.
2. The newest counter with a total counts, whatever epochs or percentages follow, unless it has reached its
   total and an epoch began after it. A bar that is not full comes before all counters that began after it,
   because it encloses them.
3. A counter that starts again counts only within its epoch. It starts again if it falls by more than a fifth
   of its total, if it is the bar of an epoch, or if it is outside the part of its total that belongs to the
   epoch named before it. A few lines within this part do not show whether the counter starts
   again; until the next epoch does, only the epochs count. Without the number of epochs, a counter that
   starts again shows nothing.
4. Without a counter, a step counts if the command names the number of steps, then an epoch, whose total may
   also come from the command, then a percentage that does not start again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

from gpu_scheduler.core.explain.progress import FIRST_READINGS, RunOptions
from gpu_scheduler.core.model.job import Progress, ProgressUnit
from gpu_scheduler.core.text.job_output import ESCAPE

# Values for what a line of a log says about progress.


class Counter(NamedTuple):
    """A counter with a total. label: the last words before it, which tell the counters of a log apart.

    elapsed_s: the seconds that a bar shows for its work so far. is_bar: whether it is a bar, which is drawn
    until it is full. is_inner: whether the line shows that the counter starts again with every epoch.
    is_nested: whether another bar encloses it. is_percent: whether it counts percent.
    """

    label: str
    current: float
    total: float
    elapsed_s: float | None = None
    is_bar: bool = False
    is_inner: bool = False
    is_nested: bool = False
    is_percent: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the counter has reached its total."""
        return self.current >= self.total


class Epoch(NamedTuple):
    """An epoch. is_exact: whether `number` is the number of finished epochs, possibly with a fraction.

    is_over: whether the line reports the end of the epoch, not its beginning.
    """

    number: float
    total: float | None = None
    is_exact: bool = False
    is_over: bool = False


class Mark(NamedTuple):
    """The progress that a line shows.

    line: its number; step: a step without a total; percent: 0 to 100; is_from_zero: whether the line shows
    that epochs count from 0.
    """

    line: int
    counter: Counter | None = None
    epoch: Epoch | None = None
    step: float | None = None
    percent: float | None = None
    is_from_zero: bool = False


# Finds the counter with a total in a line of a log, such as "Step 50/300", "[50/300]" or a progress bar.


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
            return counter._replace(is_inner=pattern is _KERAS or (has_epoch and pattern is not _STEP))
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
    if found.re is _BRACKET and is_build_output(text[found.end() :]):
        return None
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
    times = _RICH_ELAPSED.search(tail)
    elapsed = None if times is None else _seconds(times[1])
    if count := _RICH_COUNT.search(tail) or _RICH_COUNT.search(text):
        current, total = map(parse_number, count.groups())
        return Counter(label, current, total, elapsed, is_bar=True)
    if percent := _RICH_PERCENT.search(tail) or _RICH_PERCENT.search(text):
        return Counter(label, float(percent[1]), 100.0, elapsed, is_bar=True, is_percent=True)
    return None


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
    (("]", "━", "- "), _KERAS, _step),
    (("━", "╸", "╺"), _RICH_BAR, _rich),
    (("[",), _BRACKET, _step),
    (("/",), _COUNTED, _step),
)


# Finds the progress that one line of a log shows: a counter, an epoch, a lone step, a percentage.


#: A line without any of these says nothing. To look for them is much faster than to match the patterns.
_SIGNS = ("/", "%", "poch", "POCH", "tep", "TEP", "ter", "TER", " of ", "Train: ", "GPU available: ")
#: Epoch 2/10, epoch: [3], Epoch(train) [2], Epoch 3 of 10. "epochs 10" is a setting unless a total follows.
_EPOCH = re.compile(
    r"(?i)(?<![\w-])epoch(?P<plural>s?)\b(?: ?\(train(?:ing)?\))? ?(?:[:=#]|no\.?)? ?[\[(]? ?"
    r"(?P<number>\d{1,15}(?:\.\d{1,30})?)(?![\w.]{0,30}%|\w|\.\d)"
    r"(?: ?(?:/|of\b|out of\b) ?(?P<total>\d{1,15})\b)? ?[\])]?"
)
#: timm: Train: 3 [ 150/1251 ( 12%)]
_TIMM_EPOCH = re.compile(r"(?:^| )Train: (?P<number>\d+)(?= \[)")
#: Ultralytics YOLO:  2/100  4.72G  1.145  1.68  1.201  200  640: 100%|██████████| 8/8
_YOLO_EPOCH = re.compile(r"^ ?(?P<number>\d+)/(?P<total>\d+) [\d.]+[GM] ")
#: The lines of the Hugging Face Trainer: {'loss': 0.5, 'epoch': 1.5}
_TRAINER_EPOCH = re.compile(r"['\"]epoch['\"] ?: ?['\"]?(?P<number>\d+(?:\.\d+)?)")
#: iter 100: loss 2.3, {'step': 100, …}
_STEP_ALONE = re.compile(
    r"(?i)(?<![\w-])(?:(?:global|train(?:ing)?)[ _-]?)?(?:step|iter(?:ation)?)\b['\"]? ?[:=#]? ?"
    r"(?P<current>\d[\d,_]{0,24})(?![\w.]| ?(?:/|of\b|%|s\b|ms\b))"
)
_CHECKPOINT_NAME = re.compile(r"epoch=\d+-step=\d+")
_PERCENT = re.compile(
    r"(?i)(?:^ ?[\[(|]? ?|\b(?:progress|training|trained|completed?|done|finished|processed)\W{0,3}(?:at )?)"
    r"(?P<before>\d{1,3}(?:\.\d{1,9})?) ?% ?(?:$|[\])|,;:-]|\b(?:complete|done|finished|of\b))"
    r"|(?<![\d.])(?P<after>\d{1,3}(?:\.\d{1,9})?) ?% ?(?:complete|done|finished)"
)
_BEGINS = re.compile(r"(?i)\b(?:start|begin)")
_ENDS = re.compile(r"(?i)\b(?:done|complete|finish|end(?:ed)?\b|end of)")
_LEARNING_RATE = re.compile(r"(?i)\b(?:lr|learning[ _]rate)\W{0,8}[\d.]+(?:e-?\d+)?")
#: Texts that PyTorch Lightning writes, which counts epochs from 0.
_LIGHTNING = re.compile(r"\bv_num[=:]|\d • \d|^GPU available: |\bDataLoader \d+:")


def parse_line(text: str, line: int, *, is_nested: bool = False) -> Mark | None:
    """Returns what a line shows; None if it shows no progress.

    text: the line without escape sequences; line: its number; is_nested: whether it is a bar that another bar
    encloses.
    """
    if not _has(text, *_SIGNS):
        return None
    text = " ".join(text.split())  # every run of blanks becomes one, for all patterns
    if "-step=" in text:
        text = " ".join(word for word in text.split(" ") if not _CHECKPOINT_NAME.search(word))
    exact = _TRAINER_EPOCH.search(text) if "epoch" in text else None
    named = None if exact is not None else _named_epoch(text)
    counter = find_counter(text) if named is None else find_counter(text, *named.span())
    if exact is not None:
        epoch: Epoch | None = Epoch(float(exact["number"]), is_exact=True)
    else:
        epoch = None if named is None else _epoch(text, named, counter)
    is_from_zero = named is not None and (named.re is _TIMM_EPOCH or float(named["number"]) == 0)
    mark = Mark(line, epoch=epoch, is_from_zero=is_from_zero or _is_lightning(text))
    if counter is not None:
        return mark._replace(counter=counter._replace(is_nested=is_nested))
    is_step = not is_nested and _has(text, "tep", "TEP", "ter", "TER")
    step = _STEP_ALONE.search(text) if is_step else None
    if step is not None:
        return mark._replace(step=parse_number(step["current"]))
    if epoch is None and "%" in text:
        mark = mark._replace(percent=_percent(text))
    return None if mark == Mark(line) else mark


def _has(text: str, *needles: str) -> bool:
    return any(map(text.__contains__, needles))


def _is_lightning(text: str) -> bool:
    return _has(text, "v_num", "•", "GPU available", "DataLoader") and _LIGHTNING.search(text) is not None


def _named_epoch(text: str) -> re.Match[str] | None:
    found = _EPOCH.search(text) if _has(text, "poch", "POCH") else None
    if found is not None and found["plural"] and not found["total"]:
        return None
    if found is None and "%|" in text:
        found = _YOLO_EPOCH.match(text)
    return found or (_TIMM_EPOCH.search(text) if "Train: " in text else None)


def _epoch(text: str, found: re.Match[str], counter: Counter | None) -> Epoch | None:
    groups = found.groupdict()
    number, total = float(groups["number"]), groups.get("total")
    if total is not None and number > float(total):
        return None
    last = None if total is None else float(total)
    if last is not None and _is_lightning(text):
        last += 1  # its rich bar shows the number of the last epoch
    return Epoch(
        number,
        last,
        is_exact=not number.is_integer(),
        is_over=counter is None and _reports_end(text, found.end()),
    )


def _reports_end(text: str, at: int) -> bool:
    """Returns whether a line reports the end of the epoch that it names before `at`.

    Such a line says so, or values such as the loss follow. A line with only a learning rate is a heading.
    """
    if _BEGINS.search(text):
        return False
    return _ENDS.search(text) is not None or any(c.isdigit() for c in _LEARNING_RATE.sub("", text[at:]))


def _percent(text: str) -> float | None:
    found = _PERCENT.search(text)
    if found is None or is_build_output(text[found.end() :]):
        return None
    value = float(found["before"] or found["after"])
    return value if value <= 100 else None


# Keeps what the last 200 lines of a growing log say about progress.
#
# A line that is drawn again after a carriage return is one line, as on a terminal. Of its frames, the last
# one counts, the last frame of a bar, and the last frame of a full bar, which shows that a bar starts again.
# A bar that another bar encloses moves the cursor up after each frame; such lines replace each other.


#: Number of lines of a log that count.
MAX_LINES = 200
#: Maximum number of bytes of a frame that are examined.
_MAX_FRAME_BYTES = 2000
#: Maximum number of bytes of an unfinished line that are kept as they are.
_MAX_REST_BYTES = 4096
#: What ends the frame of a bar that another bar encloses: the cursor moves up.
_ENDS_UP = re.compile(rb"\x1b\[\d*[AF]\s*\Z")
#: Lines of the runner: its header and its last line.
_OF_RUNNER = (b"# ", b"--- ")


class LogWindow:
    """The marks of the last lines of a log, which is fed in pieces."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._lines = 0
        self._rest = b""
        self._was_nested = False

    def feed(self, data: bytes, is_late: Callable[[], bool] = lambda: False) -> bool:
        """Adds bytes at the end of the log; returns False, with a part of them added, if it gets late."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in reversed(list(islice(_last_lines(lines), MAX_LINES))):
            if is_late():
                return False
            self._add_line(line)
        self._rest = rest if len(rest) <= _MAX_REST_BYTES else _shortened(rest)
        while self._marks and self._marks[0].line <= self._lines - MAX_LINES:
            self._marks.popleft()
        return True

    def marks(self) -> list[Mark]:
        """Returns the marks, oldest first, including those of the line that has not ended yet."""
        return [*self._marks, *_marks_of(self._rest, self._lines + 1)]

    def _add_line(self, line: bytes) -> None:
        marks = list(_marks_of(line, self._lines + 1))
        is_nested = _is_nested(line)
        if is_nested and self._was_nested and marks:
            while self._marks and self._marks[-1].line == self._lines:
                self._marks.pop()
            marks = [mark._replace(line=self._lines) for mark in marks]
        else:
            self._lines += 1
        self._was_nested = is_nested
        self._marks.extend(marks)


def _shortened(rest: bytes) -> bytes:
    """Returns an unfinished line with only the frames that count. Its last frame may not be complete yet."""
    head, overwrites, last = rest.rpartition(b"\r")
    kept = [*_kept_frames(head)] if overwrites else []
    return b"\r".join([*kept, last[:_MAX_FRAME_BYTES]])


def _is_nested(line: bytes) -> bool:
    return _ENDS_UP.search(line[-64:]) is not None


def _last_lines(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the lines that show something, newest first, and only the newest of several frames of one bar.

    Thousands of frames of an enclosed bar must not push out the bar that encloses it.
    """
    was_nested = False
    for line in reversed(lines):
        is_nested = _is_nested(line)
        if line.strip(b"\r \t") and not (is_nested and was_nested):
            was_nested = is_nested
            yield line


def _marks_of(line: bytes, number: int) -> Iterator[Mark]:
    if line.startswith(_OF_RUNNER):
        return
    for frame in _kept_frames(line):
        text = frame.decode("utf-8", "replace")
        text = ESCAPE.sub("", text) if "\x1b" in text else text
        mark = parse_line(text, number, is_nested=bool(_ENDS_UP.search(frame)))
        if mark is not None:
            yield mark


def _kept_frames(line: bytes) -> Sequence[bytes]:
    """Returns the frames of a line that count, in their order."""
    if b"\x08" in line:  # some bars move back with backspaces instead of a carriage return
        line = re.sub(rb"\x08+", b"\r", line)
    if b"\r" not in line:
        return (line[:_MAX_FRAME_BYTES],)
    end = len(line)
    while True:
        begin = line.rfind(b"\r", 0, end) + 1
        if not begin or ESCAPE.sub("", line[begin:end].decode("latin-1")).strip():
            break
        end = begin - 1
    frames = {begin: line[begin:end]}
    for what in (b"%|", b"100%|"):
        at = line.rfind(what, 0, begin)
        if at >= 0:
            first = line.rfind(b"\r", 0, at) + 1
            frames[first] = line[first : line.find(b"\r", at)]
    return tuple(frames[at][:_MAX_FRAME_BYTES] for at in sorted(frames))


#: The beginnings of words that name work other than the run itself.
_OTHER_WORK = re.compile(
    r"\b(?:download|upload|fetch|load|map\b|filter|tokeni[sz]|preproc|generat|split|extract|cach|sanity|valid|"
    r"val\b|eval|test|predict|warm|quanti|sav|writ|shard|compil|build|collect|pack|profil|skip)"
)
#: Number of lines within the part of the total that belongs to their epoch that show a counter of the run.
_MIN_LINES_WITHIN = 20
#: A counter that falls by more than this part of its total starts again. Several processes that write to
#: one log may be a few steps apart.
_MIN_FALL = 0.2


#: A line, or a frame with the carriage return before it; and how many of them are examined.
_PIECE, _MAX_PIECES = re.compile(rb"\r?[^\r\n]+\n?|\n"), 1000
_DIGIT = re.compile(rb"\d")


class _Entry(NamedTuple):
    counter: Counter
    epoch: Epoch | None
    line: int


def progress_of_log(marks: Sequence[Mark], options: RunOptions) -> Progress | None:
    """Returns the progress that the marks of a log show, oldest first; None if they show none."""
    epochs = _Epochs(marks, options)
    entries: list[_Entry] = []
    epoch: Epoch | None = None
    labels = {mark.counter.label for mark in marks if mark.counter is not None}
    other_work = {
        label for label in labels if any(one not in options.command for one in _OTHER_WORK.findall(label))
    }
    for mark in marks:
        epoch = mark.epoch or epoch
        if mark.counter is not None and mark.counter.label not in other_work:
            entries.append(_Entry(mark.counter, epoch, mark.line))
    if any(not entry.counter.is_nested for entry in entries):
        entries = [entry for entry in entries if not entry.counter.is_nested]
    for history in _in_order(entries):
        found = _of_counter(history, epochs)
        if found is not None:
            return found
    steps = [mark.step for mark in marks if mark.step is not None]
    percents = [mark.percent for mark in marks if mark.percent is not None]
    return (
        _of_values(steps, options.max_steps, ProgressUnit.STEP)
        or epochs.progress()
        or _of_values(percents, 100.0, ProgressUnit.PERCENT)
    )


def first_readings(head: bytes, newest: Progress, options: RunOptions) -> list[float]:
    """Returns the first values above 0 that a growing log showed for a counter.

    head: the beginning of the log, of which 1000 lines and frames count. newest: the newest value.
    """
    window, found = LogWindow(), list[float]()
    for piece in _PIECE.findall(head)[:_MAX_PIECES]:
        window.feed(piece)
        shown = progress_of_log(window.marks(), options) if _DIGIT.search(piece) else None
        is_same = shown is not None and (shown.unit, shown.total) == (newest.unit, newest.total)
        if shown is not None and is_same and shown.current > max(found, default=0.0):
            found.append(shown.current)
            if len(found) == FIRST_READINGS:
                break
    return found


def _in_order(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """Returns the history of each counter: first the bars that are not full, then the others, newest first.

    A bar that is not full encloses all that began after it.
    """
    histories: dict[str, list[_Entry]] = {}
    for entry in entries:
        histories.setdefault(entry.counter.label, []).append(entry)
    enclosing = [
        label
        for label, history in histories.items()
        if history[-1].counter.is_bar and not history[-1].counter.is_complete
    ]
    newest_first = sorted(histories, key=lambda label: -histories[label][-1].line)
    return [histories[label] for label in dict.fromkeys([*enclosing, *newest_first])]


class _Epochs:
    """The epochs in a log. newest: the newest mark with an epoch; headings count before fractions."""

    def __init__(self, marks: Sequence[Mark], options: RunOptions) -> None:
        named = [mark for mark in marks if mark.epoch is not None]
        headings = [mark for mark in named if mark.epoch is not None and not mark.epoch.is_exact]
        self.newest = (headings or named)[-1] if named else None
        self._options = options
        self._first = 0.0 if any(mark.is_from_zero for mark in marks) else 1.0

    def total(self, epoch: Epoch) -> float | None:
        """Returns how many epochs there are; None if unknown."""
        if epoch.is_exact and epoch.total is None and self._options.max_steps is not None:
            return None  # the number of steps decides when the training ends
        return epoch.total or self._options.epochs

    def finished(self, epoch: Epoch) -> float:
        """Returns how many epochs had finished when the line of this epoch was written."""
        if epoch.is_exact:
            return epoch.number
        return max(0.0, epoch.number - self._first + epoch.is_over)

    def progress(self, fraction: float = 0.0) -> Progress | None:
        """Returns the finished epochs and a fraction of the current one; None if the total is unknown."""
        epoch = None if self.newest is None else self.newest.epoch
        total = None if epoch is None else self.total(epoch)
        if epoch is None or total is None or self.finished(epoch) > total:
            return None
        return Progress(min(total, self.finished(epoch) + fraction), total, ProgressUnit.EPOCH)


def _of_counter(history: Sequence[_Entry], epochs: _Epochs) -> Progress | None:
    """Returns the progress that the counter with this history shows."""
    counter, _, line = history[-1]
    newest = epochs.newest
    has_newer_epoch = newest is not None and newest.line > line
    scope = _scope(history, epochs)
    if scope is _Scope.EPOCH:
        return epochs.progress(0.0 if has_newer_epoch else counter.current / counter.total)
    if scope is _Scope.UNCLEAR:
        return epochs.progress()
    if counter.is_complete and has_newer_epoch and newest is not None and newest.epoch is not None:
        total = epochs.total(newest.epoch)
        if not newest.epoch.is_exact and (total is None or epochs.finished(newest.epoch) < total):
            return None
    unit = ProgressUnit.PERCENT if counter.is_percent else ProgressUnit.STEP
    if counter.label.rpartition(" ")[2] in ("epoch", "epochs"):
        unit = ProgressUnit.EPOCH
    return Progress(counter.current, counter.total, unit, elapsed_s=counter.elapsed_s)


class _Scope(Enum):
    """The work that a counter counts: the whole run, one epoch, or one of both."""

    RUN = "run"
    EPOCH = "epoch"
    UNCLEAR = "unclear"


def _scope(history: Sequence[_Entry], epochs: _Epochs) -> _Scope:
    counter = history[-1].counter
    if counter.is_inner or _starts_again([(one.counter.current, one.counter.total) for one in history]):
        return _Scope.EPOCH
    within: list[float] = []
    for one, epoch, _ in history:
        total = None if epoch is None or epoch.is_exact else epochs.total(epoch)
        if epoch is None or total is None or total <= 1:
            continue
        begun, tolerance = epochs.finished(epoch), 1 / one.total
        done = one.current / one.total
        if not begun / total - tolerance <= done <= (begun + 1) / total + tolerance:
            return _Scope.EPOCH
        within.append(begun)
    is_clear = within and (within[0] < within[-1] or (within[0] >= 1 and len(within) >= _MIN_LINES_WITHIN))
    return _Scope.RUN if is_clear or not within else _Scope.UNCLEAR


def _starts_again(history: Sequence[tuple[float, float]]) -> bool:
    """Returns whether a counter falls back. history: its values and totals, oldest first."""
    highest, total = 0.0, 0.0
    for current, of in history:
        if highest - current > max(0.0 if highest >= total else 1.0, _MIN_FALL * total):
            return True
        if of != total and highest >= total > 0:
            return True  # another bar with the same label, such as that of the validation data
        highest, total = max(highest, current), of
    return False


def _of_values(values: Sequence[float], total: float | None, unit: ProgressUnit) -> Progress | None:
    """Returns the progress that numbers without a total of their own show, unless they fall back."""
    if total is None or not values or values[-1] > total or _starts_again([(one, total) for one in values]):
        return None
    return Progress(values[-1], total, unit)
