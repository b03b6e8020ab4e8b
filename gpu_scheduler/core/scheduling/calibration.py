"""Suggests memory declarations for `calibrate`, based on the memory peaks of finished jobs.

For a model, it suggests an entry of llm_config.json. For a program without a model, it suggests an attribute.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.values import WHOLE, Code, format_mib, parse_share
from gpu_scheduler.core.scheduling.accounting import with_spike_buffer
from gpu_scheduler.core.scheduling.needs import LlmConfig, WorkloadClass
from gpu_scheduler.core.scheduling.run_times import MIN_RUNS, ClassRunTimes, RunTimes, upper_quantile

#: An entry is suggested only after at least this many runs, or one run of at least this many seconds.
MIN_ENTRY_RUNS, MIN_RUN_S = 3, 600.0
#: Suggestions are rounded up to a multiple of this number of MiB.
STEP_MIB = 64


class NoSuggestion(Code):
    """The reason why nothing is suggested."""

    NEEDS_WHOLE_GPU = "needs_whole_gpu", "needs a GPU to itself"
    WITHIN_TOLERANCE = "within_tolerance", "within ±{percent:g}%"
    AS_SUGGESTED = "as_suggested", "the current entry is right"


class CalibrationRules(Struct, frozen=True):
    """The parameters of suggestions.

    spike_buffer: fraction to add to a peak; tolerance: fraction by which a peak may deviate from its
    declaration; margin_mib: memory to leave free on each GPU; totals_mib: memory size of each managed GPU, ()
    if unknown.
    """

    spike_buffer: float
    tolerance: float
    margin_mib: int
    totals_mib: tuple[int, ...] = ()


class Advice(Struct, frozen=True):
    """The suggestion for a workload class.

    current_entry: the model's entry in llm_config.json, as JSON; suggested_entry: the replacement for it;
    has_enough_runs: whether there is enough evidence for the replacement; line_vram_mib: the vram suggested
    for the lines of a class without a model; why_not: why nothing is suggested.
    """

    workload_class: WorkloadClass
    current_entry: Any = None
    suggested_entry: dict[str, Any] | None = None
    has_enough_runs: bool = False
    line_vram_mib: int | None = None
    why_not: NoSuggestion | None = None


def advise(
    classes: Sequence[WorkloadClass], models: Mapping[str, Any], config: LlmConfig, rules: CalibrationRules
) -> list[Advice]:
    """Returns advice for each workload class, in order. models: the current entries of llm_config.json."""
    return [
        _advise_line(one, rules) if one.llm is None else _advise_model(one, classes, models, config, rules)
        for one in classes
    ]


def _advise_model(
    workload_class: WorkloadClass,
    classes: Sequence[WorkloadClass],
    models: Mapping[str, Any],
    config: LlmConfig,
    rules: CalibrationRules,
) -> Advice:
    """Returns advice on the model's entry, based on the runs of all programs that use the model."""
    llm = workload_class.llm or ""
    same = [one for one in classes if one.llm == llm]
    largest = max(same, key=lambda one: one.p95_mib)
    together = replace(
        largest,
        max_mib=max(one.max_mib for one in same),
        gpus=min(one.gpus for one in same),  # a run on fewer GPUs shows that no more GPUs are needed
        declared_mib=config.of(llm).vram or largest.declared_mib,
    )
    wanted, why = _suggested_mib(together, rules)
    entry = None if wanted is None else _suggested_entry(models.get(llm), wanted, together.gpus)
    enough = entry is not None and _has_enough_runs(same)
    return Advice(workload_class, models.get(llm), entry, enough, why_not=why)


def _has_enough_runs(classes: Sequence[WorkloadClass]) -> bool:
    """Returns whether there are enough runs with a model, by any programs, to suggest the model's entry."""
    is_long = any((one.longest_s or 0.0) >= MIN_RUN_S for one in classes)
    return is_long or sum(one.runs for one in classes) >= MIN_ENTRY_RUNS


def _advise_line(workload_class: WorkloadClass, rules: CalibrationRules) -> Advice:
    wanted, why = _suggested_mib(workload_class, rules)
    return Advice(workload_class, line_vram_mib=wanted, why_not=why)


def _suggested_mib(
    measured: WorkloadClass, rules: CalibrationRules
) -> tuple[int | None, NoSuggestion | None]:
    """Returns the suggested MiB on each GPU, or why nothing is suggested."""
    p95, declared, gpus = measured.p95_mib, measured.declared_mib, measured.gpus
    steps = -(-with_spike_buffer(p95, rules.spike_buffer) // STEP_MIB)
    wanted = steps * STEP_MIB
    if len(rules.totals_mib) >= gpus:
        room = sorted(rules.totals_mib, reverse=True)[gpus - 1] - rules.margin_mib
        if measured.max_mib > room:
            return None, NoSuggestion.NEEDS_WHOLE_GPU
        wanted = min(wanted, room)  # a larger need would not fit on any GPU
    if declared is not None:
        if abs(p95 - declared) <= rules.tolerance * declared:
            return None, NoSuggestion.WITHIN_TOLERANCE
        if abs(wanted - declared) <= STEP_MIB:
            return None, NoSuggestion.AS_SUGGESTED
    return wanted, None


def _suggested_entry(current_entry: Any, vram_mib: int, gpus: int) -> dict[str, Any]:
    """Returns the new entry of a model, which keeps the share and gpus of an existing JSON object."""
    kept = dict(current_entry) if isinstance(current_entry, dict) else {}
    if "share" in kept and parse_share(str(kept["share"])) > WHOLE:
        del kept["share"]  # a share above 1 cannot be combined with memory
    text = format_mib(vram_mib)
    entry: dict[str, Any] = {**kept, "vram": int(text) if text.isdigit() else text}
    if gpus > 1:
        entry.setdefault("gpus", gpus)
    return entry


def suggested_entries(
    advice: Collection[Advice], *, has_enough_runs: bool = True
) -> dict[str, dict[str, Any]]:
    """Returns the suggested entry of each model whose entry should change.

    has_enough_runs: True to return the models with enough evidence, False to return the other models.
    """
    found = [one for one in advice if one.has_enough_runs is has_enough_runs]
    return {
        one.workload_class.llm: one.suggested_entry
        for one in found
        if one.workload_class.llm is not None and one.suggested_entry
    }


# Summarises how long the jobs of each workload class ran, and how good the estimates were.


class RunTimeSummary(Struct, frozen=True):
    """The completed runs of one program with one model, or without a model (llm is None).

    commands: the number of different identities. upper_ratio: the multiple of its estimate within which nine
    of ten runs ended. median_error: the median difference between a run and its estimate, as a fraction of
    the estimate. Both are None if fewer than MIN_RUNS runs could be estimated from the runs before them.
    """

    program: str
    llm: str | None
    runs: int
    commands: int
    median_s: float
    upper_ratio: float | None
    median_error: float | None


def summarise(run_times: RunTimes) -> list[RunTimeSummary]:
    """Returns the summary of each workload class, sorted by program and model."""
    return [_summary(key, known) for key, known in sorted(run_times.classes.items())]


def _summary(key: str, known: ClassRunTimes) -> RunTimeSummary:
    program, llm = json.loads(key)
    enough = len(known.ratios) >= MIN_RUNS
    return RunTimeSummary(
        program,
        llm,
        len(known.runs),
        len({identity for identity, _ in known.runs}),
        median(seconds for _, seconds in known.runs),
        upper_quantile(known.ratios) if enough else None,
        median(abs(ratio - 1) for ratio in known.ratios) if enough else None,
    )
