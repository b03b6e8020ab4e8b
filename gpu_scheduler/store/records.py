"""The records that the store returns: jobs, attempts with their allocations, and GPUs.

Fields named `*_at` are wall times in seconds since 1970. Fields named `*_boot` are times in seconds since the
boot to which the record's `boot_id` refers. GPUs are named by UUID.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_scheduler.core.model.attempt import ActiveAttempt, Allocation, Attempt
from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample, Suspicion
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason

if TYPE_CHECKING:
    from gpu_scheduler.core.model.attempt_status import (
        AdoptedProcess,
        Checkpoint,
        StopRequest,
    )
    from gpu_scheduler.core.model.gpu import GpuFault
    from gpu_scheduler.core.model.job_spec import JobSpec


class JobRecord(NamedTuple):
    """A job. Named tuples are fast to create, which matters because a list may contain 100,000 jobs.

    source: "file:PATH", "import:DIGEST" or the front end that added it; text: its line or command as written;
    spec_json: its JobSpec as JSON; spec_key: the key of its resource spec; jobs with the same key wait for
    the same thing; priority, position: the queue order, lowest first.

    held_by: "user", "line" or the outcome that caused the hold. stop_cause, stop_id: the cause and the id of
    an open request to stop its attempt. not_before_boot: the earliest time of the next start. line_wait: why
    its line in the jobs file keeps it from starting. min_vram_mib: the memory that it needs, raised after an
    attempt ran out of memory. unmet_parents: the number of its dependencies whose condition is not met;
    failed_parents: the number of those whose parent has finished. recoveries: how often `start --recover`
    queued it again. cleared_at: when `clear` took it out of the lists. checkpoint: the newest complete one
    when its last attempt ended. resume_from: the one with which its next attempt starts. queued_at: when it
    last began to wait for GPUs.
    submitted_at: when it was submitted, the last time if it was submitted again.
    adopted: the process, started elsewhere, that the job is; None for an ordinary job.
    """

    id: int
    source: str
    identity: str
    name: str | None
    text: str
    spec_json: str
    spec_key: str
    priority: int
    position: int
    state: JobState
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None
    reason: StateReason | None
    held_by: str | None
    stop_cause: str | None
    stop_id: str | None
    launch_failures: int
    not_before_boot: float | None
    boot_id: str | None
    line_wait: WaitReason | None
    min_vram_mib: int | None
    oom_retries_used: int
    fail_retries_used: int
    unmet_parents: int
    failed_parents: int
    recoveries: int
    cleared_at: float | None
    checkpoint: Checkpoint | None
    resume_from: Checkpoint | None
    adopted: AdoptedProcess | None
    queued_at: float
    submitted_at: float
    created_at: float
    finished_at: float | None

    @property
    def is_unwatched(self) -> bool:
        """Whether the job is an adopted process that no runner watches now."""
        return self.adopted is not None and self.state is JobState.QUEUED

    @property
    def is_interrupted(self) -> bool:
        """True if the job is held because its last attempt was interrupted."""
        return self.held_by == Outcome.INTERRUPTED.value

    @property
    def is_of_file(self) -> bool:
        """True if the job comes from a line of a jobs file, which may have been removed since."""
        return self.source.startswith("file:")

    @property
    def spec(self) -> JobSpec:
        """The parsed job specification."""
        from gpu_scheduler.core.model.job_spec import JobSpec

        return JobSpec.from_json(self.spec_json)


# Builds records from database rows. Only this module lists the columns that such rows have.

#: The columns of a job.
JOB_COLUMNS = ", ".join(JobRecord._fields).replace("spec_json", "spec AS spec_json")
#: The open request to stop the attempt of a job, as a column with a JSON list; NULL if there is none.
STOP_REQUEST_COLUMN = (
    "CASE WHEN job.stop_cause IS NOT NULL THEN json_array(job.stop_cause, job.stop_grace_s,"
    " job.stop_on_timeout, job.stop_id, job.stop_signal, job.stop_next_state, job.stop_preemptor) END"
    " AS stop_request"
)
#: The fields of a GPU that the store has, besides those of its newest sample.
_OF_GPU = (
    "paused", "sampled_at", "loads", "foreign_peaks", "foreign_loads", "foreign_load_boot", "usable_since",
    "suspicion",
)  # fmt: skip
#: The columns of a GPU.
GPU_COLUMNS = ", ".join((*GpuSample.__struct_fields__, *_OF_GPU)).replace("index", 'idx AS "index"')
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


def attempt_records(rows: Sequence[sqlite3.Row]) -> list[Attempt]:
    """Builds attempts from rows that have ATTEMPT_COLUMNS."""
    return [Attempt(**_converted(row, _ATTEMPT_FIELDS)) for row in rows]


def active_attempt_record(row: sqlite3.Row) -> ActiveAttempt:
    """Builds an active attempt from a row with ATTEMPT_COLUMNS and some columns of its job."""
    return ActiveAttempt(**_converted(row, _ACTIVE_ATTEMPT_FIELDS))


def gpu_record(row: sqlite3.Row) -> Gpu:
    """Builds a GPU from a row that has GPU_COLUMNS."""
    values = _converted(row, _GPU_FIELDS)
    sample = GpuSample(**{name: values[name] for name in GpuSample.__struct_fields__})
    own = {name: values[name] for name in _OF_GPU}
    return Gpu(sample.uuid, sample.index, sample=sample, total_mib=sample.total_mib, **own)


def _converted(row: sqlite3.Row, converters: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Returns the values of a row by column. converters: those of values other than NULL, by column."""
    values = dict(zip(row.keys(), row))  # noqa: B905 - the lengths are equal, and a check takes time
    for name, convert in converters.items():
        if values[name] is not None:
            values[name] = convert(values[name])
    return values


def _allocations(listed: str) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(share, vram, bool(whole), peak, gpu, budget, baseline, load_sum, samples, bool(logged))
        for gpu, share, vram, whole, peak, budget, baseline, load_sum, samples, logged in json.loads(listed)
    )


def stop_request(listed: str) -> StopRequest:
    """Builds the request to stop from STOP_REQUEST_COLUMN."""
    from gpu_scheduler.core.model.attempt_status import StopRequest

    cause, grace_s, on_timeout, stop_id, signal, next_state, preemptor = json.loads(listed)
    return StopRequest(cause, grace_s, on_timeout, stop_id, signal or "TERM", JobState(next_state), preemptor)


def _checkpoint(text: str) -> Checkpoint:
    from gpu_scheduler.core.model.attempt_status import Checkpoint

    return Checkpoint.from_json(text)


def _adopted_process(text: str) -> AdoptedProcess:
    from gpu_scheduler.core.model.attempt_status import AdoptedProcess

    return AdoptedProcess.from_json(text)


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
    "foreign_peaks": _peaks,
    "foreign_loads": _tuple,
    "exclusive": bool,
    "unified": bool,
    "suspicion": Suspicion.from_json,
}
