"""Reads the events of a store, oldest first, and formats them as text and as JSON.

The main log, the output of `start`, the `events` command and journal.jsonl all use these texts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.event import (
    AttemptDetails,
    AttemptEnded,
    AttemptStarted,
    Event,
    EventDetails,
    EventKind,
    GpusReserved,
    GpuSuspected,
    JobsForgotten,
    MisplacedProcess,
    Overuse,
    ReservationDropped,
    StopStarted,
)
from gpu_scheduler.core.model.gpu import Suspicion
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitReason
from gpu_scheduler.core.model.values import WHOLE, format_share, share_text
from gpu_scheduler.core.scheduling.placement import DeclarationAccuracy, judge_declaration
from gpu_scheduler.core.text.formatting import (
    count_noun,
    format_gpus,
    format_jobs,
    masked_json,
    safe_text,
    times_text,
)
from gpu_scheduler.show.gpu_text import PAUSE_CAUSES
from gpu_scheduler.show.job_text import declared_text, misplaced_process_text, origin_text, reason_text
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.show.wait_text import infeasibility_text, own_reservation_text, stop_cause_text, wait_text
from gpu_scheduler.store.events import events_after, id_before_last, newest_event_id
from gpu_scheduler.store.store import Store

_BATCH_SIZE = 1000


class EventReader:
    """Reads the events that follow a given event in a store.

    after: the id of that event; tolerance: the fraction by which an accurate declaration may be off.
    """

    def __init__(self, store: Store, after: int) -> None:
        self._store = store
        self._after = after
        self._version: int | None = None
        self.tolerance = store.recorded_options().tolerance

    def new_events(self) -> Iterator[Event]:
        """Yields the events that were recorded since the last call."""
        version = self._store.db.data_version
        if version == self._version:
            return
        self._version = version
        while found := events_after(self._store, self._after, _BATCH_SIZE):
            self._after = found[-1].id
            yield from found


def read_events(location: Location, after: int) -> tuple[list[Event], int]:
    """Returns at most 1,000 events with a higher id than `after`, and the id of the newest event.

    If events between are missing, because jobs were forgotten, the first one has an id above `after` + 1.
    """
    with open_store(location, read_only=True) as store, store.snapshot():
        return events_after(store, after, _BATCH_SIZE), newest_event_id(store)


@contextmanager
def open_events(location: Location, last: int | None) -> Iterator[EventReader]:
    """Opens the events, starting with the newest `last` events; None means all events."""
    with open_store(location, read_only=True) as store:
        yield EventReader(store, 0 if last is None else id_before_last(store, last))


# Describes the resource use of an ended attempt and the accuracy of its declaration.


def format_seconds(seconds: float) -> str:
    """Formats a run time: "3.2s", "1774s"."""
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def memory_source(*, learned: bool, assumed: bool = False) -> str:
    """Returns where the memory value of an attempt comes from: "default", "learned" or "declared"."""
    return "default" if assumed else "learned" if learned else "declared"


def usage_parts(ended: AttemptEnded, tolerance: float) -> Iterator[str]:
    """Yields texts with an attempt's peaks, the accuracy of its declaration, and its mean GPU load."""
    if not ended.gpus:
        return
    if any(peak is not None for peak in ended.peaks):
        each = zip(ended.gpus, ended.peaks, strict=True)
        known = ", ".join(f"gpu{gpu}:{'n/a' if mib is None else f'{mib} MiB'}" for gpu, mib in each)
        yield f"peak vram {known}"
    else:
        yield "peak vram n/a"
    yield _accuracy_text(ended, tolerance)
    if ended.load is not None:
        yield f"avg gpu util {ended.load:.0f}%"


def _accuracy_text(ended: AttemptEnded, tolerance: float) -> str:
    """Describes what the attempt declared, and how accurate that was."""
    if ended.budgets is None:
        return "no declaration"
    by_share, completed = ended.declared is None, ended.outcome == "completed"
    accuracy = judge_declaration(
        ended.peaks, ended.budgets, tolerance, completed=completed, by_share=by_share
    )
    if by_share:
        declared = f"declared {share_text(ended.share, accuracy.mib if accuracy else None)}"
    else:
        declared = f"{memory_source(learned=ended.learned)} {ended.declared} MiB"
    if accuracy is None:
        return declared
    advice = "; lowering it frees packing headroom" if accuracy.kind == "over" else ""
    return f"{declared} → {accuracy_text(accuracy, tolerance)}{advice}"


def accuracy_text(accuracy: DeclarationAccuracy, tolerance: float) -> str:
    """Formats an accuracy: "within ±10%", "over-declared (-59%)", "under-declared (+47%)"."""
    if accuracy.kind == "within":
        return f"within ±{100 * tolerance:g}%"
    return f"{accuracy.kind}-declared ({accuracy.percent:+d}%)"


_DEBUG, _INFO, _WARNING = logging.DEBUG, logging.INFO, logging.WARNING
#: Outcomes that need no attention and are logged at info.
_UNREMARKABLE_OUTCOMES = ("completed", "cancelled", "ended")

#: The sentences that depend only on the values of the event.
_SENTENCES: Mapping[str, str] = {kind.value: kind.sentence for kind in EventKind if kind.sentence}
#: The kinds of events with such a sentence that are logged at info; the others are warnings.
_INFORMATIVE = (
    EventKind.GPUS_RESERVED, EventKind.RESTORED, EventKind.PAUSED, EventKind.RESUMED,
    EventKind.SUSPICION_ENDED,
)  # fmt: skip


class EventMessage(Struct, frozen=True):
    """The log line of an event.

    subject: "job 3", or "" for an event that concerns no job; log_suffix: text that only the log shows.
    """

    level: int
    text: str
    log_suffix: str = ""
    subject: str = ""

    @property
    def full_text(self) -> str:
        """The full line as text that is safe to print."""
        return safe_text(f"{self.subject} {self.text}{self.log_suffix}".lstrip())


def dated_line(event: Event, tolerance: float = 0.10) -> str:
    """Returns the log line of an event, preceded by the date and time of the event."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    return f"{at}  {message_of(event, tolerance).full_text}"


def to_json(event: Event) -> str:
    """Returns an event as one line of ASCII JSON without a newline; docs/json.md describes it."""
    values = {"id": event.id, "at": iso_time(event.at), "event": event.kind, "job": event.job_id or None}
    reason = _reason(event)
    if reason is not None:
        values["reason"] = reason
    if event.is_new_job or event.kind == EventKind.STARTING:
        values["command"] = event.command
    return masked_json({**values, **event.data})


def iso_time(at: float) -> str:
    """Formats seconds since 1970 as ISO 8601 with milliseconds and the offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def detail(event: Event) -> str | None:
    """Returns the details of an event for the history of its job; None if its kind says everything."""
    details = event.details
    if isinstance(details, Overuse):
        return _overuse_text(details)
    if isinstance(details, MisplacedProcess):
        return f"pid {details.pid} on GPU {details.gpu}"
    if type(details) is AttemptDetails:
        return f"attempt {details.attempt}"
    if isinstance(event.reason, WaitReason) and event.reason.is_infeasible:
        return infeasibility_text(event.reason)
    return _reason(event)


def _reason(event: Event) -> str | None:
    if isinstance(event.reason, WaitReason):
        return wait_text(event.reason, event.at)
    if isinstance(event.reason, StateReason):
        return reason_text(event.reason)
    return event.reason or PAUSE_CAUSES.get(event.data.get("cause", ""))


def message_of(
    event: Event, tolerance: float = 0.10, dispatched: tuple[int, int] | None = None
) -> EventMessage:
    """Returns the log line of an event in its parts. The main log does not show the level DEBUG.

    dispatched: the number of this run's jobs that have started or finished, and of all its jobs; None if
    unknown.
    """
    subject = f"job {event.job_id}" if event.job_id else ""
    return replace(_message(event, tolerance, dispatched), subject=subject)


def more_changes_text(kind: ReasonKind, count: int) -> str:
    """Formats the number of jobs whose lines the log omits. kind: the reason of their change."""
    were = "more job was" if count == 1 else "more jobs were"
    change = "skipped" if kind is ReasonKind.PARENT_FAILED else "queued again"
    return f"and {count:,} {were} {change}; `status --all` lists them"


def _message(event: Event, tolerance: float, dispatched: tuple[int, int] | None) -> EventMessage:
    details = event.details
    if isinstance(details, AttemptStarted):
        return _start_message(event, details, dispatched)
    if isinstance(details, AttemptEnded):
        return _end_message(event, details, tolerance)
    if isinstance(details, Overuse):
        return EventMessage(_WARNING, f"{_overuse_warning(details)}; neighbors may OOM")
    if isinstance(details, MisplacedProcess):
        return EventMessage(_WARNING, misplaced_process_text(details))
    if event.kind == EventKind.STOPPING:
        return EventMessage(_INFO, _stop_message(details))
    if isinstance(details, GpusReserved) and details.start_at is not None:
        return EventMessage(_INFO, _reservation_text(event, details, details.start_at))
    if isinstance(details, ReservationDropped) and details.overtakes is not None:
        return EventMessage(_INFO, "has no reserved GPUs any more")
    if isinstance(details, JobsForgotten):
        return EventMessage(_DEBUG, f"{count_noun(details.jobs, 'job')} forgotten")
    return _fixed_message(event, details) or _state_message(event)


def _fixed_message(event: Event, details: EventDetails | None) -> EventMessage | None:
    """Returns the message with the sentence of the kind; None if there is none or a value is missing."""
    if event.kind not in _SENTENCES:
        return None
    data = {} if details is None else details.data()
    values = {"job": event.job_id, "reason": _reason(event) or "", **data}
    if "gpus" in values:
        values["reserved"] = f"{format_gpus(values['gpus'])} {'is' if len(values['gpus']) == 1 else 'are'}"
        values["gpus"] = ", ".join(map(str, values["gpus"]))
    if "victims" in values:
        values["victims"] = format_jobs(values["victims"])
    try:
        if isinstance(details, GpuSuspected):
            from gpu_scheduler.show.gpu_text import suspicion_text

            values["why"] = suspicion_text(Suspicion.from_values(details.suspicion), event.at)
        level = _INFO if event.kind in _INFORMATIVE else _WARNING
        return EventMessage(level, _SENTENCES[event.kind].format_map(values).rstrip())
    except (KeyError, ValueError):
        return None


def _reservation_text(event: Event, reserved: GpusReserved, start_at: float) -> str:
    own = own_reservation_text(reserved.gpus, start_at, event.at)
    return f"has been overtaken {times_text(reserved.overtakes or 0)}; {own}"


def _stop_message(details: EventDetails | None) -> str:
    if not isinstance(details, StopStarted):
        return "is being stopped"
    return f"is {stop_cause_text(details.cause, details.preemptor)}; it has {details.grace_s:g} s to end"


def _state_message(event: Event) -> EventMessage:
    """Returns the message of a state change that ends no attempt, or of any other event."""
    state = str(event.data.get("outcome", event.kind)).replace("_", " ")
    reason = _reason(event)
    if not event.job_id:
        return EventMessage(_DEBUG, reason or state)
    if event.is_new_job:
        why = f" ({reason})" if reason else ""
        return EventMessage(_DEBUG, f"{state}: {event.command}{why}")
    why = f": {reason}" if reason else ""
    return EventMessage(_DEBUG if event.kind == EventKind.RUNNING else _INFO, f"{state}{why}")


def _start_message(event: Event, started: AttemptStarted, dispatched: tuple[int, int] | None) -> EventMessage:
    words = [] if dispatched is None else [f"{dispatched[0]}/{dispatched[1]} dispatched"]
    words += [_allocation_text(started)] if started.gpus else []
    if started.attempt > 1:
        words.append(f"attempt {started.attempt}")
    if started.resumed_from is not None:
        words.append(f"resumes from {origin_text(started.resumed_from, started.resumed_step)}")
    begins = "starts" if started.watched_pid is None else f"is process {started.watched_pid}"
    where = f"on gpu {list(started.gpus)}" if started.gpus else "without a GPU"
    if started.engine is not None:
        begins, where = "is handed over", f"to {started.engine.capitalize()}"
    text = f"{begins} {where} ({', '.join(words)})" if words else f"{begins} {where}"
    return EventMessage(_INFO, text, f" — {event.command}")


def _allocation_text(started: AttemptStarted) -> str:
    """Describes an allocation. Omits a share of 1 if the text says that the job is alone on the GPU."""
    is_redundant = started.exclusive and started.share >= WHOLE
    source = memory_source(learned=started.learned, assumed=started.assumed)
    words = [f"share {format_share(started.share)}"] if started.share and not is_redundant else []
    words += [] if started.vram is None else [f"{source} {started.vram} MiB/gpu"]
    words += ["alone"] if started.exclusive or not words else []
    return ", ".join(words)


def _overuse_warning(overuse: Overuse) -> str:
    """Returns the warning about overuse, without its consequence. Gives a declared share also in MiB."""
    head = "EXCEEDS declared"
    if overuse.share is None:
        return f"{head} VRAM on {_overuse_text(overuse)}"
    used = f"on gpu {overuse.gpu}: {overuse.observed} MiB used ({_excess_percent(overuse)})"
    return f"{head} {declared_text(overuse)} {used}"


def _overuse_text(overuse: Overuse) -> str:
    used = f"gpu {overuse.gpu}: {overuse.observed} MiB used"
    return f"{used}, {declared_text(overuse)} declared ({_excess_percent(overuse)})"


def _excess_percent(overuse: Overuse) -> str:
    return f"+{round(100 * (overuse.observed - overuse.declared) / overuse.declared)}%"


def _end_message(event: Event, ended: AttemptEnded, tolerance: float) -> EventMessage:
    """Returns the message of an ended attempt. Its job has finished, is queued again, or is held."""
    outcome = ended.outcome
    has_run = outcome != "not_started"
    after = f" in {format_seconds(ended.seconds)}" if has_run and ended.seconds is not None else ""
    if event.kind == EventKind.FINISHED:
        label = "OK" if outcome == "completed" else outcome.replace("_", " ").upper()
        head = f"finished [{label}]{after}"
    else:
        then = "queued again" if event.kind == EventKind.QUEUED else event.kind
        head = f"{outcome.replace('_', ' ')}{after}, {then}"
    reason = _reason(event)
    parts = [reason] if reason else []
    parts += usage_parts(ended, tolerance) if has_run else []
    if ended.survivors:
        noun = "a process that does" if len(ended.survivors) == 1 else "processes that do"
        parts.append(f"left {noun} not end: {', '.join(map(str, ended.survivors))}")
    good = outcome in _UNREMARKABLE_OUTCOMES
    where = f" (log: {ended.log})" if ended.log and not good else ""
    text = " — ".join([head, " | ".join(parts)]) if parts else head
    return EventMessage(_INFO if good and not ended.survivors else _WARNING, text, where)
