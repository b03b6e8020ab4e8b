"""Lays out terminal output: coloured cells, tables fitted to a width, lists fitted to a number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gpu_scheduler.views.colours import FAINT, painted
from gpu_scheduler.views.widths import columns_of, cut, cut_in_the_middle

#: Maximum width of aligned cells if the width is unlimited; a longer cell shifts the rest of its row.
_ALIGNED = 60


@dataclass(frozen=True)
class Screen:
    """Size of the output. width, rows: None = unlimited, as for a pipe."""

    width: int | None = None
    rows: int | None = None
    colour: bool = False


@dataclass(frozen=True)
class Cell:
    """Part of a line. colour: one of `views.colours`; is_path: truncated only if rows are limited, so that it
    can be copied; keep_end: truncated in the middle."""

    text: str
    colour: str = ""
    is_path: bool = False
    keeps_end: bool = False


Line = Sequence[Cell]


@dataclass(frozen=True)
class Column:
    """A column of a table. is_flexible: its cells are truncated in the middle if a row is too wide."""

    title: str
    is_right: bool = False
    is_flexible: bool = False


@dataclass(frozen=True)
class Entry:
    """A row of a table. is_spanning: its cells follow one another from the second column on, ignoring the
    columns; count: how many items it stands for; detail_lines: lines under it, with paths."""

    cells: Line
    spans: bool = False
    count: int = 1
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Listed:
    """A list that may be shortened. total: number of items, including those without an entry; command:
    the one that shows all of them."""

    what: str
    entries: Sequence[Entry]
    total: int
    by: str = "status --all"

    @property
    def hidden(self) -> int:
        """Number of items for which there is no entry."""
        return max(0, self.total - sum(entry.count for entry in self.entries))

    @property
    def lines(self) -> int:
        """Number of lines that the whole list takes."""
        return len(self.entries) + (self.hidden > 0)

    def shortened(self, lines: int) -> list[Entry]:
        """Returns at most `max_lines` entries; the last one counts the omitted items."""
        if lines >= self.lines and not self.hidden:
            return list(self.entries)
        kept = list(islice(self.entries, max(0, lines - 1)))
        left = self.total - sum(entry.count for entry in kept)
        if lines < 1 or left < 1:
            return kept
        more = f"and {left:,} more" if kept else f"{left:,}"
        return [*kept, Entry((Cell(f"… {more} {self.what} ({self.by})", FAINT),), spans=True, count=left)]


def allot(lists: Sequence[Listed], least: Sequence[int], room: int) -> list[int]:
    """Distributes `room` lines: every list gets its minimum, then earlier lists get all that they need."""
    given = [0] * len(lists)
    for wanted in (least, [each.lines for each in lists]):
        for at, each in enumerate(lists):
            more = min(each.lines, wanted[at]) - given[at]
            given[at] += max(0, min(more, room))
            room -= max(0, min(more, room))
    return given


def table(columns: Sequence[Column], entries: Sequence[Entry], width: int | None) -> list[Line]:
    """Returns the header and the rows of a table, truncated to the width as far as flexible columns allow."""
    head = Entry([Cell(column.title, FAINT) for column in columns])
    rows = [head, *(entry for entry in entries if not entry.spans)]
    sizes = [max(columns_of(row.cells[at].text) for row in rows) for at in range(len(columns))]
    for at in (at for at, column in enumerate(columns) if column.is_flexible):
        sizes[at] = min(sizes[at], _ALIGNED if width is None else _room(at, sizes, width))
    lines: list[Line] = []
    for entry in (head, *entries):
        if entry.spans:
            lines.append([Cell(" " * (sizes[0] + 2)), *entry.cells])
        else:
            lines.append(_row(columns, sizes, entry.cells, is_endless=width is None))
        lines += [[Cell(f"{' ' * (sizes[0] + 2)}{text}", is_path=True)] for text in entry.below]
    return lines


def printed(line: Line, screen: Screen) -> str:
    """Renders a line, never wider than the screen."""
    parts, room = [], screen.width
    for cell in line:
        text = cell.text
        if room is not None and not (cell.is_path and screen.rows is None):
            text = cut_in_the_middle(text, room) if cell.keeps_end else cut(text, room)
            room -= columns_of(text)
        parts.append(painted(text, cell.colour) if screen.colour else text)
        if room is not None and room <= 0:
            break
    return "".join(parts)


def _room(at: int, sizes: Sequence[int], width: int) -> int:
    """Returns the width of a flexible column: at least half of what it shares with the last column."""
    room = width - sum(sizes[:at]) - 2 * at - 2
    return max(4, room // 2, room - sizes[-1])


def _row(columns: Sequence[Column], sizes: Sequence[int], cells: Line, *, is_endless: bool) -> Line:
    last = max((at for at, cell in enumerate(cells) if cell.text), default=-1)
    row: list[Cell] = []
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if at > last:
            break
        is_cut = column.is_flexible and not is_endless
        text = cut_in_the_middle(cell.text, sizes[at]) if is_cut else cell.text
        pad = " " * (sizes[at] - columns_of(text))
        row += [Cell(pad)] if column.is_right and pad else []
        row.append(cell if text is cell.text else replace(cell, text=text))
        if at < last:
            row.append(Cell("  " if column.is_right else f"{pad}  "))
    return row
