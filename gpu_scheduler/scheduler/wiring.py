"""Translates the options of `start` into the settings of the parts of a scheduler."""

from __future__ import annotations

import os
from dataclasses import replace

from gpu_scheduler.attempts.launch import LaunchOptions
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.store.data_dir import DataDir


def conda_sh_of(options: StartOptions) -> str | None:
    """Returns the path of `conda.sh`: from the option, else the one that is found; None: there is none."""
    return options.conda_sh or find_conda_sh(os.environ, os.path.exists)


def options_to_record(options: StartOptions, llm_config: str) -> StartOptions:
    """Returns the options with absolute paths of the files in use; that of llm_config is given."""
    conda_sh = conda_sh_of(options)
    return replace(
        options,
        llm_config=llm_config,
        conda_sh=conda_sh and os.path.abspath(conda_sh),
        jobs_file=options.jobs_file and os.path.abspath(options.jobs_file),
    )


def launch_options_of(options: StartOptions, home: DataDir, umask: int) -> LaunchOptions:
    """Returns the options that all attempts share. umask: of the jobs."""
    return LaunchOptions(
        environment=dict(os.environ),
        umask=umask,
        log_dir=options.log_dir,
        conda_sh=conda_sh_of(options),
        cuda_ids=options.cuda_ids,
        grace_s=options.grace_s,
        extra={"GPU_SCHEDULER_SIM": str(home.simulation)} if options.simulated else {},
    )
