"""What happened, in words and as JSON: the one place that says how an event is told.

The main log, what `start` prints, `events` and journal.jsonl all come from here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_scheduler.core.event import Event
from gpu_scheduler.core.secrets import masked
from gpu_scheduler.core.share import WHOLE, format_share
from gpu_scheduler.core.strays import stray_words
from gpu_scheduler.core.verdict import judge
from gpu_scheduler.views.words import share_words, visible

#: Of an outcome: the mark in the line of a job that has finished.
MARKS = {
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
#: Outcomes that nobody need look into.
_GOOD = ("completed", "cancelled", "ended")
_DETAIL, _NEWS, _WARNING = logging.DEBUG, logging.INFO, logging.WARNING


@dataclass(frozen=True)
class Told:
    """One line about an event. subject: "job 3", "" for an event of no job; more: what only the log says."""

    level: int
    text: str
    more: str = ""
    subject: str = ""

    @property
    def line(self) -> str:
        """All of it, printable."""
        return visible(f"{self.subject} {self.text}{self.more}".lstrip())


def line(event: Event, tolerance: float = 0.10, dispatched: tuple[int, int] | None = None) -> tuple[int, str]:
    """The level and the one line of an event; DEBUG where the main log says it otherwise, or not at all.

    dispatched: (jobs of this run that were started or are over, jobs of this run), where that is known.
    """
    one = told(event, tolerance, dispatched)
    return one.level, one.line


def dated(event: Event, tolerance: float = 0.10) -> str:
    """The line of an event, with when it happened."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    return f"{at}  {line(event, tolerance)[1]}"


def to_json(event: Event) -> str:
    """One line of JSON, pure ASCII, without its newline; docs/json.md describes it."""
    values = {"id": event.id, "at": iso(event.at), "event": event.kind, "job": event.job_id or None}
    if event.reason is not None:
        values["reason"] = masked(event.reason)
    if event.new or event.kind == "starting":
        values["command"] = masked(event.command)
    return json.dumps({**values, **event.data})


def iso(at: float) -> str:
    """Wall seconds as ISO 8601 to the millisecond, with the offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def took(seconds: float) -> str:
    """ "3.2s", "1774s"."""
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def about(event: Event) -> str | None:
    """What an event tells beside its kind, for a list of events of one job."""
    data = event.data
    if event.kind == "exceeded":
        return _exceeded(event)
    if event.kind == "misplaced process":
        return f"pid {data['pid']} on GPU {data['gpu']}"
    if event.kind in ("relaunched", "runner lost", "runner killed", "window closed"):
        return f"attempt {data['attempt']}"
    if event.kind == "infeasible":
        return (event.reason or "").removeprefix("infeasible: ")
    return event.reason


def told(event: Event, tolerance: float = 0.10, dispatched: tuple[int, int] | None = None) -> Told:
    """The same line in its parts."""
    subject = f"job {event.job_id}" if event.job_id else ""
    return replace(_told(event, tolerance, dispatched), subject=subject)


def _told(event: Event, tolerance: float, dispatched: tuple[int, int] | None) -> Told:
    kind, data = event.kind, event.data
    attempt = f"attempt {data.get('attempt', '?')}"
    if kind == "starting":
        return _starts(event, dispatched)
    if "outcome" in data and "attempt" in data:
        return _ended(event, tolerance)
    if kind == "exceeded":
        return Told(_WARNING, f"{_exceeds(event)}; neighbors may OOM")
    if kind == "misplaced process":
        return Told(_WARNING, stray_words(data["allocated"], data["gpu"], data["pid"]))
    if kind == "window closed":
        follow = f"`logs {event.job_id} -f` follows it"
        return Told(_WARNING, f"goes on without its Screen window, which was closed; {follow}")
    if kind == "relaunched":
        return Told(_WARNING, f"is launched again: no runner claimed {attempt} in time")
    if kind == "runner lost":
        return Told(_WARNING, f"has lost the runner of {attempt}, which left no result")
    if kind == "runner killed":
        return Told(_WARNING, f"did not end in time: the runner of {attempt} is killed")
    if kind == "infeasible":
        return Told(_WARNING, f"waits, {event.reason}")
    if kind in ("paused", "resumed"):
        how = f" {event.reason}" if event.reason else ""
        return Told(_NEWS, f"GPU {', '.join(map(str, data['gpus']))} {kind}{how}")
    if kind == "stopping":
        return Told(_NEWS, "is being stopped")
    return _changed(event)


def _changed(event: Event) -> Told:
    """A job that came to a state without an attempt of it having ended, or an event of no job."""
    state = str(event.data.get("outcome", event.kind)).replace("_", " ")
    if not event.job_id:
        return Told(_DETAIL, event.reason or state)
    if event.new:
        why = f" ({event.reason})" if event.reason else ""
        return Told(_DETAIL, f"{state}: {event.command}{why}")
    why = f": {event.reason}" if event.reason else ""
    return Told(_DETAIL if state == "running" else _NEWS, f"{state}{why}")


def _starts(event: Event, dispatched: tuple[int, int] | None) -> Told:
    data = event.data
    if not data:  # of an earlier version, which did not say where
        return Told(_NEWS, "starts", f" — {event.command}")
    words = [] if dispatched is None else [f"{dispatched[0]}/{dispatched[1]} dispatched"]
    words.append(_declared(data["share"], data["vram"], data["exclusive"], _kind(event)))
    if data["attempt"] > 1:
        words.append(f"attempt {data['attempt']}")
    return Told(_NEWS, f"starts on gpu {data['gpus']} ({', '.join(words)})", f" — {event.command}")


def _kind(event: Event) -> str:
    """Where the memory that an attempt booked comes from."""
    if event.data.get("assumed"):
        return "default"
    return "learned" if event.data.get("learned") else "declared"


def _declared(share: int, vram: int | None, whole: bool, kind: str) -> str:
    """What an attempt books. whole: with no other job of ours, for which a share of 1 says nothing more."""
    words = [f"share {format_share(share)}"] if share and not (whole and share >= WHOLE) else []
    words += [] if vram is None else [f"{kind} {vram} MiB/gpu"]
    words += ["alone"] if whole or not words else []
    return ", ".join(words)


def _exceeds(event: Event) -> str:
    """The warning without its consequence. A share is named with the memory that it comes to."""
    data = event.data
    head = "EXCEEDS declared"
    if data.get("share") is None:
        return f"{head} VRAM on {_exceeded(event)}"
    share = share_words(data["share"], data["declared"])
    return f"{head} {share} on gpu {data['gpu']}: {data['observed']} MiB used ({_above(event)})"


def _exceeded(event: Event) -> str:
    data = event.data
    share = data.get("share")
    declared = f"{data['declared']} MiB" if share is None else share_words(share, data["declared"])
    return f"gpu {data['gpu']}: {data['observed']} MiB used, {declared} declared ({_above(event)})"


def _above(event: Event) -> str:
    seen, declared = event.data["observed"], event.data["declared"]
    return f"+{round(100 * (seen - declared) / declared)}%"


def _ended(event: Event, tolerance: float) -> Told:
    """The line of an attempt that has ended: its job has finished, waits once more, or is held."""
    data = event.data
    outcome, seconds, log = data["outcome"], data["seconds"], data["log"]
    began = outcome != "not_started" and seconds is not None
    after = f" in {took(seconds)}" if began else ""
    if event.kind == "finished":
        head = f"finished [{MARKS.get(outcome, outcome.upper())}]{after}"
    else:
        then = "queued again" if event.kind == "queued" else event.kind
        head = f"{outcome.replace('_', ' ')}{after}, {then}"
    parts = [event.reason] if event.reason else []
    parts += _use(event, tolerance) if outcome != "not_started" else []
    if data["survivors"]:
        parts.append(f"left processes that do not end: {', '.join(map(str, data['survivors']))}")
    good = outcome in _GOOD
    where = f" (log: {log})" if log and not good else ""
    text = " — ".join([head, " | ".join(parts)]) if parts else head
    return Told(_NEWS if good and not data["survivors"] else _WARNING, text, where)


def _use(event: Event, tolerance: float) -> Iterator[str]:
    """What the attempt used, and how good its declaration was."""
    data = event.data
    peaks, load = data["peaks"], data["load"]
    if any(peak is not None for peak in peaks):
        each = zip(data["gpus"], peaks, strict=True)
        known = ", ".join(f"gpu{gpu}:{'n/a' if mib is None else f'{mib} MiB'}" for gpu, mib in each)
        yield f"peak vram {known}"
    else:
        yield "peak vram n/a"
    yield _judged(event, tolerance)
    if load is not None:
        yield f"avg gpu util {load:.0f}%"


def _judged(event: Event, tolerance: float) -> str:
    """Words the declaration and the verdict on it."""
    data = event.data
    budgets = _budgets(event)
    if budgets is None:
        return "no declaration"
    by_share, completed = data["declared"] is None, data["outcome"] == "completed"
    verdict = judge(data["peaks"], budgets, tolerance, completed=completed, by_share=by_share)
    if not by_share:
        declared = f"{_kind(event)} {data['declared']} MiB"
    else:
        declared = f"declared {share_words(data['share'], verdict.mib if verdict else None)}"
    if verdict is None:
        return declared
    if verdict.kind == "within":
        return f"{declared} → within ±{100 * tolerance:g}%"
    if verdict.kind == "under":
        return f"{declared} → under-declared ({verdict.percent:+d}%)"
    return f"{declared} → over-declared ({verdict.percent:+d}%); lowering it frees packing headroom"


def _budgets(event: Event) -> list[int | None] | None:
    """MiB that was declared on each GPU; None: nothing was."""
    data = event.data
    if "budgets" in data:
        found: list[int | None] | None = data["budgets"]
        return found
    # Of an earlier version, which told a declaration by its numbers.
    is_declared = data["declared"] is not None or 0 < data["share"] < WHOLE
    return [data["declared"]] * len(data["gpus"]) if is_declared else None
