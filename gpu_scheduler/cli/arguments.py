"""Declares the arguments and options of each command. Nothing is executed here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

#: A parser, or one of its argument groups.
_ArgumentContainer = argparse.ArgumentParser | argparse._ArgumentGroup

_DEFAULTS = config.StartOptions()
_DAY_S = 86400
#: Largest value of --tolerance and --spike-buffer, which are fractions of a job's memory.
_MAX_FRACTION = 10
_PRIORITY = values.integer(-(10**9) + 1, 10**9 - 1)

#: Options shared by several commands.
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--jobs-file": {"metavar": "PATH", "help": f'Jobs file; "" for none (default: {config.JOBS_FILE})'},
    "--llm-config": {
        "metavar": "PATH", "type": path,
        "help": f"File with the GPU needs of models (default: {config.LLM_CONFIG}, if it exists)",
    },
    "--log-dir": {
        "metavar": "DIR", "type": path, "help": "Folder for the job logs (default: /tmp/gpu_scheduler_logs)",
    },
    "--trust-files": {
        "action": "store_true", "help": "Use files that other users own or that are world-writable",
    },
    "--conda-sh": {
        "metavar": "PATH", "type": path,
        "help": "Path to conda's profile.d/conda.sh (default: found automatically)",
    },
    "--json": {"action": "store_true", "help": "Print JSON (see docs/json.md)"},
}  # fmt: skip


def start(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `start`."""
    _start_jobs(parser.add_argument_group("jobs"))
    _start_gpus(parser.add_argument_group("GPUs"))
    _start_memory(parser.add_argument_group("memory of jobs"))
    _start_launches(parser.add_argument_group("launches and retries"))
    _start_scheduler(parser.add_argument_group("the scheduler"))


def _start_jobs(group: argparse._ArgumentGroup) -> None:
    _shared(group, "--jobs-file")
    end = group.add_mutually_exclusive_group()
    _flag(end, "--drain", "Exit when no more jobs can run; the exit code shows whether all jobs completed")
    _flag(end, "--watch",
          "Keep waiting for new lines; the default, except for `gpu-scheduler FILE`")  # fmt: skip
    _shared(group, "--llm-config")
    history = group.add_mutually_exclusive_group()
    _flag(history, "--fresh", "Forget all recorded jobs first; on a terminal, asks for confirmation")
    _flag(history, "--keep-history", "Keep the recorded jobs when switching between simulated and real GPUs")
    _flag(history, "--restore", "Rebuild a lost store from its newest backup and the attempt folders")
    _flag(group, "--yes", "Skip the confirmation prompt of --fresh")


def _start_gpus(group: argparse._ArgumentGroup) -> None:
    _gpus(group, "all")
    _probe(group)
    _value(group, "--poll", "poll_s", metavar="S", type=values.number(0.1, 3600, minimum=0.1),
           help="Seconds between GPU samples")  # fmt: skip
    _value(group, "--mem-threshold", metavar="X", type=values.number(0, 1),
           help="Once foreign processes use this fraction of a GPU's memory, it accepts only jobs that"
           " declare vram= (above 0, at most 1; default: %(default)g)")  # fmt: skip
    _value(group, "--load-threshold", metavar="X", type=values.number(0, 1),
           help="Once foreign processes cause this fraction of load on a GPU, it accepts no new jobs (above"
           " 0, at most 1; default: %(default)g)")  # fmt: skip
    _value(group, "--idle-threshold", "idle_threshold_mib", metavar="MIB", type=values.mib,
           help="Memory in MiB that foreign processes (those of no job) may use on a GPU that still counts as"
           " idle")  # fmt: skip
    _flag(group, "--exclusive", "Run only one job at a time on each GPU")
    _value(group, "--cuda-ids", choices=("physical", "visible"),
           help="Whether scripts receive physical GPU ids or indices of the visible GPUs with"
           " --cuda")  # fmt: skip


def _start_memory(group: argparse._ArgumentGroup) -> None:
    _value(group, "--margin", "margin_mib", metavar="MIB", type=values.mib,
           help="Memory to keep free on GPUs whose jobs declare vram=, such as 512 (MiB), 1G or"
           " 0")  # fmt: skip
    _value(group, "--spike-buffer", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
           help="Fraction to add to measured memory peaks, because the next sample may show"
           " more")  # fmt: skip
    _value(group, "--tolerance", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
           help="Fraction by which a job's memory may deviate from its declaration without being"
           " reported")  # fmt: skip
    _flag(group, "--learn",
          "For jobs that declare nothing, reserve the memory that earlier jobs of the same program and model"
          " used")  # fmt: skip
    _flag(group, "-v --verbose", "Log each job's memory whenever its peak grows")


def _start_launches(group: argparse._ArgumentGroup) -> None:
    _flag(group, "--screen", "Run each job in its own GNU Screen session")
    _shared(group, "--conda-sh")
    _value(group, "--oom-retries", metavar="N", type=values.integer(0, 1000),
           help="Retries of a job that ran out of CUDA memory, each with more memory")  # fmt: skip
    _value(group, "--fail-retries", metavar="N", type=values.integer(0, 1000),
           help="Retries of a job after any failure")  # fmt: skip
    _value(group, "--max-assign-attempts", metavar="N", type=values.integer(1, 1000),
           help="Maximum number of attempts to launch a job")  # fmt: skip
    _value(group, "--assign-retry-wait", "assign_retry_wait_s", metavar="S",
           type=values.number(0, 3600, minimum=0),
           help="Seconds to wait before repeating a failed launch")  # fmt: skip


def _start_scheduler(group: argparse._ArgumentGroup) -> None:
    interval = values.number(0, _DAY_S)
    _value(group, "--monitor-interval", "monitor_interval_s", metavar="S", type=interval,
           help="Maximum seconds until a change to the jobs file is noticed")  # fmt: skip
    _value(group, "--state-interval", "state_interval_s", metavar="S", type=interval,
           help="Maximum seconds until an edit to the state file is noticed")  # fmt: skip
    _shared(group, "--log-dir")
    _flag(group, "--daemon", "Continue in the background once the scheduler is up; prints its pid and log")
    _flag(
        group,
        "--ignore-old-sessions",
        "Start even if jobs of the older scheduler are still running in Screen",
    )
    _flag(group, "--take-over", "Continue with the store of another host that no longer uses it")
    _flag(
        group, "--as-copy", "Continue with a copied store; jobs still running in the original are held here"
    )
    _shared(group, "--trust-files")


def _shared(parser: _ArgumentContainer, *flags: str) -> None:
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag])


def _flag(parser: _ArgumentContainer, names: str, text: str) -> None:
    parser.add_argument(*names.split(), action="store_true", help=text)


def _value(
    parser: _ArgumentContainer, flag: str, dest: str | None = None, *, help: str, **given: Any
) -> None:
    """Declares an option with the default of its StartOptions field. dest: the field, if named otherwise."""
    dest = dest or flag.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULTS, dest)
    if "%(default)" not in help:
        help += " (default: %(default)s)" if isinstance(default, str) else " (default: %(default)g)"
    parser.add_argument(flag, dest=dest, default=default, help=help, **given)


def _gpus(parser: _ArgumentContainer, default: str) -> None:
    parser.add_argument("--gpus", metavar="N|LIST", type=values.gpu_choice,
                        help="GPUs to manage: a count such as 4, or a list such as 0,2,3 (`3,` for GPU 3"
                        f" alone; default: {default})")  # fmt: skip


def _probe(parser: _ArgumentContainer) -> None:
    _value(parser, "--gpu-probe", choices=get_args(config.ProbeKind),
           help="How to query the GPUs (default: %(default)s, which tries NVML, then GPUtil)")  # fmt: skip
    simulated = parser.add_mutually_exclusive_group().add_argument
    simulated("--simulate", metavar="N",
              help="Simulate GPUs, such as 4 (24 GiB each), 4:80G or 2:24G,2:80G")  # fmt: skip
    simulated("--sim", metavar="N", dest="simulate", help="Same as --simulate")


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the fields of a CSV line and the attributes. A command follows `--`."""
    option = parser.add_argument
    option("script", metavar="SCRIPT | -- COMMAND", nargs="?",
           help="Python script (its path is made absolute), or any command after `--`")  # fmt: skip
    option(
        "--conda", metavar="ENV", help="Conda environment (default: base for a script, none for a command)"
    )
    option(
        "--args",
        metavar='"…"',
        default="",
        type=lambda text: text.removeprefix(" "),
        help='Arguments of the script, such as "--epochs 3"',
    )
    option("--priority", metavar="N", type=_PRIORITY, default=0,
           help="Priority; lower numbers run first (default: 0)")  # fmt: skip
    option("--gpus", metavar="LIST", default="",
           help="GPUs that the job may use, such as 0,2 or 0-3 (default: any)")  # fmt: skip
    option("--output-file", metavar="PATH", default=config.JOBS_FILE, type=path,
           help=f"Jobs file to append to, or - to print the line only"
           f" (default: {config.JOBS_FILE})")  # fmt: skip
    _attributes(parser.add_argument_group("attributes"))


def _attributes(group: argparse._ArgumentGroup) -> None:
    """Declares an option for each attribute, except `cancel` and those that `add` declares."""
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP, SYNONYMS

    for key, (form, does) in ATTRIBUTE_HELP.items():
        if key in ("allowed", "conda", "priority", "cancel"):
            continue
        flags = ["--gpus-count" if key == "gpus" else f"--{key}"]
        flags += [f"--{word}" for word, meant in SYNONYMS.items() if meant == key]
        dest = f"attribute_{key}"
        if form is None:
            group.add_argument(*flags, dest=dest, action="store_true", help=does)
        else:
            action = "append" if key == "env" else "store"
            group.add_argument(*flags, dest=dest, action=action, metavar=form, help=does)


def lint(parser: argparse.ArgumentParser) -> None:
    """Declares the jobs file and the options that affect how its lines are judged."""
    parser.add_argument("file", metavar="FILE", nargs="?", default=config.JOBS_FILE, type=path,
                        help=f"Jobs file, or - for standard input"
                        f" (default: {config.JOBS_FILE})")  # fmt: skip
    _shared(parser, "--llm-config")
    _gpus(parser, "those that the scheduler manages")
    _shared(parser, "--conda-sh", "--json")


def status(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `status`."""
    way = parser.add_mutually_exclusive_group()
    _shared(way, "--json")
    way.add_argument("--watch", metavar="SECONDS", nargs="?", const=2.0,
                     type=values.number(0, 3600, minimum=0.1),
                     help="Refresh the display every SECONDS (default: 2) until Ctrl-C")  # fmt: skip
    _flag(parser, "--all", "List every queued and finished job on its own line")
    _flag(parser, "--failed", "Show only the jobs that failed")
    _flag(parser, "-v --verbose", "Also show paths, sessions, logs and memory")


def gpus(parser: argparse.ArgumentParser) -> None:
    """Declares one or more GPUs."""
    parser.add_argument("ids", metavar="ID", nargs="+", type=values.gpu_ids,
                        help="GPU ids such as 0, 0,2 or 0-3, or `all`")  # fmt: skip


def screens(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `screens`."""
    _shared(parser, "--json")


def one_job(parser: argparse.ArgumentParser) -> None:
    """Declares one job."""
    parser.add_argument("job", metavar="JOB", type=values.single_job,
                        help="Job number, as `status` shows it, or job name")  # fmt: skip


def show(parser: argparse.ArgumentParser) -> None:
    """Declares the job and the options of `show`."""
    one_job(parser)
    _shared(parser, "--json")


def why(parser: argparse.ArgumentParser) -> None:
    """Declares the job and the options of `why`."""
    show(parser)
    _flag(parser, "-v --verbose", "Show all checks, even for a job that failed")


def _job_list(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs=nargs, type=values.job_ref,
                        help="Job numbers such as 3 or 5-9, or job names")  # fmt: skip


def jobs(parser: argparse.ArgumentParser) -> None:
    """Declares one or more jobs."""
    _job_list(parser, "+")


def retry(parser: argparse.ArgumentParser) -> None:
    """Declares the jobs of `retry`, or --failed."""
    _job_list(parser, "*")
    _flag(parser, "--failed", "Retry every job that failed")


def logs(parser: argparse.ArgumentParser) -> None:
    """Declares the job and the options of `logs`."""
    one_job(parser)
    _flag(parser, "-f --follow", "Keep printing new output until the job has ended")
    parser.add_argument("-n", "--lines", metavar="LINES", type=values.integer(0, 10**9 - 1),
                        help="Print only the last LINES lines (default: all)")  # fmt: skip
    parser.add_argument("--attempt", metavar="K", type=values.integer(1, 10**9 - 1),
                        help="Number of the attempt, counted from 1 (default: the latest)")  # fmt: skip
    _flag(parser, "--raw",
          "Print every byte as the job wrote it (default: only text, colours and progress bars; in a pipe,"
          " only the last frame of each bar)")  # fmt: skip


def events(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `events`."""
    _flag(parser, "--jsonl", "Print JSON, one object per line (see docs/json.md)")
    _flag(parser, "-f --follow", "Keep printing new events until Ctrl-C")
    parser.add_argument("-n", "--lines", metavar="N", type=values.integer(0, 10**9 - 1),
                        help="Print only the last N events (default: all)")  # fmt: skip


def _grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="S", type=values.number(0, _DAY_S, minimum=0), default=10.0,
                        help="Seconds between SIGTERM and SIGKILL (default: 10)")  # fmt: skip


def cancel(parser: argparse.ArgumentParser) -> None:
    """Declares the jobs of `cancel`, or --all."""
    _job_list(parser, "*")
    _flag(parser, "--all", "Cancel every job that has not finished")
    _grace(parser)


def priority(parser: argparse.ArgumentParser) -> None:
    """Declares one or more jobs and their new priority."""
    jobs(parser)
    parser.add_argument("number", metavar="N", type=_PRIORITY, help="New priority; lower numbers run first")


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Declares the file that `calibrate` compares, and --write."""
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help="File with the GPU needs of models (default: the one that the scheduler"
                        " uses)")  # fmt: skip
    _flag(parser, "--write", "Write the suggested entries to that file, keeping a backup")
    _shared(parser, "--json")


def doctor(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `start` that `doctor` checks."""
    _shared(parser, "--jobs-file", "--llm-config", "--log-dir")
    _probe(parser)
    _shared(parser, "--conda-sh", "--trust-files", "--json")


def completion(parser: argparse.ArgumentParser) -> None:
    """Declares the shell of `completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"),
                        help="Shell to print the script for: bash, zsh or fish")  # fmt: skip


def stop(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `stop`."""
    _flag(parser, "--jobs", "Also cancel the running jobs")
    _grace(parser)
