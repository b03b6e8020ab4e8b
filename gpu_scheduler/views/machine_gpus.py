"""Formats the GPUs of this machine and the claims on them, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.model.claimed_gpu import ClaimedGpu
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.views.gpu_claims import claim_object, claims_text
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table


def to_text(gpus: Sequence[ClaimedGpu], width: int | None) -> str:
    """Formats the GPUs as a table; the column of the claims is left out if there are none."""
    with_claims = any(gpu.claims or gpu.claims_problem for gpu in gpus)
    titles = ["idx", "name", "free", "total", "util", *(["claims"] if with_claims else [])]
    rows = [TableRow([Cell(text) for text in _row(gpu)[: len(titles)]]) for gpu in gpus]
    lines = render_table([Column(title) for title in titles], rows, width)
    return "".join(f"{line}\n" for line in lines)


def _row(gpu: ClaimedGpu) -> list[str]:
    sample = gpu.sample
    name = safe_text(sample.name)
    if sample.fault is not None:
        name = f"{safe_text(str(sample.fault))} ({name})"
    util = "?" if sample.load_percent is None else f"{sample.load_percent:.0f}%"
    claims = safe_text(gpu.claims_problem) or claims_text(gpu.claims)
    return [str(sample.index), name, _mib_text(gpu.free_mib), _mib_text(sample.total_mib), util, claims]


def _mib_text(mib: int | None) -> str:
    return "?" if mib is None else f"{mib} MiB"


def to_json(gpus: Sequence[ClaimedGpu]) -> str:
    """Formats the GPUs as the JSON object that docs/json.md describes."""
    lines = ",\n  ".join(json.dumps(_gpu_object(gpu)) for gpu in gpus)
    return f'{{\n"gpus": [\n  {lines}\n]\n}}\n'


def _gpu_object(gpu: ClaimedGpu) -> dict[str, Any]:
    sample = gpu.sample
    return {
        "index": sample.index,
        "uuid": sample.uuid,
        "name": sample.name,
        "memory_used_mib": sample.used_mib,
        "memory_total_mib": sample.total_mib,
        "memory_free_mib": gpu.free_mib,
        "load_percent": sample.load_percent,
        "fault": None if sample.fault is None else str(sample.fault),
        "claims": None if gpu.claims_problem else [claim_object(claim) for claim in gpu.claims],
        "claims_problem": gpu.claims_problem or None,
    }
