"""Lays out terminal output: coloured cells, tables that fit a width, and lists that fit a number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.states import JobState, Outcome

# Defines the colours of states and outcomes on a terminal.


#: ANSI codes (SGR) for colours that the terminal's settings define.
RED, GREEN, YELLOW, CYAN, FAINT, BOLD = "31", "32", "33", "36", "2", "1"

OF_STATE = {
    JobState.RUNNING.value: CYAN,
    JobState.STARTING.value: CYAN,
    JobState.STOPPING.value: YELLOW,
    JobState.HELD.value: YELLOW,
}
OF_OUTCOME = {
    Outcome.COMPLETED.value: GREEN,
    Outcome.ENDED.value: GREEN,
    Outcome.CANCELLED.value: YELLOW,
    Outcome.SKIPPED.value: YELLOW,
}


def are_enabled(environ: Mapping[str, str]) -> bool:
    """Returns whether these environment variables allow colours."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """Returns the text in a colour; the unchanged text if the colour is ""."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text


def of_outcome(outcome: str) -> str:
    """Returns the colour of an outcome: red unless `OF_OUTCOME` has another one."""
    return OF_OUTCOME.get(outcome, RED)


# Measures the width of text on a terminal, and truncates or wraps text.
#
# The package rich provides the widths of characters. It is imported only for text with characters that may be
# wide.


#: This character replaces the omitted part of a text.
ELLIPSIS = "…"


def display_width(text: str) -> int:
    """Returns the width of a text in terminal columns."""
    if text.isascii() or _is_narrow(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def truncate_end(text: str, columns: int) -> str:
    """Returns the text, truncated at its end if it is wider than `columns`."""
    if display_width(text) <= columns:
        return text
    return f"{_prefix(text, columns - 1)}{ELLIPSIS}" if columns > 0 else ""


def truncate_middle(text: str, columns: int) -> str:
    """Returns the text, truncated in the middle if it is too wide.

    Both ends are kept, because both help to distinguish jobs.
    """
    if display_width(text) <= columns:
        return text
    if columns < 3:
        return truncate_end(text, columns)
    tail = (columns - 1) // 2
    end = _prefix(text[::-1], tail)[::-1]
    return f"{_prefix(text, columns - 1 - tail)}{ELLIPSIS}{end}"


def wrap_text(text: str, columns: int) -> list[str]:
    """Wraps a text to lines of at most `columns`, at spaces if possible."""
    lines = []
    while display_width(text) > columns > 0:
        line = _prefix(text, columns)
        at = line.rfind(" ")
        line = line[:at] if at > 0 else line or text[:1]
        lines.append(line)
        text = text[len(line) :].lstrip(" ")
    return [*lines, text]


def wrap_words(text: str, columns: int) -> list[str]:
    """Wraps a text to rows of at most `columns` without breaking words, because a word may be a path.

    A word that is longer than `columns` gets its own row.
    """
    indent = text[: len(text) - len(text.lstrip(" "))]
    first, *words = text.lstrip(" ").split(" ")
    found = [indent + first]
    for word in words:
        row = f"{found[-1]} {word}"
        if word and display_width(row) > columns:
            found.append(word)
        else:
            found[-1] = row
    return [row.rstrip(" ") for row in found]


def _prefix(text: str, columns: int) -> str:
    """Returns as many leading characters of the text as fit into `columns`."""
    if _is_narrow(text):
        return text[:columns]
    for at, character in enumerate(text):
        columns -= display_width(character)
        if columns < 0:
            return text[:at]
    return text


def _is_narrow(text: str) -> bool:
    """Returns whether every character is known to be one column wide, such as a Latin letter."""
    return text.isascii() or all(c < "\u0300" or c in ELLIPSIS or "\u2500" <= c <= "\u259f" for c in text)


#: Maximum width of aligned cells if the output width is unlimited. A longer cell shifts the rest of its row.
_MAX_ALIGNED_WIDTH = 60


class Viewport(Struct, frozen=True):
    """The size of the output. width, rows: None = unlimited, as for a pipe."""

    width: int | None = None
    rows: int | None = None
    has_colours: bool = False


class Cell(NamedTuple):
    """A part of a line.

    colour: a code from `show.layout`; is_path: truncate the cell only if rows are limited, so that a path
    can be copied; keep_end: truncate the cell in the middle.
    """

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


class TableRow(Struct, frozen=True):
    """A row of a table.

    is_spanning: from the second column on, the cells follow one another and ignore the columns; count: the
    number of items that the row represents; detail_lines: lines below the row, which may contain paths.
    """

    cells: StyledLine
    is_spanning: bool = False
    count: int = 1
    detail_lines: Sequence[str] = ()


class CappedList(Struct, frozen=True):
    """A list that may be shortened.

    total: the number of items, including those without an entry; command: the command that shows all items.
    """

    noun: str
    entries: Sequence[TableRow]
    total: int
    command: str = "status --all"

    @property
    def omitted_count(self) -> int:
        """The number of items without an entry."""
        return max(0, self.total - sum(entry.count for entry in self.entries))

    @property
    def line_count(self) -> int:
        """The number of lines of the whole list."""
        return len(self.entries) + (self.omitted_count > 0)

    def capped(self, max_lines: int) -> list[TableRow]:
        """Returns at most `max_lines` rows. If items are omitted, the last row says how many."""
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
    """Distributes `room` lines among lists.

    First, every list gets its minimum. Then the lists, in order, get all further lines that they need.
    """
    given = [0] * len(lists)
    for wanted in (least, [each.line_count for each in lists]):
        for at, each in enumerate(lists):
            more = min(each.line_count, wanted[at]) - given[at]
            given[at] += max(0, min(more, room))
            room -= max(0, min(more, room))
    return given


def table(columns: Sequence[Column], entries: Sequence[TableRow], width: int | None) -> list[StyledLine]:
    """Returns the header and rows of a table, with flexible columns truncated to make the table fit."""
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


#: The columns of a table that keeps their widths: title, width and whether the text is on the right. The last
#: column gets the width that is left, 0, of which a column with the width -2 first gets two fifths.
FixedColumns = Sequence[tuple[str, int, bool]]


def fitted(cells: Iterable[Cell], columns: FixedColumns, width: int) -> list[Cell]:
    """Returns the cells of a row, padded or truncated so that they take `width` terminal columns."""
    fixed = sum(max(size, 0) + 1 for _, size, _ in columns) - 1
    left, found = max(0, width - fixed), []
    for cell, (_, size, is_right) in zip(cells, columns, strict=True):
        room = size if size > 0 else left * 2 // 5 if size else left
        left -= 0 if size > 0 else room
        text = truncate_middle(cell.text, room) if size < 0 else truncate_end(cell.text, room)
        pad = " " * (room - display_width(text))
        found.append(cell._replace(text=f"{pad}{text} " if is_right else f"{text}{pad} "))
    return found


def render_table(columns: Sequence[Column], entries: Sequence[TableRow], width: int | None) -> list[str]:
    """Returns the lines of a table as uncoloured text. width: None = unlimited, as for a pipe."""
    return [render_line(line, Viewport(width)) for line in table(columns, entries, width)]


def render_line(line: StyledLine, viewport: Viewport) -> str:
    """Renders a line and truncates it to the width of the viewport."""
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
    """Returns the width of a flexible column: at least half of what it shares with the last column."""
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
