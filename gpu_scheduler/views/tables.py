"""Plain tables of text cells. rich is imported when the first one is drawn, never before."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

#: Width where nothing limits it: a table in a pipe is as wide as its text.
UNLIMITED = 10_000

Column = tuple[str, Literal["left", "right"]]
Draw = Callable[[Sequence[Column], Iterable[Sequence[str]]], str]


def drawer(width: int | None) -> Draw:
    """A function that draws a table, its lines indented by two, at most `width` columns wide (None: no limit).

    Short columns stay whole; the last one takes what is left of the width and folds.
    """

    def draw(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        for number, (title, justify) in enumerate(columns, 1):
            last = number == len(columns)
            table.add_column(
                title, justify=justify, no_wrap=not last, overflow="fold" if last else "ellipsis"
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        target = io.StringIO()
        console = Console(
            file=target,
            width=max(20, width - 2) if width else UNLIMITED,
            color_system=None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        console.print(table)
        return "\n".join(f"  {line.rstrip()}" for line in target.getvalue().rstrip("\n").split("\n"))

    return draw
