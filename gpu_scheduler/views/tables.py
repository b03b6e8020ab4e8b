"""Formats plain tables of text cells. rich's tables take a hundred times as long for a long queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.views.widths import columns_of, cut

Column = tuple[str, Literal["left", "right"]]


@dataclass(frozen=True)
class Entry:
    """A row: its cells, of one line each, and the lines below it."""

    cells: Sequence[str]
    below: Sequence[str] = ()


Draw = Callable[[Sequence[Column], Sequence[Entry]], str]


def drawer(width: int | None) -> Draw:
    """Returns a function that formats a table, indented by two.

    Rows are truncated to `width` columns (None: not at all, as in a pipe). The lines below a row are never
    truncated or broken, so that a path in them can be copied.
    """

    def draw(columns: Sequence[Column], entries: Sequence[Entry]) -> str:
        head, *rows = _aligned(columns, [entry.cells for entry in entries])
        lines = [head]
        for row, entry in zip(rows, entries, strict=True):
            lines.append(row if width is None else cut(row, max(20, width - 2)))
            lines += [f"       {line}" for line in entry.below]
        return "\n".join(f"  {line}" for line in lines)

    return draw


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the header and every row as one line each, without padding after the last column."""
    table = [[title for title, _ in columns], *rows]
    lines = [""] * len(table)
    for at, (_, justify) in enumerate(columns[:-1]):
        column = [row[at] for row in table]
        sizes = [columns_of(cell) for cell in column]
        widest = max(sizes)
        for n, (cell, size) in enumerate(zip(column, sizes, strict=True)):
            room = " " * (widest - size)
            lines[n] += f"{room}{cell}  " if justify == "right" else f"{cell}{room}  "
    return [(line + row[-1]).rstrip() for line, row in zip(lines, table, strict=True)]
