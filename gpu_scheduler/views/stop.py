"""Formats the result of `stop`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from gpu_scheduler.app.stop import RecordedEnd, StopReport, StopWait
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.views.answers import NOT_ENDED
from gpu_scheduler.views.reason_text import outcome_text


def wait_text(wait: StopWait) -> str:
    """Formats the progress message of a waiting `stop`."""
    jobs = f"job{'s' * (len(wait.jobs) > 1)} {', '.join(map(str, wait.jobs))}"
    kill = f"SIGKILL after {wait.grace_s:g} s"
    if wait.scheduler_pid is None:
        return f"waiting for {jobs} to end ({kill})"
    scheduler = f"waiting for the scheduler ({pid_text(wait.scheduler_pid)})"
    return f"{scheduler} to cancel {jobs} ({kill}) and end" if wait.jobs else f"{scheduler} to end"


def to_text(report: StopReport, *, with_jobs: bool) -> str:
    """Formats the report as lines. with_jobs: `stop` was to end the running jobs too."""
    return "".join(f"{line}\n" for line in _lines(report, with_jobs))


def _lines(report: StopReport, with_jobs: bool) -> Iterator[str]:
    if report.scheduler_pid is not None:
        yield f"the scheduler ({pid_text(report.scheduler_pid)}) has ended"
    elif not (with_jobs and set(report.running) - set(report.adopted)):
        yield f"no scheduler is running on {report.state_file}"
    continuing = report.adopted if with_jobs else report.running
    if continuing:
        jobs = ", ".join(map(str, continuing))
        how = "`cancel JOB` ends a job; the next `start` continues to manage them"
        which = "adopted" if with_jobs else "running"
        yield f"{which} jobs continue: job{'s' * (len(continuing) > 1)} {jobs}; {how}"
    for job_id, end in report.ended.items():
        yield f"job {job_id}: {_end_text(end)}"
    if report.shares is not None:
        yield f"{posixpath.basename(report.state_file)} updated: gpu_status {report.shares}"


def _end_text(end: RecordedEnd | None) -> str:
    return NOT_ENDED if end is None else outcome_text(end.outcome, end.exit_code, end.signal)
