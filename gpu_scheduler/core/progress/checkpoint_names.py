"""Recognises checkpoints by the names of their files and folders."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


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
