"""A report as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.share import format_share
from gpu_scheduler.core.states import ACTIVE, JobState
from gpu_scheduler.views.report import GpuShown, JobShown, Report
from gpu_scheduler.views.tables import Column, Draw, Entry, drawer
from gpu_scheduler.views.words import (
    ago,
    duration,
    explanation,
    memory_words,
    outcome_words,
    plural,
    shortened,
    size,
    visible,
)

#: Queued and held jobs, finished jobs, and malformed lines, that are shown unless all are asked for.
SHOWN = 20


def to_text(report: Report, *, everything: bool = False, width: int | None = None) -> str:
    """The report in tables, rows cut to `width` columns (None: not cut); everything: no line is left out."""
    draw = drawer(width)

    def section(title: str, state: JobState, table: str, jobs: Sequence[JobShown]) -> str:
        if not jobs:
            return ""
        more = report.counts.get(state.value, 0) - sum(job.recorded for job in jobs)
        rest = [f"  and {more:,} more (--all)"] if more > 0 else []
        return "\n".join([f"{title} ({len(jobs) + max(0, more):,})", table, *rest])

    active = [job for job in report.jobs if JobState(job.state) in ACTIVE]
    queued = [job for job in report.jobs if job.state == JobState.QUEUED]
    held = [job for job in report.jobs if job.state == JobState.HELD]
    finished = [job for job in report.jobs if job.state == JobState.FINISHED]
    blocks = [
        _head(report),
        _gpus(report, draw),
        "" if report.jobs else "No job has failed." if report.only_failed else "No jobs yet.",
        f"Running ({len(active)})\n{_running(active, report.now, draw)}" if active else "",
        section("Queued", JobState.QUEUED, _waiting(queued, draw), queued),
        section("Held", JobState.HELD, _waiting(held, draw), held),
        section("Finished", JobState.FINISHED, _finished(finished, report.now, draw), finished),
        _malformed(report, None if everything else SHOWN),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(report: Report) -> str:
    up = f"running, pid {report.pid}" if report.pid is not None else "not running"
    if report.host is not None:
        up = f"on host {visible(report.host)}; seen from another host: what runs cannot be checked"
    lines = [
        f"Scheduler   {up}",
        f"State file  {visible(report.state_file)}",
        f"Record      {visible(report.data_dir)}",
    ]
    for file in report.jobs_files:
        problem = f": {visible(file.problem)}" if file.problem else ""
        lines.append(f"Jobs file   {visible(file.path)}{problem}")
    for trouble in report.troubles:
        until = "; nothing new is started until then" if trouble.stops else ""
        lines.append(f"Trouble     {visible(str(trouble))}{until}")
    return "\n".join(lines)


def _gpus(report: Report, draw: Draw) -> str:
    if not report.gpus:
        return "No GPUs are known yet."
    by_memory = any(gpu.by_memory for gpu in report.gpus)
    booked: list[Column] = [("Booked", "right")] if by_memory else []
    columns: list[Column] = [
        ("GPU", "right"), ("Name", "left"), ("State", "left"), ("Share", "right"), *booked,
        ("Memory", "right"), ("Load", "right"), ("Jobs", "left"),
    ]  # fmt: skip
    table = draw(columns, [_gpu(gpu, by_memory) for gpu in report.gpus])
    sampled = [gpu.sampled_at for gpu in report.gpus if gpu.sampled_at is not None]
    stale = report.pid is None and sampled
    return f"GPUs{f', values as of {ago(max(sampled), report.now)}' if stale else ''}\n{table}"


def _gpu(gpu: GpuShown, by_memory: bool) -> Entry:
    load = "?" if gpu.load_percent is None else f"{gpu.load_percent:.0f} %"
    memory = f"{size(gpu.used_mib)} / {size(gpu.total_mib)}"
    jobs = ", ".join(str(job) for job in gpu.jobs) or "-"
    booked = [size(gpu.booked_mib)] if by_memory else []
    cells = [
        str(gpu.index),
        visible(gpu.name),
        gpu.state,
        format_share(gpu.share),
        *booked,
        memory,
        load,
        jobs,
    ]
    return Entry(cells, [] if gpu.fault in (None, gpu.state) else [visible(gpu.fault or "")])


def _title(job: JobShown) -> str:
    return visible(shortened(f"{job.name}: {job.text}" if job.name else job.text))


def _unrecorded(job: JobShown) -> str:
    return "" if job.recorded else " (not recorded yet)"


def _running(jobs: Sequence[JobShown], now: float, draw: Draw) -> str:
    columns: list[Column] = [
        ("Job", "right"), ("GPUs", "left"), ("State", "left"), ("Since", "left"), ("What", "left"),
    ]  # fmt: skip
    entries = []
    for job in jobs:
        gpus = ",".join(str(gpu) for gpu in job.gpus) or "-"
        since = ago(job.started_at, now) or "-"
        cells = [str(job.id), gpus, job.state + _unrecorded(job), since, _title(job)]
        about = [("", job.reason), *(("", text) for text in job.warnings)]
        about += [("memory ", memory_words(job.peaks, job.vram_declared))]
        about += [("session ", job.session), ("log ", job.log)]
        entries.append(Entry(cells, [title + visible(value) for title, value in about if value]))
    return draw(columns, entries)


def _waiting(jobs: Sequence[JobShown], draw: Draw) -> str:
    columns: list[Column] = [("Job", "right"), ("Priority", "right"), ("What, and why it waits", "left")]
    entries = []
    for job in jobs:
        why = visible(job.reason or "") + _unrecorded(job)
        entries.append(Entry([str(job.id), str(job.priority), _title(job)], [why.strip()] if why else []))
    return draw(columns, entries)


def _finished(jobs: Sequence[JobShown], now: float, draw: Draw) -> str:
    columns: list[Column] = [
        ("Job", "right"), ("Outcome", "left"), ("Took", "right"), ("Ended", "left"), ("What", "left"),
    ]  # fmt: skip
    entries = []
    for job in jobs:
        outcome = outcome_words(job.outcome or "finished", job.exit_code, job.signal)
        took = "-"
        if job.started_at is not None and job.finished_at is not None:
            took = duration(job.finished_at - job.started_at)
        cells = [str(job.id), outcome + _unrecorded(job), took, ago(job.finished_at, now) or "-", _title(job)]
        below = [explanation(job.reason, job.exit_code, job.signal), *job.warnings]
        entries.append(Entry(cells, [visible(text) for text in below if text]))
    return draw(columns, entries)


def _malformed(report: Report, most: int | None) -> str:
    if not report.malformed:
        return ""
    lines = [f"Malformed lines ({len(report.malformed):,}); they do not run until they are mended"]
    for bad in report.malformed[:most]:
        lines.append(f"  {visible(bad.path)}:{bad.number}: {visible(shortened(bad.text))}")
        lines.append(f"    {visible(shortened(bad.reason))}")
        if bad.accepted:
            lines.append(f"    accepted: {visible(bad.accepted)}")
    if most is not None and len(report.malformed) > most:
        lines.append(f"  and {plural(len(report.malformed) - most, 'more line')} (--all)")
    return "\n".join(lines)
