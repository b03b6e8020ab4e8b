"""Checks whether jobs can run on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_scheduler.attempts.job_logs import LogFolder, user_name
from gpu_scheduler.config import VERSION, StartOptions
from gpu_scheduler.core.model.finding import Finding, bad, ok, warn
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health import doctor as checks
from gpu_scheduler.health import sessions
from gpu_scheduler.health.job_checks import conda_sh_of
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.pending_groups import engine_state
from gpu_scheduler.store.scheduler_lock import scheduler_pid


def doctor(options: StartOptions, on_wait: Callable[[str], None]) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. on_wait: called with the name of each slow check before it
    runs."""
    home = Location(options.state_file, options.data_dir).resolve()
    uid, user = os.geteuid(), user_name()
    yield checks.python()
    yield checks.packages()
    yield checks.user(uid)
    yield from checks.screen()
    yield checks.older_sessions(home, time.time())
    on_wait("running conda")
    conda_sh = conda_sh_of(scheduler_pid(home.lock), options.conda_sh)
    yield from checks.conda(conda_sh, options.conda_sh is not None)
    if not options.simulated:
        yield checks.driver()
    on_wait(f"reading the GPUs (at most {checks.PROBE_TIMEOUT_S:g} s)")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield from checks.probe(options.gpu_probe, options.simulate, visible, str(home.simulation))
    yield from checks.gpu_locks(home, options.simulated)
    yield from checks.folders(home, _log_folder(options.log_dir), trust=options.trust_files)
    yield from checks.store_findings(home)
    yield from checks.gpu_kind(home, options.simulated)
    yield checks.state_file(home, trust=options.trust_files)
    yield checks.jobs_file(options.jobs_file, trust=options.trust_files)
    yield checks.llm_config(options.llm_config, trust=options.trust_files)
    yield checks.scheduler(home)
    yield from _slurm(Location(options.state_file, options.data_dir), on_wait)
    yield from sessions.check(sessions.read_settings(user), user, uid)
    yield from _unit(str(home.state_file))
    yield checks.inotify()
    yield checks.ptys()
    yield checks.clock(time.time(), (home.database, home.state_file))


def _unit(state_file: str) -> Iterator[Finding]:
    """Yields the finding about the unit of this queue, if there is one."""
    from gpu_scheduler.unit.service import Manager, fit_problems
    from gpu_scheduler.unit.unit_file import unit_name

    unit = Manager(is_system=False).read(unit_name(state_file))
    if unit is None:
        return
    problems = fit_problems(unit, VERSION)
    if problems:
        yield warn("service", "; ".join(problems), "run `service install` again, or `service restart`")
    else:
        yield ok("service", f"{unit.name} matches its folder, interpreter and version")


def _slurm(location: Location, on_wait: Callable[[str], None]) -> Iterator[Finding]:
    """Yields a finding about Slurm if the last `start` used it."""
    try:
        with open_store(location, read_only=True) as store:
            options, state = store.recorded_options(), engine_state(store, "slurm")
    except SchedulerError:
        return  # there is none, or the findings about the store say why it cannot be read
    if options.slurm is None:
        return
    # Imported only here, because most users have no Slurm.
    from gpu_scheduler.engines.start import check_options

    on_wait("asking Slurm")
    try:
        problem = check_options(options) or state.problem
    except UsageError as error:
        yield bad("Slurm", str(error), "repair that, or start with other options; no job can run there")
        return
    if problem is not None:
        yield warn("Slurm", problem, "the scheduler tries again every few seconds, and jobs there continue")
    else:
        yield ok("Slurm", f"partition {options.slurm}, shared folder {options.slurm_dir}")


def _log_folder(log_dir: str | None) -> LogFolder:
    # `LogFolder.from_option` would create a folder given by --log-dir.
    return (
        LogFolder.from_option(None)
        if log_dir is None
        else LogFolder((Path(os.path.realpath(log_dir)),), os.geteuid())
    )
