"""Formats the status board (status.txt), which shows running, waiting and finished jobs. Reads nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.core.share import format_share
from gpu_scheduler.views.events import MARKS, took
from gpu_scheduler.views.report import GpuShown, JobShown
from gpu_scheduler.views.words import shortened, visible

#: Maximum numbers of waiting and of finished jobs on the board.
WAITING, FINISHED = 50, 20
#: Maximum number of characters shown of a job's line and of a reason.
_LONGEST = 120
RUNNING_MARK, WAITING_MARK, AGAIN_MARK, GOOD_MARK, BAD_MARK = "▶", "·", "↻", "✓", "✗"


@dataclass(frozen=True)
class Use:
    """Memory use of a running job on each of its GPUs, in MiB (gpus: indices; None = unknown).

    current_mib: in the newest sample; peaks_mib: the highest observed; declared_mib: on each GPU, None =
    nothing; share: declared thousandths of each GPU, 0 = none.
    """

    gpus: tuple[int, ...]
    now: tuple[int | None, ...]
    peaks: tuple[int | None, ...]
    declared: int | None
    share: int = 0


@dataclass(frozen=True)
class Board:
    """Contents of the status board at `at` (wall seconds). pid: of the scheduler, None = it has stopped.

    memory_use: of running jobs, by job id; retrying_after_oom: ids of waiting jobs that ran out of GPU
    memory; counts: state -> number of all jobs in it.
    """

    at: float
    pid: int | None
    gpus: Sequence[GpuShown] = ()
    running: Sequence[JobShown] = ()
    waiting: Sequence[JobShown] = ()
    finished: Sequence[JobShown] = ()
    use: Mapping[int, Use] = field(default_factory=dict)
    again: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)


def to_text(board: Board) -> str:
    """Formats the board."""
    return "\n".join([_head(board), "", *_gpus(board), "", *_jobs(board)]) + "\n"


def _head(board: Board) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(board.at))
    who = "scheduler stopped" if board.pid is None else f"scheduler pid {board.pid}"
    queued, held = board.counts.get("queued", 0), board.counts.get("held", 0)
    return (
        f"{now}  {who}  {len(board.running)} running, {queued} queued, {held} held,"
        f" {board.counts.get('finished', 0)} finished"
    )


def _gpus(board: Board) -> Iterator[str]:
    for gpu in board.gpus:
        load = "?" if gpu.load_percent is None else f"{gpu.load_percent:.0f}"
        used = "?" if gpu.used_mib is None else str(gpu.used_mib)
        total = "?" if gpu.total_mib is None else str(gpu.total_mib)
        allocated = (
            f"allocated {format_share(gpu.share)}, {'?' if gpu.booked_mib is None else gpu.booked_mib} MiB"
        )
        fault = f": {visible(gpu.fault)}" if gpu.fault else ""
        yield (
            f"gpu{gpu.index}  {used}/{total} MiB  load {load}%  {allocated}  {gpu.state}{fault}"
            f"  {visible(gpu.name)}"
        )


def _jobs(board: Board) -> Iterator[str]:
    for job in board.running:
        yield f"{RUNNING_MARK} job {job.id}  {_running(board, job)} — {_title(job)}"
    for job in board.waiting:
        mark = AGAIN_MARK if job.id in board.again else WAITING_MARK
        why = visible(shortened(job.reason or job.state, _LONGEST))
        held = "held: " if job.state == "held" and not why.startswith("held") else ""
        yield f"{mark} job {job.id}  {held}{why} — {_title(job)}"
    more = board.counts.get("queued", 0) + board.counts.get("held", 0) - len(board.waiting)
    if more > 0:
        yield f"… and {more} more"
    for job in board.finished:
        mark = GOOD_MARK if job.outcome in ("completed", "ended") else BAD_MARK
        yield f"{mark} job {job.id}  {_ended(job)} — {_title(job)}"
    more = board.counts.get("finished", 0) - len(board.finished)
    if more > 0:
        yield f"… and {more} more"


def _running(board: Board, job: JobShown) -> str:
    use = board.use.get(job.id)
    began = "" if job.started_at is None else f"  {took(max(0.0, board.at - job.started_at))}"
    state = "" if job.state == "running" else f"  {job.state}"
    words = f"gpu {list(job.gpus)}{state}{began}"
    if use is None:
        return words
    each = zip(use.gpus, use.now, use.peaks, strict=True)
    memory = ", ".join(f"gpu{gpu}:{_used(now, peak)}" for gpu, now, peak in each)
    declared = [f"share {format_share(use.share)}"] if use.share else []
    declared += [f"declared {use.declared}"] if use.declared is not None else []
    return f"{words}  {memory} MiB now/peak, {', '.join(declared) or 'no declaration'}"


def _used(now: int | None, peak: int | None) -> str:
    if now is None and peak is None:
        return "n/a"
    return "/".join("n/a" if mib is None else str(mib) for mib in (now, peak))


def _ended(job: JobShown) -> str:
    outcome = job.outcome or "ended"
    time_s = "" if None in (job.started_at, job.finished_at) else f" {took(_seconds(job))}"
    why = visible(shortened(job.reason or "", _LONGEST))
    return f"[{MARKS.get(outcome, outcome.upper())}]{time_s}{f' {why}' if why else ''}"


def _seconds(job: JobShown) -> float:
    return max(0.0, (job.finished_at or 0.0) - (job.started_at or 0.0))


def _title(job: JobShown) -> str:
    return visible(shortened(f"{job.name}: {job.text}" if job.name else job.text, _LONGEST))
