"""Formats measured memory use beside declarations, and the suggested declarations, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.calibration import ENOUGH_RUNS, ENOUGH_S, Advice, changes
from gpu_scheduler.core.secrets import masked
from gpu_scheduler.views.tables import Column, Entry, drawer
from gpu_scheduler.views.words import duration, visible

_COLUMNS: tuple[Column, ...] = (
    ("Model", "left"), ("Runs", "right"), ("Peak max", "right"), ("Peak p95", "right"), ("Took", "right"),
    ("Declared", "right"), ("Suggested", "left"),
)  # fmt: skip
#: Applies to every suggested entry, since each one is an object.
_OLDER = "The older scheduler cannot read entries in braces."


@dataclass(frozen=True)
class Calibrated:
    """Result of `calibrate`. path: of llm_config.json; entries: model -> its new entry, if there is enough
    data; written: whether the file has them now; backup: path of the previous version."""

    path: str
    advised: Sequence[Advice]
    entries: Mapping[str, Mapping[str, Any]]
    written: bool = False
    backup: str | None = None


def to_text(seen: Calibrated, width: int | None = None) -> str:
    """Formats a table, its rows truncated to `width` (None: not truncated), then the suggestions."""
    if not seen.advised:
        return (
            "No measurements yet: no completed job was observed using GPU memory.\n"
            "Jobs are measured at each sample of the GPUs (`start --poll`).\n"
        )
    table = drawer(width)(_COLUMNS, [_row(one) for one in seen.advised])
    blocks = [f"{table}\n  Memory in MiB per GPU.", "\n".join(_models(seen))]
    blocks += ["\n".join(lines) for lines in (_lines(seen),) if lines]
    return "\n\n".join(blocks) + "\n"


def _row(one: Advice) -> Entry:
    family = one.family
    suggested = one.attributes or (_json(one.entry) if one.entry else one.why) or "-"
    cells = [
        visible(family.llm) if family.llm is not None else "-",
        f"{family.runs:,}",
        str(family.max_mib),
        str(family.p95_mib),
        "-" if family.mean_s is None else duration(family.mean_s),
        "-" if family.declared_mib is None else str(family.declared_mib),
        suggested,
    ]
    now = "" if one.now is None else f"; current entry {visible(_json(one.now))}"
    return Entry(cells, [visible(family.program) + now])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _models(seen: Calibrated) -> list[str]:
    early = _too_early(seen)
    if not seen.entries:
        return early or [f"{visible(seen.path)} needs no changes."]
    if not seen.written:
        head = (
            f'Suggested for "models" in {visible(seen.path)} (`calibrate --write` writes it with a backup):'
        )
        return [head, *_entries(seen.entries), _OLDER, *(["", *early] if early else [])]
    now = {one.family.llm: one.now for one in seen.advised}
    lines = [f"Changed in {visible(seen.path)}; a running scheduler reloads the file:"]
    for name, entry in seen.entries.items():
        before = "nothing" if now.get(name) is None else visible(_json(now[name]))
        lines.append(f"  {visible(_json(name))}: {before} -> {_json(entry)}")
    kept = f"The previous version is {visible(seen.backup)}." if seen.backup else "The file is new."
    return [*lines, kept, _OLDER, *(["", *early] if early else [])]


def _entries(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"  {visible(_json(name))}: {_json(entry)}" for name, entry in entries.items()]


def _too_early(seen: Calibrated) -> list[str]:
    """Lists the suggestions that rest on too few measurements to be written."""
    early = changes(seen.advised, enough=False)
    if not early:
        return []
    needs = f"an entry needs {ENOUGH_RUNS} completed runs, or one of {duration(ENOUGH_S)}"
    return [f"Not written to {visible(seen.path)}: too few measurements ({needs}):", *_entries(early)]


def _lines(seen: Calibrated) -> list[str]:
    of_lines = [one for one in seen.advised if one.attributes]
    if not of_lines:
        return []
    head = "Suggested attributes for lines without --llm, by program:"
    return [head, *(f"  {one.attributes} {visible(one.family.program)}" for one in of_lines)]


def to_json(seen: Calibrated) -> str:
    """Formats the result as JSON, as docs/json.md describes."""
    value = {
        "llm_config": seen.path,
        "measured": [_object(one) for one in seen.advised],
        "models": dict(seen.entries),
        "written": seen.written,
        "backup": seen.backup,
    }
    return json.dumps(value, indent=1) + "\n"


def _object(one: Advice) -> dict[str, Any]:
    family = one.family
    return {
        "model": family.llm,
        "program": masked(family.program),
        "runs": family.runs,
        "gpus": family.gpus,
        "max_mib": family.max_mib,
        "p95_mib": family.p95_mib,
        "mean_s": family.mean_s,
        "longest_s": family.longest_s,
        "declared_mib": family.declared_mib,
        "current": one.now,
        "suggested": one.entry,
        "sufficient_data": one.enough,
        "attributes": one.attributes,
        "reason": one.why,
    }
