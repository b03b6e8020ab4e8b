"""`status`: one look at the record and at the folders of open attempts, shown as text or JSON."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Iterable

from gpu_scheduler.cli.control import wished_verbs
from gpu_scheduler.cli.record import opened, pid_of
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.states import ACTIVE, JobState
from gpu_scheduler.intake.pauses import wished_pauses
from gpu_scheduler.sight import sight
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import gpus, jobs
from gpu_scheduler.views.report import JobsFileShown, MalformedShown, Report

#: Finished jobs that are shown, and queued or held ones in text, unless all are asked for.
SHOWN = 20


def status(options: Namespace) -> int:
    """Show what there is; never changes anything."""
    with opened(options) as store:
        queued = None if options.all or options.json else SHOWN
        report = read(store, queued=queued, finished=None if options.all else SHOWN)
    if options.json:
        from gpu_scheduler.views.as_json import to_json

        sys.stdout.write(to_json(report))
    else:
        from gpu_scheduler.views.text import to_text

        width = os.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(to_text(report, everything=options.all, width=width or None))
    return 0


def read(store: Store, *, queued: int | None, finished: int | None) -> Report:
    """The report. queued: at most so many queued and so many held jobs; finished: so many finished ones;
    None: all of them."""
    pid = pid_of(store)
    with store.one_moment():
        rows = store.open_jobs(tuple(ACTIVE))
        for state in (JobState.QUEUED, JobState.HELD):
            rows += store.open_jobs((state,), queued)
        rows += store.finished_jobs(finished)
        attempts = store.newest_attempts(row["id"] for row in rows)
        context = _context(store, attempts.values(), is_up=pid is not None)
        return Report(
            now=time.time(),
            pid=pid,
            state_file=str(store.home.state_file),
            data_dir=str(store.home.folder),
            gpus=gpus.shown(store.gpus(), store.unsettled(), wished_pauses(store)),
            jobs=tuple(jobs.shown(row, attempts.get(row["id"]), context) for row in rows),
            counts=store.counts(),
            malformed=tuple(_malformed(row) for row in store.malformed()),
            jobs_files=tuple(JobsFileShown(row["path"], row["problem"]) for row in store.jobs_files()),
        )


def _context(store: Store, attempts: Iterable[sqlite3.Row], *, is_up: bool) -> jobs.Context:
    folders = {
        row["id"]: (store.home.attempt(row["job_id"], row["number"], row["token"]), row["token"])
        for row in attempts
        if row["outcome"] is None
    }
    infeasible, reasons = store.infeasible(), store.waiting()
    if not is_up:
        # What the last scheduler found may not hold any more, but for what can never fit.
        reasons = {ask: reason for ask, reason in reasons.items() if ask in infeasible}
    return jobs.Context(
        now=Clock().now(),
        reasons=reasons,
        otherwise="not tried yet" if is_up else "no scheduler is running",
        infeasible=infeasible,
        indices=store.indices(),
        wished={job_id: verbs[-1] for job_id, verbs in wished_verbs(store).items()},
        sightings={attempt_id: sight(folder, token) for attempt_id, (folder, token) in folders.items()},
    )


def _malformed(row: sqlite3.Row) -> MalformedShown:
    return MalformedShown(
        row["path"], row["number"], row["raw"].strip() or row["text"], row["problem"], row["accepted"]
    )
