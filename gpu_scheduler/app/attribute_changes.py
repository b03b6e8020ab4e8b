"""Checks the changes that `set` requests for a job, before any of them is recorded."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any

from gpu_scheduler.app.job_refs import job_record
from gpu_scheduler.app.named_parents import named_job
from gpu_scheduler.core.jobsfile.attribute_changes import check_changes, parse_changes
from gpu_scheduler.core.jobsfile.attributes import key_of
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.store import Store

#: The fields of JobSpec that name other jobs.
_REFERENCES = ("after", "after_any")


def attribute_changes(store: Store, job_id: int, items: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the arguments of the request for each change. items: as in `set 3 vram=18G after=`.

    Raises UsageError for a wrong item, and SchedulerError if the job does not exist, if it has a line in a
    jobs file, or if it was skipped and other attributes than its dependencies are to change.
    """
    job = job_record(store, job_id)
    line = line_of(store, job_id)
    if line is not None:
        file = posixpath.basename(line.path)
        raise SchedulerError(
            f"job {job_id} has a line in a jobs file; edit line {line.number} of {file} instead: {line.path}"
        )
    try:
        changes = parse_changes(items, frozenset(store.gpu_indices().values()) or None)
        check_changes(job.spec, changes)
    except ValueError as error:
        raise UsageError(f"{error}; nothing was changed") from None
    others = [key_of(field) for field in changes if field not in _REFERENCES]
    if job.outcome is Outcome.SKIPPED and others:
        raise SchedulerError(
            f"job {job_id} was skipped, so only after and after-any can be changed, not {', '.join(others)};"
            " nothing was changed"
        )
    return [_request_args(store, field, value) for field, value in changes.items()]


def _request_args(store: Store, field: str, value: Any) -> dict[str, Any]:
    args = {"name": field, "value": value}
    if field not in _REFERENCES:
        return args
    try:
        parents = [(named_job(store, reference).id, reference) for reference in value]
    except SchedulerError as error:
        raise UsageError(f"{key_of(field)}: {error}") from None
    return {**args, "parents": parents}
