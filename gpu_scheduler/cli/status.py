"""`status`: shows one snapshot of the store and of the open attempts' folders, as text or JSON."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.cli.record import home_of, nothing_yet, opened, pid_of, wished_verbs
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.states import ACTIVE, JobState
from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.errors import NoRecordError
from gpu_scheduler.intake.pauses import wished_pauses
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.storage import LOG_FOLDER, refused, troubles
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.identity import original
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import gpus, jobs
from gpu_scheduler.views.report import JobsFileShown, JobShown, MalformedShown, Report
from gpu_scheduler.views.words import visible

if TYPE_CHECKING:
    from gpu_scheduler.core.facts import Attempt
    from gpu_scheduler.views.lines import Screen

#: Number of finished jobs shown, unless --all is given or the terminal has more rows.
SHOWN = 20
#: Number of queued jobs read for the text, and as many held ones; equal ones are grouped into one row.
GROUPED = 1000
#: Number of bytes at the end of a running job's log in which its last line is searched.
_TAIL = 4096


def status(options: Namespace) -> int:
    """Prints the status; changes nothing."""
    if options.watch is not None:
        from gpu_scheduler.cli.watch import watch

        return watch(options)
    try:
        _show(options)
    except NoRecordError:
        _show_nothing(home_of(options), as_json=options.json)
    return 0


def _show_nothing(home: Home, *, as_json: bool) -> None:
    if not as_json:
        print(visible(nothing_yet(home), lines=True))
        return
    from gpu_scheduler.views.as_json import to_json

    sys.stdout.write(to_json(Report(time.time(), None, str(home.state_file), str(home.folder))))


def _show(options: Namespace) -> None:
    if options.json:
        with opened(options, foreign=True) as store:
            finished = None if options.all else SHOWN
            report = read(store, queued=None, finished=finished, only_failed=options.failed)
        from gpu_scheduler.views.as_json import to_json

        sys.stdout.write(to_json(report))
    else:
        screen = screen_of_stdout()
        with opened(options, foreign=True) as store:
            report = report_for(store, options, screen)
        from gpu_scheduler.views.text import to_text

        # Output requested in full may scroll. One row is left for the shell's prompt.
        has_no_end = options.all or options.verbose or screen.rows is None
        fitted = replace(screen, rows=None if has_no_end else (screen.rows or 0) - 1)
        sys.stdout.write(to_text(report, fitted, everything=options.all, verbose=options.verbose))


def screen_of_stdout() -> Screen:
    """Returns the size and colours of the terminal at stdout; unlimited and without colours if it is none."""
    from gpu_scheduler.views.colours import wanted
    from gpu_scheduler.views.lines import Screen

    if not sys.stdout.isatty():
        return Screen()
    size = os.get_terminal_size(sys.stdout.fileno())
    return Screen(size.columns or None, size.lines or None, wanted(os.environ))


def report_for(store: Store, options: Namespace, screen: Screen) -> Report:
    """Returns the report for a text on this screen."""
    most = None if options.all else GROUPED
    finished = None if options.all else max(SHOWN, screen.rows or 0)
    report = read(store, queued=most, finished=finished, only_failed=options.failed)
    return with_last_lines(report, store)


def with_last_lines(report: Report, store: Store) -> Report:
    """Returns the report with the last output line of each running job, except for another host's store."""
    if store.foreign is not None:
        return report
    return replace(report, jobs=tuple(map(_with_last_line, report.jobs)))


def _with_last_line(job: JobShown) -> JobShown:
    if JobState(job.state) not in ACTIVE or job.log is None:
        return job
    from gpu_scheduler.core.escapes import last_frame
    from gpu_scheduler.logtail import tail_of

    return replace(job, last_line=last_frame(tail_of(job.log, _TAIL)))


def failed(store: Store) -> tuple[JobShown, ...]:
    """Returns the failed jobs, including those whose end is not recorded yet, latest end first."""
    return read(store, queued=0, finished=None, only_failed=True).jobs


def read(store: Store, *, queued: int | None, finished: int | None, only_failed: bool = False) -> Report:
    """Reads the report from the store.

    queued: the maximum of queued jobs and, separately, of held jobs; finished: the maximum of finished jobs;
    None means all. only_failed: leave out all other jobs.
    """
    pid = pid_of(store)
    with store.one_moment():
        rows = store.open_jobs(tuple(ACTIVE))
        for state in (JobState.QUEUED, JobState.HELD):
            rows += [] if only_failed else store.open_jobs((state,), queued)
        rows += store.failed_jobs() if only_failed else store.finished_jobs(finished)
        attempts = store.newest_attempts(row["id"] for row in rows)
        unsettled = store.unsettled()
        context = context_of(store, unsettled, is_up=pid is not None or store.foreign is not None)
        report = Report(
            now=time.time(),
            troubles=troubles_of(store),
            pid=pid,
            host=store.foreign.name if store.foreign is not None else None,
            state_file=str(store.home.state_file),
            data_dir=str(store.home.folder),
            gpus=gpus.shown(store.gpus(), unsettled, wished_pauses(store), started_with(store).limits),
            jobs=tuple(jobs.shown(row, attempts.get(row["id"]), context) for row in rows),
            counts=store.counts(),
            unsuccessful=store.unsuccessful(),
            malformed=tuple(_malformed(row) for row in store.malformed()),
            jobs_files=tuple(JobsFileShown(row["path"], row["problem"]) for row in store.jobs_files()),
        )
    return report.of_failed(finished) if only_failed else report


def troubles_of(store: Store) -> tuple[Trouble, ...]:
    """Returns the health issues of the files that the scheduler writes; none for another host's store."""
    if store.foreign is not None:
        return ()
    logs, started = store.db.meta(LOG_FOLDER), started_with(store)
    trust = started.trust_files
    found = troubles(store.home, LogFolder.from_json(logs) if logs is not None else None, trust=trust)
    config = refused("llm_config", Path(started.llm_config), trust=trust) if started.llm_config else None
    return (*_of_copy(store), *found, *(() if config is None else (config,)))


def _of_copy(store: Store) -> Iterator[Trouble]:
    of = original(store)
    if of is not None:
        problem, remedy = f"is a copy of {of}, which still exists", "`start` lists the options"
        yield Trouble("record", str(store.home.folder), problem, remedy, stops=True)


def context_of(store: Store, unsettled: Iterable[sqlite3.Row], *, is_up: bool) -> jobs.Context:
    """Returns the context from which jobs are described. unsettled: rows of `Store.unsettled`."""
    infeasible, reasons = store.infeasible(), store.waiting()
    if not is_up:
        # The reasons of the last scheduler may be outdated, except that a job can never fit.
        reasons = {ask: reason for ask, reason in reasons.items() if ask in infeasible}
    started = started_with(store)
    return jobs.Context(
        now=Clock().now(),
        reasons=reasons,
        needs=store.needs() if is_up else {},
        otherwise="not tried yet" if is_up else "no scheduler is running",
        infeasible=infeasible,
        indices=store.indices(),
        wished={job_id: verbs[-1] for job_id, verbs in wished_verbs(store).items()},
        open=_looks(store, [row for row in unsettled if row["outcome"] is None]),
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
        is_up=is_up,
    )


def _looks(store: Store, rows: Collection[sqlite3.Row]) -> dict[int, Attempt]:
    if not rows:
        return {}
    from gpu_scheduler.sight import look_at  # imports what takes a third of this command's time

    return {row["id"]: look_at(store, row) for row in rows}


def _malformed(row: sqlite3.Row) -> MalformedShown:
    return MalformedShown(
        row["path"], row["number"], row["raw"].strip() or row["text"], row["problem"], row["accepted"]
    )
