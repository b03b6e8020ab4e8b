"""Runs the scheduler of a data directory, from checking the options of `start` to its exit code."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing

from gpu_scheduler.attempts.executors import (
    DirectExecutor,
    Executors,
    ForkingExecutor,
    ScreenExecutor,
    screen_problem,
)
from gpu_scheduler.config import STATE_FILE, StartOptions
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.daemon.console import Console
from gpu_scheduler.daemon.daemon import Daemon
from gpu_scheduler.daemon.log_setup import configure_logging
from gpu_scheduler.daemon.restore import in_own_folder, open_store, refuse_active, refuse_unrecorded
from gpu_scheduler.daemon.start_checks import (
    check_files,
    check_old_sessions,
    check_paths,
    check_proc,
    check_store,
    claim_folder_of,
)
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.health.storage import describe_store_error
from gpu_scheduler.runner.folder import set_mark
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import damaged_error, is_damage, newest_schema_version
from gpu_scheduler.store.inspection import inspect_store
from gpu_scheduler.store.job_lists import job_count
from gpu_scheduler.store.new_store import removed_if_new
from gpu_scheduler.store.scheduler_lock import (
    InstanceLock,
    Ownership,
    listed,
    locking_pids,
    running_schedulers,
    scheduler_pid,
)
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: An environment variable. With the value "exec", every runner is started as a new program and not forked.
RUNNER_START_VARIABLE = "GPU_SCHEDULER_RUNNERS"


def run(
    options: StartOptions,
    failpoint: Callable[[str], None] = lambda step: None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Runs the scheduler until it is asked to end; returns the exit code.

    on_ready: called when everything has been checked, `stop` works, and all earlier log messages have been
    printed. failpoint: called at each step of a round, for tests.
    Raises SchedulerError or a subclass if the options or the machine do not allow a start.
    """
    umask = os.umask(0o077)
    set_mark(None)  # if a job started this scheduler, a sweep of that job must not end its helpers
    home = DataDir.of(options.state_file, options.data_dir)
    warnings = _check_start(options, home)
    claim_folder = claim_folder_of(options, home)
    claim_folder.prepare()
    is_new = not home.folder.exists()
    home.check_owner(take_over=options.take_over)
    warnings += map(str, home.create())
    others = running_schedulers()
    lock = _acquire_lock(home, options.take_over)
    is_new = is_new and not home.database.exists()  # `submit` may have created the store in the meantime
    console = Console()
    try:
        # All state files in a folder share one main log, `gpu_scheduler.log`.
        name = home.state_file.name
        mark = "" if name == STATE_FILE else f"[{name}] ".replace("%", "%%")
        configure_logging(home.main_log, console, mark, trust=options.trust_files)
        for warning in warnings:
            log.warning("%s", warning)
        with ExitStack() as at_end:
            with removed_if_new(home, is_new=is_new):
                store = at_end.enter_context(closing(open_store(home, options)))
                ownership = Ownership(home, lock)
                executors = _make_executors(options.screen)
                # If the start fails, nothing is deleted, and the schema stays as an older version wrote it.
                with store.db.upgraded(), in_own_folder(store, fresh=options.fresh):
                    daemon = Daemon(
                        options, store, ownership, umask, console, failpoint, executors, claim_folder
                    )
            at_end.callback(daemon.close)
            problem = at_end.enter_context(listed(home))
            if problem is not None:
                log.warning("%s; commands in other folders do not find this queue", problem)
            for state_file, _, pid in others:
                text = "another queue of yours runs: %s, %s; both share the GPUs by claims"
                log.info(text, state_file, pid_text(pid))

            def is_up() -> None:
                console.flush()
                on_ready()

            return daemon.serve(is_up)
    except sqlite3.OperationalError as error:
        raise SchedulerError(describe_store_error(home, error)) from None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise damaged_error(home.database, error) from None
    finally:
        console.close()
        lock.release()


def _check_start(options: StartOptions, home: DataDir) -> list[str]:
    """Checks a start before anything is created; returns warnings. Raises SchedulerError to refuse it."""
    check_proc()
    home.check_access()
    check_store(options, home)
    warnings = check_old_sessions(options, home)
    check_paths(options)
    return warnings + check_files(options, home)


def count_jobs_to_forget(home: DataDir, *, take_over: bool = False) -> int:
    """Returns the number of jobs that `start --fresh` would forget.

    Raises SchedulerError if `start --fresh` would be refused.
    """
    home.check_access()
    if not home.folder.exists():
        return 0
    home.check_owner(take_over=take_over)
    pid = scheduler_pid(home.lock)
    if pid is not None:
        raise SchedulerError(_running_message(home, pid))
    try:
        found = inspect_store(home)
        if found.state != "whole":
            refuse_unrecorded(found)
            return len({one.job_id for one in found.folders})
        with closing(Store(home, create=True)) as store:
            # If the schema is older, `start` checks the jobs after it has upgraded the store.
            is_upgraded = store.db.schema_version == newest_schema_version()
            if is_upgraded and moved_or_copied.original_of_copy(store) is None:
                refuse_active(store)
            return job_count(store)
    except sqlite3.OperationalError as error:
        raise SchedulerError(describe_store_error(home, error)) from None


def _running_message(home: DataDir, pid: int) -> str:
    return (
        f"a scheduler is already running on {home.state_file} ({pid_text(pid)}); "
        "end it with `stop`, or choose another --state-file"
    )


def _locked_message(home: DataDir) -> str:
    pids = locking_pids(home.folder)
    if not pids:
        return (
            f"{home.folder} is locked by a program that is not visible from here, such as a scheduler in a"
            " container, or was until just now; start again when it has ended"
        )
    locker = f"another program (pid {', '.join(map(str, pids))}), which is not a scheduler"
    return (
        f"{home.folder} is locked by {locker}; start again when that program has ended, or make it lock"
        " another folder"
    )


def _acquire_lock(home: DataDir, take_over: bool) -> InstanceLock:
    """Acquires the scheduler lock, and marks the data directory as owned by this host.

    Raises SchedulerError.
    """
    try:
        lock = InstanceLock(home.lock)
        taken = lock.acquire()
        if taken:
            home.take_ownership(take_over=take_over)
    except OSError as error:
        raise SchedulerError(describe_store_error(home, error)) from None
    if not taken:
        holder = lock.holder_pid()
        lock.release()
        raise SchedulerError(_locked_message(home) if holder is None else _running_message(home, holder))
    return lock


def _make_executors(screen: bool) -> Executors:
    """Returns the executors of this machine. screen: whether new attempts run in Screen sessions.

    Raises SchedulerError.
    """
    if not screen:
        exec_each = os.environ.get(RUNNER_START_VARIABLE) == "exec"
        return Executors(DirectExecutor() if exec_each else ForkingExecutor(), ScreenExecutor())
    problem = screen_problem()
    if problem is not None:
        raise SchedulerError(f"--screen: {problem}")
    return Executors(ScreenExecutor(), DirectExecutor())
