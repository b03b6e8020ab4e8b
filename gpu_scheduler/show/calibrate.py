"""Compares finished jobs' memory use with their declarations, and suggests entries for llm_config.json.

The text and the JSON also show learned run times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gpu_scheduler import config
from gpu_scheduler.core.model.values import format_mib
from gpu_scheduler.core.scheduling.history import MIN_RUNS, RunTimeSummary, summarise
from gpu_scheduler.core.scheduling.needs import (
    MIN_ENTRY_RUNS,
    MIN_RUN_S,
    Advice,
    CalibrationRules,
    advise,
    suggested_entries,
)
from gpu_scheduler.core.text.formatting import count_noun, format_duration, masked_json, picked, safe_text
from gpu_scheduler.intake.llm_config import LlmConfigText
from gpu_scheduler.show.layout import Cell, Column, TableRow, render_table
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.attempt_history import RunTimesReader, workload_classes
from gpu_scheduler.store.store import Store


class CalibrationView(Struct, frozen=True):
    """The result of `calibrate`.

    path: the path of llm_config.json; entries: the new entry of each model that has enough data; tolerance:
    the fraction by which a declaration may be off; run_times: the run times of each workload class.
    """

    path: str
    suggestions: Sequence[Advice]
    entries: Mapping[str, Mapping[str, Any]]
    tolerance: float = 0.10
    run_times: Sequence[RunTimeSummary] = ()


def calibrate(location: Location, llm_config: str | None) -> CalibrationView:
    """Returns the comparison and the suggestions. Changes nothing.

    llm_config: the path of a file that must exist; None means the scheduler's own llm_config.json.
    """
    with open_store(location, read_only=True) as store:
        measured = workload_classes(store)
        run_times = summarise(RunTimesReader(store).run_times(store.marks()))
        rules = _rules(store)
        known = store.recorded_options().llm_config
    file = LlmConfigText.read(llm_config or known or config.LLM_CONFIG, must_exist=llm_config is not None)
    suggestions = advise(measured, file.models, file.config, rules)
    entries = suggested_entries(suggestions)
    return CalibrationView(str(file.path), suggestions, entries, rules.tolerance, run_times)


def _rules(store: Store) -> CalibrationRules:
    started = store.recorded_options()
    totals = tuple(gpu.total_mib for gpu in store.gpus() if gpu.total_mib)
    return CalibrationRules(
        started.spike_buffer, started.tolerance, started.margin_mib + started.idle_threshold_mib, totals
    )


# Formats the learned run times of each workload class.


_RUN_TIME_COLUMNS = (
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
        lines += [*render_table(_RUN_TIME_COLUMNS, [_run_time_row(one) for one in shown], width), _NOTE]
    left = len(summaries) - len(shown)
    if left:
        verb, object_ = ("has", "it") if left == 1 else ("have", "them")
        lines.append(
            f"{count_noun(left, 'program')} {verb} fewer than {MIN_RUNS} completed runs;"
            f" `calibrate --json` lists {object_}."
        )
    return lines


def _run_time_row(summary: RunTimeSummary) -> TableRow:
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
        **picked(summary, "program", "runs", "commands", "median_s", "upper_ratio", "median_error"),
    }


_COLUMNS = (
    Column("Model"),
    *(Column(title, is_right=True) for title in ("Runs", "Peak max", "Peak p95", "Took", "Declared")),
    Column("Suggested"),
)
#: This note applies to every suggested entry, because every one is a JSON object.
_OLDER_SCHEDULER_NOTE = "The older scheduler cannot read entries in braces."


def to_text(view: CalibrationView, width: int | None = None) -> str:
    """Formats memory use as a table with suggestions, and run times as a table.

    width: the maximum width of a row, None = unlimited.
    """
    blocks = _memory_blocks(view, width)
    if view.run_times:
        blocks.append("\n".join(table_lines(view.run_times, width)))
    return "\n\n".join(blocks) + "\n"


def _memory_blocks(view: CalibrationView, width: int | None) -> list[str]:
    if not view.suggestions:
        return [
            "No measurements yet: no completed job was observed using GPU memory.\n"
            "The scheduler measures jobs whenever it samples the GPUs (`start --poll` sets how often)."
        ]
    rows = render_table(_COLUMNS, [_row(one, view.tolerance) for one in view.suggestions], width)
    blocks = ["\n".join([*rows, "Memory in MiB per GPU."]), "\n".join(_model_lines(view))]
    of_lines = [one for one in view.suggestions if one.line_vram_mib is not None]
    if of_lines:
        head = "Suggested attributes for lines without --llm, by program:"
        attributes = (f"  {_attributes(one)} {safe_text(one.workload_class.program)}" for one in of_lines)
        blocks.append("\n".join([head, *attributes]))
    return blocks


def _row(advice: Advice, tolerance: float) -> TableRow:
    family = advice.workload_class
    suggested = (
        _attributes(advice)
        or (_json(advice.suggested_entry) if advice.suggested_entry else _why_not(advice, tolerance))
        or "-"
    )
    cells = [
        safe_text(family.llm) if family.llm is not None else "-",
        f"{family.runs:,}",
        str(family.max_mib),
        str(family.p95_mib),
        "-" if family.mean_s is None else format_duration(family.mean_s),
        "-" if family.declared_mib is None else str(family.declared_mib),
        suggested,
    ]
    now = "" if advice.current_entry is None else f"; current entry {safe_text(_json(advice.current_entry))}"
    return TableRow([*map(Cell, cells)], detail_lines=[safe_text(family.program) + now])


def _attributes(advice: Advice) -> str | None:
    """Returns the attribute block suggested for the lines of a program that name no model."""
    if advice.line_vram_mib is None:
        return None
    gpus = advice.workload_class.gpus
    return f"[vram={format_mib(advice.line_vram_mib)}{f' gpus={gpus}' if gpus > 1 else ''}]"


def _why_not(advice: Advice, tolerance: float) -> str | None:
    return None if advice.why_not is None else advice.why_not.sentence.format(percent=100 * tolerance)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _model_lines(view: CalibrationView) -> list[str]:
    lines = []
    if view.entries:
        head = f'Suggested entries for "models" in {safe_text(view.path)}, to paste in place of the old ones:'
        lines = [head, *_entry_lines(view.entries), _OLDER_SCHEDULER_NOTE]
    early = suggested_entries(view.suggestions, has_enough_runs=False)
    if early:
        needs = f"an entry needs {MIN_ENTRY_RUNS} completed runs, or one run of {format_duration(MIN_RUN_S)}"
        head = f"Too few measurements to suggest these entries ({needs}):"
        lines += [*([""] if lines else []), head, *_entry_lines(early)]
    return lines or [f"{safe_text(view.path)} needs no changes."]


def _entry_lines(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the members of a JSON object, one on each line."""
    members = (
        # A character that `safe_text` would escape is escaped as JSON does it.
        f"  {safe_text(json.dumps(name, ensure_ascii=not name.isprintable()))}: {_json(entry)}"
        for name, entry in entries.items()
    )
    return ",\n".join(members).split("\n")


def to_json(view: CalibrationView) -> str:
    """Formats the result as JSON, as docs/json.md describes."""
    value = {
        "llm_config": view.path,
        "measured": [_suggestion_object(one, view.tolerance) for one in view.suggestions],
        "models": dict(view.entries),
        "run_times": [summary_object(one) for one in view.run_times],
    }
    return masked_json(value, 1) + "\n"


def _suggestion_object(advice: Advice, tolerance: float) -> dict[str, Any]:
    family = advice.workload_class
    return {
        "model": family.llm,
        **picked(family, "program", "runs", "gpus", "max_mib", "p95_mib", "mean_s", "longest_s"),
        "declared_mib": family.declared_mib,
        "current": advice.current_entry,
        "suggested": advice.suggested_entry,
        "sufficient_data": advice.has_enough_runs,
        "attributes": _attributes(advice),
        "reason": _why_not(advice, tolerance),
    }
