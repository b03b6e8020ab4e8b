"""The Python client of a queue (docs/python.md): submits jobs, waits for them and shows what became of them.

client = Client()                                   # the queue of this folder
client = Client("http://box:8000", token=token)     # a queue on another machine
print(client.submit("train.py", "--epochs", 3, vram="18G").result())
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from itertools import chain
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from msgspec import Struct

from gpu_scheduler.core.text.formatting import masked, masked_json
from gpu_scheduler.errors import ClientError, NoSuchJobError, SchedulerError
from gpu_scheduler.show.events import to_json
from gpu_scheduler.show.location import Location, QueueUse, choice_text, find_queue
from gpu_scheduler.web import operations
from gpu_scheduler.web.operations import MAX_PAGE, EventFeed, Json, log_parts, open_log_file

#: The method and the path of each operation. What is not in the path goes into the query or the body.
_ROUTES = {
    "jobs": ("GET", "jobs"), "job": ("GET", "jobs/{job_id}"), "why_job": ("GET", "jobs/{job_id}/why"),
    "eta": ("GET", "eta"), "plan": ("GET", "plan"), "gpus": ("GET", "gpus"), "health": ("GET", "health"),
    "submit": ("POST", "jobs"), "preview": ("POST", "preview"), "change_jobs": ("POST", "{verb}"),
    "change_gpus": ("POST", "gpus/{verb}"),
}  # fmt: skip
#: Maximum number of bytes of a log that are read to find its last lines.
_TAIL_BYTES = 1 << 20
#: Seconds for which a request whose connection is lost, and one that the server puts off, is repeated.
_REPEAT_S, _PUT_OFF_S = 8.0, 60.0
#: Seconds until an answer counts as lost, and a stream, into which the server sends something every 15 s.
_ANSWER_S, _QUIET_S = 60.0, 45.0
#: Seconds between two looks at the store.
_POLL_S = 0.1
#: Seconds between two looks at jobs whose end no event has shown; without a scheduler, there are no events.
_LOOK_S = 30.0


class Result(Struct, frozen=True):
    """How a job ended. outcome: "completed", "failed", "timed_out", "cancelled", "ended" or "skipped"."""

    outcome: str
    exit_code: int | None
    reason: str | None

    @property
    def ok(self) -> bool:
        """True if the job completed."""
        return self.outcome == "completed"


class Job(Struct, frozen=True):
    """A job of a queue. Every method asks the queue, and raises ClientError."""

    id: int
    _client: Client

    def __repr__(self) -> str:
        return f"Job(id={self.id})"

    def info(self) -> Json:
        """Returns the job as an element of "jobs" in docs/json.md."""
        return dict(self._client.call("job", job_id=self.id)["job"])

    @property
    def name(self) -> str | None:
        """The name of the job; None if it has none."""
        name: str | None = self.info()["name"]
        return name

    def status(self) -> str:
        """Returns the state of the job, or the outcome if it has ended."""
        found = self.info()
        return str(found["outcome"] or found["state"])

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the job has ended. Returns False after `timeout` seconds."""
        return self._client.wait([self], timeout)

    def result(self, timeout: float | None = None) -> Result:
        """Waits until the job has ended and returns how. Raises ClientError after `timeout` seconds."""
        _, found = next(self._client._ends([self], timeout))
        return Result(found["outcome"], found["exit_code"], found["reason"])

    def log(self, tail: int | None = None) -> str:
        """Returns the log of the latest attempt, or its last `tail` lines (at most those in the last MiB)."""
        text = self._client._transport.log(self.id, whole=tail is None)
        return text if tail is None else "".join(text.splitlines(keepends=True)[-tail:] if tail else [])

    def follow(self, last_bytes: int | None = None) -> Iterator[str]:
        """Yields the log as it grows until the job has ended, from the last `last_bytes` bytes on.

        Yields "" from time to time while nothing is new, so that the caller can stop at a silent job.
        """
        return self._client._transport.follow(self.id, last_bytes)

    def cancel(self) -> Json:
        """Cancels the job and returns the answer."""
        return self._client.cancel(self)[0]

    def why(self) -> Json:
        """Returns why the job does not start or why it failed, as `why --json` does."""
        return self._client.call("why_job", job_id=self.id)


class Client:
    """A queue: that of this folder as `submit` finds it, or the one behind a URL. Any thread may use it.

    token: as `token create` printed it. Every method raises ClientError.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None,
        *, state_file: str | None = None, data_dir: str | None = None,
    ) -> None:  # fmt: skip
        self._transport: StoreTransport | HttpTransport
        if url is not None:
            self._transport = HttpTransport(url, token)
            return
        verdict, found, running = find_queue(QueueUse.ADD_JOBS, state_file, data_dir)
        if found is None:
            raise ClientError(choice_text(verdict, running, "", "") + "\nas state_file= and data_dir=", 409)
        folder = None if found.data_dir is None else os.path.abspath(found.data_dir)
        self._transport = StoreTransport(Location(os.path.abspath(found.state_file), folder))

    def call(self, operation: str, /, **arguments: Any) -> Json:
        """Returns the answer of an operation of `web.operations`, such as "jobs" or "health"."""
        return self._transport.call(operation, **arguments)

    def submit(self, script: str | None = None, *arguments: object, **options: Any) -> Job:
        """Queues a script with its arguments, or `command`, which is shell text or a list of words.

        options: `command`, `cwd`, `env` (a mapping), and every attribute of a job with _ for -, such as
        `vram="18G"`, `gpus=2`, `after=[job]` or `oom_retries=3`.
        """
        return self.map(script, *arguments, grid={}, **options)[0]

    def map(
        self,
        script: str | None = None,
        *arguments: object,
        grid: Mapping[str, Iterable[object]],
        **options: Any,
    ) -> list[Job]:
        """Queues a job for each combination of the grid's values, which replace {key} in all texts.

        options: as for `submit`; with `zip=True`, the first values of all keys belong together, and so on.
        """
        made = self.call("submit", **_new_jobs(script, arguments, options, grid))
        return [Job(one, self) for one in made["ids"]]

    def jobs(self, *, state: Sequence[str] = (), name: str | None = None, limit: int = 1000) -> list[Job]:
        """Returns the jobs in one of the states, the newest first. name: a name, a group or a pattern."""
        found: list[Job] = []
        page: Json = {"next": None}
        while len(found) < limit and (not found or page["next"]):
            rest = {"cursor": page["next"], "limit": min(MAX_PAGE, limit - len(found))}
            page = self.call("jobs", state=list(state), name=name, **rest)
            if not page["jobs"]:
                break
            found += [Job(one["id"], self) for one in page["jobs"]]
        return found

    def job(self, ref: int | str) -> Job:
        """Returns the job with this id or name."""
        if str(ref).isdigit():
            return Job(self.call("job", job_id=int(ref))["job"]["id"], self)
        found = self.jobs(name=str(ref), limit=2)
        if len(found) != 1:
            how = "several jobs are" if found else "no job is"
            raise ClientError(f"{how} named {ref}; `jobs()` lists the jobs", 409 if found else 404)
        return found[0]

    def wait(self, jobs: Iterable[Job | int], timeout: float | None = None) -> bool:
        """Waits until all jobs have ended. Returns False after `timeout` seconds.

        An end counts once the scheduler has recorded it. A job that is held is waited for like any other.
        """
        try:
            return all(True for _ in self._ends(jobs, timeout))
        except ClientError as error:
            if error.status == 408:
                return False
            raise

    def as_completed(self, jobs: Iterable[Job | int], timeout: float | None = None) -> Iterator[Job]:
        """Yields each job when it has ended. Raises ClientError after `timeout` seconds."""
        return (job for job, _ in self._ends(jobs, timeout))

    def _ends(self, jobs: Iterable[Job | int], timeout: float | None) -> Iterator[tuple[Job, Json]]:
        """Yields each job when it has ended, and what `info` returns. Raises ClientError with status 408."""
        end = None if timeout is None else time.monotonic() + timeout
        left = {one.id if isinstance(one, Job) else one for one in jobs}
        unread, look_at = set(left), 0.0
        with closing(self._transport.events(None, end)) as events:
            for event in chain([{"event": "look"}], events):
                if event.get("event") in ("look", "reset") or time.monotonic() >= look_at:
                    unread, look_at = set(left), time.monotonic() + _LOOK_S
                elif event.get("event") == "finished":
                    unread |= {event["job"]} & left
                try:
                    found = self._read(unread)
                except ClientError as error:
                    if error.status is not None:
                        raise
                    continue  # the server is down
                unread = set()
                for one in found:
                    left.discard(one["id"])
                    yield Job(one["id"], self), one
                if not left:
                    return
        waiting = ", ".join(map(str, sorted(left)[:5])) + (" …" if len(left) > 5 else "")
        raise ClientError(f"not ended after {timeout} s: job {waiting}; wait longer, or see `why`", 408)

    def _read(self, ids: Collection[int]) -> list[Json]:
        """Returns those of the jobs that have ended."""
        known = {one["id"]: one for one in read_jobs(self.call, ids)}
        found = (known.get(one) or self.call("job", job_id=one)["job"] for one in sorted(ids))
        ended = [one for one in found if one["state"] == "finished"]
        if all(one["recorded"] for one in ended) or self.health()["scheduler"]["pid"] is None:
            return ended
        return [one for one in ended if one["recorded"]]  # the scheduler may retry the others

    def cancel(self, *jobs: Job | int | str, grace_s: float = 10.0) -> list[Json]:
        """Cancels jobs, given also by name, group or pattern; SIGKILL follows SIGTERM after `grace_s`.

        Returns the answers, as the other changes do, and raises ClientError if all of them are refusals.
        """
        return self._change("cancel", jobs, grace_s=grace_s)

    def hold(self, *jobs: Job | int | str) -> list[Json]:
        """Keeps queued jobs from starting."""
        return self._change("hold", jobs)

    def release(self, *jobs: Job | int | str) -> list[Json]:
        """Returns held jobs to the queue."""
        return self._change("release", jobs)

    def retry(self, *jobs: Job | int | str, set: Sequence[str] = ()) -> list[Json]:
        """Queues ended or held jobs again. set: changes to make first, such as "vram=18G"."""
        return self._change("retry", jobs, set=list(set))

    def priority(self, *jobs: Job | int | str, to: int) -> list[Json]:
        """Changes the priority of waiting jobs; lower numbers start first."""
        return self._change("priority", jobs, priority=to)

    def _change(self, verb: str, jobs: Iterable[Job | int | str], **values: Any) -> list[Json]:
        refs = [one.id if isinstance(one, Job) else one for one in jobs]
        answers = list(self.call("change_jobs", verb=verb, jobs=refs, **values)["answers"])
        if answers and all(one["result"] == "refused" for one in answers):
            raise ClientError("; ".join(one["text"] for one in answers[:5]), 409)
        return answers

    def gpus(self) -> list[Json]:
        """Returns the managed GPUs as elements of "gpus" in docs/json.md."""
        return list(self.call("gpus")["gpus"])

    def plan(self) -> Json:
        """Returns when jobs are expected to start and end, as `plan --json` does."""
        return self.call("plan")

    def health(self) -> Json:
        """Returns whether the scheduler runs, how many jobs there are, and what is wrong."""
        return self.call("health")

    def events(self, after: int | None = None) -> Iterator[Json]:
        """Yields events as `events --json` prints them, without end. after: the id of the last known one.

        Yields {"event": "reset"} if events may be missing, and first of all without `after`.
        """
        return (one for one in self._transport.events(after, None) if one)


def read_jobs(call: Callable[..., Json], ids: Iterable[int]) -> Iterator[Json]:
    """Yields those of the jobs that exist, and some between them. Reads neighbours with one request.

    call: as `Client.call`.
    """
    left = sorted(ids)
    while left:
        near = [one for one in left if one > left[-1] - MAX_PAGE]
        yield from call("jobs", cursor=left[-1] + 1, limit=left[-1] - near[0] + 1)["jobs"]
        left = left[: -len(near)]


def _new_jobs(
    script: str | None, arguments: Iterable[object], options: Json, grid: Mapping[str, Iterable[object]]
) -> Json:
    """Returns the arguments of the operation `submit`."""
    given = {key: one for key, one in options.items() if one is not None and one is not False}
    command, env = given.pop("command", None), given.pop("env", {})
    cwd, zipped = given.pop("cwd", None), given.pop("zip", False)
    return {
        "script": script and os.fspath(script), "arguments": list(map(str, arguments)),
        "command": command if command is None or isinstance(command, str) else list(map(str, command)),
        "env": {key: str(one) for key, one in env.items()}, "cwd": cwd and os.fspath(cwd),
        "grid": [f"{key}={','.join(map(_quoted, values))}" for key, values in grid.items()],
        "zip": zipped,
        "attributes": {key.replace("_", "-"): _attribute(one) for key, one in given.items()},
    }  # fmt: skip


def _attribute(value: Any) -> str | bool:
    if isinstance(value, (list, tuple)):
        return ",".join(str(_attribute(one)) for one in value)
    return value if value is True else str(value.id if isinstance(value, Job) else value)


def _quoted(value: object) -> str:
    text = str(value)
    if "'" in text and '"' in text:
        raise ClientError("grid: a value has both kinds of quotes; nothing was submitted", 422)
    return f"'{text}'" if '"' in text else f'"{text}"'


# How the client reaches a queue: through the store on this machine, or through the REST API.


class StoreTransport:
    """Uses the store on this machine, from any thread. Every method raises ClientError.

    New jobs inherit the environment and the folder of this process.
    """

    def __init__(self, location: Location) -> None:
        self._location = location

    def call(self, operation: str, /, **arguments: Any) -> Json:
        """Returns the answer of an operation of `web.operations`."""
        with self._errors() as context:
            found: Json = json.loads(masked_json(getattr(operations, operation)(context, **arguments)))
            return found

    def log(self, job_id: int, *, whole: bool) -> str:
        """Returns the log of the latest attempt, or its last MiB."""
        with self._errors():
            log = open_log_file(self._location, job_id)
            start = 0 if whole else max(0, log.size - _TAIL_BYTES)
            with log.file:
                return b"".join(log.chunks(start, log.size)).decode(errors="replace")

    def follow(self, job_id: int, last_bytes: int | None) -> Iterator[str]:
        """Yields the log as it grows until the job has ended, from its last bytes; "" if nothing is new."""
        with self._errors() as context:
            attempt = position = 0
            if last_bytes is not None:
                with suppress(NoSuchJobError):  # there is no log yet
                    log = open_log_file(self._location, job_id)
                    log.file.close()
                    attempt, position = log.attempt, max(0, log.size - last_bytes)
            for _, _, text, _ in log_parts(context, job_id, attempt, position):
                yield text
                if not text:
                    time.sleep(_POLL_S)

    def events(self, after: int | None, end: float | None) -> Generator[Json, None, None]:
        """Yields events until the monotonic time `end`, and {} from time to time.

        Yields the event "reset" where events may be missing, and first of all if `after` is None.
        """
        with self._errors():
            feed = EventFeed(self._location, after)
            while end is None or time.monotonic() < end:
                found = feed.read()
                if found is None:
                    yield {"event": "reset"}
                    continue
                for event in found:
                    yield json.loads(to_json(event))
                if not found:
                    yield {}
                    time.sleep(_left(end, _POLL_S))

    @contextmanager
    def _errors(self) -> Iterator[operations.Context]:
        try:
            context = operations.Context(self._location, os.getcwd(), "client", environment=dict(os.environ))
            yield context
        except SchedulerError as error:
            raise ClientError(masked(str(error)), operations.status_of(context, error)) from error
        except (ValueError, OSError) as error:  # a value that is none, or a folder that was deleted
            raise ClientError(masked(str(error)), 422) from error


class HttpTransport:
    """Uses the REST API at a URL such as http://box:8000. It has the methods of StoreTransport."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ClientError("the URL must look like http://box:8000; give a token as `token=`", 422)
        self._base = f"{url.rstrip('/')}/api/v1/"
        self._token = token
        self._opener = build_opener(ProxyHandler({}))  # a proxy would see the token

    def call(self, operation: str, /, **arguments: Any) -> Json:
        method, path = _ROUTES[operation]
        in_path = {key: quote(str(arguments.pop(key)), safe="") for key in re.findall(r"{(\w+)}", path)}
        path, body, headers = path.format(**in_path), None, {}
        if method == "GET":
            query = {key: value for key, value in arguments.items() if value is not None}
            path += f"?{urlencode(query, doseq=True)}" if query else ""
        else:
            body, headers = json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        if operation == "submit":  # with a key, the same request can be repeated without harm
            headers["Idempotency-Key"] = secrets.token_hex(16)
        answer = self._request(path, headers, body, may_repeat=operation != "change_jobs")
        try:
            found: Json = json.loads(answer)
        except ValueError:
            raise ClientError(f"{self._base} is not a server of this program; check the URL") from None
        return found

    def log(self, job_id: int, *, whole: bool) -> str:
        headers = {} if whole else {"Range": f"bytes=-{_TAIL_BYTES}"}
        try:
            return self._request(f"jobs/{job_id}/log", headers).decode(errors="replace")
        except ClientError as error:
            if error.status == 416:
                return ""  # the log is empty
            raise

    def follow(self, job_id: int, last_bytes: int | None) -> Iterator[str]:
        last = None
        if last_bytes is not None:
            wanted = {"Range": f"bytes=-{last_bytes}"}
            try:
                with self._open(f"jobs/{job_id}/log", wanted, None, _ANSWER_S) as answer:
                    start = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
                    last = start and f"{answer.headers['X-Attempt']}:{start[1]}"
            except ClientError as error:
                if error.status not in (404, 416):  # there is no log yet, or it is empty
                    raise
        for fields in self._stream(f"jobs/{job_id}/log/stream", last, None):
            if fields.get("event") == "log":
                yield json.loads(fields["data"])["text"]
            elif fields.get("event") == "end":
                return
            else:
                yield ""

    def events(self, after: int | None, end: float | None) -> Generator[Json, None, None]:
        for fields in self._stream("events", None if after is None else str(after), end):
            is_reset = "new" in fields or fields.get("event") == "reset"
            yield {"event": "reset"} if is_reset else json.loads(fields.get("data", "{}"))

    def _stream(self, path: str, last: str | None, end: float | None) -> Iterator[dict[str, str]]:
        """Yields the fields of each server-sent event or comment, and connects again when it is cut off.

        The first comment of a stream without a position has the field "new". Yields {} before it connects
        again, too.
        """
        began, pause, was_connected = time.monotonic(), 0.1, False
        while end is None or time.monotonic() < end:
            wait_s, fields = pause, {"new": ""} if last is None else {}
            try:
                known = {} if last is None else {"Last-Event-ID": last}
                with self._open(path, known, None, _left(end, _QUIET_S)) as answer:
                    connection = cast(Any, answer.fp).raw._sock  # the public API cannot change its timeout
                    while line := answer.readline():
                        name, colon, value = line.decode().rstrip("\r\n").partition(":")
                        if colon:
                            fields[name] = value.removeprefix(" ")
                        else:  # an empty line ends an event
                            pause, was_connected, last = 0.1, True, fields.get("id", last)
                            yield fields
                            fields = {}
                        connection.settimeout(_left(end, _QUIET_S))
            except ClientError as error:
                is_lost = was_connected or time.monotonic() - began < _REPEAT_S
                if error.retry_after_s is None and (error.status is not None or not is_lost):
                    raise
                wait_s = error.retry_after_s or pause
            yield {}
            time.sleep(_left(end, wait_s))
            pause = min(5.0, pause * 2)

    def _request(
        self, path: str, headers: Mapping[str, str], body: bytes | None = None, *, may_repeat: bool = True
    ) -> bytes:
        began, pause = time.monotonic(), 0.1
        while True:
            try:
                with self._open(path, headers, body, _ANSWER_S) as answer:
                    return answer.read()
            except ClientError as error:
                wait_s, limit_s = error.retry_after_s, _PUT_OFF_S
                is_unsent = isinstance(getattr(error.__cause__, "reason", None), ConnectionRefusedError)
                if error.status is None and (may_repeat or is_unsent):
                    wait_s, limit_s, pause = pause, _REPEAT_S, pause * 2
                if wait_s is None or time.monotonic() - began + wait_s > limit_s:
                    raise
            time.sleep(wait_s)

    @contextmanager
    def _open(
        self, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Iterator[HTTPResponse]:
        request = Request(self._base + path, body, dict(headers))
        if self._token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                yield answer
        except HTTPError as error:
            text, after = f"the server answered {error.code} {error.reason}", error.headers.get("Retry-After")
            with error, suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
                text = str(json.loads(error.read(1 << 20))["detail"])
            retry_after_s = min(float(after), 30.0) if after and after.isdigit() else None
            raise ClientError(text, error.code, retry_after_s) from error
        except (OSError, HTTPException) as error:
            text = f"no answer from {self._base}: {getattr(error, 'reason', None) or error!r}"
            raise ClientError(f"{text}; check the URL, and that `serve` runs there") from error


def _left(end: float | None, most_s: float) -> float:
    """Returns the seconds until a monotonic time, but at most so many and never 0."""
    return most_s if end is None else max(0.001, min(most_s, end - time.monotonic()))
