"""Compares what jobs with several attempts wrote themselves with what the store says of these attempts.

A job writes "NUMBER start PID ATTEMPT" first and "NUMBER end CODE ATTEMPT" last, and "NUMBER overlaps PID
ATTEMPT" if a process of an earlier run holds the lock of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from gpu_scheduler.core.model.job import Attempt, Job
from gpu_scheduler.core.model.states import JobState, Outcome
from tests.stress.part import Findings

#: After an attempt with one of these outcomes, another attempt may run the command.
_RUN_AGAIN = (Outcome.INTERRUPTED, Outcome.NOT_STARTED)


class Trace(Struct):
    """The trace that the jobs wrote. starts, overlaps, ends: by the numbers of the job and of its attempt."""

    starts: Counter[tuple[int, int]]
    overlaps: Counter[tuple[int, int]]
    ends: dict[tuple[int, int], int]


class Record(Struct, frozen=True):
    """The record of a job in the store. number: its number in the trace; story: more about it, for people.

    may_cancel: whether somebody may have cancelled it; may_preempt: whether somebody may have preempted it.
    is_exposed: whether faults can interrupt it.
    """

    number: int
    job: Job
    attempts: Sequence[Attempt]
    is_exposed: bool = True
    may_cancel: bool = False
    may_preempt: bool = False
    story: str = ""


def read_trace(text: str) -> Trace:
    """Returns what the lines of a trace say."""
    trace = Trace(Counter(), Counter(), {})
    for line in text.splitlines():
        name, what, value, attempt = line.split()
        run = int(name), int(attempt)
        if what == "end":
            trace.ends[run] = int(value)
        elif what in ("start", "overlaps"):
            {"start": trace.starts, "overlaps": trace.overlaps}[what][run] += 1
    return trace


def judge(trace: Trace, records: Mapping[int, Record], numbers: Collection[int], found: Findings) -> None:
    """Counts the faults. numbers: those of all jobs; records: what the store says, by number."""
    for number in sorted({*numbers} - records.keys()):
        found.fault("lost", f"job {number} is not in the store")
    known = {(number, one.number) for number, record in records.items() for one in record.attempts}
    for run in sorted(trace.starts.keys() - known):
        found.fault("run twice", f"job {run[0]}: the store has no attempt {run[1]}, which ran")
    for record in records.values():
        for kind, text in _faults(trace, record):
            found.fault(kind, f"job {record.number}: {text}: {record.story}")


def _faults(trace: Trace, record: Record) -> list[tuple[str, str]]:
    faults = _end_faults(record)
    for one in record.attempts:
        run = record.number, one.number
        starts, end, which = trace.starts[run], trace.ends.get(run), f"attempt {one.number}"
        if starts > 1:
            faults.append(("run twice", f"{which} began {starts} times"))
        if trace.overlaps[run]:
            faults.append(("run twice", f"{which} began while an earlier run still had a process"))
        if starts and one is not record.attempts[0] and not _may_follow(record, one):
            faults.append(("run twice", f"{which} ran although an earlier one had ended"))
        if one.outcome is Outcome.NOT_STARTED and starts:
            faults.append(("wrong outcomes", f"{which} ran, but is recorded as not started"))
        if one.outcome is Outcome.INTERRUPTED and not record.is_exposed:
            faults.append(("wrong outcomes", f"{which} is recorded as interrupted"))
        if one.outcome is Outcome.COMPLETED and end != 0:
            faults.append(("false successes", f"{which} is recorded as completed, but its end is {end}"))
        if one.outcome is Outcome.FAILED and (end is None or end != one.exit_code):
            said = f"exit code {one.exit_code}, signal {one.signal}"
            faults.append(("wrong codes", f"{which} is recorded as failed with {said}, but its end is {end}"))
    return faults


def _may_follow(record: Record, one: Attempt) -> bool:
    allowed = (*_RUN_AGAIN, Outcome.PREEMPTED) if record.may_preempt else _RUN_AGAIN
    return all(earlier.outcome in allowed for earlier in record.attempts if earlier.number < one.number)


def _end_faults(record: Record) -> list[tuple[str, str]]:
    job, last = record.job, record.attempts[-1] if record.attempts else None
    if job.state is JobState.HELD and job.held_by == "interrupted" and record.is_exposed:
        return []
    if job.state is not JobState.FINISHED:
        return [("lost", f"it is {job.state.value}, held by {job.held_by}")]
    if job.outcome is Outcome.CANCELLED:
        return [] if record.may_cancel else [("wrong outcomes", "it is recorded as cancelled")]
    if last is None or job.outcome is not last.outcome:
        return [("lost", f"it is {job.outcome}, but its last attempt is {last and last.outcome}")]
    return []
