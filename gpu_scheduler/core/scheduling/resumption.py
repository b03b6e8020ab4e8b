"""Decides with which checkpoint a job starts that was not queued again by `resume --job`.

Such a job gets a checkpoint only if the user has said how its command accepts one. Otherwise, it starts from
its beginning, and its next step says so.
"""

from __future__ import annotations

from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.core.model.state_reason import NextKind, NextStep


def resumption(
    checkpoint: Checkpoint | None, *, may_resume: bool
) -> tuple[Checkpoint | None, tuple[NextStep, ...]]:
    """Returns the checkpoint with which the next attempt starts, and the step that tells so.

    checkpoint: the newest one of the job. may_resume: whether the command is known to accept one.
    """
    if checkpoint is None:
        return None, ()
    kind = NextKind.RESUME if may_resume else NextKind.START_OVER
    step = NextStep(kind, checkpoint=checkpoint.path, step=checkpoint.step)
    return (checkpoint if may_resume else None), (step,)
