"""Decides what the agent of an engine does next for one attempt (docs/design.md, Engines).

Pure: `next_steps` maps what was seen, and what is remembered of earlier looks, to steps. All times are those
of the agent's own monotonic clock, in seconds.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.engines.engine import EngineJob

#: Seconds after which a submission whose answer was lost, or whose job is gone, is repeated.
SUBMIT_AGAIN_S = 30.0
GONE_S = 120.0
#: Seconds for which the heartbeat must stand still until the runner counts as dead.
DEAD_S = 720.0


class Step(Enum):
    """One thing to do. WRITE: write the file `engine`. CANCEL: ask the engine for it, from time to time."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    VOID = "void"
    WRITE = "write"
    DECLARE_DEAD = "declare dead"


class Seen(Struct, frozen=True):
    """The observations of one look at an attempt.

    has_claim, has_result: whether a runner has claimed it, and has published its end. is_void: whether its
    claim is void. heartbeat: the counter of the runner's machine; None if there is none. job: what the engine
    says; None if it knows no such job. gives_up: whether the loop wants the claim to be void; kills: whether
    it wants the engine to end the attempt. took_s: the seconds that the look took.
    """

    has_claim: bool = False
    is_void: bool = False
    has_result: bool = False
    heartbeat: int | None = None
    job: EngineJob | None = None
    gives_up: bool = False
    kills: bool = False
    took_s: float = 0.0


class Memory(Struct, frozen=True):
    """The agent's memory of an attempt. A restart forgets all of it, which only delays, because the file
    `submitted` shows that there may be a job.

    submitted_at: when the agent last tried to submit it; None if it has not. job_at: when the engine last
    knew it. heartbeat, heartbeat_at: the newest counter, and when it was first read.
    """

    submitted_at: float | None = None
    job_at: float | None = None
    heartbeat: int | None = None
    heartbeat_at: float | None = None


class Plan(Struct, frozen=True):
    """The steps for an attempt, in their order, and what to remember. reason: why its claim becomes void, in
    the engine's words; is_cancelled: whether others have cancelled it there."""

    steps: tuple[Step, ...]
    memory: Memory
    reason: str = ""
    is_cancelled: bool = False


def next_steps(seen: Seen, memory: Memory, now: float, scale: float = 1.0) -> Plan:
    """Returns what to do. The engine and the folder have both just answered. scale: divides all times."""
    job = seen.job
    if job is not None:
        memory = replace(memory, job_at=now)
    if memory.heartbeat_at is None or seen.heartbeat != memory.heartbeat:
        memory = replace(memory, heartbeat=seen.heartbeat, heartbeat_at=now)
    may_end = job is not None and job.state != "ended"
    if seen.has_result or seen.is_void:
        return Plan((Step.CANCEL,) if seen.is_void and may_end else (), memory)
    if seen.has_claim:
        steps = [Step.WRITE]
        if seen.kills and may_end:
            steps.append(Step.CANCEL)
        # The answer of a file server that hangs, or of an agent that was stopped, may be as old as the look.
        still_s = now - seen.took_s - (memory.heartbeat_at if memory.heartbeat_at is not None else now)
        if still_s >= DEAD_S / scale and (job is None or job.state != "running"):
            # One that is pending was requeued, and its next runner cannot claim the attempt.
            steps = [Step.DECLARE_DEAD]
        return Plan(tuple(steps), memory)
    if seen.gives_up:
        return Plan((Step.VOID, Step.CANCEL), memory)
    if job is not None and job.state == "ended":
        # Slurm itself cancels a job whose node says that it runs it already, so only one that never started
        # was certainly cancelled by somebody.
        is_cancelled = job.was_cancelled and not job.node
        return Plan((Step.VOID,), memory, job.reason or "it ended before its runner began", is_cancelled)
    if job is not None:
        return Plan((Step.WRITE,), memory)
    last = max((at for at in (memory.submitted_at, memory.job_at) if at is not None), default=None)
    wait_s = SUBMIT_AGAIN_S if memory.job_at is None else GONE_S
    if last is None or now - last >= wait_s / scale:
        return Plan((Step.SUBMIT,), memory)
    return Plan((), memory)
