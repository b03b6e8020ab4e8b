"""Cancels, retries, recovers, holds, releases and clears jobs, and changes their attributes.

Each function records a request for every job, has the requests carried out (`control`), and returns one
answer per job. A request that can only be refused is not even recorded; all others are decided by a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.control.requests import (
    ALL_JOBS,
    COMMAND_LINE,
    Answer,
    AnswerKind,
    Control,
    control,
    unanswered,
)
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.request import ACCEPTED_STATES, AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job, resolve_jobs
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import requested_verbs
from gpu_scheduler.store.job_lists import failed_ancestors, is_ancestor, open_jobs
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.control.attribute_changes import AttributeChange
    from gpu_scheduler.control.line_note import Note


class SetResult(Struct, frozen=True):
    """The answers to changes of jobs. notes: the new parents because of which they will be skipped."""

    answers: tuple[Answer, ...]
    notes: tuple[Note, ...] = ()


def cancel(
    location: Location, jobs: Sequence[JobRef] | None, grace_s: float, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Cancels open jobs. If no scheduler is running, waits until their processes have ended.

    jobs: None means every open job, except adopted processes, because they were started elsewhere.
    Raises SchedulerError if a job cannot be identified.
    """
    with control(location) as store_control:
        store = store_control.store
        spared: list[Answer] = []
        if jobs is None:
            open_states = [state for state in JobState if state is not JobState.FINISHED]
            open_ones = sorted(open_jobs(store, open_states), key=lambda job: job.id)
            spared = [Answer(job.id, AnswerKind.SPARED) for job in open_ones if job.adopted is not None]
            ids = [job.id for job in open_ones if job.adopted is None]
        else:
            ids = _resolve(store, "cancel", jobs)
        if not ids:
            return tuple(spared)
        args = {"grace_s": grace_s}
        refused, made = _request(store_control, "cancel", dict.fromkeys(ids, args), by, grace_s)
        if location.runs_rounds and store_control.scheduler_pid is None:
            made = [_with_end(store_control, answer) for answer in made]
        return (*refused, *made, *spared)


def _with_end(store_control: Control, answer: Answer) -> Answer:
    """Returns the answer to a cancel with the end of the job, which this process has awaited."""
    job = job_record(store_control.store, answer.target)
    is_left = job.adopted is not None or (store_control.runs_rounds and store_control.is_ending(job.id))
    if answer.reply is None and is_left:
        return replace(answer, kind=AnswerKind.NOT_ENDED)
    if answer.reply is None or answer.reply.code is not AnswerCode.STOPPING:
        return answer
    if job.state is not JobState.FINISHED or store_control.is_ending(job.id):
        return replace(answer, kind=AnswerKind.NOT_ENDED)
    if job.outcome is Outcome.CANCELLED:
        return replace(answer, reply=RequestAnswer(AnswerCode.CANCELLED))
    code = AnswerCode.ALREADY_FINISHED
    reply = RequestAnswer(code, outcome=job.outcome, exit_code=job.exit_code, signal=job.signal)
    return replace(answer, kind=AnswerKind.REFUSED, reply=reply)


def retry(
    location: Location, jobs: Sequence[JobRef] | None, items: Sequence[str] = (), *, by: str = COMMAND_LINE
) -> SetResult:
    """Queues finished or held jobs again. jobs: None means every failed job.

    items: the changes to make first, as for `set_attributes`. A round makes them with the retry.
    """
    with control(location) as store_control:
        store = store_control.store
        ids = _failed_jobs(store) if jobs is None else _resolve(store, "retry", jobs)
        changes: dict[int, list[AttributeChange]] = {job_id: [] for job_id in ids}
        if items:
            from gpu_scheduler.control.attribute_changes import attribute_changes

            changes = {job_id: attribute_changes(store, job_id, items) for job_id in ids}
        args = {job_id: _retry_args(made) if items else {} for job_id, made in changes.items()}
        refused, answers = _request(store_control, "retry", args, by)
        for answer in refused:
            del changes[answer.target]
        notes = (one.notes for one in chain.from_iterable(changes.values()))
        return SetResult((*refused, *answers), tuple(chain.from_iterable(notes)))


def _retry_args(changes: Sequence[AttributeChange]) -> dict[str, Any]:
    made = [one.args for one in changes]
    lists = [args["parents"] for args in made if "parents" in args]
    return {"changes": made, **({"parents": list(chain.from_iterable(lists))} if lists else {})}


def change_jobs(
    location: Location, verb: str, jobs: Sequence[JobRef] | None, *, by: str = COMMAND_LINE, **args: object
) -> tuple[Answer, ...]:
    """Holds, releases, recovers or clears jobs, or sets their priority. Returns an answer for each job.

    jobs: None means every interrupted job (recover), or every finished one (clear). args: those of the
    request.
    """
    with control(location) as store_control:
        store = store_control.store
        if jobs is None:
            return _answers_for_all(store_control, add_request(store, verb, by=by))
        ids = _resolve(store, verb, jobs)
        refused, answers = _request(store_control, verb, dict.fromkeys(ids, args), by) if ids else ([], [])
        return (*refused, *answers)


def set_priority(
    location: Location, jobs: Sequence[JobRef], priority: int, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Changes the priority of waiting jobs."""
    return change_jobs(location, "set", jobs, by=by, name="priority", value=priority)


def set_attributes(
    location: Location, job: JobRef, items: Sequence[str], *, by: str = COMMAND_LINE
) -> SetResult:
    """Changes attributes of a waiting job that has no line, or the dependencies of a skipped one.

    items: the changes, as in `vram=18G` or `vram=`. Nothing is requested unless all of them are valid. Raises
    UsageError or SchedulerError like `attribute_changes`.
    """
    from gpu_scheduler.control.attribute_changes import attribute_changes

    with control(location) as store_control:
        store = store_control.store
        job_id = resolve_job(store, job)
        changes = attribute_changes(store, job_id, items)
        why = refusal_of_changes(store, job_id, [one.args for one in changes])
        if why is not None:
            return SetResult((Answer(job_id, AnswerKind.REFUSED, why),))
        with store.db.transaction():
            requests = {add_request(store, "set", str(job_id), by, **one.args): job_id for one in changes}
        # Equal answers, such as the refusal of each change, are given once.
        made = _answers(store_control, requests, store_control.carry_out(requests))
        answers = tuple({replace(one, request=None): one for one in made}.values())
        notes = () if any(answer.has_failed for answer in answers) else (one.notes for one in changes)
        return SetResult(answers, tuple(chain.from_iterable(notes)))


def request_for_job(store_control: Control, verb: str, job_id: int, by: str, **args: object) -> Answer:
    """Records a request for one job, has it carried out and returns the answer."""
    return next(chain.from_iterable(_request(store_control, verb, {job_id: args}, by)))


def _answers_for_all(store_control: Control, request: int) -> tuple[Answer, ...]:
    reply = store_control.carry_out([request])[request]
    if reply is None:
        return (unanswered(ALL_JOBS, store_control.scheduler_pid, request),)
    queued = RequestAnswer(AnswerCode.QUEUED)
    recovered = tuple(Answer(job_id, AnswerKind.CARRIED_OUT, queued) for job_id in reply.jobs)
    return recovered or (Answer(ALL_JOBS, AnswerKind.CARRIED_OUT, reply),)


def _resolve(store: Store, verb: str, refs: Sequence[JobRef]) -> list[int]:
    """Returns the ids of the jobs; of those of a group, only the ones to which the verb applies."""
    return resolve_jobs(store, refs, lambda job: concerns(verb, job))


def _request(
    store_control: Control,
    verb: str,
    jobs: Mapping[int, Mapping[str, Any]],
    by: str,
    end_grace_s: float | None = None,
) -> tuple[list[Answer], list[Answer]]:
    """Records a request for each job, all in one transaction, and has them carried out.

    jobs: the arguments of the request, by job; end_grace_s: set if the requests end the jobs. Returns the
    answers for the jobs that were refused before anything was recorded, and those to the requests.
    """
    store, requests, refused = store_control.store, dict[int, int](), list[Answer]()
    with store.db.transaction():
        for job_id, args in jobs.items():
            why = early_refusal(store, verb, job_id, args)
            if why is None:
                requests[add_request(store, verb, str(job_id), by, **args)] = job_id
            else:
                refused.append(refused_answer(store, job_id, why))
    ending = () if end_grace_s is None else requests.values()
    replies = store_control.carry_out(requests, ending, end_grace_s or 0.0)
    return refused, _answers(store_control, requests, replies)


def _failed_jobs(store: Store) -> list[int]:
    """Returns the failed jobs for which no request is open, oldest first."""
    from gpu_scheduler.show.status import failed_jobs

    pending = requested_verbs(store)
    return sorted(job.record.id for job in failed_jobs(store) if job.record.id not in pending)


def _answers(
    store_control: Control, requests: Mapping[int, int], answers: Mapping[int, RequestAnswer | None]
) -> list[Answer]:
    """Returns the answer to each request; refusals come first."""
    pid = store_control.scheduler_pid
    made = []
    for request, reply in answers.items():
        job_id = requests[request]
        if reply is None:
            made.append(unanswered(job_id, pid, request))
        elif reply.is_refusal:
            made.append(refused_answer(store_control.store, job_id, reply))
        else:
            made.append(Answer(job_id, AnswerKind.CARRIED_OUT, reply))
    return sorted(made, key=lambda answer: answer.kind is not AnswerKind.REFUSED)


#: Maximum number of jobs that the refusal of a retry names.
_MAX_NAMED = 5
#: The outcomes of the jobs of a group that `retry` queues again.
_RETRIED = FAILED | {Outcome.CANCELLED, Outcome.INTERRUPTED, Outcome.PREEMPTED}


def early_refusal(store: Store, verb: str, job_id: int, args: Mapping[str, Any]) -> RequestAnswer | None:
    """Returns why a request is not even recorded; None if a round decides. args: those of the request."""
    job = store.job(job_id)
    if job is None:
        return RequestAnswer(AnswerCode.NO_SUCH_JOB)
    has_command = job.spec.can_start or any(one["name"] == "command" for one in args.get("changes", ()))
    if verb in ("retry", "resume_job", "recover") and not has_command:
        return RequestAnswer(AnswerCode.NO_COMMAND)
    if job.adopted is not None and verb in ("hold", "set"):
        # The scheduler watches the process before it reads requests, so the request would have no effect.
        return RequestAnswer(AnswerCode.NOT_WATCHED, verb=verb)
    return _would_wait_for_itself(store, job_id, [args])


def refusal_of_changes(
    store: Store, job_id: int, changes: Sequence[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns why no change of a job is requested. Otherwise, a round would make only some of them."""
    from gpu_scheduler.core.jobsfile.attributes import RESTART_FIELDS

    is_finished = job_record(store, job_id).state is JobState.FINISHED
    if is_finished and not all("parents" in args or args["name"] in RESTART_FIELDS for args in changes):
        return wrong_state("set", JobState.FINISHED)
    return _would_wait_for_itself(store, job_id, changes) or early_refusal(store, "set", job_id, {})


def _would_wait_for_itself(
    store: Store, job_id: int, changes: Iterable[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns the refusal if a change would make a job wait for itself, directly or indirectly."""
    parents = [[parent for parent, _ in args.get("parents", ())] for args in changes]
    return (
        RequestAnswer(AnswerCode.CYCLE) if any(is_ancestor(store, job_id, one) for one in parents) else None
    )


def concerns(verb: str, job: Job) -> bool:
    """Returns whether a request for a group of jobs means this one, which its state allows."""
    if verb == "cancel":
        return job.state is not JobState.FINISHED or job.outcome is Outcome.SKIPPED
    if verb == "recover" or (verb == "retry" and job.is_interrupted):
        return job.is_interrupted
    if verb == "retry":
        return job.outcome in _RETRIED
    if verb == "release" and job.has_unfinished_work:
        return False
    return job.state in ACCEPTED_STATES[verb]


def refused_answer(store: Store, job_id: int, why: RequestAnswer) -> Answer:
    """Returns the answer for a refusal.

    If a parent failed, it names the jobs that must be retried; if the job has finished, it says how.
    """
    if why.code is AnswerCode.ALREADY_FINISHED:
        job = job_record(store, job_id)
        why = replace(why, exit_code=job.exit_code, signal=job.signal)
    if why.parent is None:
        return Answer(job_id, AnswerKind.REFUSED, why)
    roots = tuple(failed_ancestors(store, job_id, _MAX_NAMED))
    is_skipped = job_record(store, job_id).outcome is Outcome.SKIPPED
    return Answer(job_id, AnswerKind.REFUSED, why, failed_ancestors=roots, is_skipped=is_skipped)
