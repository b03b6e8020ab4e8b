"""Builds the table of the managed GPUs, with one row per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_scheduler.app import status_report
from gpu_scheduler.app.status_report import GpuView
from gpu_scheduler.core.model.gpu_list import format_ranges
from gpu_scheduler.core.model.units import format_share
from gpu_scheduler.core.text.formatting import format_memory, safe_text
from gpu_scheduler.views.colours import GREEN, RED, YELLOW
from gpu_scheduler.views.gpu_claims import claims_problem_text, claims_text, mode_lines
from gpu_scheduler.views.layout import Cell, Column, TableRow

_COLOURS = {
    status_report.LOST: RED,
    status_report.PAUSED: YELLOW,
    status_report.SUSPECT: RED,
    status_report.CLAIMED: YELLOW,
    status_report.RESERVED: YELLOW,
    status_report.AVAILABLE: GREEN,
}


def gpu_rows(
    views: Sequence[GpuView], *, with_allocated: bool = False
) -> tuple[list[Column], list[TableRow]]:
    """Returns the columns and the rows of the table.

    with_allocated: show the column of allocated memory even if no job declared memory.
    """
    by_memory = with_allocated or any(gpu.has_declared_memory for gpu in views)
    columns = [
        Column("GPU", is_right=True), Column("State"), Column("Share", is_right=True),
        *([Column("Allocated", is_right=True)] if by_memory else []),
        Column("Memory", is_right=True), Column("Load", is_right=True), Column("Jobs"), Column("Name"),
    ]  # fmt: skip
    return columns, [_row(gpu, by_memory) for gpu in views]


def _row(gpu: GpuView, by_memory: bool) -> TableRow:
    load = "?" if gpu.record.load_percent is None else f"{gpu.record.load_percent:.0f} %"
    name = safe_text(gpu.record.name)
    if gpu.record.fault is not None and not gpu.record.fault.is_lost:
        name = f"{safe_text(str(gpu.record.fault))} ({name})"
    allocated = [Cell(format_memory(gpu.allocated_mib))] if by_memory else []
    return TableRow(
        [
            Cell(str(gpu.record.index)),
            Cell(gpu.state, _COLOURS.get(gpu.state, "")),
            Cell(format_share(gpu.share)),
            *allocated,
            Cell(_memory_text(gpu)),
            Cell(load),
            Cell(_jobs_text(gpu)),
            Cell(name),
        ],
        detail_lines=[safe_text(text) for text in _detail_lines(gpu)],
    )


def _jobs_text(gpu: GpuView) -> str:
    """Formats the jobs on the GPU, and the jobs for which it is reserved: "3-5, then 7", "then 7"."""
    then = f"then {format_ranges(gpu.reserved_for)}" if gpu.reserved_for else ""
    return ", ".join(text for text in (format_ranges(gpu.jobs), then) if text) or "-"


def _detail_lines(gpu: GpuView) -> Iterator[str]:
    """Yields lines about a suspicion, the modes of the GPU and the claims of other programs."""
    if gpu.record.suspicion is not None:
        from gpu_scheduler.views.gpu_obstacle_text import suspicion_text  # rarely needed

        text = suspicion_text(gpu.record.suspicion, gpu.record.sampled_at or 0.0)
        yield f"{text}; `resume {gpu.record.index}` uses it again at once"
    problem = [] if gpu.claims_problem is None else [claims_problem_text(gpu.claims_problem)]
    yield from [*mode_lines(gpu.record), *problem, *([claims_text(gpu.claims)] if gpu.claims else [])]


def _memory_text(gpu: GpuView) -> str:
    """Formats used and total memory: "15.6 / 24.0 GiB", or in MiB for a GPU with less than 1 GiB."""
    total = format_memory(gpu.record.total_mib)
    used = format_memory(gpu.record.used_mib)
    if gpu.record.used_mib is not None and total.endswith(" GiB"):
        used = f"{gpu.record.used_mib / 1024:.1f}"
    return f"{used} / {total}"
