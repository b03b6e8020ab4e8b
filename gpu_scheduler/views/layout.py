"""Lays out terminal output: coloured cells, tables fitted to a width, lists fitted to a number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from gpu_scheduler.views.colours import FAINT, coloured
from gpu_scheduler.views.text_width import display_width, truncate_end, truncate_middle

#: Maximum width of aligned cells if the width is unlimited; a longer cell shifts the rest of its row.
_MAX_ALIGNED_WIDTH = 60


@dataclass(frozen=True)
class Viewport:
    """Size of the output. width, rows: None = unlimited, as for a pipe."""

    width: int | None = None
    rows: int | None = None
    has_colours: bool = False


class Cell(NamedTuple):
    """Part of a line. colour: one of `views.colours`; is_path: truncated only if rows are limited, so that it
    can be copied; keep_end: truncated in the middle."""

    text: str
    colour: str = ""
    is_path: bool = False
    keep_end: bool = False


StyledLine = Sequence[Cell]


class Column(NamedTuple):
    """A column of a table. is_flexible: its cells are truncated in the middle if a row is too wide."""

    title: str
    is_right: bool = False
    is_flexible: bool = False


@dataclass(frozen=True)
class TableRow:
    """A row of a table. is_spanning: its cells follow one another from the second column on, ignoring the
    columns; count: how many items it stands for; detail_lines: lines under it, with paths."""

    cells: StyledLine
    is_spanning: bool = False
    count: int = 1
    detail_lines: Sequence[str] = ()


@dataclass(frozen=True)
class CappedList:
    """A list that may be shortened. total: number of items, including those without an entry; command:
    the one that shows all of them."""

    noun: str
    entries: Sequence[TableRow]
    total: int
    command: str = "status --all"

    @property
    def omitted_count(self) -> int:
        """Number of items for which there is no entry."""
        return max(0, self.total - sum(entry.count for entry in self.entries))

    @property
    def line_count(self) -> int:
        """Number of lines in the whole list."""
        return len(self.entries) + (self.omitted_count > 0)

    def capped(self, max_lines: int) -> list[TableRow]:
        """Returns at most `max_lines` entries; the last one counts the omitted items."""
        if max_lines >= self.line_count and not self.omitted_count:
            return list(self.entries)
        kept = list(islice(self.entries, max(0, max_lines - 1)))
        left = self.total - sum(entry.count for entry in kept)
        if max_lines < 1 or left < 1:
            return kept
        more = f"and {left:,} more" if kept else f"{left:,}"
        return [
            *kept,
            TableRow((Cell(f"… {more} {self.noun} ({self.command})", FAINT),), is_spanning=True, count=left),
        ]


def allot_lines(lists: Sequence[CappedList], least: Sequence[int], room: int) -> list[int]:
    """Distributes `room` lines: every list gets its minimum, then earlier lists get all that they need."""
    given = [0] * len(lists)
    for wanted in (least, [each.line_count for each in lists]):
        for at, each in enumerate(lists):
            more = min(each.line_count, wanted[at]) - given[at]
            given[at] += max(0, min(more, room))
            room -= max(0, min(more, room))
    return given


def table(columns: Sequence[Column], entries: Sequence[TableRow], width: int | None) -> list[StyledLine]:
    """Returns the header and the rows of a table, truncated to the width as far as flexible columns allow."""
    head = TableRow([Cell(column.title, FAINT) for column in columns])
    rows = [head, *(entry for entry in entries if not entry.is_spanning)]
    sizes = [max(display_width(row.cells[at].text) for row in rows) for at in range(len(columns))]
    for at in (at for at, column in enumerate(columns) if column.is_flexible):
        sizes[at] = min(sizes[at], _MAX_ALIGNED_WIDTH if width is None else _flexible_width(at, sizes, width))
    lines: list[StyledLine] = []
    for entry in (head, *entries):
        if entry.is_spanning:
            lines.append([Cell(" " * (sizes[0] + 2)), *entry.cells])
        else:
            lines.append(_row(columns, sizes, entry.cells, is_endless=width is None))
        lines += [[Cell(f"{' ' * (sizes[0] + 2)}{text}", is_path=True)] for text in entry.detail_lines]
    return lines


def render_table(columns: Sequence[Column], entries: Sequence[TableRow], width: int | None) -> list[str]:
    """Returns the lines of a table as text without colours. width: None = unlimited, as for a pipe."""
    return [render_line(line, Viewport(width)) for line in table(columns, entries, width)]


def render_line(line: StyledLine, viewport: Viewport) -> str:
    """Renders a line, never wider than the screen."""
    if viewport.width is None or display_width("".join(cell.text for cell in line)) <= viewport.width:
        return "".join([coloured(one.text, one.colour) if viewport.has_colours else one.text for one in line])
    parts, room = [], viewport.width
    for cell in line:
        text = cell.text
        if not (cell.is_path and viewport.rows is None):
            text = truncate_middle(text, room) if cell.keep_end else truncate_end(text, room)
            room -= display_width(text)
        parts.append(coloured(text, cell.colour) if viewport.has_colours else text)
        if room <= 0:
            break
    return "".join(parts)


def _flexible_width(at: int, sizes: Sequence[int], width: int) -> int:
    """Returns the width of a flexible column: at least half of the width shared with the last column."""
    room = width - sum(sizes[:at]) - 2 * at - 2
    return max(4, room // 2, room - sizes[-1])


def _row(
    columns: Sequence[Column], sizes: Sequence[int], cells: StyledLine, *, is_endless: bool
) -> StyledLine:
    last = max((at for at, cell in enumerate(cells) if cell.text), default=-1)
    row: list[Cell] = []
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if at > last:
            break
        is_cut = column.is_flexible and not is_endless
        text = truncate_middle(cell.text, sizes[at]) if is_cut else cell.text
        pad = " " * (sizes[at] - display_width(text))
        row += [Cell(pad)] if column.is_right and pad else []
        row.append(cell if text is cell.text else cell._replace(text=text))
        if at < last:
            row.append(Cell("  " if column.is_right else f"{pad}  "))
    return row
