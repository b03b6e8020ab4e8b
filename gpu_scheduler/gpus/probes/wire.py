"""Encodes a probe's answer as one line of JSON, and decodes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gpu_scheduler.core.model.gpu import GpuFault, GpuProcess, GpuSample, Snapshot


@dataclass(frozen=True)
class ProbeFailure:
    """The reason why a query failed. remedy: advice for the user; "" if there is none."""

    text: str
    remedy: str = ""


def encode(number: int, answer: Snapshot | ProbeFailure) -> bytes:
    """Returns the answer to query `number` as one line that ends with a newline."""
    return json.dumps({"number": number, **asdict(answer)}).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Snapshot | ProbeFailure]:
    """Decodes a line that `encode` wrote. Raises ValueError for any other line."""
    try:
        raw = json.loads(line)
        number = int(raw["number"])
        if "text" in raw:
            return number, ProbeFailure(str(raw["text"]), str(raw["remedy"]))
        gpus = tuple(_gpu(gpu) for gpu in raw["gpus"])
        return number, Snapshot(float(raw["taken_at"]), gpus, str(raw["note"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"invalid answer from the probe: {line[:200]!r}") from error


def _gpu(raw: dict[str, Any]) -> GpuSample:
    processes, fault = raw.pop("processes"), raw.pop("fault")
    return GpuSample(
        **raw,
        processes=None if processes is None else tuple(GpuProcess(**process) for process in processes),
        fault=None if fault is None else GpuFault.from_values(fault),
    )
