"""The bodies of requests: strict, so that a wrong type or an unknown field is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
_Number = Annotated[int, Field(ge=1, le=10**15 - 1)]
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Jobs = Annotated[list[_Number | _Name], Field(min_length=1, max_length=1000)]
_Gpu = Annotated[int, Field(ge=0, le=999)]
_Changes = Annotated[list[Text], Field(max_length=50)]
_Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


#: A JSON object in the form that docs/json.md describes.
Reply = dict[str, Any]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class ModelJob(Body):
    """A script and the memory that it needs on each of its GPUs, in MiB."""

    model_script: Text
    gpu_memory_mb: Annotated[int, Field(ge=1, le=10_000_000)]
    num_gpus: Annotated[int, Field(ge=1, le=64)] = 1
    priority: Annotated[int, Field(ge=0, le=999_999_999)] = 200


class NewJobs(Body):
    """A script or a command, and what it needs; with a grid, one job for each combination."""

    script: Text | None = None
    command: Text | Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    arguments: Annotated[list[str], Field(max_length=1000)] = []
    attributes: dict[str, str | bool] = {}
    env: dict[str, str] = {}
    cwd: Text | None = None
    grid: Annotated[list[Text], Field(max_length=20)] = []
    zip: bool = False


class Jobs(Body):
    """Jobs by number, range, name, group or pattern."""

    jobs: _Jobs


class FewJobs(Jobs):
    """Jobs that are changed one by one."""

    jobs: Annotated[list[_Number | _Name], Field(min_length=1, max_length=20)]


class CancelJobs(Jobs):
    """grace_s: the seconds from SIGTERM to SIGKILL."""

    grace_s: _Seconds = 10.0


class PreemptJobs(FewJobs, CancelJobs):
    """force: whether a job that has not ended in time gets SIGKILL; otherwise it continues."""

    force: bool = False


class ResumeJobs(FewJobs):
    """checkpoint: the path of the one to resume from; null for the newest complete one."""

    checkpoint: Text | None = None


class RetryJobs(Jobs):
    """set: changes to make first, such as "vram=18G"."""

    set: _Changes = []


class SetAttributes(FewJobs):
    """set: the changes, such as "vram=18G"."""

    set: Annotated[list[Text], Field(min_length=1, max_length=50)]


class SetPriority(Jobs):
    """priority: lower numbers start first."""

    priority: Annotated[int, Field(ge=0, le=999_999_999)]


class ClearJobs(Body):
    """jobs: null for all finished jobs."""

    jobs: _Jobs | None = None


class Gpus(Body):
    """gpus: their indices; null for all."""

    gpus: Annotated[list[_Gpu], Field(min_length=1, max_length=64)] | None = None


#: The body of each change of jobs.
CHANGES: dict[str, type[Body]] = {
    "cancel": CancelJobs, "retry": RetryJobs, "preempt": PreemptJobs, "resume": ResumeJobs, "hold": Jobs,
    "release": Jobs, "set": SetAttributes, "priority": SetPriority, "clear": ClearJobs,
}  # fmt: skip


class ModelJobReply(BaseModel):
    """A job in the form of the short routes, with the state and the outcome of this program."""

    job_id: str
    status: str
    assigned_gpus: list[int]
    priority: int
    state: str
    outcome: str | None
    reason: str | None


class QueueReply(BaseModel):
    """The queue in the form of the short routes. running: the number of running jobs."""

    queue_length: int
    running: int
    jobs: list[ModelJobReply]


class ModelGpu(BaseModel):
    """The memory of a GPU in MiB as the driver reports it; null where it is unknown."""

    index: int
    free_mb: int | None
    total_mb: int | None
    used_mb: int | None


class JobsReply(BaseModel):
    """A page of jobs. next: the cursor of the next page."""

    jobs: list[Reply]
    next: int | None


class SubmitReply(BaseModel):
    """The ids of the new jobs, and why they may not run as intended."""

    ids: list[int]
    warnings: list[str]
