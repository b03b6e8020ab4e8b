"""A request from a front end to the loop, and the job that it concerns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from gpu_scheduler.core.model.attempt_status import Checkpoint, StopRequest
from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL
from gpu_scheduler.core.model.states import WAITING, JobState, Outcome

#: The outcomes for which a job is held until the user resumes it or starts it again.
UNFINISHED = (Outcome.INTERRUPTED.value, Outcome.PREEMPTED.value)
#: The verbs of the requests that queue a finished job again.
QUEUEING = frozenset({"retry", "requeue", "resume_job"})
#: The cause of a pause or resume that no command requested.
PauseCause = Literal["state_file_edited", "state_file_removed"]


class Request(Struct, frozen=True):
    """A request from a front end (docs/design.md, Store and requests).

    target: a job id or the UUID of a GPU, as text; "" for the scheduler itself or for all jobs. args, by
    verb: cancel {grace_s, line: whether the job's line requests the cancel}, preempt {stop_id, grace_s,
    on_timeout}, resume_job {checkpoint: a Checkpoint,
    min_vram_mib, completed: whether a completed job may be resumed too}, retry {changes: the args of the
    changes that it makes first, parents: those of all of them}, requeue {added_to: the file to
    which the line was added again}, pause and resume {cause: a PauseCause; null if a command requested it},
    set {name, value, line: whether the jobs file sets the value, parents: [[parent id, reference], …] if a
    command sets "after" or "after_any"}, confirm and unconfirm {}, places {places:
    [[job id, queue position], …]}. The target of recover and clear is "" for all interrupted or finished
    jobs.
    """

    request_id: int
    verb: str
    target: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)


class JobFact(Struct, frozen=True):
    """The state of a job that a request or a line of a jobs file is about.

    failed_parent: the first of its parents that failed; None if there is none. open_stop: the open request to
    stop its attempt. withdrawn_stop: the id of the preemption that its runner has withdrawn last. The loop
    alone knows it. preempt_signal: the name of the signal with which the job is preempted. checkpoint: its
    newest checkpoint when its last attempt ended. may_resume: whether the scheduler may resume the job by
    itself. recoveries: how many times it has queued the job again since the user last did.
    """

    job_id: int
    state: JobState
    outcome: Outcome | None = None
    held_by: str | None = None
    failed_parent: int | None = None
    open_stop: StopRequest | None = None
    withdrawn_stop: str | None = None
    preempt_signal: str = DEFAULT_STOP_SIGNAL
    checkpoint: Checkpoint | None = None
    may_resume: bool = False
    recoveries: int = 0

    @property
    def is_waiting(self) -> bool:
        """True if the job waits: in the queue, on hold, or skipped until its failed parent is retried."""
        return self.state in WAITING or self.outcome is Outcome.SKIPPED

    @property
    def has_unfinished_work(self) -> bool:
        """True if the job is held because its last attempt was interrupted or preempted."""
        return self.state is JobState.HELD and self.held_by in UNFINISHED

    @property
    def is_interrupted(self) -> bool:
        """True if the job is held because its last attempt was interrupted."""
        return self.state is JobState.HELD and self.held_by == Outcome.INTERRUPTED.value
