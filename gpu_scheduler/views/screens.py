"""Formats the Screen sessions of running jobs as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.text.formatting import count_noun, format_age, masked_json, picked, safe_text
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table

if TYPE_CHECKING:
    from gpu_scheduler.app.logs import SessionState, SessionsView, SessionView

_STATE_LABELS: dict[SessionState, str] = {"unlisted": "not listed by Screen", "unknown": "?"}
_COLUMNS = (Column("Job", is_right=True), *map(Column, ("GPUs", "Session", "Since", "What")))


def to_text(screens: SessionsView, width: int | None) -> str:
    """Formats the sessions as a table, with the attach command below each session."""
    lines: list[str] = []
    if screens.sessions:
        lines += render_table(_COLUMNS, [_session_row(one, screens.now) for one in screens.sessions], width)
    else:
        lines += ["No job runs in a Screen session."]
    if screens.without_session:
        lines += [
            f"{count_noun(screens.without_session, 'running job')} without a session;"
            " `logs JOB -f` follows a job's output"
        ]
    lines += [safe_text(note) for note in screens.notes]
    return "\n".join(lines) + "\n"


def _session_row(session: SessionView, now: float) -> TableRow:
    gpus = ",".join(map(str, session.gpus)) or "-"
    state = _STATE_LABELS.get(session.state, session.state)
    cells = [
        str(session.job),
        gpus,
        state,
        format_age(session.started_at, now) or "-",
        safe_text(session.text),
    ]
    return TableRow([*map(Cell, cells)], detail_lines=[_detail_line(session)])


def _detail_line(session: SessionView) -> str:
    if session.state == "starting":
        return f"{safe_text(session.session or '')} is being created"
    if session.attach_command is None:
        return f"the window was closed, but the job continues; `logs {session.job} -f` follows its output"
    return f"{safe_text(session.attach_command)}    or `attach {session.job}`"


def to_json(screens: SessionsView) -> str:
    """Formats the sessions as JSON, as docs/json.md describes."""
    value = {
        "now": screens.now,
        "sessions": [_session_object(one) for one in screens.sessions],
        "without_session": screens.without_session,
        "notes": list(screens.notes),
    }
    return masked_json(value, 2) + "\n"


def _session_object(session: SessionView) -> dict[str, Any]:
    return {
        **picked(session, "job", "gpus", "session", "state"),
        "attached": {"attached": True, "detached": False}.get(session.state),
        "started_at": session.started_at,
        "command": session.attach_command,
        "screendir": session.screen_dir,
        "line": session.text,
    }
