"""Finds the log of an attempt and follows it, and finds and lists the Screen sessions of running jobs."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Literal

from msgspec import Struct

from gpu_scheduler.attempts.job_logs import current_log
from gpu_scheduler.attempts.observe import read_status, readable_status
from gpu_scheduler.core.command.build import SessionList, parse_session_list
from gpu_scheduler.core.model.job import Attempt, AttemptStatus, Job
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState
from gpu_scheduler.core.text.formatting import count_noun, format_age, masked_json, picked, safe_text
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.show.layout import Cell, Column, TableRow, render_table
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.job_lists import open_jobs
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.run_program import run_program

# Finds the socket folder of an attempt's Screen session, and asks Screen for its sessions.
#
# The answers are only for display and for `attach`. No decision about a job depends on them.


def socket_folder(session: str) -> str | None:
    """Returns the SCREENDIR with which the session was created; None if SCREENDIR was not set.

    If the session's environment cannot be read, returns the SCREENDIR of this process.
    """
    try:
        with open(f"/proc/{session.partition('.')[0]}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return os.environ.get("SCREENDIR") or None
    for item in content.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name == b"SCREENDIR":
            return os.fsdecode(value) or None
    return None


def screen_environment(folder: str | None) -> dict[str, str]:
    """Returns this process's environment, changed so that Screen looks for sockets in that folder."""
    rest = {name: value for name, value in os.environ.items() if name != "SCREENDIR"}
    return rest if folder is None else {**rest, "SCREENDIR": folder}


def list_sessions(folder: str | None) -> SessionList | str:
    """Returns the sessions that Screen lists for a socket folder, or a text that says why it lists none."""
    program = shutil.which("screen")
    if program is None:
        return "GNU Screen is not installed; install it (sudo apt-get install screen)"
    result = run_program([program, "-ls"], screen_environment(folder))
    # The exit code is useless: some versions return 1 even if there are sessions, and others always return 0.
    return parse_session_list(result.output) if result.exit_code is not None else result.problem


_ELSEWHERE = ", and its output does not go to a file"


class AttachTarget(Struct, frozen=True):
    """The session of a running job.

    program: the path of Screen; environment: the variables with which Screen finds the session.
    """

    job_id: int
    session: str
    program: str
    environment: Mapping[str, str]


class LogProgress(Enum):
    """Whether more output of the job may follow.

    running             the log may still grow
    next_attempt        `path` is now the log of the next attempt
    between_attempts    the scheduler will start another attempt
    ended               no more output follows
    queued_again        the job waits for another attempt, but no scheduler is running
    left_open           the attempt is over, but no scheduler is running to record its end
    """

    RUNNING = "running"
    NEXT_ATTEMPT = "next attempt"
    BETWEEN_ATTEMPTS = "between attempts"
    ENDED = "ended"
    QUEUED_AGAIN = "queued again"
    LEFT_OPEN = "left open"


class NoLogError(SchedulerError):
    """Raised for an attempt without a log. reason: why the attempt ended, None if it has not ended."""

    def __init__(self, message: str, reason: StateReason | None) -> None:
        super().__init__(message)
        self.reason = reason


class JobLog:
    """The log of an attempt."""

    def __init__(self, store: Store, attempt: Attempt, *, single_attempt: bool) -> None:
        self._store = store
        self._attempt = attempt
        self._single_attempt = single_attempt
        self.job_id = attempt.job_id

    @property
    def number(self) -> int:
        """The number of the attempt."""
        return self._attempt.number

    @property
    def path(self) -> str:
        """The path of the file. Raises NoLogError if the attempt has none."""
        return _log_path(self._store, self._attempt)

    def advance(self) -> LogProgress:
        """Returns whether more output may follow; moves on to the next attempt if there is one.

        The current log is complete unless the result is RUNNING.
        """
        if not _is_over(self._store, self._attempt):
            return LogProgress.RUNNING
        if self._single_attempt:
            return LogProgress.ENDED
        newest = self._store.newest_attempts([self.job_id])[self.job_id]
        if newest.id != self._attempt.id:
            self._attempt = newest
            return LogProgress.NEXT_ATTEMPT
        state = job_record(self._store, self.job_id).state
        if state in (JobState.FINISHED, JobState.HELD):
            return LogProgress.ENDED
        if scheduler_pid_of(self._store) is None:
            return LogProgress.QUEUED_AGAIN if state in WAITING else LogProgress.LEFT_OPEN
        return LogProgress.BETWEEN_ATTEMPTS


@contextmanager
def open_log(location: Location, job: JobRef, attempt: int | None) -> Iterator[JobLog]:
    """Opens the log of an attempt.

    attempt: the number of the attempt; None means the latest attempt and those that `advance` finds later.
    Raises SchedulerError if the job or the attempt does not exist.
    """
    with open_store(location, read_only=True) as store:
        found = _selected_attempt(store, resolve_job(store, job), attempt)
        yield JobLog(store, found, single_attempt=attempt is not None)


def attach_target(location: Location, job: JobRef) -> AttachTarget:
    """Returns the session of a running job. Raises SchedulerError if there is no session to attach to."""
    with open_store(location, read_only=True) as store:
        job_id = resolve_job(store, job)
        state = job_record(store, job_id).state
        attempt = store.newest_attempts([job_id]).get(job_id)
        if attempt is None or not attempt.state.is_open:
            hint = "" if attempt is None else f"; `logs {job_id}` shows its output"
            raise SchedulerError(f"job {job_id} is not running but {state}{hint}")
        status = readable_status(store, attempt)
    session = _open_session(job_id, status)
    program = shutil.which("screen")
    if program is None:
        raise SchedulerError("GNU Screen is not installed; install it (sudo apt-get install screen)")

    where = screen_environment(socket_folder(session))
    return AttachTarget(job_id, session, program, where)


def _open_session(job_id: int, status: AttemptStatus) -> str:
    follow = f"`logs {job_id} -f` follows its output"
    if status.is_over:
        raise SchedulerError(f"job {job_id} is no longer running; `logs {job_id}` shows its output")
    if status.claim in ("unclaimed", "invalid"):
        raise SchedulerError(f"job {job_id}: {'; '.join(status.anomalies)}\n{follow}")
    if status.claim == "none":
        raise SchedulerError(f"job {job_id} is starting; try again in a moment")
    if status.session is None:
        raise SchedulerError(
            f"job {job_id} has no Screen session: the scheduler was started without --screen\n{follow}"
        )
    if status.window_open is False:
        raise SchedulerError(f"the Screen window of job {job_id} was closed; the job continues\n{follow}")
    return status.session


def _selected_attempt(store: Store, job_id: int, number: int | None) -> Attempt:
    """Returns the attempt with that number; for None, the latest attempt."""
    job = job_record(store, job_id)
    attempts = {attempt.number: attempt for attempt in store.attempts(job_id)}
    if not attempts and job.adopted is not None:
        where = f"; its output goes to {job.adopted.log}" if job.adopted.log else _ELSEWHERE
        raise SchedulerError(f"job {job_id} is process {job.adopted.pid}, which is not watched yet{where}")
    if not attempts:
        raise SchedulerError(f"job {job_id} has no log: it is {job.state} and was never started")
    attempt = attempts.get(max(attempts) if number is None else number)
    if attempt is None:
        there = ", ".join(map(str, sorted(attempts)))
        raise SchedulerError(f"job {job_id} has no attempt {number}; its attempts are {there}")
    return attempt


def _is_over(store: Store, attempt: Attempt) -> bool:
    newest = store.newest_attempts([attempt.job_id])[attempt.job_id]
    return newest.id != attempt.id or not newest.state.is_open or readable_status(store, attempt).is_over


def _log_path(store: Store, attempt: Attempt) -> str:
    path = current_log(attempt) or readable_status(store, attempt).log
    if path is None and attempt.watched_pid is not None:
        adopted = f"job {attempt.job_id} is process {attempt.watched_pid}, which was adopted{_ELSEWHERE}"
        raise NoLogError(adopted, attempt.reason)
    if path is None:
        yet = "" if attempt.outcome else " yet"
        missing = f"attempt {attempt.number} of job {attempt.job_id} has no log{yet}"
        raise NoLogError(missing, attempt.reason)
    return str(path)


# Lists the Screen sessions of running jobs.
#
# The sessions come from the store and the attempt folders. Screen only reports which sessions are attached.


SessionState = Literal["attached", "detached", "starting", "unlisted", "closed", "unknown"]


class SessionView(Struct, frozen=True):
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


class SessionsView(Struct, frozen=True):
    """All sessions.

    without_session: the number of running jobs without a session; notes: reasons why Screen did not answer.
    """

    now: float
    sessions: tuple[SessionView, ...]
    without_session: int = 0
    notes: tuple[str, ...] = ()


def screens(location: Location) -> SessionsView:
    """Returns the sessions. Raises StoreNotFoundError before the first start."""
    with open_store(location, read_only=True) as store:
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


def _observe_running(store: Store, attempt: Attempt) -> AttemptStatus | None:
    """Returns the status of an attempt; None if the attempt is over."""
    if not attempt.state.is_open:
        return None
    try:
        status = read_status(store, attempt)
    except OSError:
        return AttemptStatus("unknown")
    return None if status.is_over else status


def _session_name(attempt: Attempt, status: AttemptStatus) -> str | None:
    """Returns the session's name. Before the runner claims the attempt, the name lacks its leading pid."""
    name = status.session or attempt.session
    return name if status.claim != "live" else status.session


def _session_lists(names: Iterable[str]) -> dict[str | None, SessionList | str]:
    """Returns the sessions that Screen lists for each socket folder; asks Screen once per folder."""
    folders = {socket_folder(name) for name in names}
    return {folder: list_sessions(folder) for folder in folders}


def _session_view(
    job: Job,
    attempt: Attempt,
    status: AttemptStatus,
    indices: Mapping[str, int],
    lists: Mapping[str | None, SessionList | str],
) -> SessionView:
    name = _session_name(attempt, status)
    folder = None if status.session is None else socket_folder(status.session)
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
