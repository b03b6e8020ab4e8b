"""Defines the options of `start` as values, once, for all other parts.

`cli/arguments.py` gives each option its name on the command line, its range and its help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from gpu_scheduler.core.scheduling.settings import Settings

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import CudaIds

ProbeKind = Literal["auto", "nvml", "gputil", "simulated"]

#: Default file names, those of the older scheduler (docs/migrating.md).
STATE_FILE = "gpu_scheduler_state.json"
JOBS_FILE = "jobs.txt"
LLM_CONFIG = "llm_config.json"


@dataclass(frozen=True, kw_only=True)
class StartOptions(Settings):
    """The options of one `start`: intervals in seconds, memory in MiB; see Settings for the options that
    decisions depend on.

    poll_s: time between two GPU samples; learn: learn undeclared needs from finished jobs;
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
    monitor_interval_s: float = 30.0
    state_interval_s: float = 20.0
    log_dir: str | None = None
    gpu_probe: ProbeKind = "auto"
    simulate: str | None = None
    cuda_ids: CudaIds = "physical"
    conda_sh: str | None = None
    drain: bool = False
    take_over: bool = False
    learn: bool = False
    poll_s: float = 5.0
    verbose: bool = False
    fresh: bool = False
    keep_history: bool = False
    ignore_old_sessions: bool = False
    as_copy: bool = False
    trust_files: bool = False
    restore: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StartOptions:
        """Builds the options from values by name. None or no value: the default; other names are ignored."""
        names = (field.name for field in fields(cls))
        return cls(**{name: values[name] for name in names if values.get(name) is not None})

    @property
    def simulated(self) -> bool:
        """Returns whether the GPUs are simulated."""
        return self.simulate is not None or self.gpu_probe == "simulated"
