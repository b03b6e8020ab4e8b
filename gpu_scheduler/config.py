"""Defines the options of `start` as values; the command line parses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Default file names, those of the older scheduler (docs/migrating.md).
STATE_FILE = "gpu_scheduler_state.json"
JOBS_FILE = "jobs.txt"
LLM_CONFIG = "llm_config.json"


@dataclass(frozen=True)
class StartOptions:
    """The options of one `start`: intervals in seconds, thresholds as fractions of 1, memory in MiB.

    poll_s: time between two GPU samples; tolerance: relative error of a declaration above which a warning is
    logged; spike_buffer: fraction added to observed peaks; learn: learn undeclared needs from finished jobs;
    fresh: delete the history first; restore: rebuild a lost store from its newest backup and the attempt
    folders; as_copy: continue with a copied store; keep_history: continue with a store of the other kind of
    GPUs; verbose: log each job's memory as its peak grows; ignore_old_sessions: start beside jobs of the
    older scheduler; trust_files: use files that others own or that everyone may write; llm_config None: the
    default file, which may be absent (a named one must exist); jobs_file "": no jobs file.
    """

    state_file: str = STATE_FILE
    data_dir: str | None = None
    gpus: str | None = None
    jobs_file: str = JOBS_FILE
    llm_config: str | None = None
    screen: bool = False
    mem_threshold: float = 0.8
    load_threshold: float = 0.8
    monitor_interval_s: float = 30.0
    state_interval_s: float = 20.0
    max_assign_attempts: int = 5
    assign_retry_wait_s: float = 5.0
    log_dir: str | None = None
    gpu_probe: Literal["auto", "nvml", "gputil", "simulated"] = "auto"
    simulate: str | None = None
    cuda_ids: Literal["physical", "visible"] = "physical"
    conda_sh: str | None = None
    drain: bool = False
    take_over: bool = False
    margin_mib: int = 512
    idle_threshold_mib: int = 200
    spike_buffer: float = 0.10
    tolerance: float = 0.10
    exclusive: bool = False
    oom_retries: int = 0
    fail_retries: int = 0
    learn: bool = False
    poll_s: float = 5.0
    verbose: bool = False
    fresh: bool = False
    keep_history: bool = False
    ignore_old_sessions: bool = False
    as_copy: bool = False
    trust_files: bool = False
    restore: bool = False

    @property
    def simulated(self) -> bool:
        """Returns whether the GPUs are simulated."""
        return self.simulate is not None or self.gpu_probe == "simulated"
