"""Reads the options of a job's command that tell how much work the job has and where it saves checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.job_spec import JobSpec

_STEPS = (
    "max_steps", "total_steps", "num_steps", "max_train_steps", "num_train_steps", "train_steps", "max_iters",
    "max_iter", "num_iters", "iterations", "trainer.max_steps",
)  # fmt: skip
_EPOCHS = (
    "num_train_epochs", "max_epochs", "max_epoch", "num_epochs", "n_epochs", "epochs", "trainer.max_epochs",
)  # fmt: skip


class RunOptions(Struct, frozen=True):
    """The values that the options of a command give. Values that are missing or not positive are None.

    max_steps, epochs: how many there are; max_steps takes precedence, as in the Hugging Face Trainer.
    output_dir: the folder for the checkpoints, as written. command: the text of the command, in lower case.
    """

    max_steps: float | None = None
    epochs: float | None = None
    output_dir: str | None = None
    command: str = ""

    @classmethod
    def of(cls, spec: JobSpec) -> RunOptions:
        """Returns the options of a job's command."""
        return cls(
            _positive(_values(spec, _STEPS)),
            _positive(_values(spec, _EPOCHS)),
            output_option(spec)[1],
            " ".join(filter(None, [spec.script, *spec.words()])).lower(),
        )


def output_option(spec: JobSpec) -> tuple[str, str | None]:
    """Returns the option that names the folder for the checkpoints, as written, and its value, if any."""
    given = ((f"--{name}", spec.option(name)) for name in ("output_dir", "output-dir"))
    return next((option for option in given if option[1] is not None), ("--output_dir", None))


def _values(spec: JobSpec, names: Iterable[str]) -> list[str]:
    """Returns the values of these options, also of those written with "-" instead of "_"."""
    spellings = (name for each in names for name in (each, each.replace("_", "-")))
    return [value for name in dict.fromkeys(spellings) if (value := spec.option(name)) is not None]


def _positive(values: Iterable[str]) -> float | None:
    for value in values:
        try:
            number = float(value.replace("_", ""))
        except ValueError:
            continue
        if 0 < number < float("inf"):
            return number
    return None


# Recognises checkpoints by the names of their files and folders.


class CheckpointKind(Enum):
    """Kinds of checkpoints. A job cannot resume from COMPLETIONS, which only show how far it is.

    TRAINER: a folder of the Hugging Face Trainer. LIGHTNING: a file of PyTorch Lightning. COMPLETIONS: a
    file of TRL. PATTERN: matches the attribute `checkpoints` of the job.
    """

    TRAINER = "trainer"
    LIGHTNING = "lightning"
    COMPLETIONS = "completions"
    PATTERN = "pattern"


class CheckpointName(NamedTuple):
    """The contents of a checkpoint's name. step, epoch: None if the name has none; epoch counts from 0."""

    kind: CheckpointKind
    step: float | None
    epoch: float | None = None


_TRAINER = re.compile(r"checkpoint-(\d{1,15})")
_LIGHTNING = re.compile(r"(?:.*-)?epoch=(\d{1,15})-step=(\d{1,15})(?:-.*)?\.ckpt")
_COMPLETIONS = re.compile(r"completions_(\d{1,15})\.parquet")
_NUMBER = re.compile(r"\d{1,15}")
_EXTENSION = re.compile(r"\.[A-Za-z]\w*$")


def parse_name(name: str) -> CheckpointName | None:
    """Returns what the name of a file or folder says; None if it is not the name of a checkpoint."""
    if found := _TRAINER.fullmatch(name):
        return CheckpointName(CheckpointKind.TRAINER, float(found[1]))
    if found := _LIGHTNING.fullmatch(name):
        return CheckpointName(CheckpointKind.LIGHTNING, float(found[2]), float(found[1]))
    if found := _COMPLETIONS.fullmatch(name):
        return CheckpointName(CheckpointKind.COMPLETIONS, float(found[1]))
    return None


def matched_name(name: str) -> CheckpointName:
    """Returns what the name of a file that matches the attribute `checkpoints` says.

    The last number in a name that is none of the known names is the step.
    """
    known = parse_name(name)
    if known is not None and known.kind is not CheckpointKind.COMPLETIONS:
        return known
    numbers = _NUMBER.findall(_EXTENSION.sub("", name))
    return CheckpointName(CheckpointKind.PATTERN, float(numbers[-1]) if numbers else None)


def step_in(path: str) -> float | None:
    """Returns the step that the path of a checkpoint names; None if it names none."""
    return matched_name(path.rstrip("/").rpartition("/")[2]).step
