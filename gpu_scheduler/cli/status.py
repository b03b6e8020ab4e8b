"""`status`: shows one snapshot of the store and of the open attempts' folders, as text or JSON."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.app import gpu_views, job_views
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.status_report import JobsFileView, JobView, MalformedLineView, StatusReport
from gpu_scheduler.app.store_access import open_store, requested_verbs, scheduler_pid_of
from gpu_scheduler.attempts.log_folder import LogFolder
from gpu_scheduler.cli.location import location_of, no_store_message
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.health_issue import HealthIssue, HealthSubject
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.health.storage import LOG_FOLDER_KEY, find_issues, unusable_file_issue
from gpu_scheduler.intake.pauses import requested_pauses
from gpu_scheduler.store.location import original_of_copy
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.records import ActiveAttemptRecord, MalformedLineRecord
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Attempt
    from gpu_scheduler.views.layout import Viewport

#: Number of finished jobs shown, unless --all is given or the terminal has more rows.
DEFAULT_FINISHED = 20
#: Number of queued jobs read for the text, and as many held ones; equal ones are grouped into one row.
MAX_GROUPED = 1000
#: Number of bytes at the end of a running job's log in which its last line is searched.
_TAIL_BYTES = 4096


def status(options: Namespace) -> int:
    """Prints the status; changes nothing."""
    if options.watch is not None:
        from gpu_scheduler.cli.watch import watch

        return watch(options)
    try:
        _print_status(options)
    except StoreNotFoundError:
        _print_no_store(location_of(options), as_json=options.json)
    return 0


def _print_no_store(location: Location, *, as_json: bool) -> None:
    if not as_json:
        print(safe_text(no_store_message(location), keep_line_breaks=True))
        return
    from gpu_scheduler.views.status_json import to_json

    data_dir = location.resolve()
    sys.stdout.write(to_json(StatusReport(time.time(), None, str(data_dir.state_file), str(data_dir.folder))))


def _print_status(options: Namespace) -> None:
    if options.json:
        with open_store(location_of(options), allow_other_host=True) as store:
            finished = None if options.all else DEFAULT_FINISHED
            report = read_report(store, max_queued=None, max_finished=finished, only_failed=options.failed)
        from gpu_scheduler.views.status_json import to_json

        sys.stdout.write(to_json(report))
    else:
        screen = stdout_screen()
        with open_store(location_of(options), allow_other_host=True) as store:
            report = report_for_screen(store, options, screen)
        from gpu_scheduler.views.status_text import to_text

        # Output requested in full may scroll. One row is left for the shell's prompt.
        has_no_end = options.all or options.verbose or screen.rows is None
        fitted = replace(screen, rows=None if has_no_end else (screen.rows or 0) - 1)
        sys.stdout.write(to_text(report, fitted, show_all=options.all, verbose=options.verbose))


def stdout_screen() -> Viewport:
    """Returns the size and colours of the terminal at stdout; unlimited and without colours if it is none."""
    from gpu_scheduler.views.colours import are_enabled
    from gpu_scheduler.views.layout import Viewport

    if not sys.stdout.isatty():
        return Viewport()
    size = os.get_terminal_size(sys.stdout.fileno())
    return Viewport(size.columns or None, size.lines or None, are_enabled(os.environ))


def report_for_screen(store: Store, options: Namespace, screen: Viewport) -> StatusReport:
    """Returns the report for a text on this screen."""
    most = None if options.all else MAX_GROUPED
    finished = None if options.all else max(DEFAULT_FINISHED, screen.rows or 0)
    report = read_report(store, max_queued=most, max_finished=finished, only_failed=options.failed)
    return with_last_lines(report, store)


def with_last_lines(report: StatusReport, store: Store) -> StatusReport:
    """Returns the report with the last output line of each running job, except for another host's store."""
    if store.other_host is not None:
        return report
    return replace(report, jobs=tuple(map(_with_last_line, report.jobs)))


def _with_last_line(job: JobView) -> JobView:
    if JobState(job.state) not in ACTIVE or job.log is None:
        return job
    from gpu_scheduler.attempts.log_tail import read_tail
    from gpu_scheduler.core.text.escapes import last_visible_line

    return replace(job, last_line=last_visible_line(read_tail(job.log, _TAIL_BYTES)))


def failed_jobs(store: Store) -> tuple[JobView, ...]:
    """Returns the failed jobs, including those whose end is not recorded yet, latest end first."""
    return read_report(store, max_queued=0, max_finished=None, only_failed=True).jobs


def read_report(
    store: Store, *, max_queued: int | None, max_finished: int | None, only_failed: bool = False
) -> StatusReport:
    """Reads the report from the store.

    queued: the maximum of queued jobs and, separately, of held jobs; finished: the maximum of finished jobs;
    None means all. only_failed: leave out all other jobs.
    """
    pid = scheduler_pid_of(store)
    with store.snapshot():
        rows = store.open_jobs(tuple(ACTIVE))
        for state in (JobState.QUEUED, JobState.HELD):
            rows += [] if only_failed else store.open_jobs((state,), max_queued)
        rows += store.failed_jobs() if only_failed else store.finished_jobs(max_finished)
        attempts = store.newest_attempts(row["id"] for row in rows)
        unsettled = store.active_attempts()
        context = context_of(store, unsettled, is_up=pid is not None or store.other_host is not None)
        report = StatusReport(
            now=time.time(),
            health_issues=health_issues_of(store),
            pid=pid,
            host=store.other_host.name if store.other_host is not None else None,
            state_file=str(store.data_dir.state_file),
            data_dir=str(store.data_dir.folder),
            gpus=gpu_views.gpu_views(
                store.gpus(), unsettled, requested_pauses(store), recorded_options(store).limits
            ),
            jobs=tuple(job_views.job_view(row, attempts.get(row["id"]), context) for row in rows),
            counts=store.state_counts(),
            unsuccessful_counts=store.unsuccessful_counts(),
            malformed=tuple(_malformed_view(row) for row in store.malformed_lines()),
            jobs_files=tuple(JobsFileView(row["path"], row["problem"]) for row in store.jobs_files()),
        )
    return report.failed_only(max_finished) if only_failed else report


def health_issues_of(store: Store) -> tuple[HealthIssue, ...]:
    """Returns the health issues of the files that the scheduler writes; none for another host's store."""
    if store.other_host is not None:
        return ()
    logs, started = store.db.meta(LOG_FOLDER_KEY), recorded_options(store)
    trust = started.trust_files
    found = find_issues(store.data_dir, LogFolder.from_json(logs) if logs is not None else None, trust=trust)
    config = (
        unusable_file_issue(HealthSubject.LLM_CONFIG, Path(started.llm_config), trust=trust)
        if started.llm_config
        else None
    )
    return (*_copy_issues(store), *found, *(() if config is None else (config,)))


def _copy_issues(store: Store) -> Iterator[HealthIssue]:
    of = original_of_copy(store)
    if of is not None:
        problem, remedy = f"is a copy of {of}, which still exists", "`start` lists the options"
        folder = str(store.data_dir.folder)
        yield HealthIssue(HealthSubject.STORE, folder, problem, remedy, blocks_starts=True)


def context_of(
    store: Store, unsettled: Iterable[ActiveAttemptRecord], *, is_up: bool
) -> job_views.ViewContext:
    """Returns the context from which jobs are described. unsettled: rows of `Store.unsettled`."""
    infeasible, reasons = store.infeasible_spec_keys(), store.wait_reasons()
    if not is_up:
        # The reasons of the last scheduler may be outdated, except that a job can never fit.
        reasons = {ask: reason for ask, reason in reasons.items() if ask in infeasible}
    started = recorded_options(store)
    return job_views.ViewContext(
        now=Clock().now(),
        wait_reasons=reasons,
        needs=store.needs() if is_up else {},
        default_wait_reason="not tried yet" if is_up else "no scheduler is running",
        infeasible=infeasible,
        indices=store.gpu_indices(),
        open_requests={job_id: verbs[-1] for job_id, verbs in requested_verbs(store).items()},
        open_attempts=_observe_open(store, [row for row in unsettled if row["outcome"] is None]),
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
        is_scheduler_up=is_up,
    )


def _observe_open(store: Store, rows: Collection[ActiveAttemptRecord]) -> dict[int, Attempt]:
    if not rows:
        return {}
    from gpu_scheduler.attempts.observe import observe_attempt

    return {row["id"]: observe_attempt(store, row) for row in rows}


def _malformed_view(row: MalformedLineRecord) -> MalformedLineView:
    return MalformedLineView(
        row["path"], row["number"], row["raw"].strip() or row["text"], row["problem"], row["accepted"]
    )
