"""`start`: becomes the scheduler."""

from __future__ import annotations

import os
from argparse import Namespace

from gpu_scheduler.config import StartOptions
from gpu_scheduler.errors import UsageError


def start(options: Namespace) -> int:
    """Schedule until asked to end; the exit code is the scheduler's."""
    chosen = start_options(options)
    _check(chosen)
    from gpu_scheduler.service import run

    return run(chosen)


def start_options(options: Namespace) -> StartOptions:
    """The parsed words as the scheduler takes them."""
    return StartOptions(
        state_file=options.state_file,
        data_dir=options.data_dir,
        gpus=options.gpus,
        jobs_file=options.jobs_file,
        llm_config=options.llm_config,
        screen=options.screen,
        mem_threshold=options.mem_threshold,
        load_threshold=options.load_threshold,
        monitor_interval_s=options.monitor_interval,
        state_interval_s=options.state_interval,
        max_assign_attempts=options.max_assign_attempts,
        assign_retry_wait_s=options.assign_retry_wait,
        log_dir=options.log_dir,
        gpu_probe=options.gpu_probe,
        simulate=options.simulate,
        cuda_ids=options.cuda_ids,
        conda_sh=options.conda_sh,
        drain=options.drain,
    )


def _check(chosen: StartOptions) -> None:
    """What can be told wrong before anything is created. Raises UsageError."""
    if chosen.simulate is not None:
        from gpu_scheduler.probes.simulated import parse_simulate

        try:
            parse_simulate(chosen.simulate)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if chosen.gpu_probe in ("nvml", "gputil"):
            both = f"--simulate {chosen.simulate} and --gpu-probe {chosen.gpu_probe}"
            raise UsageError(f"{both} exclude each other; leave one out")
    if chosen.conda_sh is not None and not os.path.isfile(chosen.conda_sh):
        raise UsageError(
            f"--conda-sh {chosen.conda_sh}: no such file; it is etc/profile.d/conda.sh of the installation"
        )
