"""Formats the result of importing a `queue.json`."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.app.import_queue import ImportedJob, ImportReport
from gpu_scheduler.core.text.formatting import count_noun, safe_text
from gpu_scheduler.views.line_notes import line_note_text

#: Up to this many imported jobs get a line each.
_MAX_LINES = 20


def to_text(report: ImportReport) -> str:
    """Formats the imported jobs, the jobs that were left out, and the new name of the file."""
    return "".join(f"{safe_text(line)}\n" for line in _lines(report))


def _lines(report: ImportReport) -> Iterator[str]:
    path = report.path
    if report.earlier:
        yield f"{path} was imported before as {_ids(report.earlier)}; nothing was imported again"
    elif not report.jobs:
        yield f"{path} has no pending jobs; nothing was imported"
    elif len(report.jobs) > _MAX_LINES:
        yield f"imported {_ids(tuple(job.id for job in report.jobs))} from {path}"
    else:
        yield from map(_job_line, report.jobs)
    if report.left_out:
        counts = ", ".join(f"{number:,} {status}" for status, number in sorted(report.left_out.items()))
        yield f"not imported, because only pending jobs are: {counts}"
    if report.renamed_to is not None:
        yield f"{path} is now {report.renamed_to}"
    if report.jobs and report.scheduler_pid is None:
        yield "no scheduler is running; `start` runs the jobs"


def _job_line(job: ImportedJob) -> str:
    given = "" if job.given_name in (job.name, None) else f" ({job.given_name} in the file)"
    name = f"{job.name or ''}{given}: " if job.name or given else ""
    after = f" (after {', '.join(map(str, job.after))})" if job.after else ""
    return f"job {job.id}: {name}{job.text}{after}"


def _ids(ids: tuple[int, ...]) -> str:
    """Formats ids that are in ascending order, such as "jobs 4-6"."""
    if len(ids) == 1:
        return f"job {ids[0]}"
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"jobs {ids[0]}-{ids[-1]}"
    return f"{count_noun(len(ids), 'job')} from {ids[0]} to {ids[-1]}"


def import_warnings(report: ImportReport) -> Iterator[str]:
    """Yields the warnings about the imported jobs, and why the file was not renamed."""
    for job in report.jobs:
        yield from (f"job {job.id}: {text}" for text in _job_warnings(job))
    if report.rename_problem is not None:
        yield (
            f"{report.path} was imported but not renamed: {report.rename_problem}; rename it yourself"
            " (as long as it is unchanged, it is not imported again)"
        )


def _job_warnings(job: ImportedJob) -> Iterator[str]:
    for parent in job.missing:
        yield (
            f"held, because {parent.label} in the file, which it waits for, is {parent.status};"
            f" `release {job.id}` starts it anyway"
        )
    for variable, value in job.ignored.items():
        yield f"{variable}={value} is ignored, because the scheduler chooses the GPUs"
    yield from map(line_note_text, job.warnings)
