"""Declares the arguments and options of each command except `start`, `run`, `wait` and `gpus`.

Nothing is executed here.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.shared_arguments import DAY_S, flag, gpu_option, probe_options, shared_options
from gpu_scheduler.cli.values import path

#: Begins the names of the parsed options that are attributes of a job.
_ATTRIBUTE_PREFIX = "attribute_"
#: The attributes that `adopt` accepts. The others say how a job is started.
_OF_ADOPTED = {"name", "priority", "preempt-signal", "resume-flag", "checkpoints"}
_PRIORITY_VALUES = "a number, or CRITICAL, HIGH, NORMAL, LOW (0, 100, 200, 300)"


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
    option("--priority", metavar="N", type=values.priority,
           help=f"Priority of the job: {_PRIORITY_VALUES}; lower numbers run first"
           " (default: 200)")  # fmt: skip
    option("--allowed", "--gpus", dest="gpus", metavar="LIST", default="",
           help="GPUs that the job may use, such as 2 for GPU number 2, or 0,2 or 0-3 (default:"
           " any)")  # fmt: skip
    option("--output-file", metavar="PATH", type=path,
           help="Jobs file to append the line to, or - to only print the line (default: the file that the"
           f" running scheduler watches, else {config.JOBS_FILE})")  # fmt: skip
    _grid(parser)
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
    flag(
        parser,
        "--wait",
        "Wait until the job has ended, and exit with its exit code; Ctrl-C leaves it running",
    )
    flag(parser, "--dry-run", "Only show the jobs, and submit none")
    shared_options(parser, "--json")
    _grid(parser)
    _attributes(parser.add_argument_group("attributes"), {"cwd": ("--cwd", "--dir")}, ("cancel",))


def _grid(parser: argparse.ArgumentParser) -> None:
    """Declares the options of a sweep."""
    sweep = parser.add_argument_group("a job for each combination of values")
    sweep.add_argument("--grid", metavar="KEY=VALUES", action="append", default=[],
                       help="Values that replace {KEY} in the command and in the attributes, such as"
                       " lr=0.1,0.01 or seed=1..3; the option may be repeated")  # fmt: skip
    flag(sweep, "--zip", "Combine the first values of all keys, then the second ones, and so on")


def adopt(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `adopt`."""
    parser.add_argument("pid", metavar="PID", type=values.integer(2, 2**22),
                        help="Process to adopt, such as a training run that you started in a"
                        " shell")  # fmt: skip
    parser.add_argument("--vram", metavar="SIZE", type=values.positive_mib,
                        help="Memory that it needs on each GPU, such as 18G (default: it has its GPUs to"
                        " itself)")  # fmt: skip
    parser.add_argument(
        "--gpus",
        metavar="LIST",
        type=values.gpu_indices,
        help="GPUs that it uses, such as 0,2 (default: those on which the driver lists it)",
    )
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP

    _attributes(parser.add_argument_group("attributes"), {}, ATTRIBUTE_HELP.keys() - _OF_ADOPTED)
    probe_options(parser.add_argument_group("if no scheduler has run yet"))


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
    gpu_option(parser, "GPUs to check the lines against", default="the GPUs that the scheduler manages")
    shared_options(parser, "--conda-sh", "--json")


def import_queue(parser: argparse.ArgumentParser) -> None:
    """Declares the argument of `import`."""
    parser.add_argument("file", metavar="FILE", type=path,
                        help="The queue.json; after the import, it is renamed to FILE.bak")  # fmt: skip


def status(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `status`."""
    _job_list(parser, "*")
    way = parser.add_mutually_exclusive_group()
    shared_options(way, "--json")
    way.add_argument("-w", "--watch", metavar="SECONDS", nargs="?", const=2.0,
                     type=values.number(0, 3600, minimum=0.1),
                     help="Refresh the display at this interval (default: 2 seconds) until q"
                     " or Ctrl-C")  # fmt: skip
    flag(parser, "--all", "List every queued and finished job on its own line, also the cleared ones")
    flag(parser, "--failed", "Show only the jobs that failed, and how many jobs were skipped")
    flag(parser, "-v --verbose", "Also show paths, sessions, logs and memory")


def gpus(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments for GPUs."""
    parser.add_argument("ids", metavar="ID", nargs="*", action="extend", default=[], type=values.gpu_ids,
                        help="`all`, or GPU ids such as `0`, `0,2` or `0-3`")  # fmt: skip
    parser.add_argument("--all", dest="ids", action="append_const", const=None, help="Same as `all`")


def resume(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `resume`: GPUs, or a job and its checkpoint."""
    gpus(parser)
    parser.add_argument("--job", metavar="JOB", type=values.single_job,
                        help="Continue this held or finished job, instead of resuming GPUs")  # fmt: skip
    parser.add_argument("--from", metavar="PATH", type=path, dest="from_path",
                        help="Checkpoint from which the job continues (default: the newest complete"
                        " one)")  # fmt: skip


def screens(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `screens`."""
    shared_options(parser, "--json")


def one_job(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """Declares the argument for one job."""
    parser.add_argument("job", metavar="JOB", nargs=nargs, type=values.single_job,
                        help="Job number, as shown by `status`, or job name")  # fmt: skip


def eta(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `eta`."""
    one_job(parser, nargs="?")
    shared_options(parser, "--json")


def plan(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `plan`."""
    flag(parser, "--all", "Forecast all queued jobs, not only the first 1,000")
    shared_options(parser, "--json")


def show(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `show`."""
    one_job(parser)
    shared_options(parser, "--json")


def why(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `why`."""
    show(parser)
    flag(parser, "-v --verbose", "Show all checks even if the job has failed")


def _job_list(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs=nargs, type=values.job_ref,
                        help="Job number such as 3, range such as 5-9, job name, group such as train (part of"
                        " the names before the first /), or pattern in quotes such as 'train/*'")  # fmt: skip


def jobs(parser: argparse.ArgumentParser) -> None:
    """Declares the argument for one or more jobs."""
    _job_list(parser, "+")


def set_attributes(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `set`: a job, and the changes."""
    one_job(parser)
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="+",
                        help="New value of an attribute of the job, as in a jobs file, or of its command;"
                        " KEY= removes the attribute")  # fmt: skip


def retry(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `retry`: jobs, or --failed, and changes."""
    _job_list(parser, "*")
    flag(parser, "--failed", "Retry every job that failed")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="Change an attribute or the command of the jobs first, as with `set`; the option"
                        " may be repeated")  # fmt: skip


def recover(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `recover`: interrupted jobs, also with --jobs, or --all."""
    _job_list(parser, "*")
    parser.add_argument("--jobs", dest="listed_jobs", metavar="JOBS", type=values.job_refs, default=[],
                        help="The same jobs as one word, such as 1,3 or 5-9")  # fmt: skip
    flag(parser, "--all", "Recover every interrupted job")


def clear(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `clear`: finished jobs, or none for all finished jobs."""
    _job_list(parser, "*")


def logs(parser: argparse.ArgumentParser) -> None:
    """Declares the job arguments and the options of `logs`."""
    parser.add_argument("jobs", metavar="JOB", nargs="+", type=values.single_job,
                        help="Job number, as shown by `status`, or job name; several jobs are printed one"
                        " after the other")  # fmt: skip
    flag(parser, "-f --follow", "Keep printing new output until the job has ended")
    parser.add_argument("-n", "--lines", "--tail", metavar="LINES", type=values.integer(0, 10**9 - 1),
                        help="Print only the last LINES lines (default: all)")  # fmt: skip
    parser.add_argument("--attempt", metavar="K", type=values.integer(1, 10**9 - 1),
                        help="Number of the attempt to print, counted from 1 (default: the latest"
                        " attempt)")  # fmt: skip
    flag(parser, "--raw",
         "Print every byte as the job wrote it. Without --raw, `logs` prints only text, colours and"
         " progress bars; in a pipe, it prints only the last frame of each bar")  # fmt: skip


def events(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `events`."""
    flag(parser, "--jsonl --json", "Print JSON, one object per line (see docs/json.md)")
    flag(parser, "-f --follow", "Keep printing new events until Ctrl-C")
    parser.add_argument("-n", "--lines", metavar="N", type=values.integer(0, 10**9 - 1),
                        help="Print only the last N events (default: all)")  # fmt: skip


def _grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="S", type=values.number(0, DAY_S, minimum=0), default=10.0,
                        help="Seconds between SIGTERM and SIGKILL (default: 10)")  # fmt: skip


def cancel(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `cancel`: jobs or --all, and --grace."""
    _job_list(parser, "*")
    flag(parser, "--all", "Cancel every job that has not finished")
    _grace(parser)


def preempt(parser: argparse.ArgumentParser) -> None:
    """Declares the job argument and the options of `preempt`."""
    one_job(parser)
    parser.add_argument("--timeout", metavar="S", type=values.number(0, DAY_S, minimum=0), default=60.0,
                        help="Seconds that the job may take to save its work and end; after that, it"
                        " continues as if it had not been asked (default: 60)")  # fmt: skip
    flag(parser, "--force", "End the job with SIGKILL if it has not ended after the timeout")


def priority(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments for one or more jobs and for their new priority."""
    jobs(parser)
    parser.add_argument("number", metavar="N", type=values.priority,
                        help=f"New priority of the jobs: {_PRIORITY_VALUES}; lower numbers run"
                        " first")  # fmt: skip


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `calibrate`."""
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help="File that lists the GPU needs of each model (default: the file that the"
                        " scheduler uses)")  # fmt: skip
    flag(parser, "--write", "Write the suggested entries to the file and keep a backup of the old file")
    shared_options(parser, "--json")


def doctor(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `doctor`, which checks the machine for a `start` with the same options."""
    shared_options(parser, "--jobs-file", "--llm-config", "--log-dir")
    probe_options(parser)
    shared_options(parser, "--conda-sh", "--trust-files", "--json")


def token(parser: argparse.ArgumentParser) -> None:
    """Declares the action, the name and the options of `token`."""
    parser.add_argument("action", metavar="create|list|revoke", choices=("create", "list", "revoke"),
                        help="`create` prints a new token once; `revoke` makes one useless at"
                        " once")  # fmt: skip
    parser.add_argument("name", metavar="NAME", nargs="?", help="Name of the token to create or revoke")
    flag(
        parser, "--read-only", "The token changes nothing, and shows no logs, arguments or environment values"
    )
    flag(parser, "--logs", "The read-only token also shows logs")
    parser.add_argument("--days", metavar="N", type=values.integer(1, 36500),
                        help="Days after which the token expires (default: never)")  # fmt: skip
    shared_options(parser, "--json")


def completion(parser: argparse.ArgumentParser) -> None:
    """Declares the shell argument of `completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"),
                        help="Shell that will use the script: bash, zsh or fish")  # fmt: skip


def mcp(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `mcp`."""
    flag(parser, "--allow-changes", "Also offer tools that submit, cancel, hold, release and retry jobs")
    parser.add_argument("--url", metavar="URL",
                        help="Use the queue behind this REST API, such as http://box:8000")  # fmt: skip
    parser.add_argument("--token-file", metavar="FILE", type=path,
                        help="File with the token for --url, as `token create` printed it")  # fmt: skip


def stop(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `stop`."""
    flag(parser, "--jobs", "Also cancel the running jobs")
    _grace(parser)
