"""Decides which interrupted jobs the scheduler itself queues again (`start --recover`).

An interrupted job is held, because it may have done part of its work. The user allows recoveries for all
jobs, but a job that brings down its runner or the machine must not do so for ever. A job that has saved a
newer checkpoint in the meantime makes progress, so its recoveries are counted anew.
"""

from __future__ import annotations

from gpu_scheduler.core.model.request import InterruptedJob, JobFact
from gpu_scheduler.core.model.state_reason import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.scheduling.actions import RequeueJob
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.resumption import resumption

#: How many times the scheduler itself queues an interrupted job again, until the user does so.
MAX_RECOVERIES = 3


def recover_interrupted(facts: Facts) -> list[RequeueJob]:
    """Returns the recoveries of this round. Without `start --recover`, there are none."""
    if not facts.settings.recover:
        return []
    return [
        recovery(job, recovery_step(job.job_id, job.recoveries), recoveries=job.recoveries + 1)
        for job in facts.interrupted
        if job.recoveries < MAX_RECOVERIES
    ]


def recovery(job: InterruptedJob | JobFact, *steps: NextStep, recoveries: int = 0) -> RequeueJob:
    """Returns the action that queues an interrupted job again.

    recoveries: how many times the scheduler itself has then done so; 0 if the user asks for it.
    """
    checkpoint, added = resumption(job.checkpoint, may_resume=job.may_resume)
    reason = StateReason(ReasonKind.RECOVERED, next_steps=(*steps, *added))
    return RequeueJob(job.job_id, reason, recoveries=recoveries, checkpoint=checkpoint)


def recovery_step(job_id: int, recoveries: int) -> NextStep:
    """Returns the step that follows an interruption. recoveries: how many recoveries the job has used."""
    if recoveries < MAX_RECOVERIES:
        return NextStep(NextKind.RECOVERY, recoveries + 1, MAX_RECOVERIES)
    return NextStep(NextKind.RECOVERIES_USED_UP, of=MAX_RECOVERIES, job_id=job_id)
