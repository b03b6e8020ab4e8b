"""Formats the status board (status.txt), which shows running, waiting and finished jobs. Reads nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.app.status_report import GpuStatusView, JobView
from gpu_scheduler.core.model.share import format_share
from gpu_scheduler.core.text.formatting import limit_length, safe_text
from gpu_scheduler.views.attempt_end import OUTCOME_LABELS, format_seconds
from gpu_scheduler.views.wait_reasons import held_text, job_reason_text

#: Maximum numbers of waiting and of finished jobs on the board.
MAX_WAITING, MAX_FINISHED = 50, 20
#: Maximum number of characters shown of a job's line and of a reason.
_MAX_CHARACTERS = 120
RUNNING_MARK, WAITING_MARK, RETRY_MARK, SUCCESS_MARK, FAILURE_MARK = "▶", "·", "↻", "✓", "✗"


@dataclass(frozen=True)
class MemoryUse:
    """Memory use of a running job on each of its GPUs, in MiB (gpus: indices; None = unknown).

    current_mib: in the newest sample; peaks_mib: the highest observed; declared_mib: on each GPU, None =
    nothing; share: declared thousandths of each GPU, 0 = none.
    """

    gpus: tuple[int, ...]
    current_mib: tuple[int | None, ...]
    peaks_mib: tuple[int | None, ...]
    declared_mib: int | None
    share: int = 0


@dataclass(frozen=True)
class StatusBoard:
    """Contents of the status board at `at` (wall seconds). pid: of the scheduler, None = it has stopped.

    memory_use: of running jobs, by job id; retrying_after_oom: ids of waiting jobs that ran out of GPU
    memory; counts: state -> number of all jobs in it.
    """

    at: float
    pid: int | None
    gpus: Sequence[GpuStatusView] = ()
    running: Sequence[JobView] = ()
    waiting: Sequence[JobView] = ()
    finished: Sequence[JobView] = ()
    memory_use: Mapping[int, MemoryUse] = field(default_factory=dict)
    retrying_after_oom: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)


def to_text(board: StatusBoard) -> str:
    """Formats the board."""
    return "\n".join([_header(board), "", *_gpu_lines(board), "", *_job_lines(board)]) + "\n"


def _header(board: StatusBoard) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(board.at))
    who = "scheduler stopped" if board.pid is None else f"scheduler pid {board.pid}"
    queued, held = board.counts.get("queued", 0), board.counts.get("held", 0)
    return (
        f"{now}  {who}  {len(board.running)} running, {queued} queued, {held} held,"
        f" {board.counts.get('finished', 0)} finished"
    )


def _gpu_lines(board: StatusBoard) -> Iterator[str]:
    for gpu in board.gpus:
        load = "?" if gpu.load_percent is None else f"{gpu.load_percent:.0f}"
        used = "?" if gpu.used_mib is None else str(gpu.used_mib)
        total = "?" if gpu.total_mib is None else str(gpu.total_mib)
        mib = "?" if gpu.allocated_mib is None else gpu.allocated_mib
        allocated = f"allocated {format_share(gpu.share)}, {mib} MiB"
        fault = f": {safe_text(gpu.fault)}" if gpu.fault else ""
        yield (
            f"gpu{gpu.index}  {used}/{total} MiB  load {load}%  {allocated}  {gpu.state}{fault}"
            f"  {safe_text(gpu.name)}"
        )


def _job_lines(board: StatusBoard) -> Iterator[str]:
    for job in board.running:
        yield f"{RUNNING_MARK} job {job.id}  {_running_text(board, job)} — {_title_text(job)}"
    for job in board.waiting:
        mark = RETRY_MARK if job.id in board.retrying_after_oom else WAITING_MARK
        why = held_text(job) if job.state == "held" else job_reason_text(job) or job.state
        yield f"{mark} job {job.id}  {safe_text(limit_length(why, _MAX_CHARACTERS))} — {_title_text(job)}"
    more = board.counts.get("queued", 0) + board.counts.get("held", 0) - len(board.waiting)
    if more > 0:
        yield f"… and {more} more"
    for job in board.finished:
        mark = SUCCESS_MARK if job.outcome in ("completed", "ended") else FAILURE_MARK
        yield f"{mark} job {job.id}  {_finished_text(job)} — {_title_text(job)}"
    more = board.counts.get("finished", 0) - len(board.finished)
    if more > 0:
        yield f"… and {more} more"


def _running_text(board: StatusBoard, job: JobView) -> str:
    use = board.memory_use.get(job.id)
    began = "" if job.started_at is None else f"  {format_seconds(max(0.0, board.at - job.started_at))}"
    state = "" if job.state == "running" else f"  {job.state}"
    words = f"gpu {list(job.gpus)}{state}{began}"
    if use is None:
        return words
    each = zip(use.gpus, use.current_mib, use.peaks_mib, strict=True)
    memory = ", ".join(f"gpu{gpu}:{_current_and_peak(now, peak)}" for gpu, now, peak in each)
    declared = [f"share {format_share(use.share)}"] if use.share else []
    declared += [f"declared {use.declared_mib}"] if use.declared_mib is not None else []
    return f"{words}  {memory} MiB now/peak, {', '.join(declared) or 'no declaration'}"


def _current_and_peak(now: int | None, peak: int | None) -> str:
    if now is None and peak is None:
        return "n/a"
    return "/".join("n/a" if mib is None else str(mib) for mib in (now, peak))


def _finished_text(job: JobView) -> str:
    outcome = job.outcome or "ended"
    time_s = "" if None in (job.started_at, job.finished_at) else f" {format_seconds(_run_time_s(job))}"
    why = safe_text(limit_length(job_reason_text(job) or "", _MAX_CHARACTERS))
    return f"[{OUTCOME_LABELS.get(outcome, outcome.upper())}]{time_s}{f' {why}' if why else ''}"


def _run_time_s(job: JobView) -> float:
    return max(0.0, (job.finished_at or 0.0) - (job.started_at or 0.0))


def _title_text(job: JobView) -> str:
    return safe_text(limit_length(f"{job.name}: {job.text}" if job.name else job.text, _MAX_CHARACTERS))
