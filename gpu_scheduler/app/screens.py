"""Lists the Screen sessions of running jobs.

The sessions come from the store and the attempt folders. Screen only reports which sessions are attached.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.app import screen_sessions
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.attempts.observe import read_status
from gpu_scheduler.core.command.sessions import SessionList
from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.store.job_lists import open_jobs
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

SessionState = Literal["attached", "detached", "starting", "unlisted", "closed", "unknown"]


@dataclass(frozen=True)
class SessionView:
    """The Screen session of a running job.

    started_at: when its attempt started, in seconds since 1970; screen_dir: the SCREENDIR that is needed to
    attach to the session, None if it is the caller's own.
    """

    job: int
    gpus: tuple[int, ...]
    session: str | None
    state: SessionState
    started_at: float | None
    text: str
    screen_dir: str | None = None

    @property
    def attach_command(self) -> str | None:
        """The shell command that attaches to the session; None if there is nothing to attach to."""
        if self.session is None or self.state in ("starting", "closed"):
            return None
        where = "" if self.screen_dir is None else f"SCREENDIR={shlex.quote(self.screen_dir)} "
        return f"{where}screen {'-x' if self.state == 'attached' else '-r'} {self.session}"


@dataclass(frozen=True)
class SessionsView:
    """All sessions.

    without_session: the number of running jobs without a session; notes: reasons why Screen did not answer.
    """

    now: float
    sessions: tuple[SessionView, ...]
    without_session: int = 0
    notes: tuple[str, ...] = ()


def screens(location: Location) -> SessionsView:
    """Returns the sessions. Raises StoreNotFoundError before the first start."""
    with open_store(location) as store:
        return without_secrets(_read_sessions(store))


def _read_sessions(store: Store) -> SessionsView:
    with store.snapshot():
        jobs = {job.id: job for job in open_jobs(store, tuple(ACTIVE))}
        attempts = store.newest_attempts(jobs)
        indices = store.gpu_indices()
    statuses = ((attempt, _observe_running(store, attempt)) for attempt in attempts.values())
    running = [(attempt, status) for attempt, status in statuses if status is not None]
    ours = sorted((job for job in running if _session_name(*job) is not None), key=lambda job: job[0].job_id)
    lists = _session_lists(
        status.session for _, status in ours if status.session is not None and status.window_open is not False
    )
    sessions = tuple(
        _session_view(jobs[attempt.job_id], attempt, status, indices, lists) for attempt, status in ours
    )
    problems = {answer for answer in lists.values() if isinstance(answer, str)}
    return SessionsView(time.time(), sessions, len(running) - len(ours), tuple(sorted(problems)))


def _observe_running(store: Store, attempt: AttemptRecord) -> AttemptStatus | None:
    """Returns the status of an attempt; None if the attempt is over."""
    if not attempt.state.is_open:
        return None
    try:
        status = read_status(store, attempt)
    except OSError:
        return AttemptStatus("unknown")
    return None if status.is_over else status


def _session_name(attempt: AttemptRecord, status: AttemptStatus) -> str | None:
    """Returns the session's name. Before the runner claims the attempt, the name lacks its leading pid."""
    name = status.session or attempt.session
    return name if status.claim != "live" else status.session


def _session_lists(names: Iterable[str]) -> dict[str | None, SessionList | str]:
    """Returns the sessions that Screen lists for each socket folder; asks Screen once per folder."""
    folders = {screen_sessions.socket_folder(name) for name in names}
    return {folder: screen_sessions.list_sessions(folder) for folder in folders}


def _session_view(
    job: JobRecord,
    attempt: AttemptRecord,
    status: AttemptStatus,
    indices: Mapping[str, int],
    lists: Mapping[str | None, SessionList | str],
) -> SessionView:
    name = _session_name(attempt, status)
    folder = None if status.session is None else screen_sessions.socket_folder(status.session)
    return SessionView(
        job=job.id,
        gpus=tuple(sorted(indices.get(uuid, -1) for uuid in attempt.gpus)),
        session=name,
        state=_session_state(status, lists.get(folder)),
        started_at=attempt.started_at,
        text=job.text,
        screen_dir=folder if folder != (os.environ.get("SCREENDIR") or None) else None,
    )


def _session_state(status: AttemptStatus, session_list: SessionList | str | None) -> SessionState:
    if status.claim != "live" or status.session is None:
        return "starting" if status.claim == "none" else "unknown"
    if status.window_open is False:
        return "closed"
    if session_list is None or isinstance(session_list, str):
        return "unknown"
    attached = session_list.attached.get(status.session)
    return "unlisted" if attached is None else "attached" if attached else "detached"
