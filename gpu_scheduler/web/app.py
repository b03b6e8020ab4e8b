"""The REST API (docs/api.md): the bodies of its requests and replies, and its routes.

Each route calls a function of `operations`.

FastAPI evaluates the annotations, some of which are local names, so they are no strings here.
"""

import asyncio
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakValueDictionary

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match

from gpu_scheduler.config import VERSION
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import SchedulerError, missing_package
from gpu_scheduler.show.events import to_json
from gpu_scheduler.show.machine_gpus import GpuSource, open_source, simulation_of_scheduler
from gpu_scheduler.show.store_access import scheduler_is_running
from gpu_scheduler.store.job_lists import JobOrder
from gpu_scheduler.web import operations
from gpu_scheduler.web.guard import AsciiResponse, Caller, problem
from gpu_scheduler.web.operations import Context, Json
from gpu_scheduler.web.page import RecentUse, add_routes

if TYPE_CHECKING:
    from gpu_scheduler.web.metrics import QueueCollector

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


#: Seconds for which a page may be served again while the store is unchanged.
_PAGE_AGE_S = 1.0
#: Maximum number of wrong values that an answer names.
_MAX_ERRORS = 20
#: Seconds between two looks at the events, between two looks at a log, and between two comments in a quiet
#: stream.
_EVENTS_POLL_S, _LOG_POLL_S, _KEEP_ALIVE_S = 0.1, 0.25, 15.0
_PROBLEM, _EVENT_STREAM = "application/problem+json", "text/event-stream"
_KEY = Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,200}$")
_EVENT_ID = Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,40}$")
_LOG_POSITION = Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,15}:[0-9]{1,15}$")
_JOB_ID = Path(ge=1, le=10**15 - 1)


def _codes(*statuses: int, short: bool = False) -> dict[int | str, dict[str, Any]]:
    """Returns the declarations of error codes. short: whether it is one of the short routes."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 405, 413, 415, 422, 429, 503, *statuses}):
        title = HTTPStatus(status).phrase
        example = {"type": "about:blank", "title": title, "status": status, "detail": "why"}
        schema = {"type": "object", "required": ["detail"]}
        kinds = {_PROBLEM: {"schema": schema, "example": example}}
        if short:
            kinds["application/json"] = {"schema": schema, "example": {"detail": "Job not found"}}
        found[status] = {"description": title, "content": kinds}
    return found


class _Pages:
    """Makes each page once for equal queries of equal rights while the store is unchanged, for a second."""

    def __init__(self, context: Context) -> None:
        self._database = context.location.resolve().database
        self._pages: OrderedDict[object, tuple[object, float, bytes]] = OrderedDict()
        self._making: WeakValueDictionary[object, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._few = threading.Semaphore(4)  # pages in the making, each of which may need much memory

    def get(self, key: object, make: Callable[[], Json | list[Any]]) -> bytes:
        """Returns the page of a key, which names everything that it depends on, as JSON."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making, self._few:
            version, now = operations.store_version(self._database), time.monotonic()
            with self._lock:
                while self._pages and now - next(iter(self._pages.values()))[1] >= _PAGE_AGE_S:
                    self._pages.popitem(last=False)
                known = self._pages.get(key)
            if known is not None and known[0] == version and now - known[1] < _PAGE_AGE_S:
                return known[2]
            page = bytes(AsciiResponse(make()).body)
            with self._lock:
                self._pages[key] = (version, now, page)
                self._pages.move_to_end(key)
            return page


class _MachineGpus:
    """Reads the GPUs of the machine, or those that the scheduler simulates."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._source: tuple[object, GpuSource] | None = None

    def close(self) -> None:
        """Ends the probe."""
        if self._source is not None:
            self._source[1].probe.close()
            self._source = None

    def read(self) -> list[Json]:
        """Returns the memory of each GPU in MiB, null where it is unknown. Raises GpuStateError."""
        with self._lock:
            chosen = simulation_of_scheduler("auto", None, self._context.location) or ("auto", None)
            if self._source is None or self._source[0] != chosen:
                self.close()
                self._source = chosen, open_source(*chosen, self._context.location)
            samples = self._source[1].probe.sample().gpus
        found = []
        for one in samples:
            total, used = one.total_mib, one.used_mib
            free = None if total is None or used is None else total - used
            found.append({"index": one.index, "free_mb": free, "total_mb": total, "used_mb": used})
        return found


def create_app(context: Context) -> FastAPI:
    """Returns the application for a queue. The guard tells it who makes each request.

    `app.state.close` ends the process that reads the GPUs, as the end of this process does.
    """
    pages, machine, use = _Pages(context), _MachineGpus(context), RecentUse(context)
    app = FastAPI(
        title="GPU Job Scheduler", version=VERSION, docs_url=None, redoc_url=None,
        openapi_url="/api/v1/openapi.json", redirect_slashes=False, lifespan=use.sampling,
    )  # fmt: skip
    add_routes(app, context, _codes)

    def of(request: Request) -> Context:
        caller: Caller = request.state.caller
        return replace(
            context, source=f"api:{caller.name}", details=caller.may_change, logs=caller.may_read_logs
        )

    Of = Annotated[Context, Depends(of)]

    def state() -> dict[str, str]:
        return {"X-Scheduler": "up" if scheduler_is_running(context.location) else "down"}

    def reply(value: object, status: int = 200) -> Response:
        return AsciiResponse(value, status, state())

    def page(of: Context, key: object, make: Callable[[], Json | list[Any]]) -> Response:
        body = pages.get((key, of.details, of.logs), make)
        return Response(body, 200, state(), "application/json")

    def of_logs(of: Of) -> Context:
        if not of.logs:
            raise HTTPException(403, "this token may not read logs; `token create --read-only --logs`")
        return of

    OfLogs = Annotated[Context, Depends(of_logs)]

    # The short routes.

    @app.post("/jobs", response_model=ModelJobReply, responses=_codes(409, short=True))
    def submit_model(of: Of, body: ModelJob, key: Annotated[str | None, _KEY] = None) -> Response:
        return reply(operations.submit_model(of, key, **body.model_dump()))

    @app.get("/jobs/{job_id:path}", response_model=ModelJobReply, responses=_codes(404, short=True))
    def model_job(of: Of, job_id: str) -> Response:
        return reply(operations.model_job_of(of, job_id))

    @app.get("/queue", response_model=QueueReply, responses=_codes(short=True))
    def queue(of: Of) -> Response:
        return page(of, "queue", lambda: operations.queue(of))

    @app.get("/gpus", response_model=list[ModelGpu], responses=_codes(short=True))
    def model_gpus(of: Of) -> Response:
        return page(of, "machine", machine.read)

    @cache
    def collector() -> "QueueCollector":
        from gpu_scheduler.web.metrics import QueueCollector  # its package may not be installed

        return QueueCollector(context.location)

    @app.get("/metrics", response_class=Response, responses={**_codes(501), 200: _METRICS})
    def metrics(request: Request) -> Response:
        try:
            text, content_type = collector().page(request.headers.get("accept", ""))
        except ImportError as error:
            return problem(501, str(missing_package("`/metrics` needs another package", "metrics", error)))
        return Response(text, headers={**state(), "Content-Type": content_type})

    @app.get("/api/v1/jobs", response_model=JobsReply, responses=_codes())
    def jobs(
        of: Of,
        state: Annotated[list[JobState] | None, Query()] = None,
        outcome: Annotated[list[Outcome] | None, Query()] = None,
        name: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
        source: Annotated[str | None, Query(max_length=4096)] = None,
        limit: Annotated[int, Query(ge=1, le=operations.MAX_PAGE)] = 50,
        cursor: Annotated[int | None, Query(ge=1, le=10**15 - 1)] = None,
        search: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
        order: JobOrder = "newest",
    ) -> Response:
        query = (tuple(state or ()), tuple(outcome or ()), name, source, limit, cursor, search, order)
        return page(of, ("jobs", *query), lambda: operations.jobs(of, *query))

    @app.get("/api/v1/jobs/{job_id}", response_model=Reply, responses=_codes(404))
    def job(of: Of, job_id: Annotated[int, _JOB_ID]) -> Response:
        return page(of, ("job", job_id), lambda: operations.job(of, job_id))

    @app.get("/api/v1/jobs/{job_id}/why", response_model=Reply, responses=_codes(404))
    def why(of: OfLogs, job_id: Annotated[int, _JOB_ID]) -> Response:
        return page(of, ("why", job_id), lambda: operations.why_job(of, job_id))

    def add(name: str, endpoint: Callable[..., Response], text: str | None, **given: Any) -> None:
        app.add_api_route(
            f"/api/v1/{name}", endpoint, response_model=Reply, name=name.replace("/", "_"), description=text,
            **given,
        )  # fmt: skip

    def add_report(name: str, read: Callable[[Context], Json]) -> None:
        def report(of: Of) -> Response:
            return page(of, name, lambda: read(of))

        add(name, report, read.__doc__, responses=_codes())

    for name in ("eta", "plan", "gpus", "health"):
        add_report(name, getattr(operations, name))

    @app.get("/api/v1/use", response_model=Reply, responses=_codes())
    def recent_use(of: Of, hours: Annotated[float, Query(gt=0, le=168)] = 2.0) -> Response:
        return page(of, ("use", hours), lambda: {**operations.runs(of, hours), "samples": use.samples()})

    @app.post("/api/v1/jobs", response_model=SubmitReply, responses=_codes(409))
    def submit(of: Of, body: NewJobs, key: Annotated[str | None, _KEY] = None) -> Response:
        return reply(operations.submit(of, key, **body.model_dump()))

    @app.post("/api/v1/preview", response_model=Reply, responses=_codes())
    def preview(of: Of, body: NewJobs) -> Response:
        return reply(operations.preview(of, **body.model_dump()))

    def add_change(name: str, model: type[Body], make: Callable[..., Json]) -> None:
        def change(of: Of, body: Body) -> Response:
            found = make(of, **body.model_dump())
            answers = found["answers"]
            if answers and all(one["result"] == "refused" for one in answers):
                return problem(409, "; ".join(one["text"] for one in answers[:5]), **found)
            return reply(found, 202 if any(one["request"] for one in answers) else 200)

        change.__annotations__["body"] = model
        recorded = {"description": "Recorded, but not answered yet", "model": Reply}
        add(name, change, model.__doc__, methods=["POST"], responses={**_codes(404, 409), 202: recorded})

    for verb, model in CHANGES.items():
        add_change(verb, model, partial(operations.change_jobs, verb=verb))
    for verb in ("pause", "resume"):
        add_change(f"gpus/{verb}", Gpus, partial(operations.change_gpus, verb=verb))

    @app.get("/api/v1/requests/{request_id}", response_model=Reply, responses=_codes(404))
    def request(of: Of, request_id: Annotated[int, _JOB_ID]) -> Response:
        return reply(operations.request(of, request_id))

    @app.get(
        "/api/v1/jobs/{job_id}/log", response_class=Response,
        responses={**_codes(404, 416), 200: _TEXT, 206: {**_TEXT, "description": "A range of the log"}},
    )  # fmt: skip
    def read_log(
        of: OfLogs,
        job_id: Annotated[int, _JOB_ID],
        attempt: Annotated[int | None, Query(ge=1, le=10**9)] = None,
        range: Annotated[str | None, Header(max_length=100)] = None,
    ) -> Response:
        log = operations.open_log_file(of.location, job_id, attempt)
        headers = {**state(), "Accept-Ranges": "bytes", "X-Attempt": f"{log.attempt}"}
        try:
            part = _byte_range(range, log.size)
        except ValueError:
            log.file.close()
            return problem(416, f"the log has {log.size} bytes", {"Content-Range": f"bytes */{log.size}"})
        start, end = part or (0, log.size)
        headers["Content-Length"] = str(end - start)
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{log.size}"
        return StreamingResponse(
            log.chunks(start, end), 200 if part is None else 206, headers, "text/plain; charset=utf-8",
            BackgroundTask(log.file.close),  # also if the caller has left, perhaps before the first byte
        )  # fmt: skip

    @app.get(
        "/api/v1/jobs/{job_id}/log/stream", response_class=Response, responses={**_codes(404), 200: _EVENTS}
    )
    def follow(
        of: OfLogs, job_id: Annotated[int, _JOB_ID], last: Annotated[str | None, _LOG_POSITION] = None
    ) -> Response:
        operations.model_job(of, job_id)
        return StreamingResponse(_sent(_follow_log(of, job_id, last), _LOG_POLL_S), media_type=_EVENT_STREAM)

    @app.get("/api/v1/events", response_class=Response, responses={**_codes(), 200: _EVENTS})
    def events(of: Of, last: Annotated[str | None, _EVENT_ID] = None) -> Response:
        parts = _follow_events(of, None if last is None else int(last))
        return StreamingResponse(_sent(parts, _EVENTS_POLL_S), media_type=_EVENT_STREAM)

    app.state.close = machine.close
    _add_error_handlers(app, context, state)
    return app


_METRICS = {"description": "The metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
_TEXT = {"description": "The log", "content": {"text/plain": {"schema": {"type": "string"}}}}
_EVENTS = {
    "description": "Server-sent events",
    "content": {_EVENT_STREAM: {"schema": {"type": "string"}}},
}


def _error(
    request: Request, status: int, detail: object, headers: Mapping[str, str] | None, **members: object
) -> Response:
    """Returns an error with `detail` alone for the short routes, and as a problem for the others."""
    if request.scope["path"].startswith(("/api/", "/metrics")):
        return problem(status, str(detail), headers, **members)
    return AsciiResponse({"detail": members.get("errors", detail)}, status, headers)


def _add_error_handlers(app: FastAPI, context: Context, state: Callable[[], dict[str, str]]) -> None:
    @app.exception_handler(SchedulerError)
    def failed(request: Request, error: SchedulerError) -> Response:
        status = operations.status_of(context, error)
        is_job = status == 404 and request.scope["path"].startswith("/jobs/")
        text = "Job not found" if is_job else str(error)
        return _error(request, status, text, state())

    @app.exception_handler(StarletteHTTPException)
    def refused(request: Request, error: StarletteHTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:  # Starlette names the methods of only one route
            found = [one for one in app.routes if one.matches(request.scope)[0] is not Match.NONE]
            methods = {method for one in found for method in getattr(one, "methods", None) or ()}
            headers["Allow"] = ", ".join(sorted(methods))
        return _error(request, error.status_code, error.detail, headers)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        # The wrong value, which is left out, may be large or a secret.
        found = [{key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()[:_MAX_ERRORS]]
        fields = [".".join(map(str, one["loc"][1:])) or one["loc"][0] for one in found]
        text = "; ".join(f"{field}: {one['msg']}" for field, one in zip(fields, found, strict=True))
        return _error(request, 422, text, None, errors=found)


# Server-sent events, and ranges of a log.


def _sse(event: str, data: str, event_id: object = None) -> bytes:
    """Returns a server-sent event. data: one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


async def _sent(parts: Iterator[bytes], poll_s: float) -> AsyncIterator[bytes]:
    """Yields the parts of a stream, and comments while it is quiet.

    parts: yields b"" if there is nothing new at the moment; runs in a thread. poll_s: seconds between two
    looks.
    """
    quiet_s = 0.0
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        if not part:
            await asyncio.sleep(poll_s)
            quiet_s += poll_s
        if part or quiet_s >= _KEEP_ALIVE_S:
            quiet_s = 0.0
            yield part or b": \n\n"


def _follow_events(context: Context, after: int | None) -> Iterator[bytes]:
    """Yields events, `reset` where some are missing, and b"" if there are none at the moment.

    after: the id of the last event that is known; None for new events.
    """
    feed = operations.EventFeed(context.location, after)
    if after is None:
        with suppress(SchedulerError):
            feed.read()
    yield b": events\n\n"
    while True:
        try:
            found = feed.read()
        except SchedulerError:
            found = []  # the store cannot be read at the moment
        if found is None:
            yield _sse("reset", json.dumps({"newest": feed.position}), feed.position)
        else:
            show = to_json if context.details else _without_command
            yield b"".join(_sse("event", show(event), event.id) for event in found)


def _without_command(event: Event) -> str:
    values = json.loads(to_json(event))
    return json.dumps({key: one for key, one in values.items() if key not in ("command", "reason", "log")})


def _byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the end of a Range header with one range; None for the whole file.

    Raises ValueError if no byte is in the range. A header that is not understood counts as none (RFC 9110).
    """
    found = re.fullmatch(r"\s*bytes\s*=\s*([0-9]{0,15})-([0-9]{0,15})\s*", header or "")
    first, last = found.groups() if found else ("", "")
    if not (first or last) or (first and last and int(first) > int(last)):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise ValueError(header)
    return start, end


def _follow_log(context: Context, job_id: int, last_id: str | None) -> Iterator[bytes]:
    """Yields the log of a job as it grows, attempt by attempt, then one event `end`; b"" if nothing is new.

    last_id: "ATTEMPT:OFFSET" of the last event that is known; None for the beginning of the latest attempt.
    """
    yield b": log\n\n"
    for attempt, at, text, end in operations.log_parts(
        context, job_id, *map(int, (last_id or "0:0").split(":"))
    ):
        found = {"attempt": attempt, "offset": at, "text": text}
        yield _sse("log", json.dumps(found), f"{attempt}:{end}") if text else b""
    job = operations.model_job(context, job_id)
    yield _sse("end", json.dumps({"state": job["state"], "outcome": job["outcome"]}))
