"""Lists the commands: the module that runs each one, its arguments, and its help."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

if TYPE_CHECKING:
    from gpu_scheduler.core.jobsfile.attributes import Attribute

#: A parser, or one of its argument groups.
ArgumentContainer = argparse.ArgumentParser | argparse._ArgumentGroup
#: Declares arguments in a parser or group.
Declaration = Callable[[ArgumentContainer], object]

DAY_S = 86400
#: The largest number of GPUs that can be requested, and the longest time limit in seconds.
_MAX_COUNT, _MAX_TIMEOUT_S = 1024, 366 * DAY_S
#: Largest value of --tolerance and --spike-buffer, which are fractions of a job's memory.
_MAX_FRACTION = 10
#: Largest value of --aging. Many more starts are remembered, because most of them overtake other jobs.
_MAX_AGING = 64
_DEFAULTS = config.StartOptions()


class Command(NamedTuple):
    """A command of the command line.

    module: the module of `cli` that runs the command, in the function that `function_name` returns.
    """

    module: str
    example: str
    summary: str
    arguments: tuple[Declaration, ...]

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Declares the command's arguments."""
        declare(parser, self.arguments)


def declare(parser: ArgumentContainer, arguments: Iterable[Declaration]) -> None:
    """Declares arguments in a parser or group."""
    for one in arguments:
        one(parser)


def arg(*names: str, **given: Any) -> Declaration:
    """Returns an argument as argparse takes it."""
    return lambda parser: parser.add_argument(*names, **given)


def flag(*words: str) -> Declaration:
    """Returns an option without a value. words: its names and its help text."""
    return arg(*words[:-1], action="store_true", help=words[-1])


def setting(name: str, dest: str | None = None, *, help: str, **given: Any) -> Declaration:
    """Returns an option whose default is that of its StartOptions field.

    dest: the name of the field, if it differs from the option's name.
    """
    dest = dest or name.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULTS, dest)
    if "(default: " not in help:
        help += " (default: %(default)s)" if isinstance(default, str) else " (default: %(default)g)"
    return arg(name, dest=dest, default=default, help=help, **given)


def group(title: str, *arguments: Declaration) -> Declaration:
    """Returns arguments that have their own title in the help."""
    return lambda parser: declare(parser.add_argument_group(title), arguments)


def one_of(*arguments: Declaration) -> Declaration:
    """Returns options of which only one may be given."""
    return lambda parser: declare(parser.add_mutually_exclusive_group(), arguments)


def gpus_option(purpose: str, default: str) -> Declaration:
    """Returns --gpus. purpose: the first words of its help text."""
    return arg("--gpus", metavar="N|LIST", type=values.gpu_choice,
        help=f"{purpose}: a count such as 4, or a list such as 0,2,3 (write `3,` for GPU 3 alone), or none"
        f" (default: {default})")  # fmt: skip


def jobs(nargs: str) -> Declaration:
    """Returns the argument for several jobs."""
    return arg("jobs", metavar="JOB", nargs=nargs, type=values.job_ref,
        help="Job number such as 3, range such as 5-9, job name, group such as train (part of the names"
        " before the first /), or pattern in quotes such as 'train/*'")  # fmt: skip


#: Begins the names of the parsed options that are attributes of a job.
_ATTRIBUTE_PREFIX = "attribute_"


def attributes(is_wanted: Callable[[Attribute], bool], **flags_of: str) -> Declaration:
    """Returns an option for each wanted attribute. flags_of: the options that differ from the key."""

    def declare_them(parser: ArgumentContainer) -> None:
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

    return declare_them


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


def given_gpu_option(options: argparse.Namespace) -> str | None:
    """Returns an option of `wait` that was given, other than --timeout, and that concerns only GPUs."""
    parser = argparse.ArgumentParser(add_help=False)
    declare(parser, GPU_CHOICE)
    given = (
        max(action.option_strings, key=len)
        for action in parser._actions
        if action.dest != "timeout" and getattr(options, action.dest) != action.default
    )
    return next(given, None)


def _add_priority(parser: ArgumentContainer) -> None:
    from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES

    parser.add_argument("--priority", metavar="N", type=values.priority, help=ATTRIBUTES["priority"].help)


# fmt: off
JSON = flag("--json", "Print JSON (see docs/json.md)")
JOBS_FILE = arg("--jobs-file", metavar="PATH",
    help=f'Jobs file; "" means no jobs file (default: {config.JOBS_FILE})')
LLM_CONFIG = arg("--llm-config", metavar="PATH", type=path,
    help=f"File that lists the GPU needs of each model (default: {config.LLM_CONFIG}, if it exists)")
LOG_DIR = arg("--log-dir", metavar="DIR", type=path,
    help="Folder for the job logs (default: /tmp/gpu_scheduler_logs)")
TRUST_FILES = flag("--trust-files", "Use files even if other users own them or everyone may write to them")
CONDA_SH = arg("--conda-sh", metavar="PATH", type=path,
    help="Path to conda's profile.d/conda.sh (default: found automatically)")
#: The options that determine which GPUs are read, and how.
PROBE = (
    setting("--gpu-probe", choices=get_args(config.ProbeKind),
        help="How to query the GPUs (default: %(default)s, which tries NVML and then GPUtil)"),
    one_of(
        arg("--simulate", metavar="N",
            help="Simulate GPUs: 4 means four GPUs with 24 GiB each, 4:80G means four with 80 GiB each,"
            " and 2:24G,2:80G means two of each size"),
        arg("--sim", metavar="N", dest="simulate", help="Same as --simulate")),
)
#: The options of a sweep.
GRID = group("a job for each combination of values",
    arg("--grid", metavar="KEY=VALUES", action="append", default=[],
        help="Values that replace {KEY} in the command and in the attributes, such as lr=0.1,0.01 or"
        " seed=1..3; the option may be repeated"),
    flag("--zip", "Combine the first values of all keys, then the second ones, and so on"))
ONE_JOB: Mapping[str, Any] = {
    "metavar": "JOB", "type": values.single_job, "help": "Job number, as shown by `status`, or job name",
}
JOB = arg("job", **ONE_JOB)
GRACE = arg("--grace", metavar="S", type=values.number(0, DAY_S, minimum=0), default=10.0,
    help="Seconds between SIGTERM and SIGKILL (default: 10)")
GPUS = (
    arg("ids", metavar="ID", nargs="*", action="extend", default=[], type=values.gpu_ids,
        help="`all`, or GPU ids such as `0`, `0,2` or `0-3`"),
    arg("--all", dest="ids", action="append_const", const=None, help="Same as `all`"),
)
#: The options with which `run` and `wait` choose GPUs.
GPU_CHOICE = (
    arg("-n", "--count", metavar="N", type=values.integer(1, _MAX_COUNT), default=1,
        help="Number of GPUs; the other conditions apply to each GPU (default: 1)"),
    arg("--min-free-mb", metavar="M", type=values.mib, default=0,
        help="Memory that must be free on each GPU, in MiB or with a unit, as in 8G (default: 0)"),
    arg("--max-util", metavar="P", type=values.number(0, 100, minimum=0),
        help="Highest utilization of each GPU in percent (default: any)"),
    arg("--mb", metavar="M", type=values.positive_mib,
        help="Claim only this much memory of each GPU, in MiB or with a unit, so that several users fit on"
        " one GPU (default: the whole GPU)"),
    arg("--allowed", "--only", metavar="LIST", type=values.gpu_ids,
        help="GPUs to choose from, such as 0,1 or 0-3, or `all` (default: all)"),
    arg("--exclude", metavar="LIST", type=values.excluded_gpus,
        help="GPUs never to choose, such as 2,3 (default: none)"),
    arg("--poll", metavar="S", type=values.number(0.1, 3600, minimum=0.1), default=5.0,
        help="Seconds between GPU samples while waiting (default: 5)"),
    arg("--timeout", metavar="S", type=values.number(0, _MAX_TIMEOUT_S, minimum=0),
        help="Seconds after which to give up with exit code 124; 0 means to try once (default: wait for as"
        " long as it takes)"),
    *PROBE,
)
#: The options of the API server, which both `start` and `serve` run.
API = (
    flag("--as-root", "Serve the API although you are root, so that whoever may submit jobs is root"),
    flag("--open-metrics", "Let every user of this machine read /metrics without a token"),
    arg("--allowed-host", metavar="NAME[:PORT]", action="append",
        help="Name under which clients reach the API, if not localhost, and the port, if it is another one"
        " (as with `ssh -L`); may be repeated"),
    *(arg(option, metavar="FILE", type=path,
          help=f"PEM file with the {what} of the API, which then uses https")
      for option, what in (("--tls-cert", "certificate"), ("--tls-key", "key"))),
)
#: The options of a command that can use the queue of another machine.
REMOTE = (
    arg("--url", metavar="URL", help="Use the queue behind this REST API, such as http://box:8000"),
    arg("--token-file", metavar="FILE", type=path,
        help="File with the token for --url, as `token create` printed it"),
)
REDIS = arg("--redis", metavar="URL",
    help="URL of the Redis queue (default: the variable GPU_SCHEDULER_REDIS_URL, then that of the newest"
    " `start --redis` here, then redis://localhost:6379/0)")
REQUEUE = arg("--requeue-silent-after", metavar="TIME", type=values.duration,
    help="Time, such as 30m, after which the jobs of a machine that is silent start elsewhere, although"
    " they may still run there (default: never)")
#: The options of `redis-submit`, which may also follow the script.
REDIS_SUBMIT = (
    arg("--gpu-memory-mb", metavar="M", type=values.integer(0, 1 << 30), default=None,
        help="Memory that it needs on each of its GPUs, in MiB (required)"),
    arg("--num-gpus", metavar="N", type=values.integer(0, 1024), default=1,
        help="Number of its GPUs (default: %(default)s)"),
    arg("--priority", metavar="P", type=values.priority, default=200,
        help="A number, or CRITICAL (0), HIGH (100), NORMAL (200) or LOW (300)"),
    arg("--env", metavar="NAME=VALUE", type=values.variable, action="append",
        help="Variable of the job; may be repeated"),
    REDIS,
)

#: The options of `start`, by title.
START = (
    group("jobs",
        JOBS_FILE,
        one_of(
            flag("--drain", "Exit when no more jobs can run; the exit code shows whether all jobs completed"),
            flag("--watch",
                "Keep waiting for new lines in the jobs file (the default, except with `gpu-scheduler"
                " FILE`)")),
        LLM_CONFIG,
        one_of(
            flag("--fresh", "Forget all recorded jobs first (after asking for confirmation on a terminal)"),
            flag("--keep-history", "Keep the recorded jobs when switching between simulated and real GPUs"),
            flag("--restore", "Rebuild a lost store from its newest backup and the attempt folders")),
        flag("--yes", "Do not ask before forgetting jobs (--fresh) or replacing an installed unit")),
    group("GPUs",
        gpus_option("GPUs to manage", "all"),
        *PROBE,
        setting("--poll", "poll_s", metavar="S", type=values.number(0.1, 3600, minimum=0.1),
            help="Seconds between GPU samples"),
        setting("--mem-threshold", metavar="X", type=values.number(0, 1),
            help="Fraction of a GPU's memory (above 0, at most 1). Once foreign processes use that much,"
            " the GPU accepts only jobs that declare vram= (default: %(default)g)"),
        setting("--load-threshold", metavar="X", type=values.number(0, 1),
            help="Load of a GPU as a fraction (above 0, at most 1). Once foreign processes cause that much"
            " load, the GPU accepts no new jobs (default: %(default)g)"),
        setting("--idle-threshold", "idle_threshold_mib", metavar="MIB", type=values.mib,
            help="Maximum memory in MiB that foreign processes, which belong to no job, may use on a GPU"
            " that counts as idle"),
        flag("--exclusive", "Run only one job at a time on each GPU"),
        setting("--cuda-ids", choices=("physical", "visible"),
            help="GPU numbers that scripts receive with --cuda: physical ids, or indices of the visible"
            " GPUs")),
    group("job memory",
        setting("--margin", "margin_mib", metavar="MIB", type=values.mib,
            help="Memory to keep free on each GPU whose jobs declare vram=, in MiB or with a unit, as in 1G"),
        setting("--spike-buffer", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
            help="Fraction to add to each measured memory peak, because the next sample may be higher"),
        setting("--tolerance", metavar="X", type=values.number(0, _MAX_FRACTION, minimum=0),
            help="Fraction by which the memory that a job uses may differ from its declaration before the"
            " difference is reported"),
        flag("--learn",
            "For jobs that declare nothing, reserve the memory that earlier jobs with the same program and"
            " model used"),
        flag("-v", "--verbose", "Log a job's memory use whenever it reaches a new peak")),
    group("launches and retries",
        flag("--screen", "Run each job in its own GNU Screen session"),
        CONDA_SH,
        setting("--start-interval", "start_interval_s", metavar="S", type=values.number(0, DAY_S, minimum=0),
            help="Least number of seconds between the starts of two jobs that use GPUs"),
        setting("--cpu-jobs", metavar="N", type=values.integer(1, 1000),
            help="Number of jobs without a GPU (gpus=0) that may run at the same time (default: half of"
            " the CPU cores)"),
        setting("--oom-retries", metavar="N", type=values.integer(0, 1000),
            help="Number of times to retry a job that ran out of CUDA memory, each time with more memory"),
        setting("--fail-retries", metavar="N", type=values.integer(0, 1000),
            help="Number of times to retry a job after any failure"),
        flag("--recover",
            "Queue interrupted jobs again, such as those that ran before a reboot; each job at most three"
            " times in a row"),
        setting("--suspect-after", metavar="N", type=values.integer(0, 1000),
            help="Number of jobs that must fail on a GPU within 10 seconds of their start, while others"
            " run well, until it is put aside; two with a device error suffice; 0: never"),
        setting("--max-assign-attempts", metavar="N", type=values.integer(1, 1000),
            help="Maximum number of times to try to launch a job"),
        setting("--assign-retry-wait", "assign_retry_wait_s", metavar="S",
            type=values.number(0, 3600, minimum=0),
            help="Seconds to wait after a failed launch; the wait doubles after each further failure")),
    group("queue order",
        setting("--queue-order", choices=("backfill", "reserve"),
            help="What becomes of a job that finds too few free GPUs while later jobs start. backfill:"
            " every job that fits starts; reserve: GPUs are reserved for a job that has been overtaken too"
            " often"),
        setting("--aging", metavar="N", type=values.integer(1, _MAX_AGING),
            help="Number of times that jobs submitted at least an hour later must overtake a job before"
            " GPUs may be reserved for it"),
        setting("--idle-budget", metavar="X", type=values.number(0, 1, minimum=0),
            help="Time for which reserved GPUs may be idle, as a fraction of the GPU time that jobs got"
            " in the last 7 days. A reservation begins only if its probable idle time fits into what is"
            " left of that, or is at most this fraction of the GPU time for which its job has waited")),
    group("preemption",
        setting("--preempt-at-priority", metavar="P", type=values.priority,
            help="Let waiting jobs of priority P or higher (that is, with this or a smaller number)"
            " preempt running jobs of lower priority (default: only jobs with the attribute preempt do)"),
        setting("--preempt-grace", "preempt_grace_s", metavar="S", type=values.number(0, DAY_S, minimum=0),
            help="Seconds that a job preempted for another one has to save its work")),
    group("scheduler",
        setting("--monitor-interval", "monitor_interval_s", metavar="S", type=values.number(0, DAY_S),
            help="Maximum number of seconds until the scheduler notices a change to the jobs file"),
        setting("--state-interval", "state_interval_s", metavar="S", type=values.number(0, DAY_S),
            help="Maximum number of seconds until the scheduler notices an edit to the state file"),
        LOG_DIR,
        setting("--log-limit", "log_limit_mib", metavar="MIB", type=values.mib,
            help="Largest size of a job's log, in MiB or with a unit, as in 10G. A larger log keeps its"
            " first half and its end; 0: no limit"),
        flag("--daemon", "Run in the background; print the scheduler's pid and the path of its log once it"
        " is up"),
        flag("--ignore-old-sessions", "Start even if jobs of the older scheduler are still running in"
        " Screen sessions"),
        flag("--take-over", "Take over a store that belongs to another host and is no longer used there"),
        TRUST_FILES),
    group("API",
        arg("--serve", metavar="HOST:PORT", nargs="?", const="127.0.0.1:8000", type=values.address,
            help="Also run `serve` for as long as the scheduler runs (without HOST:PORT: 127.0.0.1:8000)"),
        *API),
    group("Slurm",
        arg("--slurm", metavar="PARTITION",
            help="Also run jobs with on=slurm, on this partition of Slurm"),
        arg("--slurm-dir", metavar="DIR", type=path,
            help="Folder on a file system that this machine and the nodes share"),
        setting("--on", choices=("local", "slurm"),
            help="Where jobs run whose lines do not say so"),
        arg("--slurm-options", metavar="TEXT",
            help="More options of sbatch, as in --slurm-options='--account=x --qos=y'"),
        setting("--slurm-limit", metavar="N", type=values.integer(1, 10000),
            help="Number of jobs that may wait in Slurm at the same time; the others wait here, in queue"
            " order"),
        setting("--slurm-shards", metavar="K", type=values.integer(0, 1000),
            help="Number of shards for each GPU, of which jobs with a share get their part; 0: they get whole"
            " GPUs"),
        setting("--slurm-python", metavar="PATH",
            help="Python 3.10 or newer on the nodes")),
    group("Redis queue",
        arg("--redis", metavar="URL", nargs="?", const="",
            help="Also run jobs of a queue in Redis, which several machines share (without URL: the variable "
                 "GPU_SCHEDULER_REDIS_URL, then redis://localhost:6379/0)"),
        REQUEUE),
    group("notifications",
        arg("--notify", metavar="URL", nargs="?", const="", action="append",
            help="Also run `notify` for this receiver; may be repeated (without URL: those in the variable"
                 " GPU_SCHEDULER_NOTIFY, which `ps` does not show)")),
)

#: The options of `service` that `start` does not have.
SERVICE = (
    flag("--system", "As root: use a system unit instead of one of your user manager; needs --user"),
    arg("--user", metavar="NAME", help="Account of a system unit"),
    flag("--cron", "Use the crontab instead of systemd"),
    arg("--keep-env", metavar="NAME", action="append", default=[],
        help="Variable that the scheduler and its jobs get; may be repeated"),
    flag("--no-recover", "Do not requeue jobs that a reboot interrupted"),
    flag("--replace", "Stop a scheduler that is already running outside the unit; its jobs go on"),
)

#: The commands by purpose, in the order of the help and of docs/commands.md. The words behind the script of
#: `submit`, and those behind the `--` of `add`, `submit` and `run`, are not parsed here. Only the scheduler
#: gives --until-eof, to the servers that it runs.
GROUPS: Mapping[str, Mapping[str, Command]] = {
    "run the scheduler": {
        "start": Command("start", "start --screen --jobs-file jobs.txt",
            "Run the scheduler until it is stopped or, with --drain, until no more jobs can run", START),
        "stop": Command("request_commands", "stop",
            "Stop the scheduler; running jobs continue", (
            flag("--jobs", "Also cancel the running jobs"),
            GRACE)),
        "serve": Command("front_ends", "serve --port 8000",
            "Serve the API on this machine, even without a running scheduler, until it is stopped", (
            arg("--host", metavar="HOST", default="127.0.0.1",
                help="Address to serve on; on any but a loopback address, every request needs a token"
                " (default: %(default)s)"),
            arg("--port", metavar="PORT", type=values.integer(0, 65535), default=8000,
                help="Port to serve on; 0: any free port (default: %(default)s)"),
            arg("--dir", metavar="DIR", type=path,
                help="Folder in which jobs run whose request names none (default: this folder)"),
            flag("--no-preempt", "Do not let jobs that are submitted with priority 0 preempt others"),
            *API,
            arg("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS))),
    },
    "keep the scheduler running": {
        "service": Command("service_commands", "service install --screen",
            "Run the scheduler with systemd, also after a reboot, until `service uninstall`", (
            arg("action", metavar="install|status|restart|uninstall|print",
                choices=("install", "status", "restart", "uninstall", "print"),
                help="install: write, enable and start a unit for the state file; status: show whether it"
                " runs; restart: after an upgrade; uninstall: stop and remove it; print: only show the unit."
                " The options of `start` go with install and print"),
            group("unit", *SERVICE),
            *START)),
    },
    "inspect jobs and GPUs": {
        "status": Command("status", "status --json",
            "Show GPUs, jobs and malformed lines, even without a running scheduler", (
            jobs("*"),
            one_of(JSON,
                arg("-w", "--watch", metavar="SECONDS", nargs="?", const=2.0,
                    type=values.number(0, 3600, minimum=0.1),
                    help="Refresh the display at this interval (default: 2 seconds) until q or Ctrl-C")),
            flag("--all", "List every queued and finished job on its own line, also the cleared ones"),
            flag("--failed", "Show only the jobs that failed, and how many jobs were skipped"),
            flag("-v", "--verbose", "Also show paths, sessions, logs and memory"))),
        "top": Command("front_ends", "top --url http://box:8000 --token-file ~/.gpu_scheduler_token",
            "Show GPUs and jobs live on the terminal, with keys for details, logs and changes", (
            *REMOTE,)),
        "show": Command("report_commands", "show 3",
            "Show everything about one job: its line, attempts and history", (JOB, JSON)),
        "why": Command("report_commands", "why 3",
            "Explain, check by check, why a job does not start or why it failed", (
            JOB, JSON,
            flag("-v", "--verbose", "Show all checks even if the job has failed"))),
        "eta": Command("report_commands", "eta 3",
            "Show how far a running job is and when it will finish; without a job, all running jobs (`plan` "
            "also shows jobs that report no progress)", (arg("job", nargs="?", **ONE_JOB), JSON)),
        "plan": Command("report_commands", "plan --json",
            "Show when each running and waiting job is expected to start and end, and on which GPUs", (
            flag("--all", "Forecast all queued jobs, not only the first 1,000"),
            JSON)),
        "logs": Command("logs", "logs 3 -f",
            "Print the log of a job's latest attempt, or of the attempt given by --attempt", (
            arg("jobs", metavar="JOB", nargs="+", type=values.single_job,
                help="Job number, as shown by `status`, or job name; several jobs are printed one after"
                " the other"),
            flag("-f", "--follow", "Keep printing new output until the job has ended"),
            arg("-n", "--lines", "--tail", metavar="LINES", type=values.integer(0, 10**9 - 1),
                help="Print only the last LINES lines (default: all)"),
            arg("--attempt", metavar="K", type=values.integer(1, 10**9 - 1),
                help="Number of the attempt to print, counted from 1 (default: the latest attempt)"),
            flag("--raw",
                "Print every byte as the job wrote it. Without --raw, `logs` prints only text, colours"
                " and progress bars; in a pipe, it prints only the last frame of each bar"))),
        "attach": Command("logs", "attach 3",
            "Open the Screen session of a running job (Ctrl-A d detaches)", (JOB,)),
        "screens": Command("report_commands", "screens",
            "List the Screen sessions of running jobs with the commands that open them", (JSON,)),
        "events": Command("report_commands", "events -f",
            "Print events, one per line, even without a running scheduler", (
            flag("--jsonl", "--json", "Print JSON, one object per line (see docs/json.md)"),
            flag("-f", "--follow", "Keep printing new events until Ctrl-C"),
            arg("-n", "--lines", metavar="N", type=values.integer(0, 10**9 - 1),
                help="Print only the last N events (default: all)"))),
    },
    "manage jobs": {
        "add": Command("submit", "add --vram 18G --name bert -- python train.py --epochs 3",
            "Append one job, given as a script or as a command after `--`, to the jobs file and print its "
            "line", (
            arg("script", metavar="SCRIPT | -- COMMAND", nargs="?",
                help="Python script (`add` makes its path absolute), or any command after `--`"),
            arg("--args", metavar='"…"', default="", type=lambda text: text.removeprefix(" "),
                help='Arguments for the script, such as "--epochs 3"'),
            _add_priority,
            arg("--output-file", metavar="PATH", type=path,
                help="Jobs file to append the line to, or - to only print the line (default: the file that"
                f" the running scheduler watches, else {config.JOBS_FILE})"),
            GRID,
            attributes(lambda row: row.key not in ("priority", "cancel"), gpus="--gpus-count",
                allowed="--allowed --gpus"))),
        "submit": Command("submit", "submit --name bert --vram 18G train.py --epochs 3",
            "Queue one job, given as a script with its arguments or as a command after `--`, without a jobs "
            "file", (
            arg("script", metavar="SCRIPT [ARGS…] | -- COMMAND…", nargs="?",
                help="Script (.py, .sh or executable) with its arguments, or any command after `--`. After"
                " SCRIPT, only --after, --after-any and --name belong to `submit`; after `SCRIPT --`,"
                " nothing does"),
            arg("--python", metavar="PATH",
                help="Interpreter for SCRIPT (default: that of --venv or --conda, then of the nearest"
                " .venv in or above the working folder, then python on PATH)"),
            flag("--wait", "Wait until the job has ended, and exit with its exit code; Ctrl-C leaves it"
            " running"),
            flag("--dry-run", "Only show the jobs, and submit none"),
            JSON,
            GRID,
            attributes(lambda row: row.key != "cancel", cwd="--cwd --dir"))),
        "adopt": Command("submit", "adopt 158500 --name exp02-training",
            "Make a running process a job, so that it counts in the queue and other jobs can wait for it", (
            arg("pid", metavar="PID", type=values.integer(2, 2**22),
                help="Process to adopt, such as a training run that you started in a shell"),
            arg("--vram", metavar="SIZE", type=values.positive_mib,
                help="Memory that it needs on each GPU, such as 18G (default: it has its GPUs to itself)"),
            arg("--gpus", metavar="LIST", type=values.gpu_indices,
                help="GPUs that it uses, such as 0,2 (default: those on which the driver lists it)"),
            attributes(lambda row: row.of_process),
            group("if no scheduler has run yet", *PROBE))),
        "import": Command("submit", "import ~/.gpuq/queue.json",
            "Queue the pending jobs of a queue.json of gpuq, and rename the file", (
            arg("file", metavar="FILE", type=path,
                help="The queue.json; after the import, it is renamed to FILE.bak"),)),
        "lint": Command("report_commands", "lint jobs.txt",
            "Show what each line of a jobs file would do, without queueing any job", (
            arg("file", metavar="FILE", nargs="?", default=config.JOBS_FILE, type=path,
                help=f"Jobs file, or - for standard input (default: {config.JOBS_FILE})"),
            LLM_CONFIG,
            gpus_option("GPUs to check the lines against", "the GPUs that the scheduler manages"),
            CONDA_SH, JSON)),
        "cancel": Command("request_commands", "cancel 3 4 --grace 30",
            "Cancel queued or running jobs, even without a running scheduler", (
            jobs("*"),
            flag("--all", "Cancel every job that has not finished"),
            GRACE)),
        "preempt": Command("request_commands", "preempt 3 --timeout 120",
            "Ask a running job to save its work and end, and hold it so that it can be resumed", (
            JOB,
            arg("--timeout", metavar="S", type=values.number(0, DAY_S, minimum=0), default=60.0,
                help="Seconds that the job may take to save its work and end; after that, it continues as"
                " if it had not been asked (default: 60)"),
            flag("--force", "End the job with SIGKILL if it has not ended after the timeout"))),
        "retry": Command("request_commands", "retry --failed",
            "Queue finished or held jobs again", (
            jobs("*"),
            flag("--failed", "Retry every job that failed"),
            arg("--set", metavar="KEY=VALUE", action="append", default=[],
                help="Change an attribute or the command of the jobs first, as with `set`; the option"
                " may be repeated"))),
        "hold": Command("request_commands", "hold 3",
            "Keep queued jobs from starting until they are released", (jobs("+"),)),
        "release": Command("request_commands", "release 3",
            "Return held jobs to the queue", (jobs("+"),)),
        "set": Command("request_commands", "set 3 vram=18G after=1,2",
            "Change attributes of a waiting job that has no line in a jobs file", (
            JOB,
            arg("changes", metavar="KEY=VALUE", nargs="+",
                help="New value of an attribute of the job, as in a jobs file, or of its command; KEY="
                " removes the attribute"))),
        "recover": Command("request_commands", "recover --all",
            "Queue interrupted jobs again, such as those that ran before a crash or a reboot", (
            jobs("*"),
            arg("--jobs", dest="listed_jobs", metavar="JOBS", type=values.job_refs, default=[],
                help="The same jobs as one word, such as 1,3 or 5-9"),
            flag("--all", "Recover every interrupted job"))),
        "clear": Command("request_commands", "clear 3 5-9",
            "Take finished jobs (without arguments, all of them) out of the lists; their history stays",
            (jobs("*"),)),
        "priority": Command("request_commands", "priority 3 0",
            "Change the priority of waiting jobs; lower numbers run first", (
            jobs("+"),
            arg("number", metavar="N", type=values.priority,
                help="New priority of the jobs: CRITICAL, HIGH, NORMAL, LOW (0, 100, 200, 300) or a"
                " number; lower numbers start first"))),
    },
    "manage GPUs": {
        "pause": Command("request_commands", "pause 0 2",
            "Keep new jobs off GPUs; running jobs continue", (*GPUS,)),
        "resume": Command("request_commands", "resume 0 2",
            "Let paused GPUs accept new jobs again; with --job, continue a job from its newest checkpoint", (
            *GPUS,
            arg("--job", metavar="JOB", type=values.single_job,
                help="Continue this held or finished job, instead of resuming GPUs"),
            arg("--from", metavar="PATH", type=path, dest="from_path",
                help="Checkpoint from which the job continues (default: the newest complete one)"))),
    },
    "use GPUs without the queue": {
        "run": Command("claim_commands",
            "run --min-free-mb 8000 -- python train.py\ndocs/run.md lists the exit codes and explains the"
            " claims.",
            "Wait for free GPUs, claim them, and execute a command on them; needs no scheduler", (
            arg("words", metavar="-- COMMAND", nargs="*", default=[],
                help="Command to execute in place of this process, with its arguments"),
            *GPU_CHOICE)),
        "wait": Command("claim_commands", "wait --min-free-mb 8000",
            "Wait for free GPUs and print their ids without claiming them, or wait for the given jobs", (
            arg("jobs", metavar="JOB", nargs="*", action="extend", type=values.job_ref, default=[],
                help="Wait until these jobs have ended, and exit with the largest of their exit codes: job"
                " numbers such as 3, ranges such as 5-9, or job names"),
            arg("--job", dest="jobs", metavar="JOB", nargs="+", action="extend", type=values.job_ref,
                help="The same jobs as an option"),
            *GPU_CHOICE)),
        "gpus": Command("claim_commands", "gpus",
            "List the GPUs of this machine with their free memory and the claims on them", (*PROBE, JSON,)),
    },
    "use the queue from other programs": {
        "token": Command("front_ends", "token create notebook",
            "Create, list or revoke the tokens with which programs and other users may use the API", (
            arg("action", metavar="create|list|revoke", choices=("create", "list", "revoke"),
                help="`create` prints a new token once; `revoke` makes one useless at once"),
            arg("name", metavar="NAME", nargs="?", help="Name of the token to create or revoke"),
            flag("--read-only", "The token changes nothing, and shows no logs, arguments or environment"
            " values"),
            flag("--logs", "The read-only token also shows logs"),
            arg("--days", metavar="N", type=values.integer(1, 36500),
                help="Days after which the token expires (default: never)"),
            JSON)),
        "link": Command("front_ends", "link",
            "Print a link that opens the web page of `serve` once, within five minutes", ()),
        "mcp": Command("front_ends", "mcp --allow-changes",
            "Offer the queue to an assistant as tools (Model Context Protocol) on stdin and stdout", (
            flag("--allow-changes", "Also offer tools that submit, cancel, hold, release and retry jobs"),
            *REMOTE)),
    },
    "notify people": {
        "notify": Command("front_ends", "notify --to ntfy://my-topic --on failed,drained",
            "Send a message when a job has ended, until it is stopped, as `start --notify` does", (
            arg("--to", metavar="URL", nargs="+", action="extend", default=[],
                help="Receivers, in the form of apprise, such as mailto://USER:PASSWORD@HOST (default: the"
                " variable GPU_SCHEDULER_NOTIFY, which `ps` does not show)"),
            arg("--to-file", metavar="FILE", type=path,
                help="File of mode 0600 with one such URL per line"),
            arg("--command", metavar="CMD", dest="shell_command",
                help="Shell command to run for each event, which gets it as JSON on its standard input"),
            arg("--on", metavar="LIST", type=values.words_of("completed", "failed", "drained"),
                default="completed,failed",
                help="Which events to report: completed, failed (every end that is neither completed nor"
                " cancelled) and drained (the last job has ended) (default: %(default)s)"),
            arg("--name", metavar="GLOB", help="Report only jobs with such a name, as in 'train/*'"),
            arg("--after", metavar="EVENT", type=int, help=argparse.SUPPRESS),
            arg("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS))),
    },
    "share a queue in Redis": {
        "redis-submit": Command("front_ends", "redis-submit train.py --gpu-memory-mb 18000 --epochs 3",
            "Add a script with its arguments to a queue in Redis, which several machines share", (
            *REDIS_SUBMIT,
            arg("script", metavar="SCRIPT", help="Script to run; a relative path is that of this folder"),
            arg("arguments", metavar="ARG", nargs=argparse.REMAINDER,
                help="Options as above, then the arguments of the script"))),
        "redis-queue": Command("front_ends", "redis-queue --json",
            "Show a queue in Redis and who holds what, or change one of its items", (
            arg("action", metavar="cancel|requeue|retry|accept-loss", nargs="?",
                choices=("cancel", "requeue", "retry", "accept-loss"),
                help="cancel: end the items or take them out of the queue; requeue: give what a machine"
                " holds to another one, although it may then run twice; retry: queue ended items again;"
                " accept-loss: no longer wait for machines that are away since Redis was restarted"),
            arg("ids", metavar="ID", nargs="*", help="Ids of the items"),
            REDIS, JSON)),
        "redis-agent": Command("front_ends", "redis-agent --dir ~/project",
            "Take jobs from a queue in Redis until it is stopped, as `start --redis` does", (
            REDIS,
            arg("--dir", metavar="DIR", type=path,
                help="Folder of scripts whose paths are relative (default: this folder)"),
            REQUEUE,
            arg("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS))),
    },
    "run jobs on Slurm": {
        "engine-agent": Command("front_ends", "engine-agent",
            "Submit jobs to Slurm and fetch their results until it is stopped, as `start --slurm` does", (
            arg("--until-eof", metavar="FD", type=int, help=argparse.SUPPRESS),)),
    },
    "maintain": {
        "doctor": Command("report_commands", "doctor",
            "Check this machine for problems without changing anything",
            (JOBS_FILE, LLM_CONFIG, LOG_DIR, *PROBE, CONDA_SH, TRUST_FILES, JSON)),
        "calibrate": Command("report_commands", "calibrate",
            "Show the memory and the time that jobs used, and suggest llm_config.json entries", (
            arg("--llm-config", metavar="PATH", type=path,
                help="File that lists the GPU needs of each model (default: the file that the scheduler"
                " uses)"),
            JSON)),
        "completion": Command("parser", "completion bash",
            "Print a script that enables completion in a shell", (
            arg("shell", metavar="SHELL", choices=("bash", "zsh", "fish"),
                help="Shell that will use the script: bash, zsh or fish"),)),
    },
}
# fmt: on
#: All commands by name.
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def function_name(command: str) -> str:
    """Returns the name of the function that runs a command, such as `import_` or `redis_queue`."""
    return f"{command}_" if keyword.iskeyword(command) else command.replace("-", "_")
