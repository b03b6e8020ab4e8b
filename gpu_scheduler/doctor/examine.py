"""Runs all checks of `doctor` in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.core.environment import find_conda_sh
from gpu_scheduler.doctor import files, gpus, logind, machine, older, software
from gpu_scheduler.doctor.findings import Finding
from gpu_scheduler.doctor.screen import screen
from gpu_scheduler.joblogs import LogFolder, user_name
from gpu_scheduler.probes import ProbeKind
from gpu_scheduler.store.home import Home


@dataclass(frozen=True)
class Asked:
    """The options of `start` that the checks depend on."""

    home: Home
    jobs_file: str
    llm_config: str | None
    log_dir: str | None
    gpu_probe: ProbeKind
    simulate: str | None
    conda_sh: str | None
    trust_files: bool = False


def examine(asked: Asked, waits: Callable[[str], None] = lambda text: None) -> Iterator[Finding]:
    """Yields every finding as soon as it is known. on_wait: called before a slow check, with what it does."""
    home, uid, user = asked.home, os.geteuid(), user_name()
    simulated = asked.simulate is not None or asked.gpu_probe == "simulated"
    yield software.python()
    yield software.packages()
    yield software.user(uid)
    yield from screen()
    yield older.sessions(home)
    waits("running conda")
    yield from software.conda(
        asked.conda_sh or find_conda_sh(os.environ, os.path.exists), asked.conda_sh is not None
    )
    if not simulated:
        yield gpus.driver()
    waits(f"reading the GPUs, at most {gpus.PROBE_S:g} s")
    yield from gpus.probe(asked.gpu_probe, asked.simulate, os.environ.get("CUDA_VISIBLE_DEVICES"))
    yield from files.folders(home, _logs(asked.log_dir), trust=asked.trust_files)
    yield from files.record(home)
    yield from files.gpu_kind(home, simulated)
    yield files.state_file(home, trust=asked.trust_files)
    yield files.jobs_file(asked.jobs_file, trust=asked.trust_files)
    yield files.llm_config(asked.llm_config, trust=asked.trust_files)
    yield files.scheduler(home)
    yield from logind.judge(logind.read(user), user, uid)
    yield machine.inotify()
    yield machine.ptys()
    yield machine.clock(time.time(), (home.database, home.state_file))


def _logs(chosen: str | None) -> LogFolder:
    # `LogFolder.from_option` would create a named folder.
    return (
        LogFolder.of(None) if chosen is None else LogFolder((Path(os.path.realpath(chosen)),), os.geteuid())
    )
