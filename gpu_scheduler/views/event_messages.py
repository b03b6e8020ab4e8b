"""Formats events as text and as JSON.

The main log, the output of `start`, the `events` command and journal.jsonl all use this module.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.share import WHOLE, format_share, share_text
from gpu_scheduler.core.scheduling.declaration_accuracy import judge_declaration
from gpu_scheduler.core.scheduling.misplaced import misplaced_process_message
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.core.text.secrets import masked

#: Outcome -> its label in the log line of a finished job.
OUTCOME_LABELS = {
    "completed": "OK",
    "failed": "FAILED",
    "timed_out": "TIMED OUT",
    "cancelled": "CANCELLED",
    "preempted": "PREEMPTED",
    "interrupted": "INTERRUPTED",
    "not_started": "NOT STARTED",
    "ended": "ENDED",
    "skipped": "SKIPPED",
}
#: Outcomes that need no attention and are logged at info.
_UNREMARKABLE_OUTCOMES = ("completed", "cancelled", "ended")
_DEBUG, _INFO, _WARNING = logging.DEBUG, logging.INFO, logging.WARNING


@dataclass(frozen=True)
class EventMessage:
    """Log line of an event. subject: "job 3", or "" if it concerns no job; log_suffix: for the log alone."""

    level: int
    text: str
    log_suffix: str = ""
    subject: str = ""

    @property
    def full_text(self) -> str:
        """The full line, safe to print."""
        return safe_text(f"{self.subject} {self.text}{self.log_suffix}".lstrip())


def log_line(
    event: Event, tolerance: float = 0.10, dispatched: tuple[int, int] | None = None
) -> tuple[int, str]:
    """Returns the level and the log line of an event; DEBUG keeps it out of the main log.

    dispatched: (jobs of this run that have started or finished, all jobs of this run), None = unknown.
    """
    one = message_of(event, tolerance, dispatched)
    return one.level, one.full_text


def dated_line(event: Event, tolerance: float = 0.10) -> str:
    """Returns the log line of an event, preceded by its date and time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    return f"{at}  {log_line(event, tolerance)[1]}"


def to_json(event: Event) -> str:
    """Returns an event as one line of ASCII JSON without a newline; docs/json.md describes it."""
    values = {"id": event.id, "at": iso_time(event.at), "event": event.kind, "job": event.job_id or None}
    if event.reason is not None:
        values["reason"] = masked(event.reason)
    if event.is_new_job or event.kind == "starting":
        values["command"] = masked(event.command)
    return json.dumps({**values, **event.data})


def iso_time(at: float) -> str:
    """Returns wall seconds as ISO 8601 to the millisecond, with the offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def format_seconds(seconds: float) -> str:
    """Formats a run time: "3.2s", "1774s"."""
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def detail(event: Event) -> str | None:
    """Returns the details of an event beside its kind, for the history of one job; None if there are none."""
    data = event.data
    if event.kind == "exceeded":
        return _overuse_text(event)
    if event.kind == "misplaced process":
        return f"pid {data['pid']} on GPU {data['gpu']}"
    if event.kind in ("relaunched", "runner lost", "runner killed", "window closed"):
        return f"attempt {data['attempt']}"
    if event.kind == "infeasible":
        return (event.reason or "").removeprefix("infeasible: ")
    return event.reason


def message_of(
    event: Event, tolerance: float = 0.10, dispatched: tuple[int, int] | None = None
) -> EventMessage:
    """Returns the log line of an event in its parts; see `log_line`."""
    subject = f"job {event.job_id}" if event.job_id else ""
    return replace(_message(event, tolerance, dispatched), subject=subject)


def _message(event: Event, tolerance: float, dispatched: tuple[int, int] | None) -> EventMessage:
    kind, data = event.kind, event.data
    attempt = f"attempt {data.get('attempt', '?')}"
    if kind == "starting":
        return _start_message(event, dispatched)
    if "outcome" in data and "attempt" in data:
        return _end_message(event, tolerance)
    if kind == "exceeded":
        return EventMessage(_WARNING, f"{_overuse_warning(event)}; neighbors may OOM")
    if kind == "misplaced process":
        return EventMessage(_WARNING, misplaced_process_message(data["allocated"], data["gpu"], data["pid"]))
    if kind == "window closed":
        follow = f"`logs {event.job_id} -f` follows it"
        return EventMessage(_WARNING, f"continues without its Screen window, which was closed; {follow}")
    if kind == "relaunched":
        return EventMessage(_WARNING, f"is launched again: no runner claimed {attempt} in time")
    if kind == "runner lost":
        return EventMessage(_WARNING, f"lost the runner of {attempt}, which left no result")
    if kind == "runner killed":
        return EventMessage(_WARNING, f"did not end in time; killing the runner of {attempt}")
    if kind == "infeasible":
        return EventMessage(_WARNING, f"waits, {event.reason}")
    if kind in ("paused", "resumed"):
        how = f" {event.reason}" if event.reason else ""
        return EventMessage(_INFO, f"GPU {', '.join(map(str, data['gpus']))} {kind}{how}")
    if kind == "stopping":
        return EventMessage(_INFO, "is being stopped")
    return _state_message(event)


def _state_message(event: Event) -> EventMessage:
    """Returns the message of a state change that ends no attempt, or of an event that concerns no job."""
    state = str(event.data.get("outcome", event.kind)).replace("_", " ")
    if not event.job_id:
        return EventMessage(_DEBUG, event.reason or state)
    if event.is_new_job:
        why = f" ({event.reason})" if event.reason else ""
        return EventMessage(_DEBUG, f"{state}: {event.command}{why}")
    why = f": {event.reason}" if event.reason else ""
    return EventMessage(_DEBUG if state == "running" else _INFO, f"{state}{why}")


def _start_message(event: Event, dispatched: tuple[int, int] | None) -> EventMessage:
    data = event.data
    if not data:  # recorded by an earlier version, without the GPUs
        return EventMessage(_INFO, "starts", f" — {event.command}")
    words = [] if dispatched is None else [f"{dispatched[0]}/{dispatched[1]} dispatched"]
    words.append(_allocation_text(data["share"], data["vram"], data["exclusive"], _memory_source(event)))
    if data["attempt"] > 1:
        words.append(f"attempt {data['attempt']}")
    return EventMessage(_INFO, f"starts on gpu {data['gpus']} ({', '.join(words)})", f" — {event.command}")


def _memory_source(event: Event) -> str:
    """Returns the origin of the memory allocated to an attempt: "default", "learned" or "declared"."""
    if event.data.get("assumed"):
        return "default"
    return "learned" if event.data.get("learned") else "declared"


def _allocation_text(share: int, vram: int | None, whole: bool, memory_source: str) -> str:
    """Describes an allocation. whole: no other job shares the GPU, which makes a share of 1 redundant."""
    words = [f"share {format_share(share)}"] if share and not (whole and share >= WHOLE) else []
    words += [] if vram is None else [f"{memory_source} {vram} MiB/gpu"]
    words += ["alone"] if whole or not words else []
    return ", ".join(words)


def _overuse_warning(event: Event) -> str:
    """Returns the overuse warning without its consequence; a share is followed by its memory."""
    data = event.data
    head = "EXCEEDS declared"
    if data.get("share") is None:
        return f"{head} VRAM on {_overuse_text(event)}"
    share = share_text(data["share"], data["declared"])
    return f"{head} {share} on gpu {data['gpu']}: {data['observed']} MiB used ({_excess_percent(event)})"


def _overuse_text(event: Event) -> str:
    data = event.data
    share = data.get("share")
    declared = f"{data['declared']} MiB" if share is None else share_text(share, data["declared"])
    return f"gpu {data['gpu']}: {data['observed']} MiB used, {declared} declared ({_excess_percent(event)})"


def _excess_percent(event: Event) -> str:
    observed, declared = event.data["observed"], event.data["declared"]
    return f"+{round(100 * (observed - declared) / declared)}%"


def _end_message(event: Event, tolerance: float) -> EventMessage:
    """Returns the message of an ended attempt, whose job has finished, is queued again, or is held."""
    data = event.data
    outcome, seconds, log = data["outcome"], data["seconds"], data["log"]
    began = outcome != "not_started" and seconds is not None
    after = f" in {format_seconds(seconds)}" if began else ""
    if event.kind == "finished":
        head = f"finished [{OUTCOME_LABELS.get(outcome, outcome.upper())}]{after}"
    else:
        then = "queued again" if event.kind == "queued" else event.kind
        head = f"{outcome.replace('_', ' ')}{after}, {then}"
    parts = [event.reason] if event.reason else []
    parts += _usage_parts(event, tolerance) if outcome != "not_started" else []
    if data["survivors"]:
        parts.append(f"left processes that do not end: {', '.join(map(str, data['survivors']))}")
    good = outcome in _UNREMARKABLE_OUTCOMES
    where = f" (log: {log})" if log and not good else ""
    text = " — ".join([head, " | ".join(parts)]) if parts else head
    return EventMessage(_INFO if good and not data["survivors"] else _WARNING, text, where)


def _usage_parts(event: Event, tolerance: float) -> Iterator[str]:
    """Yields the peaks of an attempt, the accuracy of its declaration, and its mean GPU utilization."""
    data = event.data
    peaks, load = data["peaks"], data["load"]
    if any(peak is not None for peak in peaks):
        each = zip(data["gpus"], peaks, strict=True)
        known = ", ".join(f"gpu{gpu}:{'n/a' if mib is None else f'{mib} MiB'}" for gpu, mib in each)
        yield f"peak vram {known}"
    else:
        yield "peak vram n/a"
    yield _accuracy_text(event, tolerance)
    if load is not None:
        yield f"avg gpu util {load:.0f}%"


def _accuracy_text(event: Event, tolerance: float) -> str:
    """Describes the declaration and its accuracy."""
    data = event.data
    budgets = _declared_budgets(event)
    if budgets is None:
        return "no declaration"
    by_share, completed = data["declared"] is None, data["outcome"] == "completed"
    verdict = judge_declaration(data["peaks"], budgets, tolerance, completed=completed, by_share=by_share)
    if not by_share:
        declared = f"{_memory_source(event)} {data['declared']} MiB"
    else:
        declared = f"declared {share_text(data['share'], verdict.mib if verdict else None)}"
    if verdict is None:
        return declared
    if verdict.kind == "within":
        return f"{declared} → within ±{100 * tolerance:g}%"
    if verdict.kind == "under":
        return f"{declared} → under-declared ({verdict.percent:+d}%)"
    return f"{declared} → over-declared ({verdict.percent:+d}%); lowering it frees packing headroom"


def _declared_budgets(event: Event) -> list[int | None] | None:
    """Returns the MiB declared on each GPU; None if nothing was declared."""
    data = event.data
    if "budgets" in data:
        found: list[int | None] | None = data["budgets"]
        return found
    # An earlier version recorded no budgets: it inferred a declaration from these numbers.
    is_declared = data["declared"] is not None or 0 < data["share"] < WHOLE
    return [data["declared"]] * len(data["gpus"]) if is_declared else None
