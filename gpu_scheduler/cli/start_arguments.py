"""Declares the options of `start`, and of the API server, which both `start` and `serve` run."""

from __future__ import annotations

import argparse

from gpu_scheduler.cli import values
from gpu_scheduler.cli.shared_arguments import DAY_S, flag, gpu_option, probe_options, setting, shared_options

#: Largest value of --tolerance and --spike-buffer, which are fractions of a job's memory.
_MAX_FRACTION = 10
#: Largest value of --aging. Sixteen times as many starts are remembered (core.scheduling.overtakes).
_MAX_AGING = 64


def start(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `start`, and of the API server, which both `start` and `serve` run."""
    _start_jobs(parser.add_argument_group("jobs"))
    _start_gpus(parser.add_argument_group("GPUs"))
    _start_memory(parser.add_argument_group("job memory"))
    _start_launches(parser.add_argument_group("launches and retries"))
    _start_queue_order(parser.add_argument_group("queue order"))
    _start_preemption(parser.add_argument_group("preemption"))
    _start_scheduler(parser.add_argument_group("scheduler"))
    _start_api(parser.add_argument_group("API"))
    _start_redis(parser.add_argument_group("Redis queue"))


def serve(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `serve`. Only the scheduler gives --until-eof, to the server that it runs."""
    option = parser.add_argument
    option("--host", metavar="HOST", default="127.0.0.1",
           help="Address to serve on; on any but a loopback address, every request needs a token"
           " (default: %(default)s)")  # fmt: skip
    option("--port", metavar="PORT", type=values.integer(0, 65535), default=8000,
           help="Port to serve on; 0: any free port (default: %(default)s)")  # fmt: skip
    option("--dir", metavar="DIR", type=values.path,
           help="Folder in which jobs run whose request names none (default: this folder)")  # fmt: skip
    flag(parser, "--no-preempt", "Do not let jobs that are submitted with priority 0 preempt others")
    _api_options(parser)
    option("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS)


def redis_agent(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `redis-agent`. Only the scheduler gives --until-eof."""
    option = parser.add_argument
    redis_url(parser)
    option("--dir", metavar="DIR", type=values.path,
           help="Folder of scripts whose paths are relative (default: this folder)")  # fmt: skip
    _requeue_option(parser)
    option("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS)


def redis_url(parser: argparse.ArgumentParser) -> None:
    """Declares the URL of a Redis queue."""
    parser.add_argument("--redis", metavar="URL",
                        help="URL of the Redis queue (default: the variable GPU_SCHEDULER_REDIS_URL, then"
                        " that of the newest `start --redis` here, then"
                        " redis://localhost:6379/0)")  # fmt: skip


def _start_redis(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--redis", metavar="URL", nargs="?", const="",
                       help="Also run jobs of a queue in Redis, which several machines share (without URL:"
                       " the variable GPU_SCHEDULER_REDIS_URL, then redis://localhost:6379/0)")  # fmt: skip
    _requeue_option(group)


def _requeue_option(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    group.add_argument("--requeue-silent-after", metavar="TIME", type=values.duration,
                       help="Time, such as 30m, after which the jobs of a machine that is silent start"
                       " elsewhere, although they may still run there (default: never)")  # fmt: skip


def _start_jobs(group: argparse._ArgumentGroup) -> None:
    shared_options(group, "--jobs-file")
    end = group.add_mutually_exclusive_group()
    flag(end, "--drain", "Exit when no more jobs can run; the exit code shows whether all jobs completed")
    flag(end, "--watch",
         "Keep waiting for new lines in the jobs file (the default, except with"
         " `gpu-scheduler FILE`)")  # fmt: skip
    shared_options(group, "--llm-config")
    history = group.add_mutually_exclusive_group()
    flag(history, "--fresh", "Forget all recorded jobs first (after asking for confirmation on a terminal)")
    flag(history, "--keep-history", "Keep the recorded jobs when switching between simulated and real GPUs")
    flag(history, "--restore", "Rebuild a lost store from its newest backup and the attempt folders")
    flag(group, "--yes", "Do not ask for confirmation with --fresh")


def _start_gpus(group: argparse._ArgumentGroup) -> None:
    gpu_option(group, "GPUs to manage", default="all")
    probe_options(group)
    setting(group, "--poll", "poll_s", metavar="S", type=values.number(0.1, 3600, minimum=0.1),
            help="Seconds between GPU samples")  # fmt: skip
    setting(group, "--mem-threshold", metavar="X", type=values.number(0, 1),
            help="Fraction of a GPU's memory (above 0, at most 1). Once foreign processes use that much, the"
            " GPU accepts only jobs that declare vram= (default: %(default)g)")  # fmt: skip
    setting(group, "--load-threshold", metavar="X", type=values.number(0, 1),
            help="Load of a GPU as a fraction (above 0, at most 1). Once foreign processes cause that much"
            " load, the GPU accepts no new jobs (default: %(default)g)")  # fmt: skip
    setting(group, "--idle-threshold", "idle_threshold_mib", metavar="MIB", type=values.mib,
            help="Maximum memory in MiB that foreign processes, which belong to no job, may use on a GPU that"
            " counts as idle")  # fmt: skip
    flag(group, "--exclusive", "Run only one job at a time on each GPU")
    setting(group, "--cuda-ids", choices=("physical", "visible"),
            help="GPU numbers that scripts receive with --cuda: physical ids, or indices of the visible"
            " GPUs")  # fmt: skip


def _start_memory(group: argparse._ArgumentGroup) -> None:
    setting(group, "--margin", "margin_mib", metavar="MIB", type=values.mib,
            help="Memory to keep free on each GPU whose jobs declare vram=, in MiB or with a unit, as in"
            " 1G")  # fmt: skip
    setting(group, "--spike-buffer", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
            help="Fraction to add to each measured memory peak, because the next sample may be"
            " higher")  # fmt: skip
    setting(group, "--tolerance", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
            help="Fraction by which the memory that a job uses may differ from its declaration before the"
            " difference is reported")  # fmt: skip
    flag(group, "--learn",
         "For jobs that declare nothing, reserve the memory that earlier jobs with the same program and"
         " model used")  # fmt: skip
    flag(group, "-v --verbose", "Log a job's memory use whenever it reaches a new peak")


def _start_launches(group: argparse._ArgumentGroup) -> None:
    flag(group, "--screen", "Run each job in its own GNU Screen session")
    shared_options(group, "--conda-sh")
    setting(group, "--start-interval", "start_interval_s", metavar="S",
            type=values.number(0, DAY_S, minimum=0),
            help="Least number of seconds between the starts of two jobs that use GPUs")  # fmt: skip
    setting(group, "--cpu-jobs", metavar="N", type=values.integer(1, 1000),
            help="Number of jobs without a GPU (gpus=0) that may run at the same time (default: half of the"
            " CPU cores)")  # fmt: skip
    setting(group, "--oom-retries", metavar="N", type=values.integer(0, 1000),
            help="Number of times to retry a job that ran out of CUDA memory, each time with more"
            " memory")  # fmt: skip
    setting(group, "--fail-retries", metavar="N", type=values.integer(0, 1000),
            help="Number of times to retry a job after any failure")  # fmt: skip
    flag(group, "--recover",
         "Queue interrupted jobs again, such as those that ran before a reboot; each job at most three times"
         " in a row")  # fmt: skip
    setting(group, "--suspect-after", metavar="N", type=values.integer(0, 1000),
            help="Number of jobs that must fail on a GPU within 10 seconds of their start, while others run"
            " well, until it is put aside; two with a device error suffice; 0: never")  # fmt: skip
    setting(group, "--max-assign-attempts", metavar="N", type=values.integer(1, 1000),
            help="Maximum number of times to try to launch a job")  # fmt: skip
    setting(group, "--assign-retry-wait", "assign_retry_wait_s", metavar="S",
            type=values.number(0, 3600, minimum=0),
            help="Seconds to wait after a failed launch; the wait doubles after each further"
            " failure")  # fmt: skip


def _start_queue_order(group: argparse._ArgumentGroup) -> None:
    setting(group, "--queue-order", choices=("backfill", "reserve"),
            help="What becomes of a job that finds too few free GPUs while later jobs start. backfill: every"
            " job that fits starts; reserve: GPUs are reserved for a job that has been overtaken too"
            " often")  # fmt: skip
    setting(group, "--aging", metavar="N", type=values.integer(1, _MAX_AGING),
            help="Number of times that jobs submitted at least an hour later must overtake a job before GPUs"
            " are reserved for it; 16 times as often if nothing is known about the end of a job that must"
            " leave these GPUs")  # fmt: skip
    setting(group, "--idle-budget", metavar="X", type=values.number(0, 1, minimum=0),
            help="Time that reserved GPUs may have been idle in the last 7 days, as a fraction of the GPU"
            " time that jobs got; above it, no new reservation begins")  # fmt: skip


def _start_preemption(group: argparse._ArgumentGroup) -> None:
    setting(group, "--preempt-at-priority", metavar="P", type=values.priority,
            help="Let waiting jobs of priority P or higher (that is, with this or a smaller number) preempt"
            " running jobs of lower priority (default: only jobs with the attribute preempt do)")  # fmt: skip
    setting(group, "--preempt-grace", "preempt_grace_s", metavar="S",
            type=values.number(0, DAY_S, minimum=0),
            help="Seconds that a job preempted for another one has to save its work")  # fmt: skip


def _start_scheduler(group: argparse._ArgumentGroup) -> None:
    interval = values.number(0, DAY_S)
    setting(group, "--monitor-interval", "monitor_interval_s", metavar="S", type=interval,
            help="Maximum number of seconds until the scheduler notices a change to the jobs"
            " file")  # fmt: skip
    setting(group, "--state-interval", "state_interval_s", metavar="S", type=interval,
            help="Maximum number of seconds until the scheduler notices an edit to the state"
            " file")  # fmt: skip
    shared_options(group, "--log-dir")
    setting(group, "--log-limit", "log_limit_mib", metavar="MIB", type=values.mib,
            help="Largest size of a job's log, in MiB or with a unit, as in 10G. A larger log keeps its first"
            " half and its end; 0: no limit")  # fmt: skip
    flag(
        group,
        "--daemon",
        "Run in the background; print the scheduler's pid and the path of its log once it is up",
    )
    flag(
        group,
        "--ignore-old-sessions",
        "Start even if jobs of the older scheduler are still running in Screen sessions",
    )
    flag(group, "--take-over", "Take over a store that belongs to another host and is no longer used there")
    flag(
        group,
        "--as-copy",
        "Use a copy of another store; jobs that are still running under the original are held in the copy",
    )
    shared_options(group, "--trust-files")


def _start_api(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--serve", metavar="HOST:PORT", nargs="?", const="127.0.0.1:8000", type=values.address,
                       help="Also run `serve` for as long as the scheduler runs (without HOST:PORT:"
                       " 127.0.0.1:8000)")  # fmt: skip
    _api_options(group)


def _api_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    flag(group, "--as-root", "Serve the API although you are root, so that whoever may submit jobs is root")
    group.add_argument("--allowed-host", metavar="NAME[:PORT]", action="append",
                       help="Name under which clients reach the API, if not localhost, and the port, if it is"
                       " another one (as with `ssh -L`); may be repeated")  # fmt: skip
    for option, what in (("--tls-cert", "certificate"), ("--tls-key", "key")):
        group.add_argument(option, metavar="FILE", type=values.path,
                           help=f"PEM file with the {what} of the API, which then uses https")  # fmt: skip
