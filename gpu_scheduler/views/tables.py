"""Plain tables of text cells. rich is imported when the first one is drawn, never before."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

#: Wide enough that rich never shortens a cell: only the last one gives way, when its line is cut.
_UNLIMITED = 10_000

Column = tuple[str, Literal["left", "right"]]


@dataclass(frozen=True)
class Entry:
    """One row: its cells, each of one line, and what is written below them, a line each."""

    cells: Sequence[str]
    below: Sequence[str] = ()


Draw = Callable[[Sequence[Column], Sequence[Entry]], str]


def drawer(width: int | None) -> Draw:
    """A function that draws a table, indented by two.

    Rows are cut to `width` columns (None: not at all, as in a pipe). The lines below a row are never cut or
    broken, so that a path in them can be copied.
    """

    def draw(columns: Sequence[Column], entries: Sequence[Entry]) -> str:
        from rich.text import Text

        head, *rows = _aligned(columns, [entry.cells for entry in entries])
        lines = [head]
        for row, entry in zip(rows, entries, strict=True):
            lines += [row, *(f"       {line}" for line in entry.below)]
            if width is not None:
                cut = Text(row)
                cut.truncate(max(20, width - 2), overflow="ellipsis")
                lines[-1 - len(entry.below)] = cut.plain
        return "\n".join(f"  {line}" for line in lines)

    return draw


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head and every row as a line each. The last column is not given to rich: one cell of 60 KiB there
    would make it pad all the others as far."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title, justify in columns[:-1]:
        table.add_column(title, justify=justify, no_wrap=True)
    for cells in rows:
        table.add_row(*(Text(cell) for cell in cells[:-1]))
    target = io.StringIO()
    Console(file=target, width=_UNLIMITED, color_system=None, legacy_windows=False).print(table)
    last = [columns[-1][0], *(cells[-1] for cells in rows)]
    lines = target.getvalue().split("\n")[: len(last)]
    return [(line + cell).rstrip() for line, cell in zip(lines, last, strict=True)]
