"""A probe's answer as one line of JSON, and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gpu_scheduler.core.gpu import GpuProcess, GpuSample, Snapshot


@dataclass(frozen=True)
class ProbeFailure:
    """Why a question has no answer. `remedy` is what the user can do, "" where we do not know."""

    text: str
    remedy: str = ""


def encode(number: int, answer: Snapshot | ProbeFailure) -> bytes:
    """One line, newline included: the answer to question `number`."""
    return json.dumps({"number": number, **asdict(answer)}).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Snapshot | ProbeFailure]:
    """What `encode` was given. Raises ValueError for a line that it did not write."""
    try:
        raw = json.loads(line)
        number = int(raw["number"])
        if "text" in raw:
            return number, ProbeFailure(str(raw["text"]), str(raw["remedy"]))
        return number, Snapshot(float(raw["taken_at"]), tuple(_gpu(gpu) for gpu in raw["gpus"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not an answer of a probe: {line[:200]!r}") from error


def _gpu(raw: dict[str, Any]) -> GpuSample:
    processes = raw.pop("processes")
    return GpuSample(
        **raw, processes=None if processes is None else tuple(GpuProcess(**process) for process in processes)
    )
