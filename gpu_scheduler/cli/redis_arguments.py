"""Declares the arguments of `redis-submit` and `redis-queue`."""

from __future__ import annotations

import argparse

from gpu_scheduler.cli import values
from gpu_scheduler.cli.shared_arguments import shared_options
from gpu_scheduler.cli.start_arguments import redis_url


def submit(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `redis-submit`."""
    option = parser.add_argument
    submit_options(parser)
    option("script", metavar="SCRIPT", help="Script to run; a relative path is that of this folder")
    option(
        "arguments",
        metavar="ARG",
        nargs=argparse.REMAINDER,
        help="Options as above, then the arguments of the script",
    )


def submit_options(parser: argparse.ArgumentParser) -> None:
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


def queue(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `redis-queue`."""
    parser.add_argument("action", metavar="cancel|requeue|retry|accept-loss", nargs="?",
                        choices=("cancel", "requeue", "retry", "accept-loss"),
                        help="cancel: end the items or take them out of the queue; requeue: give what a"
                        " machine holds to another one, although it may then run twice; retry: queue ended"
                        " items again; accept-loss: no longer wait for machines that are away since Redis was"
                        " restarted")  # fmt: skip
    parser.add_argument("ids", metavar="ID", nargs="*", help="Ids of the items")
    redis_url(parser)
    shared_options(parser, "--json")
