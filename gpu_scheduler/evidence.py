"""Collects the context of a failed command: the end of its log, and the GPU ids it was given."""

from __future__ import annotations

import json
import sqlite3

from gpu_scheduler.core.command import shown
from gpu_scheduler.core.cuda import ids_text
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.sighting import Evidence, Sighting
from gpu_scheduler.logtail import tail_of
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store

_MARK = "THE-GPU-IDS"


def evidence_of(store: Store, row: sqlite3.Row, seen: Sighting) -> Evidence:
    """Returns the failure context of an attempt whose result reports a failure."""
    job = store.job(row["job_id"])
    assert job is not None
    spec = JobSpec.from_json(job["spec"])
    return Evidence(
        tail_of(row["log"] or seen.log),
        _misleading_ids(store, row, spec),
        spec.oom_retries,
        spec.fail_retries,
    )


def _misleading_ids(store: Store, row: sqlite3.Row, spec: JobSpec) -> tuple[int, ...]:
    """Returns the physical GPU ids given to the command, unless they equal its visible numbering."""
    index = store.indices()
    gpus = tuple(index[uuid] for uuid in json.loads(row["gpus"]) if uuid in index)
    mode = spec.cuda_ids or started_with(store).cuda_ids
    same = ids_text(gpus, mode) == ids_text(gpus, "visible")
    return () if same or _MARK not in shown(spec, _MARK) else gpus
