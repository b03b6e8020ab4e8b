"""Translates the options of `start` into the settings of the parts of a scheduler."""

from __future__ import annotations

import os

from gpu_scheduler.attempts.launch import LaunchOptions
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.core.scheduling.facts import Settings
from gpu_scheduler.core.scheduling.placement import Limits
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.recorded_options import RecordedOptions


def settings_of(options: StartOptions) -> Settings:
    """Returns the settings for the decisions of a round."""
    return Settings(
        limits=Limits(
            options.mem_threshold,
            options.load_threshold,
            options.margin_mib,
            options.idle_threshold_mib,
            options.spike_buffer,
        ),
        exclusive=options.exclusive,
        tolerance=options.tolerance,
        oom_retries=options.oom_retries,
        fail_retries=options.fail_retries,
        max_assign_attempts=options.max_assign_attempts,
        assign_retry_wait_s=options.assign_retry_wait_s,
    )


def conda_sh_of(options: StartOptions) -> str | None:
    """Returns the path of `conda.sh`: from the option, else the one that is found; None: there is none."""
    return options.conda_sh or find_conda_sh(os.environ, os.path.exists)


def started_of(options: StartOptions, llm_config: str) -> RecordedOptions:
    """Returns the start options that readers of the store need. llm_config: absolute path of the file."""
    conda_sh = conda_sh_of(options)
    return RecordedOptions(
        options.mem_threshold, options.load_threshold, options.cuda_ids, llm_config,
        conda_sh and os.path.abspath(conda_sh),
        options.jobs_file and os.path.abspath(options.jobs_file),
        options.margin_mib, options.idle_threshold_mib, options.spike_buffer, options.tolerance,
        options.exclusive, options.oom_retries, options.fail_retries, options.trust_files,
    )  # fmt: skip


def launch_options_of(options: StartOptions, home: DataDir, umask: int, grace_s: float) -> LaunchOptions:
    """Returns the options that all attempts share.

    umask: of the jobs; grace_s: seconds between SIGTERM and SIGKILL.
    """
    return LaunchOptions(
        environment=dict(os.environ),
        umask=umask,
        log_dir=options.log_dir,
        conda_sh=conda_sh_of(options),
        cuda_ids=options.cuda_ids,
        sessions=options.screen,
        grace_s=grace_s,
        extra={"GPU_SCHEDULER_SIM": str(home.simulation)} if options.simulated else {},
    )
