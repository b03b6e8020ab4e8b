"""Whether a job whose command failed runs again: with more memory after CUDA ran out of it, or just again.

An OOM retry needs an OOM: no other failure ever uses one, so that it hides no fault of the code
(docs/design.md, Reconciling). What it needs then is 1.25 times what was seen or declared, at most what the
largest GPUs have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.core.facts import Attempt, Settings
from gpu_scheduler.core.ledger import Booking, memory_of
from gpu_scheduler.core.units import shown_mib

#: How much more memory than was seen or declared is asked for after an OOM.
RAISE = 1.25
#: Seconds before the first retry of a failure, doubled each time, and the longest.
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 600.0


@dataclass(frozen=True)
class Cards:
    """What GPUs have, MiB. totals: by UUID; room_mib: the most that as many GPUs as the job takes, of those
    that it may use, can each give to one job; None = not known."""

    totals: Mapping[str, int] = field(default_factory=dict)
    room_mib: int | None = None


@dataclass(frozen=True)
class Verdict:
    """again: the job is queued once more, after `wait_s` seconds; told: what is to be said of it."""

    again: bool
    told: str = ""
    wait_s: float = 0.0
    raised_mib: int | None = None
    oom: bool = False


def after_failure(attempt: Attempt, settings: Settings, cards: Cards) -> Verdict:
    """What follows the failure of a command that began."""
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
        gave_up = f"no larger GPU: it had {shown_mib(had)}, the most that there is"
    elif oom and allowed:
        gave_up = f"OOM retries used up ({allowed})"
    times = settings.fail_retries if evidence.fail_retries is None else evidence.fail_retries
    if attempt.fail_used < times:
        wait = min(FIRST_WAIT_S * 2**attempt.fail_used, LONGEST_WAIT_S)
        told = f"retry {attempt.fail_used + 1} of {times} in {wait:g} s"
        return Verdict(True, f"{gave_up}; {told}" if gave_up else told, wait)
    return Verdict(False, gave_up)


def _is_at_most(attempt: Attempt, cards: Cards) -> bool:
    """Whether it had as much as it can get: by its declaration, or because its GPUs were its own."""
    if cards.room_mib is None:
        return False
    if attempt.vram is not None:
        return attempt.vram >= cards.room_mib
    return attempt.whole and all(cards.totals.get(uuid, 0) >= cards.room_mib for uuid in attempt.gpus)


def _raised(attempt: Attempt, settings: Settings, cards: Cards) -> int | None:
    """1.25 x max(observed peak, declaration) of the GPU on which that is most, at most the room there is;
    None where nothing is known of either."""
    spike = settings.limits.spike
    declared = Booking(attempt.share, attempt.vram, attempt.whole)
    budgets = [memory_of(declared, cards.totals.get(uuid, 0), spike) for uuid in attempt.gpus]
    raised = math.ceil(RAISE * max([*attempt.peaks.values(), *budgets], default=0))
    most = raised if cards.room_mib is None else min(raised, cards.room_mib)
    return most if most > 0 else None
