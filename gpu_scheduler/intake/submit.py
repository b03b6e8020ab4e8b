"""Submits jobs to the queue. The jobs file and all other front ends use this module.

A front end validates a line with `parse_job_line` or reads a jobs file. It then passes each job specification
to `submit_job`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.jobsfile.diff import Resubmission, decide_resubmission
from gpu_scheduler.core.jobsfile.line_warnings import JobShell, line_warnings
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, resolve
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store


@dataclass(frozen=True)
class Submission:
    """The result of submitting a job: the id of the new or existing job, and the warnings about a new job."""

    job_id: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontEnd:
    """The origin of jobs.

    source: the text recorded in each job; name: the name recorded in each request; label: the name shown in
    messages, such as a file name.
    """

    source: str
    name: str
    label: str


def submit_job(
    store: Store,
    spec: JobSpec,
    newest: JobFact | None,
    front_end: FrontEnd,
    config: LlmConfig,
    shell: JobShell | None,
) -> Submission:
    """Inserts a job, or requests another run of the finished job that it duplicates.

    Uses the caller's transaction if there is one. spec: a validated specification; newest: the newest job
    with the same identity, from any front end (`newest_job_facts`); config: the needs of the models; shell:
    the shell that runs the jobs, or None if nothing is known about it.
    """
    effect = decide_resubmission(spec.kind, newest, spec.cancel)
    if newest is None or effect is Resubmission.NEW:
        count = resolve(ResourceSpec.of(spec), config).count
        job_id = store.insert_job(spec, front_end.source)
        return Submission(job_id, tuple(line_warnings(spec, count, shell)))
    if effect is Resubmission.REQUEUED:
        _requeue(store, newest.job_id, spec, front_end)
    return Submission(newest.job_id)


def _requeue(store: Store, job_id: int, spec: JobSpec, front_end: FrontEnd) -> None:
    """Requests another run of a finished job, with the attributes of `spec`."""
    job = store.job(job_id)
    assert job is not None
    before = job.spec
    add_request(store, "requeue", str(job_id), front_end.name, added_to=front_end.label)
    for name in COMPARED_ATTRIBUTES:
        value = getattr(spec, name)
        if value != getattr(before, name):
            request_attribute(store, job_id, name, value, front_end)


def request_attribute(store: Store, job_id: int, name: str, value: object, front_end: FrontEnd) -> None:
    """Requests a change to an attribute of a job on behalf of the front end that submitted the job."""
    add_request(store, "set", str(job_id), front_end.name, name=name, value=value, line=True)
