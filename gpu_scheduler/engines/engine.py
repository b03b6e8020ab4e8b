"""Defines the port to an engine, a cluster scheduler on which attempts run.

Only the agent calls an engine. Every method may take up to a minute, and raises EngineUnavailableError if the
engine does not answer, so that nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

#: The name of an engine's job is this, followed by the token of its attempt.
NAME_PREFIX = "gpusched-"


class EngineUnavailableError(Exception):
    """The engine does not answer, its answer was lost, or it takes no jobs now. The text says why."""


class RefusedError(Exception):
    """The engine refuses an order for good. The text is the engine's reason."""


class Resources(Struct, frozen=True):
    """The resources of one job of an engine, on one node.

    gpus: the number of GPUs. share: the part of a GPU in thousandths, if the job needs less than one; else
    None. gpu_type: the type of its GPUs as the engine names it; None for any. time_limit_s: the seconds after
    which the engine may end it; None for the engine's own limit.
    """

    gpus: int = 0
    share: int | None = None
    gpu_type: str | None = None
    time_limit_s: float | None = None


class Order(Struct, frozen=True):
    """An attempt to be run: its token, its folder on the shared file system, and its resources."""

    token: str
    folder: str
    resources: Resources


class EngineJob(Struct, frozen=True):
    """The job of one attempt, as the engine describes it.

    native_id: its id in the engine. node: where it runs or ran; "" if it has not started. reason: why it
    waits or how it ended, in the engine's own words; "" if the engine says nothing. was_cancelled: whether a
    user or an administrator has cancelled it.
    """

    state: Literal["pending", "running", "ended"]
    native_id: str
    node: str = ""
    reason: str = ""
    was_cancelled: bool = False


class Engine(Protocol):
    """A cluster scheduler. None of its methods may be called by the loop."""

    def submit(self, order: Order) -> None:
        """Submits the job of an attempt, once. Raises RefusedError and EngineUnavailableError.

        After EngineUnavailableError, the job may have been submitted: only `jobs` shows whether it was.
        """

    def jobs(self) -> Mapping[str, EngineJob]:
        """Returns all jobs of this user that the engine knows and whose names are ours, by token.

        If several jobs have one name, the one that runs counts, else the one that waits, else the latest.
        """

    def cancel(self, token: str) -> None:
        """Cancels all jobs with the name of this attempt. Does nothing if there is none."""

    def problem(self, resources: Resources) -> str | None:
        """Returns why the engine can never run a job with these resources; None if it can or may.

        Nodes that are busy, drained or down at present are no reason. Raises EngineUnavailableError.
        """
