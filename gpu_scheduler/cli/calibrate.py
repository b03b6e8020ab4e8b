"""`calibrate`: compares what finished jobs used with what was declared, and suggests llm_config.json entries.

Only --write changes the file.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from gpu_scheduler import config
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.scheduling.calibration import (
    CalibrationRules,
    WorkloadClass,
    advise,
    suggested_entries,
    with_model_entries,
)
from gpu_scheduler.intake.llm_config import LlmConfigText
from gpu_scheduler.store.measurements import ClassUsage, class_usages
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.calibrate import CalibrationView, to_json, to_text

_EMPTY_CONFIG = "{\n}\n"


def calibrate(options: Namespace) -> int:
    """Prints the comparison, and with --write changes the file."""
    with open_store(location_of(options), allow_other_host=not options.write) as store:
        families = [_workload_class(one) for one in class_usages(store)]
        rules = _rules(store)
        known = recorded_options(store).llm_config
    named = options.llm_config
    file = LlmConfigText.read(named or known or config.LLM_CONFIG, must_exist=named is not None)
    advised = advise(families, file.models, file.config, rules)
    entries = suggested_entries(advised)
    written, backup = False, None
    if options.write and entries:
        backup = file.replace(with_model_entries(_EMPTY_CONFIG if file.text is None else file.text, entries))
        written = True
    shown = CalibrationView(
        str(file.path), advised, entries, written, None if backup is None else str(backup)
    )
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(to_json(shown) if options.json else to_text(shown, width or None))
    return 0


def _workload_class(measured: ClassUsage) -> WorkloadClass:
    mean_s = sum(measured.seconds) / len(measured.seconds) if measured.seconds else None
    return WorkloadClass(
        measured.program, measured.llm, len(measured.peaks), max(measured.peaks), measured.p95,
        measured.declared, measured.gpus, mean_s, max(measured.seconds, default=None),
    )  # fmt: skip


def _rules(store: Store) -> CalibrationRules:
    started = recorded_options(store)
    totals = tuple(row["total_mib"] for row in store.gpus() if row["total_mib"])
    return CalibrationRules(
        started.spike_buffer, started.tolerance, started.margin_mib + started.idle_threshold_mib, totals
    )
