"""Formats the claims of programs on the memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.store.records import GpuRecord

#: Maximum number of claims on one GPU that are listed.
_MAX_LISTED = 3


def claim_text(claim: GpuClaim) -> str:
    """Formats a claim as a phrase, such as "claimed by run, pid 4711, user ann".

    For a part of the GPU, the phrase begins with its size, as in "8000 MiB claimed by run, pid 4711". A
    process whose turn it is has no claim yet.
    """
    if claim.is_turn:
        return f"kept for {holder_text(claim)}"
    amount = "" if claim.mib is None else f"{claim.mib} MiB "
    return f"{amount}claimed by {holder_text(claim)}"


def holder_text(claim: GpuClaim) -> str:
    """Formats the process that holds a claim, such as "job 7 of /home/bob/exp, pid 99, user bob"."""
    if not claim.pid:
        return "a process in another container"
    program = "a scheduler's job" if claim.by_scheduler else "a waiting program" if claim.is_turn else "run"
    if claim.job is not None:
        program = f"job {claim.job} of {safe_text(claim.folder)}"
    user = f", user {safe_text(claim.user)}" if claim.user else ""
    return f"{program}, pid {claim.pid}{user}"


def claims_text(claims: Sequence[GpuClaim]) -> str:
    """Formats the claims on one GPU as a phrase that lists the first few of them."""
    listed = [claim_text(claim) for claim in claims[:_MAX_LISTED]]
    more = len(claims) - len(listed)
    return "; ".join([*listed, *([f"and {more} more"] if more else [])])


def mode_lines(gpu: GpuSample | GpuRecord) -> list[str]:
    """Returns lines about the compute mode and the memory of a GPU, if there is anything to say."""
    exclusive = ["compute mode Exclusive_Process: one job at a time"] if gpu.exclusive else []
    return [*exclusive, *(["unified memory: total and use are those of the machine"] if gpu.unified else [])]


def claims_problem_text(problem: str) -> str:
    """Formats why a GPU cannot be claimed. problem: a sentence about the lock file."""
    return f"cannot be claimed, because {problem}"


def claim_objects(claims: Sequence[GpuClaim], problem: str | None) -> list[dict[str, Any]] | None:
    """Returns the value of "claims" in JSON; None if the claims are unknown because of a problem."""
    return None if problem and not claims else [claim_object(claim) for claim in claims]


def claim_object(claim: GpuClaim) -> dict[str, Any]:
    """Returns a claim as an element of "claims" in JSON. An unknown value is None."""
    return {
        "pid": claim.pid or None,
        "user": claim.user or None,
        "mib": claim.mib,
        "by_scheduler": claim.by_scheduler,
        "job": claim.job,
        "folder": claim.folder or None,
    }
