"""Defines the requests of front ends to the loop, and their answers: what was done, or why it was refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import Code, StoredValue

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


# fmt: off
class AnswerCode(Code):
    """The result of a request. `REFUSALS` contains the results of requests that were not carried out."""

    CANCELLED = "cancelled"
    STOPPING = "stopping", "being stopped"
    QUEUED = "queued", "{queued}"
    HELD = "held"
    RELEASED = "released"
    RECOVERED = "recovered", "no job is interrupted"
    CLEARED = "cleared", "{cleared}"
    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"
    ATTRIBUTE_SET = "attribute set", "{attribute} set"
    ATTRIBUTE_REMOVED = "attribute removed", "{attribute} removed"
    POSITIONS_SET = "positions set"
    PAUSED = "paused"
    RESUMED = "resumed"
    #: The GPU that was to be resumed was neither paused nor suspect.
    NOT_PAUSED = "was not paused"
    ENDING = "ending"
    WITHDRAWN = "withdrawn"
    BEING_CANCELLED = "being cancelled", "job {job} is already being cancelled"
    #: The job is an adopted process that no runner watches now.
    NOT_WATCHED = ("not watched",
        "job {job} is an adopted process, which already runs, so it cannot be {changed}")
    NO_SUCH_JOB = "no such job", "there is no job {job} in {data_dir}; `status --all` lists the jobs"
    WRONG_STATE = "wrong state", "job {job} is {wrong_state}"
    ALREADY_FINISHED = "already finished", "job {job} is already finished ({end})"
    NOT_INTERRUPTED = "not interrupted", "job {job} is {state}, not interrupted{again}"
    #: The job was interrupted or preempted, so the user must choose between resuming it and a new start.
    UNFINISHED_WORK = ("unfinished work", "job {job} is {outcome}; `resume --job {job}` continues it from a"
        " checkpoint, and `retry {job}` starts it from its beginning")
    ALREADY_COMPLETED = ("already completed",
        "job {job} has completed; `resume --job {job} --from PATH` continues it nevertheless")
    #: The job was a process that had changed its title.
    NO_COMMAND = ("no command",
        "it is not known how to start job {job}; `retry {job} --set command='…'` sets its command")
    PARENT_FAILED = ("parent failed",
        "job {job} would be skipped, because job {parent} did not complete; run {retries}")
    CYCLE = "cycle", "job {job} would wait for itself; its dependencies were not changed"
    GPU_NOT_MANAGED = "gpu not managed", "this GPU is no longer managed"
    SCHEDULER_ENDED = "scheduler ended", "the scheduler had already ended"
    #: An answer that only another version defines.
    UNKNOWN = ("unknown",
        "this version cannot interpret the answer, because the scheduler's version differs")
# fmt: on


REFUSALS = frozenset({
    AnswerCode.NO_SUCH_JOB, AnswerCode.WRONG_STATE, AnswerCode.ALREADY_FINISHED,
    AnswerCode.NOT_INTERRUPTED, AnswerCode.UNFINISHED_WORK, AnswerCode.ALREADY_COMPLETED,
    AnswerCode.BEING_CANCELLED, AnswerCode.NOT_WATCHED, AnswerCode.PARENT_FAILED, AnswerCode.CYCLE,
    AnswerCode.NO_COMMAND, AnswerCode.UNKNOWN,
})  # fmt: skip


class RequestAnswer(StoredValue, frozen=True):
    """An answer: its code, and the data that the sentence of the code names.

    state, outcome, exit_code, signal: those of the job. verb, accepted: the verb of a request that is not
    possible, and the states in which it is. jobs: the ids of all jobs that were queued again. count: the
    number of jobs, if all finished jobs were cleared. parent: the job because of which this one would be
    skipped. attribute: what was set, as written in a jobs file, or the name of what was removed.
    """

    code: AnswerCode
    state: JobState | None = None
    accepted: tuple[JobState, ...] = ()
    verb: str = ""
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    attribute: str = ""
    parent: int | None = None
    jobs: tuple[int, ...] = ()
    count: int | None = None

    @classmethod
    def unknown(cls, text: str) -> RequestAnswer:
        """Returns the answer for a text that another version stored."""
        return RequestAnswer(AnswerCode.UNKNOWN)

    @property
    def is_refusal(self) -> bool:
        """True if the request was not carried out."""
        return self.code in REFUSALS


#: For each verb of a request about a job, the states of the job in which the request has an effect.
ACCEPTED_STATES: Mapping[str, tuple[JobState, ...]] = {
    "cancel": (JobState.HELD, JobState.QUEUED),
    "line_removed": (JobState.HELD, JobState.QUEUED),
    "preempt": (JobState.STARTING, JobState.RUNNING),
    "resume_job": (JobState.FINISHED, JobState.HELD),
    "retry": (JobState.FINISHED, JobState.HELD),
    "requeue": (JobState.FINISHED, JobState.HELD),
    "hold": (JobState.QUEUED,),
    "release": (JobState.HELD,),
    "recover": (JobState.HELD,),
    "clear": (JobState.FINISHED,),
    "set": (JobState.HELD, JobState.QUEUED),
    "confirm": (JobState.HELD, JobState.QUEUED),
    "unconfirm": (JobState.HELD, JobState.QUEUED),
}


def wrong_state(verb: str, state: JobState) -> RequestAnswer:
    """Returns the answer to a request that is not possible for a job in this state."""
    return RequestAnswer(AnswerCode.WRONG_STATE, state=state, accepted=ACCEPTED_STATES[verb], verb=verb)


def not_interrupted(state: JobState) -> RequestAnswer:
    """Returns the answer to a recovery of a job that is not interrupted."""
    return RequestAnswer(AnswerCode.NOT_INTERRUPTED, state=state)


def refusal_to_resume(
    state: JobState, outcome: Outcome | None, failed_parent: int | None, *, completed: bool
) -> RequestAnswer | None:
    """Returns why a job cannot be resumed; None if it can. completed: whether it may have completed."""
    if state not in ACCEPTED_STATES["resume_job"]:
        return wrong_state("resume_job", state)
    if failed_parent is not None and state is JobState.FINISHED:
        return RequestAnswer(AnswerCode.PARENT_FAILED, parent=failed_parent)
    if outcome is Outcome.COMPLETED and not completed:
        return RequestAnswer(AnswerCode.ALREADY_COMPLETED)
    return None
