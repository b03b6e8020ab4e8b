"""Formats which GPUs `run` and `wait` chose, what they wait for, and why a request can never be met."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from gpu_scheduler.app.claim_gpus import FoundGpus, Impossible, NotExecuted, NotExecutedKind
from gpu_scheduler.core.model.gpu import ClaimedGpu, GpuClaim, format_gpu_list
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.scheduling.gpu_choice import Impossibility, ImpossibilityKind
from gpu_scheduler.core.text.formatting import count_noun, masked_json, picked, safe_text
from gpu_scheduler.views.gpu_text import (
    claim_objects,
    claim_text,
    claims_problem_text,
    claims_text,
    mode_lines,
)
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table


def wait_text(count: int) -> str:
    """Returns the line that announces the wait."""
    return "waiting for a free GPU ..." if count == 1 else f"waiting for {count} free GPUs ..."


def ineligibility_text(found: GpuObstacle) -> str:
    """Formats why a GPU is not eligible, as a sentence such as "GPU 1 has 812 MiB free"."""
    return f"GPU {found.gpu} {_predicate(found)}"


def _predicate(found: GpuObstacle) -> str:
    if found.kind is ObstacleKind.FAULT:
        return f"has a fault: {safe_text(str(found.fault))}"
    if found.kind is ObstacleKind.CLAIMED:
        return _claimed_predicate(found)
    if found.kind is ObstacleKind.CLAIMS_UNKNOWN:
        return f"cannot be claimed: {safe_text(found.detail or '')}"
    if found.kind is ObstacleKind.MEMORY:
        claimed = f"; {claims_text(found.claims)}" if found.claims else ""
        return f"has {found.free} MiB free{claimed}"
    if found.kind is ObstacleKind.FOREIGN_LOAD:
        return f"has a utilization of {found.foreign_load}%"
    return _PREDICATES[found.kind]


_PREDICATES = {
    ObstacleKind.EXCLUSIVE: "is in compute mode Exclusive_Process, and a process uses it",
    ObstacleKind.MEMORY_UNKNOWN: "does not report its free memory",
    ObstacleKind.LOAD_UNKNOWN: "does not report its utilization",
}


def _claimed_predicate(found: GpuObstacle) -> str:
    whole = all(claim.mib is None for claim in found.claims)
    return f"is {claims_text(found.claims)}" if whole else f"has {claims_text(found.claims)}"


def taken_text(found: FoundGpus) -> str:
    """Returns the line that names the GPUs that `run` uses."""
    mib = found.criteria.claim_mib
    gpus = _gpus_text(found)
    if found.is_inside:
        return f"using {gpus} of the surrounding job or command, without another claim"
    each = "each of " if len(found.gpus) > 1 else ""
    return f"took {gpus}" if mib is None else f"took {mib} MiB of {each}{gpus}"


def unclaimed_text(found: FoundGpus) -> str:
    """Returns the line with which `wait` says that it holds no claim."""
    if found.is_inside:
        return f"found {_gpus_text(found)} of the surrounding job or command"
    verb, which = ("is", "it") if len(found.gpus) == 1 else ("are", "them")
    return f"{_gpus_text(found)} {verb} free but not claimed, so another program may take {which} first"


def _gpus_text(found: FoundGpus) -> str:
    *others, last = [_gpu_text(gpu, found.surrounding.get(gpu.sample.uuid)) for gpu in found.gpus]
    return f"{', '.join(others)} and {last}" if others else last


def _gpu_text(gpu: ClaimedGpu, surrounding: GpuClaim | None) -> str:
    free = "free memory unknown" if gpu.available_mib is None else f"{gpu.available_mib} MiB free"
    claimed = ""
    if surrounding is not None:
        amount = "the whole GPU" if surrounding.mib is None else f"{surrounding.mib} MiB"
        claimed = f", surrounding claim: {amount}"
    return f"GPU {gpu.sample.index} ({safe_text(gpu.sample.name)}, {free}{claimed})"


def timeout_text(seconds: float, count: int) -> str:
    """Formats the end of an unsuccessful wait."""
    what = "no GPU was" if count == 1 else f"fewer than {count} GPUs were"
    return f"timed out: {what} free within {seconds:g} s"


def not_executed_text(failure: NotExecuted) -> str:
    """Formats why the command was not executed."""
    program = shlex.quote(failure.program)
    if failure.kind is NotExecutedKind.NOT_FOUND:
        return f"{program}: command not found"
    if failure.kind is NotExecutedKind.SHELL_SYNTAX:
        return f"{program}: command not found (for a shell command, use `run -- bash -c '…'`)"
    if failure.kind is NotExecutedKind.NO_INTERPRETER:
        return f"{program}: cannot be executed (its interpreter does not exist)"
    hint = "; does the script begin with #!?" if failure.kind is NotExecutedKind.NO_FORMAT else ""
    return f"{program}: cannot be executed ({failure.reason}{hint})"


def impossible_text(found: Impossible) -> str:
    """Formats why a request can never be met, in one or two lines."""
    reason = None if found.reason is None else _impossibility_text(found.reason)
    return "\n".join(line for line in (reason, found.visible_note) if line)


def _impossibility_text(found: Impossibility) -> str:
    criteria, kind = found.criteria, found.kind
    which = format_gpu_list(found.gpus)
    if kind is ImpossibilityKind.NO_SUCH_GPU:
        missing = format_gpu_list(found.missing)
        subject = f"GPU {missing} is" if len(found.missing) == 1 else f"GPUs {missing} are"
        return f"{subject} not among the GPUs to choose from ({which})"
    wanted = f"{count_noun(criteria.count, 'GPU')} wanted"
    if kind is ImpossibilityKind.TOO_FEW_GPUS and not found.gpus:
        lists = "--exclude leaves" if criteria.only is None else "--allowed and --exclude leave"
        return f"{wanted}, but {lists} none"
    if kind is ImpossibilityKind.TOO_FEW_GPUS:
        return f"{wanted}, but only {len(found.gpus)} to choose from ({which})"
    mib = f"{criteria.needed_mib} MiB"
    if not found.suitable_count:
        return f"no GPU to choose from ({which}) has {mib}; the largest has {found.largest_mib} MiB"
    return (
        f"{wanted} with {mib} of memory, but only {found.suitable_count} of the"
        f" {len(found.gpus)} GPUs to choose from ({which}) can have so much"
    )


# Formats the GPUs of this machine and the claims on them, as a table and as JSON.


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
