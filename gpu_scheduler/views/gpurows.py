"""Builds the table of the managed GPUs, one row each."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.share import format_share
from gpu_scheduler.views import report
from gpu_scheduler.views.colours import GREEN, RED, YELLOW
from gpu_scheduler.views.lines import Cell, Column, Entry
from gpu_scheduler.views.report import GpuShown
from gpu_scheduler.views.titles import ranges
from gpu_scheduler.views.words import size, visible

_COLOURS = {report.LOST: RED, report.PAUSED: YELLOW, report.AVAILABLE: GREEN}


def gpu_rows(gpus: Sequence[GpuShown]) -> tuple[list[Column], list[Entry]]:
    """Returns the columns and the rows; allocated memory has a column if any job declared memory."""
    by_memory = any(gpu.by_memory for gpu in gpus)
    columns = [
        Column("GPU", is_right=True), Column("State"), Column("Share", is_right=True),
        *([Column("Allocated", is_right=True)] if by_memory else []),
        Column("Memory", is_right=True), Column("Load", is_right=True), Column("Jobs"), Column("Name"),
    ]  # fmt: skip
    return columns, [_row(gpu, by_memory) for gpu in gpus]


def _row(gpu: GpuShown, by_memory: bool) -> Entry:
    load = "?" if gpu.load_percent is None else f"{gpu.load_percent:.0f} %"
    allocated = [Cell(size(gpu.booked_mib))] if by_memory else []
    name = visible(gpu.name)
    if gpu.fault not in (None, gpu.state):
        name = f"{visible(gpu.fault or '')} ({name})"
    return Entry(
        [
            Cell(str(gpu.index)),
            Cell(gpu.state, _COLOURS.get(gpu.state, "")),
            Cell(format_share(gpu.share)),
            *allocated,
            Cell(_memory(gpu)),
            Cell(load),
            Cell(ranges(gpu.jobs) or "-"),
            Cell(name),
        ]
    )


def _memory(gpu: GpuShown) -> str:
    """Formats used and total memory: "15.6 / 24.0 GiB", or in MiB for a GPU below 1 GiB."""
    total = size(gpu.total_mib)
    used = size(gpu.used_mib)
    if gpu.used_mib is not None and total.endswith(" GiB"):
        used = f"{gpu.used_mib / 1024:.1f}"
    return f"{used} / {total}"
