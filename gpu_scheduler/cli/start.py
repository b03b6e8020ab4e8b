"""`start`: runs the scheduler in this process or, with --daemon, in the background."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.cli import program
from gpu_scheduler.cli.program import location_of, print_message
from gpu_scheduler.config import NOTIFY_VARIABLE, REDIS_URL_VARIABLE, StartOptions
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.show.location import Location
from gpu_scheduler.system.own_process import start_thread

#: Seconds to wait for an answer from logind.
_LOGIND_TIMEOUT_S = 1.0


def start(options: Namespace) -> int:
    """Runs the scheduler (in the background with --daemon). Returns the exit code of the command."""
    chosen = _chosen(options)
    if options.daemon:
        from gpu_scheduler.daemon import service

        service.check_background(chosen)
    if options.fresh:
        _confirm_fresh(chosen, ask=not options.yes)
    if options.daemon:
        main_log = location_of(options).resolve().main_log
        return service.run_in_background(
            lambda up: _run_scheduler(chosen, up),
            lambda pid: _print_background_pid(pid, main_log),
            main_log,
            trust=chosen.trust_files,
        )
    return _run_scheduler(chosen, lambda: None)


def _chosen(options: Namespace) -> StartOptions:
    """Returns the options in their final form. Raises SchedulerError for those that are wrong."""
    _take_url(options)
    _take_receivers(options)
    chosen = StartOptions.from_values(vars(options))
    _validate(chosen)
    if options.jobs_file:
        from gpu_scheduler.control.jobs_file import refuse_script

        refuse_script(location_of(options), options.jobs_file)
    return chosen


def check(options: Namespace) -> None:
    """Checks a start without starting. Raises SchedulerError if options or files do not allow it."""
    from gpu_scheduler.daemon.service import check_start

    check_start(_chosen(options), location_of(options).resolve())


def _take_url(options: Namespace) -> None:
    """Completes the URL of the Redis queue, and hides it from the jobs. Raises UsageError for a wrong one."""
    url = os.environ.pop(REDIS_URL_VARIABLE, None)
    if options.redis is None:
        return
    from gpu_scheduler.redis_queue.queue import DEFAULT_URL, Queue

    options.redis = options.redis or url or DEFAULT_URL
    Queue(options.redis)


def _take_receivers(options: Namespace) -> None:
    """Completes and checks the URLs of receivers of notifications, and hides them from the jobs."""
    urls = os.environ.pop(NOTIFY_VARIABLE, "")
    if not options.notify:
        return
    from gpu_scheduler.notify.delivery import check_urls

    options.notify = [url for given in options.notify for url in (given or urls).split()]
    if not options.notify:
        raise UsageError(f"--notify needs a URL, or one in the variable {NOTIFY_VARIABLE}")
    check_urls(options.notify)


def _run_scheduler(chosen: StartOptions, on_up: Callable[[], None]) -> int:
    from gpu_scheduler.daemon.service import run

    def is_up() -> None:
        on_up()
        # Use a separate thread, because logind may take a second to answer and jobs should not wait for it.
        start_thread(_log_logout_warning)

    code = 1
    try:
        code = run(chosen, on_ready=is_up)
        return code
    finally:
        # The main log also contains the printed lines, so a reader that has stopped holds nothing up.
        if not program.flush_or_discard():
            os._exit(code)


def _confirm_fresh(chosen: StartOptions, *, ask: bool) -> None:
    """Asks on a terminal whether to forget the jobs. Raises SchedulerError unless the user answers yes."""
    from gpu_scheduler.daemon.service import count_jobs_to_forget

    home = Location(chosen.state_file, chosen.data_dir).resolve()
    jobs = count_jobs_to_forget(home, take_over=chosen.take_over)
    if not jobs or not ask or not os.isatty(0):
        return
    folder = os.path.relpath(home.folder) if home.folder.is_relative_to(os.getcwd()) else str(home.folder)
    try:
        said = input(safe_text(f"forget {jobs} job{'s' * (jobs != 1)} in {folder}? [y/N] "))
    except EOFError:
        said = ""
        print()
    if said.strip().lower() not in ("y", "yes"):
        raise SchedulerError("no jobs were forgotten, and the scheduler was not started")


def _print_background_pid(pid: int, main_log: Path) -> None:
    program.print_done(f"the scheduler is running in the background (pid {pid}); its log is {main_log}")
    said = _logout_warning()
    if said is not None:
        print_message(said)


def _log_logout_warning() -> None:
    said = _logout_warning()
    if said is not None:
        logging.getLogger("gpu_scheduler").warning("%s", said)


def _logout_warning() -> str | None:
    """Returns a warning if logging out would end the scheduler or its jobs, otherwise None."""
    from gpu_scheduler.health import sessions

    return sessions.logout_warning(_LOGIND_TIMEOUT_S)


def _validate(chosen: StartOptions) -> None:
    """Raises UsageError for invalid options, as far as they can be checked before anything is created."""
    if chosen.simulate is not None:
        from gpu_scheduler.gpus.probes.simulated import check_simulate

        check_simulate(chosen.simulate, chosen.gpu_probe)
    if chosen.conda_sh is not None and not os.path.isfile(chosen.conda_sh):
        raise UsageError(
            f"--conda-sh {chosen.conda_sh}: no such file; give the path of etc/profile.d/conda.sh in your"
            " conda installation"
        )
    if chosen.redis is None and chosen.requeue_silent_after is not None:
        raise UsageError("--requeue-silent-after works only with --redis")
    if chosen.slurm is None and (chosen.slurm_dir or chosen.slurm_options or chosen.on == "slurm"):
        raise UsageError("--slurm-dir, --slurm-options and --on slurm work only with --slurm PARTITION")
    if chosen.slurm is not None:
        from gpu_scheduler.engines.start import check_options

        check_options(chosen)
    for name in ("as_root", "open_metrics", "allowed_host", "tls_cert", "tls_key"):
        if chosen.serve is None and getattr(chosen, name):
            raise UsageError(f"--{name.replace('_', '-')} works only with --serve")
    if chosen.serve is not None and chosen.open_metrics:
        from gpu_scheduler.web.server import check_open_metrics

        check_open_metrics(chosen.serve.rpartition(":")[0].strip("[]"))
