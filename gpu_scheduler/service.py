"""One scheduler process per record, from the options of `start` to its exit code."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable

from gpu_scheduler.checks import check_paths
from gpu_scheduler.config import StartOptions
from gpu_scheduler.console import Console, begin_logging
from gpu_scheduler.core.facts import Settings
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.daemon import Daemon
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.executors import Executor
from gpu_scheduler.executors.direct import DirectExecutor
from gpu_scheduler.executors.screen import ScreenExecutor, screen_problem
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import InstanceLock


def run(
    options: StartOptions,
    reached: Callable[[str], None] = lambda step: None,
    settings: Settings | None = None,
) -> int:
    """Schedule until asked to end; returns the exit code.

    reached and settings are for tests: the named steps of a round, and times that are waited for.
    Raises SchedulerError (and its kinds) for what is wrong with the options or the machine at the start.
    """
    umask = os.umask(0o077)
    settings = settings or _settings(options)
    home = Home.of(options.state_file, options.data_dir)
    check_paths(options)
    is_new = not home.folder.exists()
    home.create()
    lock = InstanceLock(home.lock)
    if not lock.acquire():
        raise SchedulerError(
            f"a scheduler is running on {home.state_file} already (pid {lock.holder()}); "
            "`stop` ends it, or name another --state-file"
        )
    console = Console()
    try:
        begin_logging(home.log, console)
        try:
            daemon = Daemon(
                options,
                home,
                umask,
                console,
                reached,
                settings or _settings(options),
                _executor(options.screen),
            )
        except SchedulerError:
            if is_new:
                shutil.rmtree(home.folder, ignore_errors=True)  # nothing was ever recorded in it
            raise
        try:
            return daemon.serve()
        finally:
            daemon.close()
    except sqlite3.OperationalError as error:
        raise SchedulerError(
            f"{home.database}: {error}; free disk space, or end what holds it locked"
        ) from None
    finally:
        console.close()
        lock.release()


def _settings(options: StartOptions) -> Settings:
    return Settings(
        limits=Limits(options.mem_threshold, options.load_threshold),
        max_assign_attempts=options.max_assign_attempts,
        assign_retry_wait_s=options.assign_retry_wait_s,
    )


def _executor(screen: bool) -> Executor:
    if not screen:
        return DirectExecutor()
    problem = screen_problem()
    if problem is not None:
        raise SchedulerError(f"--screen: {problem}")
    return ScreenExecutor()
