"""Formats the GPUs of this machine and the claims of programs on them, and why one accepts no job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_scheduler.core.model.gpu import ClaimedGpu, GpuClaim, GpuSample, Suspicion
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.values import format_share
from gpu_scheduler.core.text.formatting import format_jobs, format_memory, masked_json, picked, safe_text
from gpu_scheduler.show.job_text import finish_text, from_time_text
from gpu_scheduler.show.layout import Cell, Column, TableRow, render_table

# Formats the claims of programs on the memory of a GPU.


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


def mode_lines(gpu: GpuSample) -> list[str]:
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
        **picked(claim, "by_scheduler", "job"),
        "folder": claim.folder or None,
    }


# Formats the reasons why a GPU does not accept a job, and the remedies.


def obstacle_text(found: GpuObstacle, now: float = 0.0) -> str:
    """Formats why a GPU does not accept a job, as a phrase that follows the GPU's name.

    now: the time in seconds since 1970, relative to which other times are given; 0 if unknown.
    """
    return found.kind.fill(found, _PHRASES, now)


def obstacle_remedy(found: GpuObstacle) -> str:
    """Returns a remedy for the obstacle on a GPU; "" if the obstacle is the scheduler's own jobs."""
    return found.kind.remedy.format(gpu=found.gpu)


#: The texts of the causes, other than commands, that pause or resume a GPU.
PAUSE_CAUSES: Mapping[str | None, str] = {
    "state_file_edited": "by an edit to the state file",
    "state_file_removed": "because the state file was removed",
}


def suspicion_text(found: Suspicion, now: float) -> str:
    """Formats why a GPU is suspect. now: the time in seconds since 1970."""
    jobs = f"{format_jobs(found.jobs)} failed on it"
    if found.awaits is not None:
        return f"{jobs}; job {found.awaits} shows soon whether others fail elsewhere, too"
    why = f"with {found.error}" if found.error else "soon after their start, unlike jobs on other GPUs"
    begin = f"from {finish_text(found.trial_at, now)} on" if found.trial_at > now else "now"
    return f"suspect: {jobs} {why}; a job with retries left may try it {begin}"


def state_lines(
    gpu: int, pause_reason: str | None, doubt: Suspicion | None, now: float,
    claims: Sequence[GpuClaim], problem: str | None,
) -> list[str]:  # fmt: skip
    """Returns lines that say why a GPU is in its state. problem: why it cannot be claimed, None if it can."""
    found = [] if pause_reason is None else [f"paused {pause_reason}"]
    found += [] if doubt is None else [f"{suspicion_text(doubt, now)}; `resume {gpu}` uses it again at once"]
    found += [] if problem is None else [claims_problem_text(problem)]
    return [*found, claims_text(claims)] if claims else found


def _shortfall_text(found: GpuObstacle) -> str:
    head = f"room for {format_memory(found.free)}" if found.free else "full"
    if found.foreign_peak_mib is not None:
        return f"{head}, running foreign processes have used up to {format_memory(found.foreign_peak_mib)}"
    return head if found.foreign_mib is None else f"{head}, {_foreign_memory_text(found)}"


def _foreign_memory_text(found: GpuObstacle) -> str:
    mib, text = found.foreign_mib or 0, "foreign processes use {}"
    if found.foreign_pid is not None:
        return f"foreign process {found.foreign_pid} uses {format_memory(mib)}"
    if found.processes_listed:
        text = "{} in use by unknown processes or the driver"
    if found.kind is ObstacleKind.FOREIGN_PROCESS and mib <= 16_384:  # more is no display
        text += f"; `start --idle-threshold {-(-mib * 11 // 1000) * 100}` ignores it"
    return text.format(format_memory(mib))


def _processes(found: GpuObstacle) -> str:
    return f"process{'' if len(found.pids) == 1 else 'es'} {', '.join(map(str, found.pids))}"


#: The phrases in the sentences of `ObstacleKind`.
_PHRASES: Mapping[str, Callable[[GpuObstacle, float], str]] = {
    "doubt": lambda it, now: suspicion_text(it.suspicion, now) if it.suspicion else "suspect",
    "processes": lambda it, _: _processes(it),
    "user": lambda it, _: (
        "one job at a time" if it.foreign_pid is None else f"used by process {it.foreign_pid}"
    ),
    "from_time": lambda it, now: (
        from_time_text(it.reserved_from, it.overtakes, now) if it.reserved_from is not None else ""
    ),
    "share": lambda it, _: format_share(it.free or 0),
    "room": lambda it, _: _shortfall_text(it),
    "foreign_use": lambda it, _: _foreign_memory_text(it),
    "load_source": lambda it, _: (
        "foreign load" if it.foreign_pid is None else f"foreign process {it.foreign_pid}, load"
    ),
    "listed_claims": lambda it, _: claims_text(it.claims),
}


def to_text(gpus: Sequence[ClaimedGpu], width: int | None) -> str:
    """Formats the GPUs as a table, with the claims on lines below each GPU.

    The column of faults is left out if there are none.
    """
    titles = ["idx", "name", "free", "total", "util"]
    if any(gpu.sample.fault is not None for gpu in gpus):
        titles.append("fault")
    lines = render_table([Column(title) for title in titles], [_row(gpu, len(titles)) for gpu in gpus], width)
    return "".join(f"{line}\n" for line in lines)


def simulation_text(simulate: str | None, state_file: str) -> str:
    """Formats whose simulated GPUs a command uses, and how it uses real ones. simulate: as for `start`."""
    how = "--gpu-probe simulated" if simulate is None else f"--simulate {simulate}"
    return (
        f"the scheduler of {state_file} simulates GPUs ({how}); these are its GPUs"
        " (--gpu-probe nvml: those of this machine)"
    )


def _row(gpu: ClaimedGpu, columns: int) -> TableRow:
    sample = gpu.sample
    util = "?" if sample.load_percent is None else f"{sample.load_percent:.0f}%"
    fault = "" if sample.fault is None else safe_text(str(sample.fault))
    free, total = _mib_text(gpu.free_mib), _mib_text(sample.total_mib)
    cells = [str(sample.index), safe_text(sample.name), free, total, util, fault]
    claims = [safe_text(claims_problem_text(gpu.claims_problem))] if gpu.claims_problem else []
    return TableRow(
        [Cell(text) for text in cells[:columns]],
        detail_lines=[*mode_lines(sample), *claims, *(claim_text(claim) for claim in gpu.claims)],
    )


def _mib_text(mib: int | None) -> str:
    return "?" if mib is None else f"{mib} MiB"


def to_json(gpus: Sequence[ClaimedGpu]) -> str:
    """Formats the GPUs as the JSON object that docs/json.md describes."""
    lines = ",\n  ".join(masked_json(_gpu_object(gpu)) for gpu in gpus)
    return f'{{\n"gpus": [\n  {lines}\n]\n}}\n'


def _gpu_object(gpu: ClaimedGpu) -> dict[str, Any]:
    sample = gpu.sample
    return {
        **picked(sample, "index", "uuid", "name"),
        "memory_used_mib": sample.used_mib,
        "memory_total_mib": sample.total_mib,
        "memory_free_mib": gpu.free_mib,
        "unified_memory": sample.unified,
        "exclusive_process": sample.exclusive,
        "load_percent": sample.load_percent,
        "fault": None if sample.fault is None else str(sample.fault),
        "claims": claim_objects(gpu.claims, gpu.claims_problem),
        "claims_problem": gpu.claims_problem or None,
    }
