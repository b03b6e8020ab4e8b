"""What a command that failed has left: the end of its log, and the GPU ids that it was given."""

from __future__ import annotations

import json
import os
import sqlite3
import stat

from gpu_scheduler.core.command import shown
from gpu_scheduler.core.cuda import ids_text
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.sighting import Evidence, Sighting
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store

#: Bytes of a log that are looked through for its last error.
TAIL = 64 * 1024
#: Of a line that is longer than that, the bytes at its end that count.
_END = 4 * 1024
_MARK = "THE-GPU-IDS"


def evidence_of(store: Store, row: sqlite3.Row, seen: Sighting) -> Evidence:
    """Of an attempt whose result says that it failed."""
    job = store.job(row["job_id"])
    assert job is not None
    spec = JobSpec.from_json(job["spec"])
    return Evidence(
        tail_of(row["log"] or seen.log),
        _misleading_ids(store, row, spec),
        spec.oom_retries,
        spec.fail_retries,
    )


def tail_of(path: str | None, most: int = TAIL) -> str:
    """The end of a log, from the beginning of a line, or where that would be all of it or most of it, as of a
    progress bar, from somewhere in its end; "" where it cannot be read.

    Neither a link nor anything but a plain file is opened: the folder may be one that others write to.
    """
    if path is None:
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return ""
            start = max(0, status.st_size - most)
            data = os.pread(fd, most, start)
        finally:
            os.close(fd)
    except OSError:
        return ""
    if start:
        cut, end, rest = data.partition(b"\n")
        data = cut[-_END:] + end + rest if len(cut) > _END or not rest else rest
    return data.decode("utf-8", "replace")


def _misleading_ids(store: Store, row: sqlite3.Row, spec: JobSpec) -> tuple[int, ...]:
    """The physical ids that its command was given, unless they are the ones that count what it sees."""
    index = store.indices()
    gpus = tuple(index[uuid] for uuid in json.loads(row["gpus"]) if uuid in index)
    mode = spec.cuda_ids or started_with(store).cuda_ids
    same = ids_text(gpus, mode) == ids_text(gpus, "visible")
    return () if same or _MARK not in shown(spec, _MARK) else gpus
