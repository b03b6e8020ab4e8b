"""The names that people see outside: of a job's Screen session and of its log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

#: Longer names end in sockets that Screen cannot bind, without a word.
LONGEST = 40


def session_name(gpus: Sequence[int], mode: str, job_id: int) -> str:
    """`gpujob_<gpu_ids>_<mode>_<job_id>`, of letters, digits and `_ - , .`, at most 40 characters.

    The mode is cut to fit, never the ids. Where so many GPUs leave no room for it, the GPUs are written as
    ranges ("0-7"), then as the first one and their number ("0.x16").
    """
    word = re.sub(r"[^A-Za-z0-9_.,-]", "-", mode) or "job"
    room = LONGEST - len(f"gpujob___{job_id}")
    texts = (",".join(map(str, gpus)), _ranges(gpus), f"{min(gpus)}.x{len(gpus)}" if gpus else "")
    ids = next((text for text in texts if len(text) < room), texts[-1])
    return f"gpujob_{ids}_{word[: max(0, room - len(ids))]}_{job_id}"


def _ranges(gpus: Sequence[int]) -> str:
    runs: list[tuple[int, int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], gpu)
        else:
            runs.append((gpu, gpu))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def log_name(job_id: int, when: datetime) -> str:
    """`job_<job_id>_<timestamp>.log`, with microseconds."""
    return f"job_{job_id}_{when:%Y%m%d_%H%M%S_%f}.log"
