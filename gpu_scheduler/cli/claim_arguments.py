"""Declares the options of `run`, `wait` and `gpus`. Nothing is executed here."""

from __future__ import annotations

import argparse

from gpu_scheduler.cli import values
from gpu_scheduler.cli.shared_arguments import probe_options, shared_options

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
