"""Formats the GPUs of this machine and the claims on them, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.model.gpu import ClaimedGpu
from gpu_scheduler.core.text.formatting import masked_json, picked, safe_text
from gpu_scheduler.views.gpu_text import (
    claim_objects,
    claim_text,
    claims_problem_text,
    mode_lines,
)
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table


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
