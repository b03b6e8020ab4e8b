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
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.core.model.progress import Progress, ProgressUnit
from gpu_scheduler.core.progress.eta import FIRST_READINGS
from gpu_scheduler.core.progress.log_window import LogWindow
from gpu_scheduler.core.progress.marks import Counter, Epoch, Mark
from gpu_scheduler.core.progress.run_options import RunOptions

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
    other_work = {label for label in labels if _is_other_work(label, options)}
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
    return _of_step(marks, options) or epochs.progress() or _of_percent(marks)


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


def _is_other_work(label: str, options: RunOptions) -> bool:
    return any(found[0] not in options.command for found in _OTHER_WORK.finditer(label))


def _of_step(marks: Sequence[Mark], options: RunOptions) -> Progress | None:
    total = options.max_steps
    steps = [mark.step for mark in marks if mark.step is not None]
    if total is None or not steps or steps[-1] > total or _starts_again([(step, total) for step in steps]):
        return None
    return Progress(steps[-1], total, ProgressUnit.STEP)


def _of_percent(marks: Sequence[Mark]) -> Progress | None:
    percents = [mark.percent for mark in marks if mark.percent is not None]
    if not percents or _starts_again([(percent, 100.0) for percent in percents]):
        return None
    return Progress(percents[-1], 100.0, ProgressUnit.PERCENT)
