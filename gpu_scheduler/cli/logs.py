"""`attach` and `logs`: show the terminal of a running job, and the log of any job."""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import Namespace

from gpu_scheduler.app.job_refs import resolve_job
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.attempts.observe import read_status
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.log_printer import LogFilter, LogPrinter
from gpu_scheduler.cli.program import print_error
from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.states import WAITING, JobState
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

_POLL_INTERVAL_S = 0.1
#: Seconds between two printed lines for one progress bar that is followed.
_PROGRESS_INTERVAL_S = 1.0


def attach(options: Namespace) -> int:
    """Replaces this process by `screen -x` on the session of a running job."""
    with open_store(location_of(options)) as store:
        job_id = resolve_job(store, options.job)
        job = job_row(store, job_id)
        attempt = store.newest_attempts([job_id]).get(job_id)
        if attempt is None or attempt["outcome"] is not None:
            raise SchedulerError(f"job {job_id} is not running but {job['state']}{_logs_hint(attempt)}")
        seen = _observe(store, attempt)
    if seen.result is not None or seen.claim in ("dead", "void"):
        raise SchedulerError(f"job {job_id} is no longer running; `logs {job_id}` shows its output")
    if seen.claim in ("unclaimed", "invalid"):
        raise SchedulerError(
            f"job {job_id}: {'; '.join(seen.anomalies)}\n`logs {job_id} -f` follows its output"
        )
    if seen.claim == "none":
        raise SchedulerError(f"job {job_id} is starting; try again in a moment")
    if seen.session is None:
        raise SchedulerError(
            f"job {job_id} has no Screen session (the scheduler was started without --screen)\n"
            f"`logs {job_id} -f` follows its output"
        )
    from gpu_scheduler.app import screen_sessions

    if seen.window_open is False:
        raise SchedulerError(
            f"the Screen window of job {job_id} was closed; the job continues\n"
            f"`logs {job_id} -f` follows its output"
        )
    program = shutil.which("screen")
    if program is None:
        raise SchedulerError("GNU Screen is not installed; install it (sudo apt-get install screen)")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SchedulerError(f"attach needs a terminal; without one, use `logs {job_id} -f`")
    if os.environ.get("STY"):
        _print_detach_keys(os.environ["STY"])
    sys.stdout.flush()
    where = screen_sessions.screen_environment(screen_sessions.socket_folder(seen.session))
    os.execve(program, [program, "-x", seen.session], where)


def _print_detach_keys(outer: str) -> None:
    """Prints which keys detach which of two nested Screens, and waits for Enter.

    It waits because the job's session will fill the terminal.
    """
    print(f"This terminal is already in a Screen session: {safe_text(outer)}")
    print("With Screen's default keys, Ctrl-A a d detaches the job's session, Ctrl-A d detaches yours.")
    print("Press Enter to open the job's session. ", end="", flush=True)
    sys.stdin.readline()


def logs(options: Namespace) -> int:
    """Prints the log of an attempt, by default the latest.

    With --follow it continues until the job, or the named attempt, has ended and everything is printed.
    """
    with open_store(location_of(options), allow_other_host=not options.follow) as store:
        attempt = _selected_attempt(store, resolve_job(store, options.job), options.attempt)
        tail = _open_printer(store, attempt, _log_filter(options))
        tail.print_last(options.lines)
        if options.follow:
            _follow(store, attempt, tail, single_attempt=options.attempt is not None)
        tail.finish()
        tail.close()
    return 0


def _log_filter(options: Namespace) -> LogFilter | None:
    """Returns the filter for the log's text; None to print every byte."""
    if options.raw:
        return None
    return LogFilter(
        draw_bars=sys.stdout.isatty(), bar_interval_s=_PROGRESS_INTERVAL_S if options.follow else None
    )


def _open_printer(store: Store, attempt: AttemptRecord, log_filter: LogFilter | None) -> LogPrinter:
    try:
        return LogPrinter(_log_path(store, attempt), log_filter)
    except SchedulerError as error:
        if store.other_host is None:
            raise
        raise SchedulerError(f"{error}; the log was written on host {store.other_host.name}") from None


def _selected_attempt(store: Store, job_id: int, number: int | None) -> AttemptRecord:
    """Returns the attempt with that number, the latest for None."""
    job = job_row(store, job_id)
    attempts = {row["number"]: row for row in store.attempts(job_id)}
    if not attempts:
        raise SchedulerError(f"job {job_id} has no log: it is {job['state']} and was never started")
    attempt = attempts.get(max(attempts) if number is None else number)
    if attempt is None:
        there = ", ".join(map(str, sorted(attempts)))
        raise SchedulerError(f"job {job_id} has no attempt {number}; its attempts are {there}")
    return attempt


def _follow(store: Store, attempt: AttemptRecord, printer: LogPrinter, *, single_attempt: bool) -> None:
    job_id = attempt["job_id"]
    while True:
        # Check before reading the log, so that output written before the end is printed.
        over = _is_over(store, attempt)
        printer.print_new()
        if not over:
            time.sleep(_POLL_INTERVAL_S)
            continue
        if single_attempt:
            return
        newest = store.newest_attempts([job_id])[job_id]
        if newest["id"] != attempt["id"]:
            attempt = newest
            printer.switch_to(_log_path(store, attempt))
            continue
        state = JobState(job_row(store, job_id)["state"])
        if state in (JobState.FINISHED, JobState.HELD):
            return
        if scheduler_pid_of(store) is None:
            what = "is queued again" if state in WAITING else "has ended"
            print_error(f"job {job_id} {what}; no scheduler is running")
            return
        time.sleep(_POLL_INTERVAL_S)


def _is_over(store: Store, attempt: AttemptRecord) -> bool:
    row = store.newest_attempts([attempt["job_id"]])[attempt["job_id"]]
    if row["id"] != attempt["id"] or row["outcome"] is not None:
        return True
    seen = _observe(store, attempt)
    return seen.result is not None or seen.claim in ("dead", "void")


def job_row(store: Store, job_id: int) -> JobRecord:
    """Returns the row of a job. Raises SchedulerError if there is none."""
    row = store.job(job_id)
    if row is None:
        raise SchedulerError(
            f"there is no job {job_id} in {store.data_dir.folder}; `status --all` lists them"
        )
    return row


def _observe(store: Store, attempt: AttemptRecord) -> AttemptStatus:
    try:
        return read_status(store, attempt)
    except OSError as error:
        folder = store.data_dir.attempt_folder(attempt["job_id"], attempt["number"], attempt["token"])
        raise SchedulerError(f"job {attempt['job_id']}: {folder} cannot be read: {error.strerror}") from None


def _log_path(store: Store, attempt: AttemptRecord) -> str:
    path = attempt["log"] or _observe(store, attempt).log
    if path is None:
        why = f": {attempt['reason'] or attempt['launch_error']}" if attempt["outcome"] else " yet"
        raise SchedulerError(f"attempt {attempt['number']} of job {attempt['job_id']} has no log{why}")
    return str(path)


def _logs_hint(attempt: AttemptRecord | None) -> str:
    return "" if attempt is None else f"; `logs {attempt['job_id']}` shows its output"
