"""`calibrate`: compares what finished jobs used with what was declared, and suggests llm_config.json entries.

Only --write changes the file.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from gpu_scheduler import config
from gpu_scheduler.cli.record import opened
from gpu_scheduler.core.calibration import Family, Rules, advise, changes, with_entries
from gpu_scheduler.llmconfig import LlmConfigText
from gpu_scheduler.store.measured import Seen, seen
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.calibrate import Calibrated, to_json, to_text

_EMPTY = "{\n}\n"


def calibrate(options: Namespace) -> int:
    """Prints the comparison, and with --write changes the file."""
    with opened(options, foreign=not options.write) as store:
        families = [_family(one) for one in seen(store)]
        rules = _rules(store)
        known = started_with(store).llm_config
    named = options.llm_config
    file = LlmConfigText.read(named or known or config.LLM_CONFIG, must_exist=named is not None)
    advised = advise(families, file.models, file.config, rules)
    entries = changes(advised)
    written, backup = False, None
    if options.write and entries:
        backup = file.replace(with_entries(_EMPTY if file.text is None else file.text, entries))
        written = True
    shown = Calibrated(str(file.path), advised, entries, written, None if backup is None else str(backup))
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(to_json(shown) if options.json else to_text(shown, width or None))
    return 0


def _family(one: Seen) -> Family:
    mean_s = sum(one.seconds) / len(one.seconds) if one.seconds else None
    return Family(
        one.program, one.llm, len(one.peaks), max(one.peaks), one.p95, one.declared, one.gpus, mean_s,
        max(one.seconds, default=None),
    )  # fmt: skip


def _rules(store: Store) -> Rules:
    started = started_with(store)
    totals = tuple(row["total_mib"] for row in store.gpus() if row["total_mib"])
    return Rules(started.spike, started.tolerance, started.margin_mib + started.idle_mib, totals)
