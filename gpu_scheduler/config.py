"""Defines the options of `start` and their defaults, in one place for the whole program.

`cli/commands.py` defines the command-line name, the range and the help text of each option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field

from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import CudaIds

#: The version of this program.
VERSION = "0.1.0"

ProbeKind = Literal["auto", "nvml", "gputil", "simulated"]

#: Default file names, which are the same as in the older scheduler (docs/migrating.md).
STATE_FILE = "gpu_scheduler_state.json"
JOBS_FILE = "jobs.txt"
LLM_CONFIG = "llm_config.json"
#: The value of `--gpus` for a scheduler that manages no GPU.
NO_GPUS = "none"
#: What to do with commands that come from a pipe.
PIPE_REMEDY = "write the commands to a file that you can edit: `… > jobs.txt`, then `start --drain`"
#: The URL of a Redis queue, which may contain a password. Jobs never get it.
REDIS_URL_VARIABLE = "GPU_SCHEDULER_REDIS_URL"
#: The URLs of receivers of notifications, separated by blanks, which contain passwords. Jobs never get them.
NOTIFY_VARIABLE = "GPU_SCHEDULER_NOTIFY"
#: How the names of the files begin that say which events the receivers have got, in the data directory.
NOTIFY_PREFIX = "notify-"
#: Variables that name the queue of every command. A scheduler sets them for its jobs.
STATE_FILE_VARIABLE, DATA_DIR_VARIABLE = "GPU_SCHEDULER_STATE_FILE", "GPU_SCHEDULER_DATA_DIR"


def _half_the_cores() -> int:
    return max(1, len(os.sched_getaffinity(0)) // 2)


class StartOptions(Settings, frozen=True, kw_only=True):
    """The options of one `start`, with intervals in seconds and memory in MiB.

    Settings describes the options that affect scheduling decisions. poll_s: time between two GPU samples.
    learn: learn undeclared needs from finished jobs. fresh: delete the history first. restore: rebuild a lost
    store from its newest backup and the attempt folders. keep_history: continue after a change between
    simulated and real GPUs. verbose: log a job's memory when it reaches a new
    peak. log_limit_mib: largest size of a job's log, 0 for any size. ignore_old_sessions: start even if jobs
    of the older scheduler are running. trust_files: use files even if other users own them or everyone may
    write to them. llm_config: None means the default file, which may be absent; a named file must exist.
    jobs_file: "" means no jobs file. serve: HOST:PORT of the web server to run beside the scheduler;
    as_root, open_metrics, allowed_host, tls_cert and tls_key are its options. slurm: the partition on which
    jobs with on=slurm run; slurm_dir: the folder that its nodes share; slurm_options: more options of sbatch,
    as one text; slurm_python: the Python on the nodes; slurm_shards: shards for each GPU, 0 for none. redis:
    URL of a queue from which to take jobs; it may contain a password. requeue_silent_after: an option of its
    agent.
    notify: URLs of receivers that are told of the ends of jobs; they may contain passwords.
    """

    cpu_jobs: int = field(default_factory=_half_the_cores)
    state_file: str = STATE_FILE
    data_dir: str | None = None
    gpus: str | None = None
    jobs_file: str = JOBS_FILE
    llm_config: str | None = None
    screen: bool = False
    monitor_interval_s: float = 30.0
    state_interval_s: float = 20.0
    log_dir: str | None = None
    log_limit_mib: int = 1024
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
    trust_files: bool = False
    restore: bool = False
    serve: str | None = None
    as_root: bool = False
    open_metrics: bool = False
    allowed_host: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    slurm: str | None = None
    slurm_dir: str | None = None
    slurm_options: str | None = None
    slurm_python: str = "python3"
    slurm_shards: int = 0
    redis: str | None = None
    requeue_silent_after: float | None = None
    notify: tuple[str, ...] = ()

    def __repr__(self) -> str:  # the URLs may contain passwords
        names = (name for name in self.__struct_fields__ if name not in ("redis", "notify"))
        shown = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"StartOptions({', '.join(shown)})"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StartOptions:
        """Builds the options from values by name.

        An option whose value is None or missing gets its default. Other names are ignored. The queue order
        may be given as text, and the tuples as lists, as they are recorded.
        """
        given = {name: values[name] for name in cls.__struct_fields__ if values.get(name) is not None}
        if "queue_order" in given:
            given["queue_order"] = QueueOrder(given["queue_order"])
        for name in given.keys() & {"allowed_host", "notify"}:
            given[name] = tuple(given[name])
        return cls(**given)

    @property
    def simulated(self) -> bool:
        """Returns whether the GPUs are simulated."""
        return self.simulate is not None or self.gpu_probe == "simulated"
