"""What a command that failed has left: the end of its log, and the GPU ids that it was given."""

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
    """Of an attempt whose result says that it failed."""
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
    """The physical ids that its command was given, unless they are the ones that count what it sees."""
    index = store.indices()
    gpus = tuple(index[uuid] for uuid in json.loads(row["gpus"]) if uuid in index)
    mode = spec.cuda_ids or started_with(store).cuda_ids
    same = ids_text(gpus, mode) == ids_text(gpus, "visible")
    return () if same or _MARK not in shown(spec, _MARK) else gpus
