"""Formats plain tables of text cells. rich's tables take a hundred times as long for a long queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.views.text_width import display_width, truncate_end

PlainColumn = tuple[str, Literal["left", "right"]]


@dataclass(frozen=True)
class PlainRow:
    """A row: its cells, of one line each, and the lines below it."""

    cells: Sequence[str]
    detail_lines: Sequence[str] = ()


TableRenderer = Callable[[Sequence[PlainColumn], Sequence[PlainRow]], str]


def table_renderer(width: int | None) -> TableRenderer:
    """Returns a function that formats a table, indented by two.

    Rows are truncated to `width` columns (None: not at all, as in a pipe). The lines below a row are never
    truncated or broken, so that a path in them can be copied.
    """

    def draw(columns: Sequence[PlainColumn], entries: Sequence[PlainRow]) -> str:
        head, *rows = _align(columns, [entry.cells for entry in entries])
        lines = [head]
        for row, entry in zip(rows, entries, strict=True):
            lines.append(row if width is None else truncate_end(row, max(20, width - 2)))
            lines += [f"       {line}" for line in entry.detail_lines]
        return "\n".join(f"  {line}" for line in lines)

    return draw


def _align(columns: Sequence[PlainColumn], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the header and every row as one line each, without padding after the last column."""
    table = [[title for title, _ in columns], *rows]
    lines = [""] * len(table)
    for at, (_, justify) in enumerate(columns[:-1]):
        column = [row[at] for row in table]
        sizes = [display_width(cell) for cell in column]
        widest = max(sizes)
        for n, (cell, size) in enumerate(zip(column, sizes, strict=True)):
            room = " " * (widest - size)
            lines[n] += f"{room}{cell}  " if justify == "right" else f"{cell}{room}  "
    return [(line + row[-1]).rstrip() for line, row in zip(lines, table, strict=True)]
