"""Formats the Screen sessions of running jobs as text and JSON."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from gpu_scheduler.core.secrets import masked
from gpu_scheduler.views.tables import Column, Entry, drawer
from gpu_scheduler.views.words import ago, plural, visible

State = Literal["attached", "detached", "starting", "unlisted", "closed", "unknown"]

_WORDS: dict[State, str] = {"unlisted": "not listed by Screen", "unknown": "?"}


@dataclass(frozen=True)
class SessionShown:
    """The Screen session of a running job. started_at: start of its attempt, wall seconds; screen_dir: the
    SCREENDIR that it needs, None = the caller's."""

    job: int
    gpus: tuple[int, ...]
    session: str | None
    state: State
    since: float | None
    text: str
    folder: str | None = None

    @property
    def command(self) -> str | None:
        """The command that attaches to it; None if there is nothing to attach to."""
        if self.session is None or self.state in ("starting", "closed"):
            return None
        where = "" if self.folder is None else f"SCREENDIR={shlex.quote(self.folder)} "
        return f"{where}screen {'-x' if self.state == 'attached' else '-r'} {self.session}"


@dataclass(frozen=True)
class Screens:
    """All sessions. without_session: number of running jobs without one; notes: why Screen gave no answer."""

    now: float
    sessions: tuple[SessionShown, ...]
    others: int = 0
    notes: tuple[str, ...] = ()


def to_text(screens: Screens, width: int | None) -> str:
    """Formats a table with the attach command below each session."""
    lines = []
    if screens.sessions:
        columns: list[Column] = [
            ("Job", "right"), ("GPUs", "left"), ("Session", "left"), ("Since", "left"), ("What", "left"),
        ]  # fmt: skip
        lines += [drawer(width)(columns, [_entry(one, screens.now) for one in screens.sessions])]
    else:
        lines += ["No job runs in a Screen session."]
    if screens.others:
        lines += [f"{plural(screens.others, 'running job')} without a session; `logs JOB -f` follows one"]
    lines += [visible(note) for note in screens.notes]
    return "\n".join(lines) + "\n"


def _entry(one: SessionShown, now: float) -> Entry:
    gpus = ",".join(map(str, one.gpus)) or "-"
    state = _WORDS.get(one.state, one.state)
    cells = [str(one.job), gpus, state, ago(one.since, now) or "-", visible(one.text)]
    return Entry(cells, [_below(one)])


def _below(one: SessionShown) -> str:
    if one.state == "starting":
        return f"{visible(one.session or '')} is being created"
    if one.command is None:
        return f"window closed, the job continues; `logs {one.job} -f` follows it"
    return f"{visible(one.command)}    or `attach {one.job}`"


def to_json(screens: Screens) -> str:
    """Formats the sessions as JSON, as docs/json.md describes."""
    value = {
        "now": screens.now,
        "sessions": [_object(one) for one in screens.sessions],
        "without_session": screens.others,
        "notes": list(screens.notes),
    }
    return json.dumps(value, indent=2) + "\n"


def _object(one: SessionShown) -> dict[str, Any]:
    return {
        "job": one.job,
        "gpus": list(one.gpus),
        "session": one.session,
        "state": one.state,
        "attached": {"attached": True, "detached": False}.get(one.state),
        "started_at": one.since,
        "command": one.command,
        "screendir": one.folder,
        "line": masked(one.text),
    }
