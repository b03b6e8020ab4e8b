"""Defines the names of a job's Screen session and log file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

#: Screen silently fails to bind the sockets of longer names.
MAX_LENGTH = 40


def session_name(gpus: Sequence[int], mode: str, job_id: int) -> str:
    """Returns `gpujob_<gpu_ids>_<mode>_<job_id>`: letters, digits and `_ - , .`, at most 40 characters.

    The mode is truncated to fit, the ids never. If many GPUs leave no room for it, they are written as ranges
    ("0-7"), then as the first one and their number ("0.x16").
    """
    word = re.sub(r"[^A-Za-z0-9_.,-]", "-", mode) or "job"
    room = MAX_LENGTH - len(f"gpujob___{job_id}")
    texts = (",".join(map(str, gpus)), _format_ranges(gpus), f"{min(gpus)}.x{len(gpus)}" if gpus else "")
    ids = next((text for text in texts if len(text) < room), texts[-1])
    return f"gpujob_{ids}_{word[: max(0, room - len(ids))]}_{job_id}"


def _format_ranges(gpus: Sequence[int]) -> str:
    runs: list[tuple[int, int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], gpu)
        else:
            runs.append((gpu, gpu))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def log_file_name(job_id: int, when: datetime) -> str:
    """Returns `job_<job_id>_<timestamp>.log`, with microseconds."""
    return f"job_{job_id}_{when:%Y%m%d_%H%M%S_%f}.log"
