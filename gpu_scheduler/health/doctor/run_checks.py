"""Runs all checks of `doctor` in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.attempts.log_folder import LogFolder, user_name
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.gpus.probes import ProbeKind
from gpu_scheduler.health.doctor import files, gpus, logind, machine, old_sessions, software
from gpu_scheduler.health.doctor.screen import screen
from gpu_scheduler.store.data_dir import DataDir


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `start` that the checks depend on."""

    data_dir: DataDir
    jobs_file: str
    llm_config: str | None
    log_dir: str | None
    gpu_probe: ProbeKind
    simulate: str | None
    conda_sh: str | None
    trust_files: bool = False


def run_checks(
    options: DoctorOptions, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[Finding]:
    """Yields every finding as soon as it is known. on_wait: called before a slow check, with what it does."""
    home, uid, user = options.data_dir, os.geteuid(), user_name()
    simulated = options.simulate is not None or options.gpu_probe == "simulated"
    yield software.python()
    yield software.packages()
    yield software.user(uid)
    yield from screen()
    yield old_sessions.sessions(home)
    on_wait("running conda")
    yield from software.conda(
        options.conda_sh or find_conda_sh(os.environ, os.path.exists), options.conda_sh is not None
    )
    if not simulated:
        yield gpus.driver()
    on_wait(f"reading the GPUs, at most {gpus.PROBE_TIMEOUT_S:g} s")
    yield from gpus.probe(options.gpu_probe, options.simulate, os.environ.get("CUDA_VISIBLE_DEVICES"))
    yield from files.folders(home, _log_folder(options.log_dir), trust=options.trust_files)
    yield from files.store_findings(home)
    yield from files.gpu_kind(home, simulated)
    yield files.state_file(home, trust=options.trust_files)
    yield files.jobs_file(options.jobs_file, trust=options.trust_files)
    yield files.llm_config(options.llm_config, trust=options.trust_files)
    yield files.scheduler(home)
    yield from logind.check(logind.read_settings(user), user, uid)
    yield machine.inotify()
    yield machine.ptys()
    yield machine.clock(time.time(), (home.database, home.state_file))


def _log_folder(log_dir: str | None) -> LogFolder:
    # `LogFolder.from_option` would create a named folder.
    return (
        LogFolder.from_option(None)
        if log_dir is None
        else LogFolder((Path(os.path.realpath(log_dir)),), os.geteuid())
    )
