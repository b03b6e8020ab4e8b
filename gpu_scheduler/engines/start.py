"""Checks the options of `start` for an engine, and makes the engine and its agent from them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpu_scheduler.config import StartOptions
from gpu_scheduler.engines.agent import EngineAgent, SharedFolder, copy_runner, owner_of
from gpu_scheduler.engines.engine import EngineUnavailableError
from gpu_scheduler.engines.slurm import SlurmEngine, SlurmSettings, parse_options
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.store.moved_or_copied import recorded_location
from gpu_scheduler.store.store import Store

#: Divides all times of the agent and of the runners that it starts, for tests.
TIME_SCALE = "GPU_SCHEDULER_TIME_SCALE"
#: Where the store records the shared folders in which its attempts may have run, each under its path.
_SHARED_KEY = "engine_folder:"


def check_options(options: StartOptions) -> str | None:
    """Checks the options of `start` for an engine. Returns why the engine does not answer; None if it does.

    Raises UsageError for options that cannot work, with the remedy.
    """
    folder = options.slurm_dir
    if folder is None:
        raise UsageError("--slurm needs --slurm-dir DIR, a folder on a file system that the nodes share")
    try:
        status = os.stat(folder)
    except OSError as error:
        raise UsageError(f"--slurm-dir {folder}: {error.strerror}; make it, mode 700") from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"--slurm-dir {folder} is not a folder; name one that the nodes share")
    if status.st_uid != os.geteuid():
        raise UsageError(f"--slurm-dir {folder} belongs to another user; name a folder that you own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"--slurm-dir {folder} is writable by others, who could run programs as you; `chmod go-w` it"
        )
    try:
        problem = SlurmEngine(_settings(options, "start.py"), os.environ).start_problem()
    except EngineUnavailableError as error:
        return str(error)  # the agent tries again, and `status` says so
    if problem is not None:
        raise UsageError(problem)
    return None


def _settings(options: StartOptions, runner_start: str) -> SlurmSettings:
    more = parse_options(options.slurm_options or "")
    return SlurmSettings(options.slurm or "", options.slurm_python, runner_start, more, options.slurm_shards)


def make_agent(store: Store) -> EngineAgent:
    """Returns the agent for the engine of the last `start`. Raises SchedulerError if it named none."""
    options, location = store.recorded_options(), recorded_location(store)
    if options.slurm is None or options.slurm_dir is None or location is None:
        raise SchedulerError("the last `start` of this queue named no engine; use `start --slurm PARTITION`")
    shared = Path(options.slurm_dir)
    folder = SharedFolder(shared / location.id, owner_of(store, location.id))
    folder.claim(is_new=store.db.meta(f"{_SHARED_KEY}{folder.path}") is None)
    store.db.set_meta(f"{_SHARED_KEY}{folder.path}", "")
    engine = SlurmEngine(_settings(options, str(copy_runner(shared))), os.environ)
    scale = float(os.environ.get(TIME_SCALE, "1"))
    return EngineAgent("slurm", store, engine, folder, lambda: current_llm_config(options), scale=scale)
