"""Builds the specification of a training job, and checkpoints as training programs write them."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from gpu_scheduler.core.model.job_spec import JobSpec


def spec(folder: Path, *arguments: str, **values: Any) -> JobSpec:
    """Returns a job that runs train.py with these arguments in a folder."""
    return JobSpec("csv", "train.py", str(folder), script="train.py", arguments=arguments, **values)


def trainer_checkpoint(path: Path, saved_at: float, *, max_steps: int = 300, whole: bool = True) -> Path:
    """Writes a checkpoint of the Hugging Face Trainer. whole: whether the Trainer has finished writing it."""
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    if whole:
        state = {"global_step": int(path.name.rpartition("-")[2]), "log_history": [{"step": 1}] * 200}
        text = json.dumps({**state, "max_steps": max_steps, "num_train_epochs": 3}, indent=2)
        (path / "trainer_state.json").write_text(text + "\n")
        os.utime(path / "trainer_state.json", (saved_at, saved_at))
    os.utime(path, (saved_at, saved_at))
    return path


def zip_checkpoint(path: Path, saved_at: float, *, whole: bool = True) -> Path:
    """Writes a file as `torch.save` does. whole: whether it has been written to its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"weights" * 1000)
    if not whole:
        os.truncate(path, path.stat().st_size - 30)
    os.utime(path, (saved_at, saved_at))
    return path
