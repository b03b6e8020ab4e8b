"""What each command takes: its arguments and options, declared. Nothing is looked up or done here."""

from __future__ import annotations

import argparse

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

#: What takes options: a parser, or a group of it.
_Options = argparse.ArgumentParser | argparse._ArgumentGroup

_START = config.StartOptions()
_DAY_S = 86400
#: The most that a tolerance or a buffer may be, as a part of what it is added to.
_PARTS = 10
_PRIORITY = values.whole(-(10**9) + 1, 10**9 - 1)


def start(parser: argparse.ArgumentParser) -> None:
    """The scheduler's own."""
    _start_jobs(parser.add_argument_group("jobs"))
    _start_gpus(parser.add_argument_group("GPUs"))
    _start_memory(parser.add_argument_group("memory of jobs"))
    _start_launches(parser.add_argument_group("launches and retries"))
    _start_self(parser.add_argument_group("the scheduler itself"))


def _start_jobs(group: argparse._ArgumentGroup) -> None:
    _jobs_file(group, None)
    end = group.add_mutually_exclusive_group().add_argument
    end("--drain", action="store_true", help="end when no job can run any more; exit code of the jobs")
    end("--watch", action="store_true",
        help="go on for new lines (default, but for a jobs file in the place of start)")  # fmt: skip
    _llm_config(group)
    option = group.add_argument
    history = group.add_mutually_exclusive_group().add_argument
    history("--fresh", action="store_true", help="forget all jobs first; asks on a terminal")
    history("--keep-history", action="store_true",
            help="go on with jobs recorded on simulated GPUs, or back on such GPUs")  # fmt: skip
    history("--restore", action="store_true",
            help="rebuild a lost record from its newest backup and the attempt folders")  # fmt: skip
    option("--yes", action="store_true", help="--fresh does not ask")


def _start_gpus(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    _gpus(group)
    _probe(group)
    option("--poll", metavar="S", type=values.number(0.1, 3600, least=0.1), default=_START.poll_s,
           help="time between two looks at the GPUs (default: 5)")  # fmt: skip
    option("--mem-threshold", metavar="X", type=values.number(0, 1), default=_START.mem_threshold,
           help="fraction of a GPU's memory in use by other users' processes at which it accepts no new jobs"
           " without vram= (above 0, at most 1; default: 0.8)")  # fmt: skip
    option("--load-threshold", metavar="X", type=values.number(0, 1), default=_START.load_threshold,
           help="load of a GPU by other users' processes at which it accepts no new jobs"
           " (above 0, at most 1; default: 0.8)")  # fmt: skip
    option("--idle-threshold", metavar="MIB", type=values.mib, default=_START.idle_threshold_mib,
           help="memory that other users' processes may use of a GPU without counting as there"
           " (default: 200)")  # fmt: skip
    option("--exclusive", action="store_true", help="one job at a time on each GPU")
    option("--cuda-ids", choices=("physical", "visible"), default=_START.cuda_ids,
           help="the ids given by --cuda to scripts (default: physical)")  # fmt: skip


def _start_memory(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    option("--margin", metavar="MIB", type=values.mib, default=_START.margin_mib,
           help="memory left free where vram is declared: 512, 1G, 0 (default: 512)")  # fmt: skip
    option("--spike-buffer", metavar="X", type=values.number(0, _PARTS, least=0),
           default=_START.spike_buffer, help="part added to peaks that were seen (default: 0.1)")  # fmt: skip
    option("--tolerance", metavar="X", type=values.number(0, _PARTS, least=0), default=_START.tolerance,
           help="part by which a declaration may be off before it is said (default: 0.1)")  # fmt: skip
    option("--learn", action="store_true", help="jobs that declare nothing need what their kind used before")
    option("-v", "--verbose", action="store_true", help="tell each job's memory as its peak grows")


def _start_launches(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    option("--screen", action="store_true", help="run each job in a GNU Screen session of its own")
    _conda_sh(group)
    option("--oom-retries", metavar="N", type=values.whole(0, 1000), default=_START.oom_retries,
           help="runs again after CUDA out of memory, with more (default: 0)")  # fmt: skip
    option("--fail-retries", metavar="N", type=values.whole(0, 1000), default=_START.fail_retries,
           help="runs again after any failure (default: 0)")  # fmt: skip
    option("--max-assign-attempts", metavar="N", type=values.whole(1, 1000),
           default=_START.max_assign_attempts, help="tries to launch a job (default: 5)")  # fmt: skip
    option("--assign-retry-wait", metavar="S", type=values.number(0, 3600, least=0),
           default=_START.assign_retry_wait_s, help="wait after a failed one (default: 5)")  # fmt: skip


def _start_self(group: argparse._ArgumentGroup) -> None:
    interval = values.number(0, _DAY_S)
    option = group.add_argument
    option("--monitor-interval", metavar="S", type=interval, default=_START.monitor_interval_s,
           help="longest time until a change of the jobs file is seen (default: 30)")  # fmt: skip
    option("--state-interval", metavar="S", type=interval, default=_START.state_interval_s,
           help="longest time until an edit of the state file is seen (default: 20)")  # fmt: skip
    _log_dir(group)
    option("--daemon", action="store_true", help="go on in the background once it is up; print pid and log")
    option("--ignore-old-sessions", action="store_true",
           help="start although jobs of the older scheduler still run in Screen")  # fmt: skip
    option("--take-over", action="store_true", help="go on with the record of another host, which is gone")
    option("--as-copy", action="store_true",
           help="go on with a copied record; jobs that run in the original are held here")  # fmt: skip
    _trust_files(group)


def _gpus(parser: _Options) -> None:
    parser.add_argument("--gpus", metavar="N|LIST", type=values.gpu_choice,
                        help="a count (4), or a list (0,2,3; GPU 3 alone: 3,)")  # fmt: skip


def _jobs_file(parser: _Options, default: str | None = config.JOBS_FILE) -> None:
    """default None: whether it was given is told apart."""
    parser.add_argument("--jobs-file", metavar="PATH", default=default,
                        help=f'"" watches none (default: {config.JOBS_FILE})')  # fmt: skip


def _llm_config(parser: _Options) -> None:
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help=f"default: {config.LLM_CONFIG}, if it is there")  # fmt: skip


def _log_dir(parser: _Options) -> None:
    parser.add_argument("--log-dir", metavar="DIR", type=path,
                        help="job logs (default: /tmp/gpu_scheduler_logs)")  # fmt: skip


def _trust_files(parser: _Options) -> None:
    parser.add_argument("--trust-files", action="store_true",
                        help="use files that others own, or that everybody may write")  # fmt: skip


def _probe(parser: _Options) -> None:
    parser.add_argument("--gpu-probe", choices=("auto", "nvml", "gputil", "simulated"),
                        default=_START.gpu_probe,
                        help="who reads the GPUs (default: auto = NVML, else GPUtil)")  # fmt: skip
    simulated = parser.add_mutually_exclusive_group().add_argument
    simulated("--simulate", metavar="N", help="simulated GPUs: 4 (24 GiB each), 4:80G, 2:24G,2:80G")
    simulated("--sim", metavar="N", dest="simulate", help="the same as --simulate")


def _conda_sh(parser: _Options) -> None:
    parser.add_argument("--conda-sh", metavar="PATH", type=path,
                        help="profile.d/conda.sh, where it is not found")  # fmt: skip


def _json(parser: _Options) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable, see docs/json.md")


def add(parser: argparse.ArgumentParser) -> None:
    """The fields of a CSV line, and the attributes of a line. A command is what stands behind `--`."""
    option = parser.add_argument
    option("script", metavar="SCRIPT | -- COMMAND", nargs="?",
           help="Python script, whose path is made absolute; or any command")  # fmt: skip
    option("--conda", metavar="ENV", help="conda environment (default: base; of a command: none)")
    option(
        "--args",
        metavar='"…"',
        default="",
        type=lambda text: text.removeprefix(" "),
        help='arguments of the script, such as "--epochs 3"',
    )
    option("--priority", metavar="N", type=_PRIORITY, default=0,
           help="lower numbers run first (default: 0)")  # fmt: skip
    option("--gpus", metavar="LIST", default="", help="GPUs that it may use: 0,2 or 0-3 (default: any)")
    option("--output-file", metavar="PATH", default=config.JOBS_FILE, type=path,
           help=f"jobs file; - only prints the line (default: {config.JOBS_FILE})")  # fmt: skip
    _attributes(parser.add_argument_group("attributes"))


def _attributes(group: argparse._ArgumentGroup) -> None:
    """Those that a block of a line may have, less those that have an option above, and `cancel`."""
    from gpu_scheduler.core.attributes import MEANINGS, SYNONYMS

    for key, (form, does) in MEANINGS.items():
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
    """A jobs file, and what its lines are judged by."""
    parser.add_argument("file", metavar="FILE", nargs="?", default=config.JOBS_FILE, type=path,
                        help=f"jobs file; - is the standard input (default: {config.JOBS_FILE})")  # fmt: skip
    _llm_config(parser)
    _gpus(parser)
    _conda_sh(parser)
    _json(parser)


def status(parser: argparse.ArgumentParser) -> None:
    """What is shown, and how."""
    way = parser.add_mutually_exclusive_group()
    _json(way)
    way.add_argument("--watch", metavar="SECONDS", nargs="?", const=2.0,
                     type=values.number(0, 3600, least=0.1),
                     help="show it again and again, every 2 s by default, until Ctrl-C")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every queued and finished job, a line each")
    parser.add_argument("--failed", action="store_true", help="of the jobs only those that failed")
    parser.add_argument("-v", "--verbose", action="store_true", help="also paths, sessions, logs and memory")


def gpus(parser: argparse.ArgumentParser) -> None:
    """GPUs, one or more."""
    parser.add_argument("ids", metavar="ID", nargs="+", type=values.gpu_ids,
                        help="GPU ids such as 0, 0,2 or 0-3, or all")  # fmt: skip


def screens(parser: argparse.ArgumentParser) -> None:
    """How they are shown."""
    _json(parser)


def one_job(parser: argparse.ArgumentParser) -> None:
    """A job."""
    parser.add_argument("job", metavar="JOB", type=values.job,
                        help="its number, as `status` shows it, or its name")  # fmt: skip


def show(parser: argparse.ArgumentParser) -> None:
    """A job, and how it is told."""
    one_job(parser)
    _json(parser)


def why(parser: argparse.ArgumentParser) -> None:
    """A job, and how much is told."""
    show(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="all checks, also of a job that failed")


def _some_jobs(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs=nargs, type=values.jobs,
                        help="numbers such as 3 or 5-9, and names")  # fmt: skip


def jobs(parser: argparse.ArgumentParser) -> None:
    """Jobs, one or more."""
    _some_jobs(parser, "+")


def retry(parser: argparse.ArgumentParser) -> None:
    """Jobs, or those that failed."""
    _some_jobs(parser, "*")
    parser.add_argument("--failed", action="store_true", help="every job that failed")


def logs(parser: argparse.ArgumentParser) -> None:
    """A job, and how much of its log."""
    one_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("-n", "--lines", metavar="LINES", type=values.whole(0, 10**9 - 1),
                        help="only the last ones (default: all)")  # fmt: skip
    parser.add_argument("--attempt", metavar="K", type=values.whole(1, 10**9 - 1),
                        help="its Kth attempt, from 1 (default: the newest)")  # fmt: skip
    parser.add_argument("--raw", action="store_true",
                        help="every byte, as the job wrote it; else only text, colours and progress bars"
                             " are printed, in a pipe the last frame of each bar")  # fmt: skip


def events(parser: argparse.ArgumentParser) -> None:
    """How much of what happened, and how it is told."""
    parser.add_argument("--jsonl", action="store_true", help="as JSON, an object a line, see docs/json.md")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens, until Ctrl-C")
    parser.add_argument("-n", "--lines", metavar="N", type=values.whole(0, 10**9 - 1),
                        help="only the last ones (default: all)")  # fmt: skip


def _grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="S", type=values.number(0, _DAY_S, least=0), default=10.0,
                        help="seconds between SIGTERM and SIGKILL (default: 10)")  # fmt: skip


def cancel(parser: argparse.ArgumentParser) -> None:
    """Jobs, or all of them."""
    _some_jobs(parser, "*")
    parser.add_argument("--all", action="store_true", help="every job that is not finished")
    _grace(parser)


def priority(parser: argparse.ArgumentParser) -> None:
    """Jobs, then the number."""
    jobs(parser)
    parser.add_argument("number", metavar="N", type=_PRIORITY, help="the priority; lower numbers run first")


def calibrate(parser: argparse.ArgumentParser) -> None:
    """The file that is compared, and whether it is changed."""
    parser.add_argument("--llm-config", metavar="PATH", type=path,
                        help="default: the one that the scheduler goes by")  # fmt: skip
    parser.add_argument("--write", action="store_true",
                        help="put the suggested entries there, keeping a copy of the file")  # fmt: skip
    _json(parser)


def doctor(parser: argparse.ArgumentParser) -> None:
    """What `start` would be given."""
    _jobs_file(parser)
    _llm_config(parser)
    _log_dir(parser)
    _probe(parser)
    _conda_sh(parser)
    _trust_files(parser)
    _json(parser)


def completion(parser: argparse.ArgumentParser) -> None:
    """A shell."""
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def stop(parser: argparse.ArgumentParser) -> None:
    """Whether jobs end too."""
    parser.add_argument("--jobs", action="store_true", help="cancel the running jobs too")
    _grace(parser)
