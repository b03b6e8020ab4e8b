"""The figures of a torture into docs/reliability.md: python -m tests.torture.report RESULTS.json [DOCUMENT]

The table stands between two markers; what is around them stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Run on {results['date']}, seed {results['seed']}, size `{results['size']}`.",
        "",
        "| promise | torture | what was done | faults | rate below (95 %) | naive twin |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    twins = {part["name"]: part for part in results["parts"] if part["naive"]}
    for part in results["parts"]:
        if part["naive"]:
            continue
        twin = twins.get(part["name"])
        done = f"not tried: {part['skipped']}" if part["skipped"] else _figures(part["figures"])
        faults = "-" if part["skipped"] else _faults(part["faults"])
        seen = _faults(twin["faults"]) if twin and not twin["skipped"] else "-"
        cells = [part["promise"], part["name"], done, faults, _bound(part), seen]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _faults(faults: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in faults.items()) or "0"


def _bound(part: dict[str, Any]) -> str:
    """3/N after N trials without a fault; the first figure is the number of trials."""
    trials = next(iter(part["figures"].values()), 0)
    if part["skipped"] or part["faults"] or not isinstance(trials, int) or trials < 10:
        return "-"
    return f"{300 / trials:.2g} %"


def insert(document: str, text: str) -> str:
    """The document with the text between its markers. Raises ValueError where it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there are no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else DOCUMENT
    found = json.loads(Path(sys.argv[1]).read_text())
    path.write_text(insert(path.read_text(), table(found)))
