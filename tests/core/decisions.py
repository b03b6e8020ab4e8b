"""Reads from the actions of a round what it decided about jobs, attempts and GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Job, StopRequest
from gpu_scheduler.core.scheduling.actions import Action, AttemptChanged, GpuChanged, JobChanged


def changed_jobs(actions: Iterable[Action]) -> list[Job]:
    """Returns the jobs whose rows are changed, as they are afterwards."""
    return [action.new for action in actions if isinstance(action, JobChanged)]


def changed_attempts(actions: Iterable[Action]) -> list[ActiveAttempt]:
    """Returns the attempts whose rows are changed, as they are after each change."""
    return [action.new for action in actions if isinstance(action, AttemptChanged)]


def changed_gpus(actions: Iterable[Action]) -> list[Gpu]:
    """Returns the GPUs whose rows are changed, as they are afterwards."""
    return [action.new for action in actions if isinstance(action, GpuChanged)]


def end_in(actions: Iterable[Action]) -> ActiveAttempt:
    """Returns the only attempt that ends, as it is afterwards."""
    [end] = [action.new for action in actions if isinstance(action, AttemptChanged) and action.is_end]
    return end


def stops_in(actions: Iterable[Action]) -> list[tuple[int, StopRequest | None]]:
    """Returns the id of each job whose attempt is asked to stop, and the request."""
    changes = [action for action in actions if isinstance(action, JobChanged)]
    return [(one.new.id, one.new.stop) for one in changes if one.new.stop not in (None, one.old.stop)]
