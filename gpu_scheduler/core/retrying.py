"""Decides whether a job whose command failed runs again, with more memory if CUDA ran out of it.

Only an OOM uses an OOM retry, so that no other failure is hidden by one (docs/design.md, Reconciling). The
job then needs 1.25 times the memory that was observed or declared, limited by the largest GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.core.facts import Attempt, Settings
from gpu_scheduler.core.ledger import Booking, memory_of
from gpu_scheduler.core.units import shown_mib

#: Factor by which the memory that was observed or declared is raised after an OOM.
RAISE = 1.25
#: Wait before the first retry of a failure, doubled each time, and the longest wait, seconds.
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 600.0


@dataclass(frozen=True)
class Cards:
    """The memory of the GPUs that a job may use, MiB.

    totals_mib: by UUID; available_mib: the most that as many GPUs as the job needs can each give to one job;
    None = unknown.
    """

    totals: Mapping[str, int] = field(default_factory=dict)
    room_mib: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The decision on a failed job. retry: queue it again after `wait_s` seconds; message: the reason."""

    again: bool
    told: str = ""
    wait_s: float = 0.0
    raised_mib: int | None = None
    oom: bool = False


def after_failure(attempt: Attempt, settings: Settings, cards: Cards) -> Verdict:
    """Decides whether a job is retried after its command began and failed."""
    evidence = attempt.evidence
    if evidence is None or attempt.lineless or attempt.cancel is not None:
        return Verdict(False)
    from gpu_scheduler.core.oom import cuda_oom  # its expressions take 20 ms, and few rounds need them

    oom = cuda_oom(evidence.tail) is not None
    allowed = settings.oom_retries if evidence.oom_retries is None else evidence.oom_retries
    gave_up = ""
    if oom and attempt.oom_used < allowed:
        if not _is_at_most(attempt, cards):
            raised = _raised(attempt, settings, cards)
            more = f" with {shown_mib(raised)} per GPU" if raised is not None else ""
            return Verdict(
                True, f"OOM retry {attempt.oom_used + 1} of {allowed}{more}", 0.0, raised, oom=True
            )
        had = attempt.vram or max(map(cards.totals.__getitem__, attempt.gpus))
        gave_up = f"no larger GPU: it already had {shown_mib(had)}, the most available"
    elif oom and allowed:
        gave_up = f"OOM retries used up ({allowed})"
    times = settings.fail_retries if evidence.fail_retries is None else evidence.fail_retries
    if attempt.fail_used < times:
        wait = min(FIRST_WAIT_S * 2**attempt.fail_used, LONGEST_WAIT_S)
        message = f"retry {attempt.fail_used + 1} of {times} in {wait:g} s"
        return Verdict(True, f"{gave_up}; {message}" if gave_up else message, wait)
    return Verdict(False, gave_up)


def _is_at_most(attempt: Attempt, cards: Cards) -> bool:
    """Returns whether it had the most memory available, by its declaration or on GPUs of its own."""
    if cards.room_mib is None:
        return False
    if attempt.vram is not None:
        return attempt.vram >= cards.room_mib
    return attempt.whole and all(cards.totals.get(uuid, 0) >= cards.room_mib for uuid in attempt.gpus)


def _raised(attempt: Attempt, settings: Settings, cards: Cards) -> int | None:
    """Returns 1.25 x max(observed peak, declaration) of the GPU where that is largest, limited by the memory
    available, in MiB; None if neither is known."""
    spike = settings.limits.spike
    declared = Booking(attempt.share, attempt.vram, attempt.whole)
    budgets = [memory_of(declared, cards.totals.get(uuid, 0), spike) for uuid in attempt.gpus]
    raised = math.ceil(RAISE * max([*attempt.peaks.values(), *budgets], default=0))
    most = raised if cards.room_mib is None else min(raised, cards.room_mib)
    return most if most > 0 else None
