"""Builds records from database rows. Only this module lists the columns that such rows have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_scheduler.core.model.gpu import GpuProcess, Suspicion
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.store.records import (
    ActiveAttemptRecord,
    AllocationRecord,
    AttemptRecord,
    GpuRecord,
    JobRecord,
)

if TYPE_CHECKING:
    from gpu_scheduler.core.model.adopted_process import AdoptedProcess
    from gpu_scheduler.core.model.attempt_status import StopRequest
    from gpu_scheduler.core.model.checkpoint import Checkpoint
    from gpu_scheduler.core.model.gpu_fault import GpuFault

_Record = TypeVar("_Record")

#: The columns of a job.
JOB_COLUMNS = ", ".join(JobRecord._fields).replace("spec_json", "spec AS spec_json")
#: The open request to stop the attempt of a job, as a column with a JSON list; NULL if there is none.
STOP_REQUEST_COLUMN = (
    "CASE WHEN job.stop_cause IS NOT NULL THEN json_array(job.stop_cause, job.stop_grace_s,"
    " job.stop_on_timeout, job.stop_id, job.stop_signal, job.stop_next_state, job.stop_preemptor) END"
    " AS stop_request"
)
#: The columns of a GPU.
GPU_COLUMNS = ", ".join(one.name for one in fields(GpuRecord)).replace("index", 'idx AS "index"')
#: The columns of an attempt. Its allocations and misplaced processes are JSON lists, so one query is enough.
ATTEMPT_COLUMNS = """
    attempt.*,
    (SELECT json_group_array(json_array(gpu, share, vram, whole, peak_mib, budget_mib, baseline_mib, load_sum,
                                        load_samples, overuse_logged))
     FROM (SELECT * FROM allocation WHERE attempt_id = attempt.id ORDER BY ordinal)) AS allocations,
    (SELECT json_group_array(json_array(gpu, pid)) FROM misplaced_process
     WHERE attempt_id = attempt.id) AS misplaced
"""


def job_records(rows: Sequence[sqlite3.Row]) -> list[JobRecord]:
    """Builds job records from rows that have JOB_COLUMNS."""
    converters = [(JobRecord._fields.index(name), convert) for name, convert in _JOB_FIELDS.items()]
    found = []
    for row in rows:
        values = list(row)
        for index, convert in converters:
            if values[index] is not None:
                values[index] = convert(values[index])
        found.append(JobRecord._make(values))
    return found


def attempt_records(rows: Sequence[sqlite3.Row]) -> list[AttemptRecord]:
    """Builds attempt records from rows that have ATTEMPT_COLUMNS."""
    return _records(AttemptRecord, rows, _ATTEMPT_FIELDS)


def active_attempt_record(row: sqlite3.Row) -> ActiveAttemptRecord:
    """Builds the record of an active attempt from a row with ATTEMPT_COLUMNS and some columns of its job."""
    return _records(ActiveAttemptRecord, [row], _ACTIVE_ATTEMPT_FIELDS)[0]


def gpu_record(row: sqlite3.Row) -> GpuRecord:
    """Builds a GPU record from a row that has GPU_COLUMNS."""
    return _records(GpuRecord, [row], _GPU_FIELDS)[0]


def _records(
    kind: type[_Record], rows: Sequence[sqlite3.Row], converters: Mapping[str, Callable[[Any], Any]]
) -> list[_Record]:
    """Builds records from rows whose columns are the fields of the record.

    converters: the functions that convert values other than NULL, by field. The constructor is bypassed,
    because calling it would take several times as long.
    """
    names = rows[0].keys() if rows else []
    found = []
    for row in rows:
        values = dict(zip(names, row))  # noqa: B905 - the lengths are equal, and a check takes time
        for name, convert in converters.items():
            if values[name] is not None:
                values[name] = convert(values[name])
        record = object.__new__(kind)
        record.__dict__.update(values)
        found.append(record)
    return found


def _allocations(listed: str) -> tuple[AllocationRecord, ...]:
    return tuple(
        AllocationRecord(
            share, vram, bool(whole), peak, gpu, budget, baseline, load_sum, samples, bool(logged)
        )
        for gpu, share, vram, whole, peak, budget, baseline, load_sum, samples, logged in json.loads(listed)
    )


def stop_request(listed: str) -> StopRequest:
    """Builds the request to stop from STOP_REQUEST_COLUMN."""
    from gpu_scheduler.core.model.attempt_status import StopRequest

    cause, grace_s, on_timeout, stop_id, signal, next_state, preemptor = json.loads(listed)
    return StopRequest(cause, grace_s, on_timeout, stop_id, signal or "TERM", JobState(next_state), preemptor)


def _checkpoint(text: str) -> Checkpoint:
    from gpu_scheduler.core.model.checkpoint import Checkpoint

    return Checkpoint.from_json(text)


def _adopted_process(text: str) -> AdoptedProcess:
    from gpu_scheduler.core.model.adopted_process import AdoptedProcess

    return AdoptedProcess.from_json(text)


def _tuple(listed: str) -> tuple[Any, ...]:
    return tuple(json.loads(listed))


def _tuples(listed: str) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, json.loads(listed)))


def _processes(listed: str) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(pid, used_mib, bool(graphics_only)) for pid, used_mib, graphics_only in json.loads(listed)
    )


def _fault(text: str) -> GpuFault:
    from gpu_scheduler.core.model.gpu_fault import GpuFault

    return GpuFault.from_json(text)


#: The functions that convert database values into the values of a record, by field. The values of other
#: fields are not converted.
_JOB_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "state": {state.value: state for state in JobState}.__getitem__,
    "outcome": Outcome,
    "reason": StateReason.from_json,
    "line_wait": WaitReason.from_json,
    "checkpoint": _checkpoint,
    "resume_from": _checkpoint,
    "adopted": _adopted_process,
}
_ATTEMPT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "state": AttemptState,
    "allocations": _allocations,
    "learned": bool,
    "assumed": bool,
    "misplaced": _tuples,
    "outcome": Outcome,
    "reason": StateReason.from_json,
    "survivors": _tuple,
    "window_closed": bool,
    "resumed_from": _checkpoint,
    "follows_preemption": bool,
}
_ACTIVE_ATTEMPT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    **_ATTEMPT_FIELDS,
    "stop_request": stop_request,
    "checkpoint": _checkpoint,
    "source_missing": bool,
}
_GPU_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "paused": bool,
    "fault": _fault,
    "processes": _processes,
    "loads": _tuple,
    "foreign_peaks": _tuples,
    "foreign_loads": _tuple,
    "exclusive": bool,
    "unified": bool,
    "suspicion": Suspicion.from_json,
}
