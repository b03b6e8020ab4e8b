"""Formats checkpoints: where they are, and at which step they were saved."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_scheduler.core.model.checkpoint import Checkpoint


def step_text(step: float) -> str:
    """Formats a step: "step 150"."""
    return f"step {step:.15g}"


def checkpoint_text(checkpoint: Checkpoint, folder: str | None = None) -> str:
    """Formats a checkpoint: "outputs/checkpoint-150 (step 150)". folder: the folder of its job."""
    path = checkpoint.path if folder is None else path_in(checkpoint.path, folder)
    return path if checkpoint.step is None else f"{path} ({step_text(checkpoint.step)})"


def checkpoint_object(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """Returns a checkpoint as a JSON object; None if there is none."""
    return None if checkpoint is None else {"path": checkpoint.path, "step": checkpoint.step}


def path_in(path: str, folder: str) -> str:
    """Returns a path relative to the folder if it is in it, otherwise as it is."""
    within = path.removeprefix(f"{folder.rstrip('/')}/")
    return within if within != path and os.path.isabs(path) else path


def origin_text(path: str | None, step: float | None) -> str:
    """Formats from what a job resumes, shortly: "step 150", or the path if the step is unknown."""
    return path or "" if step is None else step_text(step)
