"""Formats results as a table of medians and their spread, with one column for each checkout."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured quantity: its label, its unit, its goal, and each checkout's values in column order."""

    label: str
    unit: str
    goal: str
    values: Sequence[Sequence[float]]


def format_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns the table. A cell has the median, the 10th and 90th percentiles, and the number of values."""
    head = ["", *columns, "unit", "goal"]
    body = [[row.label, *map(_cell, row.values), row.unit, row.goal] for row in rows]
    widths = [max(len(line[n]) for line in [head, *body]) for n in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    )


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (0.1, 0.9))
    return f"{statistics.median(values):.1f} [{low:.1f}-{high:.1f}] n={len(values)}"
