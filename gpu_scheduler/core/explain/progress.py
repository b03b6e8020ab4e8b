"""Estimates when a job will finish, and reads what its options and checkpoints show about its progress.

The estimate is elapsed time x remaining work / work done in that time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.job import Checkpoint, Progress
from gpu_scheduler.core.model.job_spec import JobSpec

#: A longer estimate, of more than ten years, says only that the job has hardly begun.
_MAX_LEFT_S = 10 * 365 * 86400.0
#: Number of first readings of a log that show how much was done before it.
FIRST_READINGS = 5
#: A lone reading shows that an attempt began with nothing if it is at most this part of the total.
_NEAR_BEGINNING = 0.05
#: Factor by which the first reading may exceed the greatest step between the next ones.
_UNEVEN = 1.5


class JobProgress(Struct, frozen=True):
    """The progress of a job at one moment, as far as it is known.

    progress: None if nothing shows it. checkpoint: the newest complete checkpoint, None if there is none.
    remaining_s, finish_at: the estimated seconds until the job finishes, and when that is in wall seconds;
    None if the evidence does not carry an estimate.
    """

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    remaining_s: float | None = None
    finish_at: float | None = None

    @property
    def percent(self) -> float | None:
        """The part that is done in percent, at most 100; None if unknown."""
        fraction = None if self.progress is None else self.progress.fraction
        return None if fraction is None else 100 * fraction


def remaining_s(
    progress: Progress, first: Progress | None = None, *, started_at: float | None, now: float
) -> float | None:
    """Returns the estimated seconds until a job finishes; None if the evidence does not carry an estimate.

    first: the first known reading of the attempt, which may be `progress` itself; only the work after it
    counts, unless it is near the beginning. If its moment is unknown, it is what was done at the start; a job
    that counts less than that counts only its own work. None if there is none. started_at, now: in wall
    seconds. Evidence from an earlier moment is extrapolated from that moment, so that the estimate decreases
    until the next evidence; once it is used up, there is none.
    """
    before = 0.0 if first is None else first.current
    if first is not None and first.at is not None:
        if work_before([before], first.total or 0.0) == 0:
            before = 0.0
        else:
            started_at = first.at
    if progress.total is None or progress.is_complete:
        return None
    at = now if progress.at is None else min(progress.at, now)
    elapsed = progress.elapsed_s
    if elapsed is None:
        elapsed = None if started_at is None else at - started_at
    done = progress.current - (before if before <= progress.current else 0.0)
    if elapsed is None or elapsed <= 0 or done <= 0:
        return None
    left = elapsed * (progress.total - progress.current) / done - (now - at)
    return left if 0 < left <= _MAX_LEFT_S else None


def work_before(readings: Sequence[float], total: float) -> float | None:
    """Returns how many units were done when an attempt started; None if its readings do not show it.

    readings: the first values above 0 of its counter, which grow. If the program has resumed by itself, the
    first one is farther from 0 than from the next one.
    """
    if not readings:
        return 0.0
    steps = [after - before for before, after in pairwise(readings)]
    if not steps:
        return 0.0 if readings[0] <= max(1.0, _NEAR_BEGINNING * total) else None
    return 0.0 if readings[0] <= _UNEVEN * max(steps) else readings[0] - max(steps)


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
            _number(spec, _STEPS),
            _number(spec, _EPOCHS),
            output_option(spec)[1],
            " ".join(filter(None, [spec.script, *spec.words()])).lower(),
        )


def output_option(spec: JobSpec) -> tuple[str, str | None]:
    """Returns the option that names the folder for the checkpoints, as written, and its value, if any."""
    given = ((f"--{name}", spec.option(name)) for name in ("output_dir", "output-dir"))
    return next((option for option in given if option[1] is not None), ("--output_dir", None))


def _number(spec: JobSpec, names: Iterable[str]) -> float | None:
    """Returns the first positive number that one of these options has, which may be written with "-"."""
    for name in (spelling for each in names for spelling in (each, each.replace("_", "-"))):
        try:
            number = float((spec.option(name) or "").replace("_", ""))
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
