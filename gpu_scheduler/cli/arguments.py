"""Declares the arguments and options of each command. Nothing is executed here."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

#: A parser, or one of its argument groups.
ArgumentContainer = argparse.ArgumentParser | argparse._ArgumentGroup

_DEFAULTS = config.StartOptions()
_DAY_S = 86400
#: Largest value of --tolerance and --spike-buffer, which are fractions of a job's memory.
_MAX_FRACTION = 10
#: Begins the names of the parsed options that are attributes of a job.
_ATTRIBUTE_PREFIX = "attribute_"
_PRIORITY = values.integer(-(10**9) + 1, 10**9 - 1)

#: Options that several commands share.
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--jobs-file": {
        "metavar": "PATH",
        "help": f'Jobs file; "" means no jobs file (default: {config.JOBS_FILE})',
    },
    "--llm-config": {
        "metavar": "PATH", "type": path,
        "help": f"File that lists the GPU needs of each model (default: {config.LLM_CONFIG}, if it exists)",
    },
    "--log-dir": {
        "metavar": "DIR", "type": path, "help": "Folder for the job logs (default: /tmp/gpu_scheduler_logs)",
    },
    "--trust-files": {
        "action": "store_true",
        "help": "Use files even if other users own them or everyone may write to them",
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
    _start_memory(parser.add_argument_group("job memory"))
    _start_launches(parser.add_argument_group("launches and retries"))
    _start_scheduler(parser.add_argument_group("scheduler"))


def _start_jobs(group: argparse._ArgumentGroup) -> None:
    shared_options(group, "--jobs-file")
    end = group.add_mutually_exclusive_group()
    _flag(end, "--drain", "Exit when no more jobs can run; the exit code shows whether all jobs completed")
    _flag(end, "--watch",
          "Keep waiting for new lines in the jobs file (the default, except with"
          " `gpu-scheduler FILE`)")  # fmt: skip
    shared_options(group, "--llm-config")
    history = group.add_mutually_exclusive_group()
    _flag(history, "--fresh", "Forget all recorded jobs first (after asking for confirmation on a terminal)")
    _flag(history, "--keep-history", "Keep the recorded jobs when switching between simulated and real GPUs")
    _flag(history, "--restore", "Rebuild a lost store from its newest backup and the attempt folders")
    _flag(group, "--yes", "Do not ask for confirmation with --fresh")


def _start_gpus(group: argparse._ArgumentGroup) -> None:
    _gpus(group, "GPUs to manage", default="all")
    probe_options(group)
    _value(group, "--poll", "poll_s", metavar="S", type=values.number(0.1, 3600, minimum=0.1),
           help="Seconds between GPU samples")  # fmt: skip
    _value(group, "--mem-threshold", metavar="X", type=values.number(0, 1),
           help="Fraction of a GPU's memory (above 0, at most 1). Once foreign processes use that much, the"
           " GPU accepts only jobs that declare vram= (default: %(default)g)")  # fmt: skip
    _value(group, "--load-threshold", metavar="X", type=values.number(0, 1),
           help="Load of a GPU as a fraction (above 0, at most 1). Once foreign processes cause that much"
           " load, the GPU accepts no new jobs (default: %(default)g)")  # fmt: skip
    _value(group, "--idle-threshold", "idle_threshold_mib", metavar="MIB", type=values.mib,
           help="Maximum memory in MiB that foreign processes, which belong to no job, may use on a GPU that"
           " counts as idle")  # fmt: skip
    _flag(group, "--exclusive", "Run only one job at a time on each GPU")
    _value(group, "--cuda-ids", choices=("physical", "visible"),
           help="GPU numbers that scripts receive with --cuda: physical ids, or indices of the visible"
           " GPUs")  # fmt: skip


def _start_memory(group: argparse._ArgumentGroup) -> None:
    _value(group, "--margin", "margin_mib", metavar="MIB", type=values.mib,
           help="Memory to keep free on each GPU whose jobs declare vram=, in MiB or with a unit, as in"
           " 1G")  # fmt: skip
    _value(group, "--spike-buffer", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
           help="Fraction to add to each measured memory peak, because the next sample may be"
           " higher")  # fmt: skip
    _value(group, "--tolerance", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
           help="Fraction by which the memory that a job uses may differ from its declaration before the"
           " difference is reported")  # fmt: skip
    _flag(group, "--learn",
          "For jobs that declare nothing, reserve the memory that earlier jobs with the same program and"
          " model used")  # fmt: skip
    _flag(group, "-v --verbose", "Log a job's memory use whenever it reaches a new peak")


def _start_launches(group: argparse._ArgumentGroup) -> None:
    _flag(group, "--screen", "Run each job in its own GNU Screen session")
    shared_options(group, "--conda-sh")
    _value(group, "--oom-retries", metavar="N", type=values.integer(0, 1000),
           help="Number of times to retry a job that ran out of CUDA memory, each time with more"
           " memory")  # fmt: skip
    _value(group, "--fail-retries", metavar="N", type=values.integer(0, 1000),
           help="Number of times to retry a job after any failure")  # fmt: skip
    _flag(group, "--recover",
          "Queue interrupted jobs again, such as those that ran before a reboot; each job at most three times"
          " in a row")  # fmt: skip
    _value(group, "--max-assign-attempts", metavar="N", type=values.integer(1, 1000),
           help="Maximum number of times to try to launch a job")  # fmt: skip
    _value(group, "--assign-retry-wait", "assign_retry_wait_s", metavar="S",
           type=values.number(0, 3600, minimum=0),
           help="Seconds to wait after a failed launch; the wait doubles after each further"
           " failure")  # fmt: skip


def _start_scheduler(group: argparse._ArgumentGroup) -> None:
    interval = values.number(0, _DAY_S)
    _value(group, "--monitor-interval", "monitor_interval_s", metavar="S", type=interval,
           help="Maximum number of seconds until the scheduler notices a change to the jobs"
           " file")  # fmt: skip
    _value(group, "--state-interval", "state_interval_s", metavar="S", type=interval,
           help="Maximum number of seconds until the scheduler notices an edit to the state"
           " file")  # fmt: skip
    shared_options(group, "--log-dir")
    _flag(
        group,
        "--daemon",
        "Run in the background; print the scheduler's pid and the path of its log once it is up",
    )
    _flag(
        group,
        "--ignore-old-sessions",
        "Start even if jobs of the older scheduler are still running in Screen sessions",
    )
    _flag(group, "--take-over", "Take over a store that belongs to another host and is no longer used there")
    _flag(
        group,
        "--as-copy",
        "Use a copy of another store; jobs that are still running under the original are held in the copy",
    )
    shared_options(group, "--trust-files")


def shared_options(parser: ArgumentContainer, *flags: str) -> None:
    """Declares options that several commands share."""
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag])


def _flag(parser: ArgumentContainer, names: str, text: str) -> None:
    parser.add_argument(*names.split(), action="store_true", help=text)


def _value(parser: ArgumentContainer, flag: str, dest: str | None = None, *, help: str, **given: Any) -> None:
    """Declares an option whose default is that of its StartOptions field.

    dest: the name of the field, if it differs from the option's name.
    """
    dest = dest or flag.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULTS, dest)
    if "%(default)" not in help:
        help += " (default: %(default)s)" if isinstance(default, str) else " (default: %(default)g)"
    parser.add_argument(flag, dest=dest, default=default, help=help, **given)


def _gpus(parser: ArgumentContainer, purpose: str, *, default: str) -> None:
    parser.add_argument("--gpus", metavar="N|LIST", type=values.gpu_choice,
                        help=f"{purpose}: a count such as 4, or a list such as 0,2,3 (write `3,` for GPU 3"
                        f" alone; default: {default})")  # fmt: skip


def probe_options(parser: ArgumentContainer) -> None:
    """Declares the options that determine which GPUs are read, and how."""
    _value(parser, "--gpu-probe", choices=get_args(config.ProbeKind),
           help="How to query the GPUs (default: %(default)s, which tries NVML and then"
           " GPUtil)")  # fmt: skip
    simulated = parser.add_mutually_exclusive_group().add_argument
    simulated("--simulate", metavar="N",
              help="Simulate GPUs: 4 means four GPUs with 24 GiB each, 4:80G means four with 80 GiB each, and"
              " 2:24G,2:80G means two of each size")  # fmt: skip
    simulated("--sim", metavar="N", dest="simulate", help="Same as --simulate")


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `add`, which are the fields of a CSV line and the attributes.

    A command after `--` is not parsed here.
    """
    option = parser.add_argument
    option("script", metavar="SCRIPT | -- COMMAND", nargs="?",
           help="Python script (`add` makes its path absolute), or any command after `--`")  # fmt: skip
    option(
        "--conda", metavar="ENV", help="Conda environment (default: base for a script, none for a command)"
    )
    option(
        "--args",
        metavar='"…"',
        default="",
        type=lambda text: text.removeprefix(" "),
        help='Arguments for the script, such as "--epochs 3"',
    )
    option("--priority", metavar="N", type=_PRIORITY, default=0,
           help="Priority of the job; lower numbers run first (default: 0)")  # fmt: skip
    option("--gpus", metavar="LIST", default="",
           help="GPUs that the job may use, such as 0,2 or 0-3 (default: any)")  # fmt: skip
    option("--output-file", metavar="PATH", default=config.JOBS_FILE, type=path,
           help=f"Jobs file to append the line to, or - to only print the line"
           f" (default: {config.JOBS_FILE})")  # fmt: skip
    csv_fields = ("allowed", "conda", "priority")
    _attributes(parser.add_argument_group("attributes"), {"gpus": ("--gpus-count",)}, (*csv_fields, "cancel"))


def submit(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `submit`. The words after the script or the `--` are not parsed here."""
    parser.add_argument("script", metavar="SCRIPT [ARGS…] | -- COMMAND…", nargs="?",
                        help="Script (.py, .sh or executable) with its arguments, or any command after `--`."
                        " After SCRIPT, only --after, --after-any and --name belong to `submit`; after"
                        " `SCRIPT --`, nothing does")  # fmt: skip
    parser.add_argument("--python", metavar="PATH",
                        help="Interpreter for SCRIPT (default: that of --venv or --conda, then of the nearest"
                        " .venv in or above the working folder, then python on PATH)")  # fmt: skip
    _flag(
        parser,
        "--wait",
        "Wait until the job has ended, and exit with its exit code; Ctrl-C leaves it running",
    )
    shared_options(parser, "--json")
    _attributes(parser.add_argument_group("attributes"), {"cwd": ("--cwd", "--dir")}, ("cancel",))


def _attributes(
    group: argparse._ArgumentGroup, flags_of: Mapping[str, Sequence[str]], without: Collection[str]
) -> None:
    """Declares an option for each attribute. flags_of: the options of attributes that differ from the key."""
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP, SYNONYMS

    for key, (form, does) in ATTRIBUTE_HELP.items():
        if key in without:
            continue
        flags = [*flags_of.get(key, (f"--{key}",))]
        flags += [f"--{word}" for word, meant in SYNONYMS.items() if meant == key]
        dest = f"{_ATTRIBUTE_PREFIX}{key}"
        if form is None:
            group.add_argument(*flags, dest=dest, action="store_true", help=does)
        else:
            action = "append" if key == "env" else "store"
            read = values.variable if key == "env" else str
            group.add_argument(*flags, dest=dest, action=action, type=read, metavar=form, help=does)


def given_attributes(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the options that `_attributes` declares, by attribute."""
    return {
        name.removeprefix(_ATTRIBUTE_PREFIX): value
        for name, value in vars(options).items()
        if name.startswith(_ATTRIBUTE_PREFIX) and value not in (None, False)
    }


def set_attribute(options: argparse.Namespace, key: str, value: str) -> bool:
    """Sets an attribute's option that was not given. Returns False if it was given."""
    name = f"{_ATTRIBUTE_PREFIX}{key}"
    if getattr(options, name) is not None:
        return False
    setattr(options, name, value)
    return True


def lint(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `lint`: the jobs file and the options that affect how lines are checked."""
    parser.add_argument("file", metavar="FILE", nargs="?", default=config.JOBS_FILE, type=path,
                        help=f"Jobs file, or - for standard input"
                        f" (default: {config.JOBS_FILE})")  # fmt: skip
    shared_options(parser, "--llm-config")
    _gpus(parser, "GPUs to check the lines against", default="the GPUs that the scheduler manages")
    shared_options(parser, "--conda-sh", "--json")


def import_queue(parser: argparse.ArgumentParser) -> None:
    """Declares the argument of `import`."""
    parser.add_argument("file", metavar="FILE", type=path,
                        help="The queue.json; after the import, it is renamed to FILE.bak")  # fmt: skip


def status(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `status`."""
    way = parser.add_mutually_exclusive_group()
    shared_options(way, "--json")
    way.add_argument("--watch", metavar="SECONDS", nargs="?", const=2.0,
                     type=values.number(0, 3600, minimum=0.1),
                     help="Refresh the display at this interval (default: 2 seconds) until"
                     " Ctrl-C")  # fmt: skip
    _flag(parser, "--all", "List every queued and finished job on its own line, also the cleared ones")
    _flag(parser, "--failed", "Show only the jobs that failed, and how many jobs were skipped")
    _flag(parser, "-v --verbose", "Also show paths, sessions, logs and memory")


def gpus(parser: argparse.ArgumentParser) -> None:
    """Declares the argument for one or more GPUs."""
    parser.add_argument("ids", metavar="ID", nargs="+", type=values.gpu_ids,
                        help="`all`, or GPU ids such as `0`, `0,2` or `0-3`")  # fmt: skip


def screens(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `screens`."""
    shared_options(parser, "--json")


def one_job(parser: argparse.ArgumentParser) -> None:
    """Declares the argument for one job."""
    parser.add_argument("job", metavar="JOB", type=values.single_job,
                        help="Job number, as shown by `status`, or job name")  # fmt: skip


def show(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `show`."""
    one_job(parser)
    shared_options(parser, "--json")


def why(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `why`."""
    show(parser)
    _flag(parser, "-v --verbose", "Show all checks even if the job has failed")


def _job_list(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs=nargs, type=values.job_ref,
                        help="Job number such as 3, range of numbers such as 5-9, or job name")  # fmt: skip


def jobs(parser: argparse.ArgumentParser) -> None:
    """Declares the argument for one or more jobs."""
    _job_list(parser, "+")


def set_attributes(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `set`: a job, and the changes."""
    one_job(parser)
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="+",
                        help="New value of an attribute of the job, as in a jobs file; KEY= removes the"
                        " attribute")  # fmt: skip


def retry(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `retry`: jobs, or --failed."""
    _job_list(parser, "*")
    _flag(parser, "--failed", "Retry every job that failed")


def recover(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `recover`: interrupted jobs, also with --jobs, or --all."""
    _job_list(parser, "*")
    parser.add_argument("--jobs", dest="listed_jobs", metavar="LIST", type=values.job_refs, default=[],
                        help="The same jobs as one word, such as 1,3 or 5-9")  # fmt: skip
    _flag(parser, "--all", "Recover every interrupted job")


def clear(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `clear`: finished jobs, or none for all finished jobs."""
    _job_list(parser, "*")


def logs(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `logs`."""
    one_job(parser)
    _flag(parser, "-f --follow", "Keep printing new output until the job has ended")
    parser.add_argument("-n", "--lines", metavar="LINES", type=values.integer(0, 10**9 - 1),
                        help="Print only the last LINES lines (default: all)")  # fmt: skip
    parser.add_argument("--attempt", metavar="K", type=values.integer(1, 10**9 - 1),
                        help="Number of the attempt to print, counted from 1 (default: the latest"
                        " attempt)")  # fmt: skip
    _flag(parser, "--raw",
          "Print every byte as the job wrote it. Without --raw, `logs` prints only text, colours and"
          " progress bars; in a pipe, it prints only the last frame of each bar")  # fmt: skip


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
    """Declares the arguments of `cancel`: jobs or --all, and --grace."""
    _job_list(parser, "*")
    _flag(parser, "--all", "Cancel every job that has not finished")
    _grace(parser)


def priority(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments for one or more jobs and for their new priority."""
    jobs(parser)
    parser.add_argument(
        "number", metavar="N", type=_PRIORITY, help="New priority of the jobs; lower numbers run first"
    )


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `calibrate`."""
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help="File that lists the GPU needs of each model (default: the file that the"
                        " scheduler uses)")  # fmt: skip
    _flag(parser, "--write", "Write the suggested entries to the file and keep a backup of the old file")
    shared_options(parser, "--json")


def doctor(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `doctor`, which checks the machine for a `start` with the same options."""
    shared_options(parser, "--jobs-file", "--llm-config", "--log-dir")
    probe_options(parser)
    shared_options(parser, "--conda-sh", "--trust-files", "--json")


def completion(parser: argparse.ArgumentParser) -> None:
    """Declares the shell argument of `completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"),
                        help="Shell that will use the script: bash, zsh or fish")  # fmt: skip


def stop(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `stop`."""
    _flag(parser, "--jobs", "Also cancel the running jobs")
    _grace(parser)
