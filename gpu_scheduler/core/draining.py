"""Decides when a draining scheduler may exit, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_scheduler.core.facts import Facts
from gpu_scheduler.core.needs import Ask
from gpu_scheduler.core.placement import could_fit
from gpu_scheduler.core.planning import need_of
from gpu_scheduler.core.states import JobState, Outcome


@dataclass(frozen=True)
class Ending:
    """The state of one job when the scheduler exits, with its result if finished. malformed: it waits for its
    line to be corrected."""

    state: JobState
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    malformed: bool = False


def drained(facts: Facts, asks: Iterable[Ask], retries: bool) -> bool:
    """Returns whether no job is live and none can become runnable without the user.

    specs: of all queued jobs, except those that wait for their lines; has_pending_retries: some queued job
    waits for its next try. Only the user can resume a paused GPU; a lost GPU, or one in foreign use, may
    become available by itself.
    """
    asks = list(asks)
    if retries or facts.wishes or facts.attempts or (asks and not facts.complete):
        return False
    return all(_needs_the_user(ask, facts) for ask in asks)


def _needs_the_user(ask: Ask, facts: Facts) -> bool:
    need = need_of(ask, facts)
    usable = [
        gpu
        for gpu in facts.gpus
        if not gpu.paused
        and (ask.allowed is None or gpu.index in ask.allowed)
        and could_fit(need, gpu.sample.total_mib if gpu.sample else None, facts.settings.limits)
    ]
    return need.count > len(usable)


def exit_code(endings: Iterable[Ending], malformed: bool) -> int:
    """Returns 0 if every job completed, else the largest code of any job.

    That is its own exit code, 128 + its signal, 124 for timed out, 3 for held or infeasible, and 1 for
    anything else, including a malformed line and the job that waits for it.
    """
    return max([*(_code(ending) for ending in endings), int(malformed)], default=0)


def _code(ending: Ending) -> int:
    if ending.state is not JobState.FINISHED:
        return 1 if ending.malformed and ending.state is JobState.QUEUED else 3
    if ending.outcome is Outcome.COMPLETED:
        return 0
    if ending.outcome is Outcome.TIMED_OUT:
        return 124
    if ending.outcome is Outcome.FAILED and ending.signal:
        return 128 + ending.signal
    if ending.outcome is Outcome.FAILED and ending.exit_code:
        return ending.exit_code
    return 1
