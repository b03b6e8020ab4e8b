"""Builds the records of the store from its rows: jobs, attempts with their allocations, and GPUs.

Only this module lists the columns that such rows have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample, Suspicion
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AdoptedProcess,
    Allocation,
    Attempt,
    Checkpoint,
    Job,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import StateReason, WaitReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import StoredValue

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu import GpuFault

_T = TypeVar("_T")


class Table(Generic[_T]):
    """The rows of one class of records. Their columns have the names and the order of its fields.

    fields: those of the class that the store has. computed: the SQL of fields that are not columns of the
    table. convert: the functions that convert values other than NULL, by field. changed: the fields that
    `changes` compares; by default, all that are columns.
    """

    def __init__(
        self,
        build: Callable[..., _T],
        table: str,
        fields: Sequence[str],
        computed: Mapping[str, str],
        convert: Mapping[str, Callable[[Any], Any]],
        changed: Sequence[str] = (),
    ) -> None:
        self.columns = ", ".join(computed.get(name, f"{table}.{name}") for name in fields)
        self.width = len(fields)
        self._changed = changed or [name for name in fields if name not in computed or name in _WRITTEN]
        self._build = build
        self._converters = [(fields.index(name), function) for name, function in convert.items()]

    def record(self, row: Sequence[Any], **values: Any) -> _T:
        """Builds a record from a row with these columns. values: its other fields."""
        fields = list(row)
        for index, convert in self._converters:
            if fields[index] is not None:
                fields[index] = convert(fields[index])
        return self._build(*fields, **values)

    def changes(self, old: _T, new: _T) -> dict[str, Any]:
        """Returns the columns in which a new record differs from the old one, with their new values."""
        found: dict[str, Any] = {}
        for name in self._changed:
            before, after = getattr(old, name), getattr(new, name)
            if after is not before and after != before:
                written = _WRITTEN.get(name)
                found |= {name: stored(after)} if written is None else written(after)
        return found


def stored(value: Any) -> Any:
    """Returns the value of a field as it is stored."""
    if isinstance(value, StoredValue):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    return json.dumps(value) if isinstance(value, tuple) else value


#: The columns of the open request to stop an attempt.
_STOP_COLUMNS = (
    "stop_cause", "stop_grace_s", "stop_on_timeout", "stop_id", "stop_signal", "stop_next_state",
    "stop_preemptor",
)  # fmt: skip


def _stop_values(stop: StopRequest | None) -> dict[str, Any]:
    if stop is None:
        return dict.fromkeys(_STOP_COLUMNS)
    values = (
        stop.cause, stop.grace_s, stop.on_timeout, stop.stop_id, stop.signal, stop.next_state.value,
        stop.preemptor,
    )  # fmt: skip
    return dict(zip(_STOP_COLUMNS, values, strict=True))


#: The columns of fields that are stored in another way.
_WRITTEN: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "spec_json": lambda value: {"spec": value},
    "stop": _stop_values,
    "foreign_peaks": lambda peaks: {
        "foreign_peaks": json.dumps([[*key, mib] for key, mib in sorted(peaks.items())])
    },
}


def _allocations(listed: str) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(share, vram, bool(whole), peak, gpu, budget, baseline, load_sum, samples, bool(logged))
        for gpu, share, vram, whole, peak, budget, baseline, load_sum, samples, logged in json.loads(listed)
    )


def _stop_request(listed: str) -> StopRequest:
    cause, grace_s, on_timeout, stop_id, signal, next_state, preemptor = json.loads(listed)
    return StopRequest(cause, grace_s, on_timeout, stop_id, signal or "TERM", JobState(next_state), preemptor)


def _tuple(listed: str) -> tuple[Any, ...]:
    return tuple(json.loads(listed))


def _tuples(listed: str) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, json.loads(listed)))


def _peaks(listed: str) -> dict[tuple[int, float], int]:
    return {(pid, start): mib for pid, start, mib in json.loads(listed)}


def _processes(listed: str) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(pid, used_mib, bool(graphics_only)) for pid, used_mib, graphics_only in json.loads(listed)
    )


def _fault(text: str) -> GpuFault:
    from gpu_scheduler.core.model.gpu import GpuFault

    return GpuFault.from_json(text)


JOBS = Table(
    Job,
    "job",
    Job.__struct_fields__,
    {
        "spec_json": "job.spec",
        "stop": "CASE WHEN job.stop_cause IS NOT NULL"
        f" THEN json_array({', '.join(f'job.{column}' for column in _STOP_COLUMNS)}) END",
        "has_attempt": "EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id)",
        "failed_parent": "CASE WHEN job.failed_parents > 0 THEN (SELECT min(parent.id)"
        " FROM dependency JOIN job AS parent ON parent.id = parent_id WHERE job_id = job.id"
        " AND dependency.kind = 'completed' AND parent.state = 'finished'"
        " AND parent.outcome NOT IN ('completed', 'ended')) END",
    },
    {
        "state": {state.value: state for state in JobState}.__getitem__,
        "outcome": {outcome.value: outcome for outcome in Outcome}.__getitem__,
        "reason": StateReason.from_json,
        "stop": _stop_request,
        "source_missing": bool,
        "has_attempt": bool,
        "line_wait": WaitReason.from_json,
        "checkpoint": Checkpoint.from_json,
        "resume_from": Checkpoint.from_json,
        "adopted": AdoptedProcess.from_json,
    },
)

# The allocations and misplaced processes of an attempt are JSON lists, so one query is enough.
_ATTEMPT: tuple[str, Sequence[str], Mapping[str, str], Mapping[str, Callable[[Any], Any]]] = (
    "attempt",
    Attempt.__struct_fields__,
    {
        "allocations": "(SELECT json_group_array(json_array(gpu, share, vram, whole, peak_mib, budget_mib,"
        " baseline_mib, load_sum, load_samples, overuse_logged))"
        " FROM (SELECT * FROM allocation WHERE attempt_id = attempt.id ORDER BY ordinal))",
        "misplaced": "(SELECT json_group_array(json_array(gpu, pid)) FROM misplaced_process"
        " WHERE attempt_id = attempt.id)",
    },
    {
        "state": AttemptState,
        "allocations": _allocations,
        "learned": bool,
        "assumed": bool,
        "misplaced": _tuples,
        "outcome": Outcome,
        "reason": StateReason.from_json,
        "survivors": _tuple,
        "window_closed": bool,
        "resumed_from": Checkpoint.from_json,
        "follows_preemption": bool,
    },
)
ATTEMPTS = Table(Attempt, *_ATTEMPT)
_ACTIVE = Table(ActiveAttempt, *_ATTEMPT)
#: The columns of an active attempt: those of the attempt, those of its job, and whether its line is gone.
ACTIVE_ATTEMPT_COLUMNS = (
    f"{ATTEMPTS.columns}, {JOBS.columns}, substr(job.source, 1, 5) = 'file:'"
    " AND NOT EXISTS (SELECT 1 FROM line WHERE line.job_id = job.id)"
)


def active_attempt(row: Sequence[Any]) -> ActiveAttempt:
    """Builds an active attempt from a row with ACTIVE_ATTEMPT_COLUMNS."""
    job = JOBS.record(row[_ACTIVE.width : -1])
    return _ACTIVE.record(row[: _ACTIVE.width], job=job, is_line_gone=bool(row[-1]))


_SAMPLE_WIDTH = len(GpuSample.__struct_fields__)
_GPU_FIELDS = (
    *GpuSample.__struct_fields__,
    *("paused", "sampled_at", "loads", "foreign_peaks", "foreign_loads", "foreign_load_boot", "usable_since"),
    "suspicion",
)


def _gpu(*values: Any) -> Gpu:
    sample = GpuSample(*values[:_SAMPLE_WIDTH])
    own = dict(zip(_GPU_FIELDS[_SAMPLE_WIDTH:], values[_SAMPLE_WIDTH:], strict=True))
    return Gpu(sample.uuid, sample.index, sample=sample, total_mib=sample.total_mib, **own)


GPUS = Table(
    _gpu,
    "gpu",
    _GPU_FIELDS,
    {"index": "gpu.idx"},
    {
        "paused": bool,
        "fault": _fault,
        "processes": _processes,
        "loads": _tuple,
        "foreign_peaks": _peaks,
        "foreign_loads": _tuple,
        "exclusive": bool,
        "unified": bool,
        "suspicion": Suspicion.from_json,
    },
    ("paused", "usable_since", "suspicion", "foreign_loads", "foreign_load_boot", "foreign_peaks"),
)
