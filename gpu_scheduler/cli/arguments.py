"""Declares the arguments and options of each command.

Nothing is executed here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

if TYPE_CHECKING:
    from gpu_scheduler.core.jobsfile.attributes import Attribute

# Declares the options that several commands share.


#: A parser, or one of its argument groups.
ArgumentContainer = argparse.ArgumentParser | argparse._ArgumentGroup

DAY_S = 86400
_DEFAULTS = config.StartOptions()
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


def shared_options(parser: ArgumentContainer, *flags: str) -> None:
    """Declares options that several commands share."""
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag])


def flag(parser: ArgumentContainer, names: str, text: str) -> None:
    """Declares an option without a value. names: its names, separated by blanks."""
    parser.add_argument(*names.split(), action="store_true", help=text)


def setting(
    parser: ArgumentContainer, name: str, dest: str | None = None, *, help: str, **given: Any
) -> None:
    """Declares an option whose default is that of its StartOptions field.

    dest: the name of the field, if it differs from the option's name.
    """
    dest = dest or name.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULTS, dest)
    if "(default: " not in help:
        help += " (default: %(default)s)" if isinstance(default, str) else " (default: %(default)g)"
    parser.add_argument(name, dest=dest, default=default, help=help, **given)


def gpu_option(parser: ArgumentContainer, purpose: str, *, default: str) -> None:
    """Declares --gpus. purpose: the first words of its help text."""
    parser.add_argument("--gpus", metavar="N|LIST", type=values.gpu_choice,
                        help=f"{purpose}: a count such as 4, or a list such as 0,2,3 (write `3,` for GPU 3"
                        f" alone), or none (default: {default})")  # fmt: skip


def probe_options(parser: ArgumentContainer) -> None:
    """Declares the options that determine which GPUs are read, and how."""
    setting(parser, "--gpu-probe", choices=get_args(config.ProbeKind),
            help="How to query the GPUs (default: %(default)s, which tries NVML and then"
            " GPUtil)")  # fmt: skip
    simulated = parser.add_mutually_exclusive_group().add_argument
    simulated("--simulate", metavar="N",
              help="Simulate GPUs: 4 means four GPUs with 24 GiB each, 4:80G means four with 80 GiB each, and"
              " 2:24G,2:80G means two of each size")  # fmt: skip
    simulated("--sim", metavar="N", dest="simulate", help="Same as --simulate")


#: Begins the names of the parsed options that are attributes of a job.
_ATTRIBUTE_PREFIX = "attribute_"


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `add`. A command after `--` is not parsed here."""
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES

    option = parser.add_argument
    option("script", metavar="SCRIPT | -- COMMAND", nargs="?",
           help="Python script (`add` makes its path absolute), or any command after `--`")  # fmt: skip
    option(
        "--args",
        metavar='"…"',
        default="",
        type=lambda text: text.removeprefix(" "),
        help='Arguments for the script, such as "--epochs 3"',
    )
    option("--priority", metavar="N", type=values.priority, help=ATTRIBUTES["priority"].help)
    option("--output-file", metavar="PATH", type=path,
           help="Jobs file to append the line to, or - to only print the line (default: the file that the"
           f" running scheduler watches, else {config.JOBS_FILE})")  # fmt: skip
    _grid(parser)
    others = ("priority", "cancel")
    _attributes(parser, lambda row: row.key not in others, gpus="--gpus-count", allowed="--allowed --gpus")


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
    _attributes(parser, lambda row: row.key != "cancel", cwd="--cwd --dir")


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
    _attributes(parser, lambda row: row.of_process)
    probe_options(parser.add_argument_group("if no scheduler has run yet"))


def _attributes(
    parser: argparse.ArgumentParser, is_wanted: Callable[[Attribute], bool], **flags_of: str
) -> None:
    """Declares an option for each wanted attribute. flags_of: the options that differ from the key."""
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES

    group = parser.add_argument_group("attributes")
    for row in filter(is_wanted, ATTRIBUTES.values()):
        flags = flags_of[row.key].split() if row.key in flags_of else [f"--{name}" for name in row.names]
        option = partial(group.add_argument, *flags, dest=f"{_ATTRIBUTE_PREFIX}{row.key}", help=row.help)
        if row.form is None:
            option(action="store_true")
        elif row.key == "env":
            option(action="append", type=values.variable, metavar=row.form)
        else:
            option(metavar=row.form)


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
                        help="New priority of the jobs: CRITICAL, HIGH, NORMAL, LOW (0, 100, 200, 300) or a"
                        " number; lower numbers start first")  # fmt: skip


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `calibrate`."""
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help="File that lists the GPU needs of each model (default: the file that the"
                        " scheduler uses)")  # fmt: skip
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


# Declares the options of `run`, `wait` and `gpus`. Nothing is executed here.


#: The largest number of GPUs that can be requested, and the longest time limit in seconds.
_MAX_COUNT, _MAX_TIMEOUT_S = 1024, 366 * 86400


def run(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `run`. The command after `--` is not parsed here."""
    parser.add_argument("words", metavar="-- COMMAND", nargs="*", default=[],
                        help="Command to execute in place of this process, with its arguments")  # fmt: skip
    parser.epilog = f"{parser.epilog or ''}\ndocs/run.md lists the exit codes and explains the claims."
    _gpu_options(parser)


def wait(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `wait`: those of `run`, and the jobs to wait for in place of GPUs."""
    parser.add_argument("jobs", metavar="JOB", nargs="*", action="extend", type=values.job_ref, default=[],
                        help="Wait until these jobs have ended, and exit with the largest of their exit"
                        " codes: job numbers such as 3, ranges such as 5-9, or job names")  # fmt: skip
    parser.add_argument("--job", dest="jobs", metavar="JOB", nargs="+", action="extend", type=values.job_ref,
                        help="The same jobs as an option")  # fmt: skip
    _gpu_options(parser)


def given_gpu_option(options: argparse.Namespace) -> str | None:
    """Returns an option of `wait` that was given, other than --timeout, and that concerns only GPUs."""
    parser = argparse.ArgumentParser(add_help=False)
    _gpu_options(parser)
    given = (
        max(action.option_strings, key=len)
        for action in parser._actions
        if action.dest != "timeout" and getattr(options, action.dest) != action.default
    )
    return next(given, None)


def _gpu_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options with which `run` and `wait` choose GPUs."""
    option = parser.add_argument
    option("-n", "--count", metavar="N", type=values.integer(1, _MAX_COUNT), default=1,
           help="Number of GPUs; the other conditions apply to each GPU (default: 1)")  # fmt: skip
    option("--min-free-mb", metavar="M", type=values.mib, default=0,
           help="Memory that must be free on each GPU, in MiB or with a unit, as in 8G"
           " (default: 0)")  # fmt: skip
    option("--max-util", metavar="P", type=values.number(0, 100, minimum=0),
           help="Highest utilization of each GPU in percent (default: any)")  # fmt: skip
    option("--mb", metavar="M", type=values.positive_mib,
           help="Claim only this much memory of each GPU, in MiB or with a unit, so that several users fit on"
           " one GPU (default: the whole GPU)")  # fmt: skip
    option("--allowed", "--only", metavar="LIST", type=values.gpu_ids,
           help="GPUs to choose from, such as 0,1 or 0-3, or `all` (default: all)")  # fmt: skip
    option("--exclude", metavar="LIST", type=values.excluded_gpus,
           help="GPUs never to choose, such as 2,3 (default: none)")  # fmt: skip
    option("--poll", metavar="S", type=values.number(0.1, 3600, minimum=0.1), default=5.0,
           help="Seconds between GPU samples while waiting (default: 5)")  # fmt: skip
    option("--timeout", metavar="S", type=values.number(0, _MAX_TIMEOUT_S, minimum=0),
           help="Seconds after which to give up with exit code 124; 0 means to try once (default: wait for as"
           " long as it takes)")  # fmt: skip
    probe_options(parser)


def list_gpus(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpus`."""
    probe_options(parser)
    shared_options(parser, "--json")


# Declares the options of `start`, and of the API server, which both `start` and `serve` run.


#: Largest value of --tolerance and --spike-buffer, which are fractions of a job's memory.
_MAX_FRACTION = 10
#: Largest value of --aging. Many more starts are remembered, because most of them overtake other jobs.
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


def redis_submit(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `redis-submit`."""
    option = parser.add_argument
    redis_submit_options(parser)
    option("script", metavar="SCRIPT", help="Script to run; a relative path is that of this folder")
    option("arguments", metavar="ARG", nargs=argparse.REMAINDER,
           help="Options as above, then the arguments of the script")  # fmt: skip


def redis_submit_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `redis-submit`, which may also follow the script."""
    option = parser.add_argument
    option("--gpu-memory-mb", metavar="M", type=values.integer(0, 1 << 30), default=None,
           help="Memory that it needs on each of its GPUs, in MiB (required)")  # fmt: skip
    option("--num-gpus", metavar="N", type=values.integer(0, 1024), default=1,
           help="Number of its GPUs (default: %(default)s)")  # fmt: skip
    option("--priority", metavar="P", type=values.priority, default=200,
           help="A number, or CRITICAL (0), HIGH (100), NORMAL (200) or LOW (300)")  # fmt: skip
    option("--env", metavar="NAME=VALUE", type=values.variable, action="append",
           help="Variable of the job; may be repeated")  # fmt: skip
    redis_url(parser)


def redis_queue(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `redis-queue`."""
    actions = ("cancel", "requeue", "retry", "accept-loss")
    parser.add_argument("action", metavar="|".join(actions), nargs="?", choices=actions,
                        help="cancel: end the items or take them out of the queue; requeue: give what a"
                        " machine holds to another one, although it may then run twice; retry: queue ended"
                        " items again; accept-loss: no longer wait for machines that are away since Redis was"
                        " restarted")  # fmt: skip
    parser.add_argument("ids", metavar="ID", nargs="*", help="Ids of the items")
    redis_url(parser)
    shared_options(parser, "--json")


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
            " may be reserved for it")  # fmt: skip
    setting(group, "--idle-budget", metavar="X", type=values.number(0, 1, minimum=0),
            help="Time for which reserved GPUs may be idle, as a fraction of the GPU time that jobs got in"
            " the last 7 days. A reservation begins only if its probable idle time fits into what is left of"
            " that, or is at most this fraction of the GPU time for which its job has waited")  # fmt: skip


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
