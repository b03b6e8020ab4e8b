"""Formats learned run times: of each workload class for `calibrate`, and the estimate of a job for `show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.scheduling.run_time_summary import RunTimeSummary
from gpu_scheduler.core.scheduling.run_times import MIN_RUNS
from gpu_scheduler.core.text.formatting import count_noun, format_duration, safe_text
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table

if TYPE_CHECKING:
    from gpu_scheduler.app.job_detail import JobRunTime

_COLUMNS = (
    Column("Model"),
    *(
        Column(title, is_right=True)
        for title in ("Runs", "Commands", "Median time", "9 of 10 within", "Median error")
    ),
)
_NOTE = (
    'Run times of completed jobs. "9 of 10 within": as a multiple of the time that was expected from the runs'
    ' before; "Median error": how much longer or shorter than expected.'
)


def table_lines(summaries: Sequence[RunTimeSummary], width: int | None) -> list[str]:
    """Returns a table of the classes with enough runs, and the number of the others.

    width: the maximum width of a row, None = unlimited.
    """
    shown = [one for one in summaries if one.runs >= MIN_RUNS]
    lines = []
    if shown:
        lines += [*render_table(_COLUMNS, [_row(one) for one in shown], width), _NOTE]
    left = len(summaries) - len(shown)
    if left:
        verb, object_ = ("has", "it") if left == 1 else ("have", "them")
        lines.append(
            f"{count_noun(left, 'program')} {verb} fewer than {MIN_RUNS} completed runs;"
            f" `calibrate --json` lists {object_}."
        )
    return lines


def _row(summary: RunTimeSummary) -> TableRow:
    cells = [
        "-" if summary.llm is None else safe_text(summary.llm),
        f"{summary.runs:,}",
        f"{summary.commands:,}",
        format_duration(summary.median_s),
        "-" if summary.upper_ratio is None else f"{summary.upper_ratio:.2f} x",
        "-" if summary.median_error is None else f"{100 * summary.median_error:.0f} %",
    ]
    return TableRow([*map(Cell, cells)], detail_lines=[safe_text(summary.program)])


def summary_object(summary: RunTimeSummary) -> dict[str, Any]:
    """Returns a summary as docs/json.md describes it."""
    return {
        "model": summary.llm,
        "program": summary.program,
        "runs": summary.runs,
        "commands": summary.commands,
        "median_s": summary.median_s,
        "upper_ratio": summary.upper_ratio,
        "median_error": summary.median_error,
    }


def estimate_text(run_time: JobRunTime) -> str:
    """Returns how long a job usually runs, and on what that is based."""
    runs = count_noun(run_time.runs, "run")
    basis = f"{runs} of this command" if run_time.is_of_identity else f"{runs} of its program and model"
    upper = f"9 of 10 such jobs end within {format_duration(run_time.upper_s)}"
    return f"usually {format_duration(run_time.median_s)} ({basis}); {upper}"


def estimate_object(run_time: JobRunTime | None) -> dict[str, Any] | None:
    """Returns the estimate of a job as docs/json.md describes it; None if there is none."""
    if run_time is None:
        return None
    return {
        "median_s": run_time.median_s,
        "upper_s": run_time.upper_s,
        "runs": run_time.runs,
        "same_command": run_time.is_of_identity,
    }
