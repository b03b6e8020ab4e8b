"""Suggests declarations from the memory peaks of finished jobs.

For each model an entry of llm_config.json, for programs without a model an attribute; and edits the text of
that file, changing nothing but the entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.model.share import WHOLE, parse_share
from gpu_scheduler.core.model.units import format_mib
from gpu_scheduler.core.scheduling.accounting import with_spike_buffer
from gpu_scheduler.core.scheduling.needs import LlmConfig

#: The evidence required to write an entry: this many runs, or one run of this many seconds.
MIN_RUNS, MIN_RUN_S = 3, 600.0
#: Suggestions are rounded up to multiples of this, MiB.
STEP_MIB = 64

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class WorkloadClass:
    """The completed runs of one program with one model (llm None: no model).

    declared_mib: of the newest run, None = no memory declared; gpus: the fewest used by a run; mean_s,
    longest_s: run time in seconds, None = unknown.
    """

    program: str
    llm: str | None
    runs: int
    max_mib: int
    p95_mib: int
    declared_mib: int | None
    gpus: int
    mean_s: float | None
    longest_s: float | None = None


@dataclass(frozen=True)
class CalibrationRules:
    """The parameters of suggestions.

    spike_buffer: fraction added to a peak; tolerance: fraction by which a declaration may be off; margin_mib:
    memory to leave free beside a declaration; totals_mib: of each managed GPU, () = unknown.
    """

    spike_buffer: float
    tolerance: float
    margin_mib: int
    totals_mib: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """The suggestion for a workload class.

    current_entry: the entry of its model in llm_config.json, as JSON; suggested_entry: its replacement;
    has_enough_runs: whether there is enough evidence to write it; attributes: the block suggested for its
    lines; why_not: why nothing is suggested.
    """

    workload_class: WorkloadClass
    current_entry: Any = None
    suggested_entry: dict[str, Any] | None = None
    has_enough_runs: bool = False
    attributes: str | None = None
    why_not: str | None = None


def advise(
    classes: Sequence[WorkloadClass], models: Mapping[str, Any], config: LlmConfig, rules: CalibrationRules
) -> list[Advice]:
    """Returns advice for each workload class, in order. models: the present entries of llm_config.json."""
    advice = []
    for family in classes:
        if family.llm is None:
            advice.append(_advise_lines(family, rules))
            continue
        same = [one for one in classes if one.llm == family.llm]
        now = models.get(family.llm)
        largest = max(same, key=lambda one: one.p95_mib)
        declared = config.of(family.llm).vram or largest.declared_mib
        gpus = min(one.gpus for one in same)  # a run on fewer GPUs shows that no more are needed
        wanted, why = _suggested_mib(largest.p95_mib, max(one.max_mib for one in same), gpus, declared, rules)
        entry = None if wanted is None else _suggested_entry(now, wanted, gpus)
        advice.append(Advice(family, now, entry, entry is not None and _has_enough_runs(same), why_not=why))
    return advice


def _has_enough_runs(classes: Sequence[WorkloadClass]) -> bool:
    """Returns whether the runs of one model, by any programs, suffice to write its entry."""
    is_long = any((one.longest_s or 0.0) >= MIN_RUN_S for one in classes)
    return is_long or sum(one.runs for one in classes) >= MIN_RUNS


def _advise_lines(workload_class: WorkloadClass, rules: CalibrationRules) -> Advice:
    wanted, why = _suggested_mib(
        workload_class.p95_mib,
        workload_class.max_mib,
        workload_class.gpus,
        workload_class.declared_mib,
        rules,
    )
    if wanted is None:
        return Advice(workload_class, why_not=why)
    more = f" gpus={workload_class.gpus}" if workload_class.gpus > 1 else ""
    return Advice(workload_class, attributes=f"[vram={format_mib(wanted)}{more}]")


def _suggested_mib(
    p95: int, max_mib: int, gpus: int, declared: int | None, rules: CalibrationRules
) -> tuple[int | None, str | None]:
    """Returns the suggested MiB on each GPU, or why none is suggested."""
    steps = -(-with_spike_buffer(p95, rules.spike_buffer) // STEP_MIB)
    wanted = steps * STEP_MIB
    if len(rules.totals_mib) >= gpus:
        room = sorted(rules.totals_mib, reverse=True)[gpus - 1] - rules.margin_mib
        if max_mib > room:
            return None, "needs a GPU to itself"
        wanted = min(wanted, room)  # a larger need could never be placed
    if declared is not None:
        if abs(p95 - declared) <= rules.tolerance * declared:
            return None, f"within ±{100 * rules.tolerance:g}%"
        if abs(wanted - declared) <= STEP_MIB:
            return None, "already as suggested"
    return wanted, None


def _suggested_entry(current_entry: Any, vram_mib: int, gpus: int) -> dict[str, Any]:
    """Returns the entry of a model, keeping the share and gpus of an existing object."""
    kept = dict(current_entry) if isinstance(current_entry, dict) else {}
    if "share" in kept and parse_share(str(kept["share"])) > WHOLE:
        del kept["share"]  # a share above 1 cannot be combined with memory
    text = format_mib(vram_mib)
    entry: dict[str, Any] = {**kept, "vram": int(text) if text.isdigit() else text}
    if gpus > 1:
        entry.setdefault("gpus", gpus)
    return entry


def with_model_entries(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of llm_config.json with these entries in its "models" and everything else unchanged.

    The text must be well-formed.
    """
    for name, entry in entries.items():
        text = _with_entry(text, name, json.dumps(entry, ensure_ascii=False))
    return text


def _with_entry(text: str, name: str, value: str) -> str:
    top = _skip_blanks(text, 0)
    models = [start for key, start, _ in _members(text, top) if key == "models"]
    if not models:
        return _with_member(text, top, "models", "{\n    " + f"{_quoted(name)}: {value}" + "\n  }")
    spans = [(start, end) for key, start, end in _members(text, models[-1]) if key == name]
    if not spans:
        return _with_member(text, models[-1], name, value)
    start, end = spans[-1]  # the last of two members with the same name counts
    return text[:start] + value + text[end:]


def _with_member(text: str, at: int, name: str, value: str) -> str:
    """Adds a member at the end of the object that begins at `at`."""
    ends = [end for _, _, end in _members(text, at)]
    first = _skip_blanks(text, at + 1)
    between = text[at + 1 : first]
    if not ends:
        return f"{text[: at + 1]}\n  {_quoted(name)}: {value}\n{text[first:]}"
    blank = between if "\n" in between else " "
    return f"{text[: ends[-1]]},{blank}{_quoted(name)}: {value}{text[ends[-1] :]}"


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yields (key, start of its value, end of its value) for the object that begins at `at`."""
    at = _skip_blanks(text, at + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        start = _skip_blanks(text, _skip_blanks(text, after) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip_blanks(text, end)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)


def _skip_blanks(text: str, at: int) -> int:
    """Returns the first position from `at` on that is not blank."""
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def suggested_entries(
    advice: Collection[Advice], *, has_enough_runs: bool = True
) -> dict[str, dict[str, Any]]:
    """Returns the suggested entry of each model whose entry should change.

    has_enough_runs: selects the models with enough evidence, or those without.
    """
    found = [one for one in advice if one.has_enough_runs is has_enough_runs]
    return {
        one.workload_class.llm: one.suggested_entry
        for one in found
        if one.workload_class.llm is not None and one.suggested_entry
    }
