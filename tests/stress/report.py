"""Writes the figures of a run into docs/reliability.md: python -m tests.stress.report RESULTS.json [DOCUMENT]

Replaces the table between two markers and leaves the rest of the document unchanged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- stress: begin -->", "<!-- stress: end -->"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def table(results: dict[str, Any]) -> str:
    """Returns the results as a Markdown table."""
    lines = [
        f"Run on {results['date']}, seed {results['seed']}, size `{results['size']}`.",
        *skipped_text(results["parts"]),
        "",
        "| guarantee | part | figures | faults | fault rate below (95 %) | faults of the negative control |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    controls = {part["name"]: part for part in results["parts"] if part["is_control"]}
    for part in results["parts"]:
        if part["is_control"]:
            continue
        control = controls.get(part["name"])
        done = f"skipped: {part['skipped']}" if part["skipped"] else _figures(part["figures"])
        faults = "-" if part["skipped"] else _faults(part["faults"])
        by_control = _faults(control["faults"]) if control and not control["skipped"] else "-"
        cells = [part["promise"], part["name"], done, faults, _bound(part), by_control]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def skipped_text(parts: list[dict[str, Any]]) -> list[str]:
    """Returns a line that names the parts that were skipped, with the reasons; none if all parts ran."""
    skipped = [
        f"{one['name']} ({one['skipped']})" for one in parts if one["skipped"] and not one["is_control"]
    ]
    return [f"Not run, so not tested by these figures: {'; '.join(skipped)}."] if skipped else []


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _faults(faults: dict[str, int]) -> str:
    return ", ".join(f"{kind}: {count:,}" for kind, count in faults.items()) or "0"


def _bound(part: dict[str, Any]) -> str:
    """Returns 3/N as a percentage if N trials had no fault. N is the first figure of the part."""
    trials = next(iter(part["figures"].values()), 0)
    if part["skipped"] or part["faults"] or not isinstance(trials, int) or trials < 10:
        return "-"
    return f"{300 / trials:.2g} %"


def insert(document: str, text: str) -> str:
    """Returns the document with this text between its markers. Raises ValueError if a marker is missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there are no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else DOCUMENT
    found = json.loads(Path(sys.argv[1]).read_text())
    path.write_text(insert(path.read_text(), table(found)))
