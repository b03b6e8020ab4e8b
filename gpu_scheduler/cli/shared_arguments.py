"""Declares the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from gpu_scheduler import config
from gpu_scheduler.cli import values
from gpu_scheduler.cli.values import path

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
