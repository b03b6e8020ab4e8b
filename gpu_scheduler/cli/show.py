"""`show`: prints everything known about one job. It changes nothing and opens no log."""

from __future__ import annotations

import json
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from gpu_scheduler.app import job_views
from gpu_scheduler.app.current_need import current_need
from gpu_scheduler.app.job_refs import job_record, resolve_job
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.app.view_context import context_of
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.share import WHOLE
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.declaration_accuracy import judge_declaration
from gpu_scheduler.core.text.secrets import hide_secrets, masked_words
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.records import AttemptRecord, JobRecord, LineLocation
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.event_messages import detail
from gpu_scheduler.views.job_detail import AttemptView, JobDetail, accuracy_text, to_json, to_text

#: The end of `core.command.build.BEGIN` and the `exec` before the job's own command.
_JOB_COMMAND_START = re.compile(r"exec 3>&-[^\n]*\nexec ")


def show(options: Namespace) -> int:
    """Prints the job."""
    with open_store(location_of(options), read_only=True) as store:
        story = read_job_detail(store, resolve_job(store, options.job))
    sys.stdout.write(to_json(story) if options.json else to_text(story))
    return 0


def read_job_detail(store: Store, job_id: int) -> JobDetail:
    """Returns the details of a job. Raises SchedulerError if there is no such job."""
    is_up = scheduler_pid_of(store) is not None
    with store.snapshot():
        row = job_record(store, job_id)
        attempts = store.attempts(job_id)
        open_now = [one for one in store.active_attempts() if one["job_id"] == job_id]
        context = context_of(store, open_now, is_up=is_up)
        shown = job_views.job_view(row, attempts[-1] if attempts else None, context)
        spec = JobSpec.from_json(row["spec"])
        line = store.line_of(job_id)
        return JobDetail(
            now=context.now.wall,
            job=shown,
            kind=spec.kind,
            identity=row["identity"],
            origin=_origin(row, line),
            line=None if line is None else (line["path"], line["number"]),
            script=spec.script,
            arguments=tuple(masked_words(spec.arguments)),
            need=current_need(store, row)[1],
            min_vram_mib=row["raised_mib"],
            oom_used=row["oom_used"],
            oom_retries=spec.oom_retries,
            fail_used=row["fail_used"],
            fail_retries=spec.fail_retries,
            timeout_s=spec.timeout_s,
            allowed=spec.allowed,
            conda=spec.conda,
            venv=spec.venv,
            cwd=spec.cwd,
            env=hide_secrets(spec.env),
            attempts=tuple(_attempt_view(store, one, shown, context.indices) for one in attempts),
            history=tuple((one.at, one.kind, detail(one)) for one in events_of_job(store, job_id)),
        )


def _origin(job: JobRecord, line: LineLocation | None) -> str:
    kind, _, path = str(job["source"]).partition(":")
    if line is not None:
        return f"{line['path']}:{line['number']}"
    return f"{path}, from which its line was removed" if kind == "file" else f"`{kind}`"


def _attempt_view(store: Store, row: AttemptRecord, job: JobView, indices: Mapping[str, int]) -> AttemptView:
    folder = store.data_dir.attempt_folder(row["job_id"], row["number"], row["token"])
    # An end that is not recorded yet belongs to the latest attempt and is shown with the job.
    seen = row["outcome"] is None and not job.is_recorded and job.outcome is not None
    share = job_views.share_declared(row)
    return AttemptView(
        number=row["number"],
        gpus=job_views.gpu_indices(row, indices),
        outcome=job.outcome if seen else row["outcome"],
        reason=job.reason if seen else row["reason"],
        launch_error=row["launch_error"],
        exit_code=job.exit_code if seen else row["exit_code"],
        signal=job.signal if seen else row["signal"],
        created_at=row["created_at"],
        started_at=job.started_at if seen else row["started_at"],
        ended_at=job.finished_at if seen else row["ended_at"],
        log=row["log"],
        session=job.session if row["outcome"] is None else row["session"],
        folder=str(folder),
        command=job_command(folder),
        survivors=tuple(json.loads(row["survivors"])),
        launches=row["launches"],
        warnings=job_views.warnings(row, indices),
        vram_declared=job_views.vram_declared(row),
        share_declared=None if share is None else share / WHOLE,
        peaks=job_views.peaks_by_index(row, indices),
        load_percent=_mean_load(row),
        declaration_accuracy=_declaration_accuracy(store, row),
    )


def _mean_load(row: AttemptRecord) -> float | None:
    """Returns the mean load of an attempt's GPUs over all samples, in percent; None without samples."""
    loads = json.loads(row["loads"]).values()
    samples = sum(count for _, count in loads)
    return sum(total for total, _ in loads) / samples if samples else None


def _declaration_accuracy(store: Store, row: AttemptRecord) -> str | None:
    """Returns how accurate the declaration of an attempt was; None until its end is recorded."""
    if row["outcome"] is None:
        return None
    peaks, budgets = json.loads(row["peaks"]), json.loads(row["budgets"])
    tolerance = recorded_options(store).tolerance
    completed = row["outcome"] == Outcome.COMPLETED.value
    uuids = json.loads(row["gpus"])
    verdict = judge_declaration(
        [peaks.get(uuid) for uuid in uuids],
        [budgets.get(uuid) for uuid in uuids],
        tolerance,
        completed=completed,
        by_share=row["vram"] is None,
    )
    return accuracy_text(verdict, tolerance)


def job_command(folder: Path) -> str | None:
    """Returns the job's own command, read from the attempt's command.sh; None if it cannot be found."""
    try:
        text = (folder / "command.sh").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    found = _JOB_COMMAND_START.search(text)
    if found is None:
        return None
    last = text[found.end() :]
    try:
        words = shlex.split(last)
    except ValueError:
        return last.strip()
    # Shell text written by the user is shown without its `bash -c` wrapper.
    return words[2] if words[:2] == ["bash", "-c"] and len(words) == 3 else last.strip()
