"""Reports the unfinished jobs and the exit code when a draining scheduler ends."""

from __future__ import annotations

import logging
from collections.abc import Set

from gpu_scheduler.app.job_views import ViewContext, job_view
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.draining import drained_exit_code, job_exit_code
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.store.dependencies import parents_of
from gpu_scheduler.store.events import jobs_run_after, newest_event_id
from gpu_scheduler.store.job_lists import jobs_of_file
from gpu_scheduler.store.jobs_files import malformed_lines
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.job_findings import unfinished_text

log = logging.getLogger(__name__)


class DrainReport:
    """Reports the jobs of this run, all unfinished jobs, and those with a line in the jobs file.

    The run begins when this object is created.
    """

    def __init__(self, store: Store, jobs_file: str, clock: Clock) -> None:
        self._store = store
        self._jobs_file = jobs_file
        self._clock = clock
        self._begin = newest_event_id(store)

    def report(self) -> int:
        """Logs the unfinished jobs and returns the exit code."""
        run = jobs_run_after(self._store, self._begin)
        jobs = self._jobs(run)
        malformed = [line for line in malformed_lines(self._store) if line.path == self._jobs_file]
        left = unfinished_text(malformed, [job for job in jobs if job.record.state is not JobState.FINISHED])
        if left:
            log.warning("unfinished: %s", left)
        code = drained_exit_code(map(_exit_code_of, jobs), has_malformed_line=bool(malformed))
        done = sum(job.record.outcome is Outcome.COMPLETED for job in jobs)
        if not run and code:
            log.info("no job was run; `retry JOB` runs a job again, and `start --fresh` runs all jobs again")
        skipped = sum(job.record.outcome is Outcome.SKIPPED for job in jobs)
        more = [f"{skipped:,} skipped"] * bool(skipped)
        more += [count_noun(len(malformed), "malformed line")] * bool(malformed)
        log.info(
            "drained: %s; exit code %d", ", ".join([f"{done} of {len(jobs)} jobs completed", *more]), code
        )
        return code

    def _jobs(self, run: Set[int]) -> list[JobView]:
        """Returns the jobs that the report covers, sorted by id. run: those that started or finished."""
        known = {job.id: job for job in jobs_of_file(self._store, self._jobs_file)}
        for job_id in run - known.keys():
            job = self._store.job(job_id)
            if job is not None:
                known[job_id] = job
        context = ViewContext(
            self._clock.now(), wait_reasons=wait_reasons(self._store), parents=parents_of(self._store, known)
        )
        return [job_view(job, None, context) for _, job in sorted(known.items())]


def _exit_code_of(job: JobView) -> int:
    record = job.record
    return job_exit_code(record.state, record.outcome, record.exit_code, record.signal, job.wait)
