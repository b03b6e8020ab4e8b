"""Compares finished jobs' memory use with their declarations, and suggests entries for llm_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gpu_scheduler import config
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.core.scheduling.history import RunTimeSummary, summarise
from gpu_scheduler.core.scheduling.needs import Advice, CalibrationRules, advise, suggested_entries
from gpu_scheduler.intake.llm_config import LlmConfigText
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
