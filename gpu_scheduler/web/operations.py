"""The use cases of a queue as functions from plain values to JSON objects; its events, and the logs of jobs.

The routes of the REST API and the client in the same machine call them, so both give the same answers. The
objects are those of docs/json.md. The functions raise the errors of `gpu_scheduler.errors`; those about one
job also StoreNotFoundError if there is no store yet.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from gpu_scheduler.config import VERSION
from gpu_scheduler.control import job_requests
from gpu_scheduler.control.line_note import UNMET_NEEDS, Note, line_note_text
from gpu_scheduler.control.new_line import NewJob, expand_grid
from gpu_scheduler.control.preempt import PreemptEnd, failure_text, preempt, resume_job
from gpu_scheduler.control.requests import ALL_JOBS, GRACE_S, Answer, AnswerKind, answer_text, set_paused
from gpu_scheduler.control.submit import (
    Submission,
    answer_to,
    check_jobs,
    insert_jobs,
    insert_once,
)
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.job_spec import JobSpec, parse_job_ref
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState, Outcome
from gpu_scheduler.errors import (
    DamagedStoreError,
    GpuStateError,
    NoSuchJobError,
    SchedulerError,
    SchemaError,
    StoreNotFoundError,
    UsageError,
)
from gpu_scheduler.show import status_json, why_text
from gpu_scheduler.show.events import read_events
from gpu_scheduler.show.job_detail import job_detail
from gpu_scheduler.show.job_detail import to_json as detail_json
from gpu_scheduler.show.job_refs import JobRef
from gpu_scheduler.show.job_views import JobView, StatusReport
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.logs import LogProgress, open_log
from gpu_scheduler.show.plan import ForecastView, eta_json, forecast_queue
from gpu_scheduler.show.plan import to_json as plan_json
from gpu_scheduler.show.status import (
    JobPage,
    ProgressReport,
    StatusQuery,
    empty_status,
    job_of_item,
    job_page,
    running_progress,
    runs_since,
    status,
)
from gpu_scheduler.show.store_access import ANSWER_TIMEOUT_S, open_store, recorded_request
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.store.job_lists import JobFilter, JobOrder
from gpu_scheduler.store.requests import KeyReusedError, SubmissionKey

Json = dict[str, Any]
_Made = TypeVar("_Made")
#: Maximum number of jobs in one answer.
MAX_PAGE = 200
#: Maximum number of bytes of a log that are read at once.
_CHUNK = 1 << 18
_NEVER = 1 << 62  # an id that no event reaches
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Context(Struct, frozen=True):
    """A queue and who uses it.

    cwd: the absolute folder of relative paths. source: recorded with jobs and requests, such as "api:NAME".
    may_preempt: whether priority 0 preempts. details: whether arguments and environment values are shown.
    logs: whether logs are. environment: what new jobs inherit; None for the scheduler's own variables.
    """

    location: Location
    cwd: str
    source: str
    may_preempt: bool = True
    details: bool = True
    logs: bool = True
    environment: Mapping[str, str] | None = None


def status_of(context: Context, error: SchedulerError) -> int:
    """Returns the HTTP code for an error of these functions."""
    for kinds, code in (
        ((NoSuchJobError, StoreNotFoundError), 404),
        ((KeyReusedError,), 409),
        ((UsageError,), 422),
        ((DamagedStoreError, SchemaError, GpuStateError), 503),
    ):
        if isinstance(error, kinds):
            return code
    try:
        with open_store(context.location, read_only=True):
            return 409
    except SchedulerError:
        return 503  # the store belongs to another host, or cannot be read


def _read(read: Callable[[], _Made], empty: Callable[[], _Made]) -> _Made:
    """Returns what `read` returns, and what `empty` returns if there is no store yet."""
    try:
        return read()
    except StoreNotFoundError:
        return empty()


def _report(context: Context, query: StatusQuery) -> StatusReport:
    return _read(lambda: status(context.location, query), lambda: empty_status(context.location))


def _job_object(context: Context, job: JobView) -> Json:
    found = status_json.job_object(job)
    if not context.details:
        found["command"] = JobSpec.from_json(job.record.spec_json).program
    if not context.logs:
        # The reason for the end of an attempt, which also a waiting job may have, quotes its log.
        found |= {"log": None, "reason": None if job.attempt else found["reason"]}
    return found


def jobs(
    context: Context,
    state: Iterable[str] = (),
    outcome: Iterable[str] = (),
    name: str | None = None,
    source: str | None = None,
    limit: int = 50,
    cursor: int | None = None,
    search: str | None = None,
    order: JobOrder = "newest",
) -> Json:
    """Returns at most `limit` jobs, by default the newest first, and the cursor of the next page."""
    states, outcomes = tuple(map(JobState, state)), tuple(map(Outcome, outcome))
    wanted = JobFilter(states, outcomes, name, source, search, in_lines=context.details)
    most = min(limit, MAX_PAGE)
    page = _read(lambda: job_page(context.location, wanted, cursor, most, order), lambda: JobPage((), None))
    return {"jobs": [_job_object(context, one) for one in page.jobs], "next": page.next}


def job(context: Context, job_id: int) -> Json:
    """Returns everything about a job, as `show --json` does. Raises NoSuchJobError."""
    detail = job_detail(context.location, job_id)
    found = _loaded(detail_json(detail))
    found["job"] = _job_object(context, detail.job)
    hidden = [] if context.details else ["script", "arguments", "environment", "line"]
    found |= dict.fromkeys(hidden)
    for attempt in found["attempts"]:
        attempt |= {} if context.details else {"command": None, "folder": None}
        attempt |= {} if context.logs else {"log": None, "reason": None}
    found |= {} if context.logs else {"history": []}
    return found


def why_job(context: Context, job_id: int) -> Json:
    """Returns why a job does not start or why it failed, as `why --json` does. Raises NoSuchJobError."""
    return _loaded(why_text.to_json(diagnose(context.location, job_id)))


def eta(context: Context) -> Json:
    """Returns the progress of the running jobs, as `eta --json` does."""
    found = _read(lambda: running_progress(context.location), lambda: ProgressReport(time.time(), ()))
    return _loaded(eta_json(found))


def plan(context: Context) -> Json:
    """Returns when jobs are expected to start and end, as `plan --json` does."""
    found = _read(lambda: forecast_queue(context.location), lambda: ForecastView(time.time()))
    return _loaded(plan_json(found))


def _loaded(text: str) -> Json:
    found: Json = json.loads(text)
    return found


def gpus(context: Context) -> Json:
    """Returns the managed GPUs, as in `status --json`."""
    report = _report(context, StatusQuery(max_queued=0, max_finished=0))
    return {"now": report.now, "gpus": [status_json.gpu_object(gpu) for gpu in report.gpus]}


def runs(context: Context, hours: float = 2.0) -> Json:
    """Returns which attempts have run on which GPUs in the last hours, at most the last 500."""
    now = time.time()
    found, idle_s = _read(lambda: runs_since(context.location, now - 3600 * hours, now), lambda: ([], 0.0))
    return {"now": now, "hours": hours, "runs": [asdict(one) for one in found], "reserved_idle_s": idle_s}


def health(context: Context) -> Json:
    """Returns whether the scheduler runs, how many jobs there are, and what is wrong."""
    report = _report(context, StatusQuery(max_queued=0, max_finished=0))
    found = _loaded(status_json.to_json(report))
    kept = {key: found[key] for key in ("scheduler", "now", "counts", "health_issues", "jobs_files")}
    return {**kept, "malformed_count": len(found["malformed"]), "version": VERSION}


def preview(context: Context, **given: Any) -> Json:
    """Returns what `submit` with the same values would queue."""
    checked = _checked(context, given)
    shown = [{"name": one.name, "command": one.text, "cwd": one.cwd} for one in checked.jobs]
    return {"jobs": shown, "warnings": [line_note_text(one) for one in checked.warnings]}


def submit(context: Context, key: str | None = None, **given: Any) -> Json:
    """Queues a job, or one for each combination of a grid. Returns the ids.

    key: identifies the submission for a day. given: `script` or `command`, `arguments`, `attributes`, `env`,
    `cwd`, `grid`, `zip`, as in docs/api.md. Raises UsageError, and KeyReusedError for the key of another one.
    """

    def answer(made: Submission) -> Json:
        return {"ids": list(made.ids), "warnings": [line_note_text(one) for one in made.warnings]}

    return _submit(context, "jobs", key, given, answer)


def submit_model(
    context: Context,
    key: str | None = None,
    *,
    model_script: str,
    gpu_memory_mb: int,
    num_gpus: int = 1,
    priority: int = 200,
) -> Json:
    """Queues a script that needs so many MiB on each of its GPUs. Returns the job as `model_job` does."""
    attributes: dict[str, str | bool] = {
        "vram": str(gpu_memory_mb), "gpus": str(num_gpus), "priority": str(priority),
    }  # fmt: skip
    if priority == 0 and context.may_preempt:
        attributes["preempt"] = True

    def answer(made: Submission) -> Json:
        notes = [one for one in made.warnings if isinstance(one, Note) and one.kind in UNMET_NEEDS]
        unmet = list(map(line_note_text, notes))
        return {
            "job_id": str(made.ids[0]), "status": "queued", "assigned_gpus": [], "priority": priority,
            "state": "infeasible" if unmet else "queued", "outcome": None, "reason": "; ".join(unmet) or None,
        }  # fmt: skip

    return _submit(context, "model", key, {"script": model_script, "attributes": attributes}, answer)


def _submit(
    context: Context, route: str, key: str | None, given: Json, answer: Callable[[Submission], Json]
) -> Json:
    if key is None:
        checked = _checked(context, given)
        return answer(insert_jobs(context.location, checked, context.environment, context.source))
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    named = SubmissionKey(context.source, route, key, digest)
    known = answer_to(context.location, named)
    if known is None:
        checked = _checked(context, given)
        known = insert_once(
            context.location, checked, context.source, named, lambda made: json.dumps(answer(made))
        )
    return _loaded(known)


def _checked(context: Context, given: Json) -> Submission:
    """Returns the jobs that the values describe. Raises UsageError."""
    script, command = given.get("script"), given.get("command") or ()
    if (script is None) == (not command):
        raise UsageError("give either a script or a command; nothing was submitted")
    attributes = dict(given.get("attributes") or {})
    unknown = sorted(attributes.keys() - ATTRIBUTES.keys() | attributes.keys() & {"env", "cwd"})
    if unknown:
        raise UsageError(f"attributes: {', '.join(unknown)} is no attribute of a job; nothing was submitted")
    if given.get("cwd"):
        attributes["cwd"] = given["cwd"]
    if any("=" in name for name in given.get("env") or ()):
        raise UsageError("env: the name of a variable contains no `=`; nothing was submitted")
    attributes["env"] = [f"{name}={value}" for name, value in (given.get("env") or {}).items()]
    words = (command,) if isinstance(command, str) else tuple(command)
    new = NewJob(script, tuple(given.get("arguments") or ()), words, attributes)
    jobs = expand_grid(new, given.get("grid") or (), is_zip=bool(given.get("zip")))
    variables = os.environ if context.environment is None else context.environment
    return check_jobs(context.location, jobs, variables, context.cwd)


def model_job(context: Context, job_id: int) -> Json:
    """Returns a job in the form of the short routes. Raises NoSuchJobError."""
    return _model_object(context, status(context.location, StatusQuery(jobs=(job_id,))).jobs[0])


def model_job_of(context: Context, name: str) -> Json:
    """Returns a job as `model_job` does. Raises NoSuchJobError.

    name: the id of an item of a Redis queue, as it is if it has 12 digits in base 16, otherwise after
    `redis:`, or the number of a job.
    """
    item = name.removeprefix("redis:")
    if item != name or re.fullmatch("[0-9a-f]{12}", name):
        found = job_of_item(context.location, item)
        if found is not None:
            return {**model_job(context, found), "job_id": item}
    if not re.fullmatch("[0-9]{1,15}", name):
        raise NoSuchJobError(f"there is no job {name}")
    return model_job(context, int(name))


def queue(context: Context) -> Json:
    """Returns the length of the queue, the number of running jobs, and the first 50 waiting jobs."""
    report = _report(context, StatusQuery(max_queued=50, max_finished=0))
    waiting = [one for one in report.jobs if one.record.state in WAITING][:50]
    return {
        "queue_length": sum(report.listed_count(state) for state in WAITING),
        "running": sum(report.listed_count(state) for state in ACTIVE),
        "jobs": [_model_object(context, one) for one in waiting],
    }


def _model_object(context: Context, job: JobView) -> Json:
    state, outcome = job.record.state, job.record.outcome
    word = "running" if state in ACTIVE else "queued"
    if state is JobState.FINISHED:
        word = "completed" if outcome is Outcome.COMPLETED else "failed"
    found = _job_object(context, job)
    return {
        "job_id": str(job.record.id),
        "status": word,
        "assigned_gpus": [] if word == "queued" else found["gpus"],
        "priority": job.record.priority,
        "state": "infeasible" if job.infeasible else state,
        "outcome": outcome,
        "reason": found["reason"],
    }


def _refs(given: Sequence[int | str]) -> list[JobRef]:
    try:
        return [parse_job_ref(str(one)) for one in given]
    except ValueError as error:
        raise UsageError(str(error)) from None


def change_jobs(
    context: Context,
    verb: str,
    jobs: Sequence[int | str] | None,
    *,
    grace_s: float = GRACE_S,
    set: Sequence[str] = (),
    priority: int = 200,
    force: bool = False,
    checkpoint: str | None = None,
) -> Json:
    """Cancels, retries, preempts, resumes, holds, releases, sets, prioritises or clears jobs.

    jobs: ids, ranges, names, groups and patterns; None for all finished ones, which only `clear` accepts.
    grace_s: the seconds that `cancel` and `preempt` give. Raises UsageError and NoSuchJobError.
    """
    at, by = context.location, context.source
    refs = [] if jobs is None else _refs(jobs)
    if not refs and (verb != "clear" or jobs is not None):
        raise UsageError(f"jobs: name the jobs to {verb}")
    if verb == "preempt":
        return {"answers": _each(refs, lambda one: _preempt(context, one, grace_s, force=force))}
    changes: dict[str, Callable[[], Iterable[Answer]]] = {
        "cancel": lambda: job_requests.cancel(at, refs, grace_s, by=by),
        "retry": lambda: job_requests.retry(at, refs, set, by=by).answers,
        "priority": lambda: job_requests.set_priority(at, refs, priority, by=by),
        "set": lambda: chain.from_iterable(
            _each(refs, lambda one: job_requests.set_attributes(at, one, set, by=by).answers)
        ),
        "resume": lambda: _each(refs, lambda one: resume_job(at, one, checkpoint, by=by).answer),
    }
    simple = partial(job_requests.change_jobs, at, verb, refs or None, by=by)
    return _answers(context, changes.get(verb, simple)())


def _each(refs: Sequence[JobRef], change: Callable[[JobRef], _Made]) -> list[_Made]:
    """Returns the result of a change for each job. All of them wait for the scheduler at the same time."""
    with ThreadPoolExecutor(len(refs)) as pool:
        return list(pool.map(change, refs))


def _preempt(context: Context, ref: JobRef, grace_s: float, *, force: bool) -> Json:
    report = preempt(
        context.location, ref, grace_s, force=force, by=context.source, max_wait_s=ANSWER_TIMEOUT_S
    )
    text = failure_text(report, None, str(context.location.resolve().folder))
    kind = AnswerKind.CARRIED_OUT if report.end is PreemptEnd.ENDED else AnswerKind.REFUSED
    if report.end is PreemptEnd.PENDING:
        kind = AnswerKind.RECORDED if report.scheduler_pid is None else AnswerKind.UNANSWERED
    return {
        "job": report.job_id, "result": kind, "code": report.end, "text": text or "preempted",
        "request": report.request if report.end is PreemptEnd.PENDING else None,
    }  # fmt: skip


def change_gpus(context: Context, verb: str, gpus: Sequence[int] | None) -> Json:
    """Pauses or resumes GPUs; None means all. Raises SchedulerError if one is not managed."""
    answers = set_paused(context.location, gpus, paused=verb == "pause", by=context.source)
    return _answers(context, answers, "gpu")


def _answers(context: Context, answers: Iterable[Answer], key: str = "job") -> Json:
    folder = str(context.location.resolve().folder)
    return {
        "answers": [
            {
                key: one.target if one.target != ALL_JOBS or key == "gpu" else None,
                "result": one.kind,
                "code": one.reply and one.reply.code,
                "text": answer_text(one, folder),
                "request": one.request,
            }
            for one in answers
        ]
    }


def request(context: Context, request_id: int) -> Json:
    """Returns whether the scheduler has answered a request, and how. Raises NoSuchJobError for none."""
    target, answer = recorded_request(context.location, request_id)
    text = None
    if answer is not None:
        kind = AnswerKind.REFUSED if answer.is_refusal else AnswerKind.CARRIED_OUT
        text = answer_text(Answer(target, kind, answer), str(context.location.resolve().folder))
    code = None if answer is None else answer.code
    return {"id": request_id, "answered": answer is not None, "code": code, "text": text}


# Events and logs.


def store_version(database: Path) -> tuple[int, ...]:
    """Returns a value that changes with every commit to a store; () if there is no store."""
    found: list[int] = []
    for path in (str(database), f"{database}-wal"):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(found)


class EventFeed:
    """The events of a queue after the one with the id `after`; None for those from now on.

    position: the id of the newest event that was read.
    """

    def __init__(self, location: Location, after: int | None) -> None:
        self.position = after
        self._location = location
        self._database = location.resolve().database  # once, because it may read thousands of mounts
        self._version: tuple[int, ...] | None = None

    def read(self) -> list[Event] | None:
        """Returns at most 1,000 new events. Reads an unchanged store only once a second.

        Returns None if events may be missing, as also the first time without `after`; the following ones come
        after the newest. Raises SchedulerError if the store cannot be read.
        """
        # Two commits in one tick of the file system's clock may look like one.
        version = (*store_version(self._database), int(time.monotonic()))
        if version == self._version:
            return []
        position = _NEVER if self.position is None else min(self.position, _NEVER)
        try:
            found, newest = read_events(self._location, position)
        except StoreNotFoundError:  # nothing has run here yet
            found, newest = [], 0
        if newest < position or (found and found[0].id != position + 1):
            self.position = newest
            return None
        self.position = found[-1].id if found else newest
        self._version = version if self.position == newest else None
        return found


class Log(Struct):
    """An open log. The caller closes `file`. is_over: whether it is complete."""

    file: FileIO
    size: int
    attempt: int
    is_over: bool

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from `start` to `end`."""
        while start < end and (data := os.pread(self.file.fileno(), min(_CHUNK, end - start), start)):
            start += len(data)
            yield data


def open_log_file(location: Location, job_id: int, attempt: int | None = None) -> Log:
    """Opens the log of an attempt, None for the latest, without following a link.

    Raises NoSuchJobError if the job, the attempt or its log does not exist.
    """
    try:
        with open_log(location, job_id, attempt) as log:
            number, path, is_over = log.number, log.path, log.advance() is not LogProgress.RUNNING
        file = FileIO(path, opener=lambda name, flags: os.open(name, flags | _OPEN))
    except SchedulerError as error:
        if isinstance(error, (DamagedStoreError, SchemaError)):
            raise
        raise NoSuchJobError(str(error)) from None
    except OSError as error:
        raise NoSuchJobError(f"the log of job {job_id} cannot be read: {error.strerror}") from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise NoSuchJobError(f"the log of job {job_id} is not a file")
    return Log(file, status.st_size, number, is_over)


def log_parts(
    context: Context, job_id: int, attempt: int = 0, position: int = 0
) -> Iterator[tuple[int, int, str, int]]:
    """Yields a job's log, attempt by attempt, until the job has ended: attempt, offset, text and end.

    The text is empty if there is nothing new at the moment. attempt: the one to begin with, at `position`; 0
    for the latest. Raises NoSuchJobError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        is_over, data = model_job(context, job_id)["status"] in ("completed", "failed"), b""
        for number in (attempt or None, None):  # the rest of that one, then the latest
            with suppress(SchedulerError):  # the job waits, or its log is gone
                log = open_log_file(context.location, job_id, number)
                if log.attempt != attempt:
                    attempt, position = log.attempt, 0
                    decoder.reset()
                position = min(position, log.size)  # the log was shortened
                is_over = is_over and log.is_over
                with log.file:
                    data = os.pread(log.file.fileno(), _CHUNK, position)
            if data:
                break
        if is_over and not data:
            return
        text, at, position = decoder.decode(data), position, position + len(data)
        yield attempt, at, text, position - len(decoder.getstate()[0])  # without a part of a character
