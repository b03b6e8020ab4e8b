"""How the client reaches a queue: through the store on this machine, or through the REST API."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from gpu_scheduler.app.location import Location
from gpu_scheduler.core.text.formatting import masked, masked_json
from gpu_scheduler.errors import ClientError, SchedulerError
from gpu_scheduler.views.event_messages import to_json
from gpu_scheduler.web import operations
from gpu_scheduler.web.operations import Json
from gpu_scheduler.web.streams import EventFeed, log_parts, open_log_file

#: The method and the path of each operation. What is not in the path goes into the query or the body.
_ROUTES = {
    "jobs": ("GET", "jobs"), "job": ("GET", "jobs/{job_id}"), "why_job": ("GET", "jobs/{job_id}/why"),
    "eta": ("GET", "eta"), "plan": ("GET", "plan"), "gpus": ("GET", "gpus"), "health": ("GET", "health"),
    "submit": ("POST", "jobs"), "preview": ("POST", "preview"), "change_jobs": ("POST", "{verb}"),
}  # fmt: skip
#: Maximum number of bytes of a log that are read to find its last lines.
_TAIL_BYTES = 1 << 20
#: Seconds for which a request whose connection is lost, and one that the server puts off, is repeated.
_REPEAT_S, _PUT_OFF_S = 8.0, 60.0
#: Seconds until an answer counts as lost, and a stream, into which the server sends something every 15 s.
_ANSWER_S, _QUIET_S = 60.0, 45.0
#: Seconds between two looks at the store.
_POLL_S = 0.1


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

    def follow(self, job_id: int) -> Iterator[str]:
        """Yields the log as it grows until the job has ended."""
        with self._errors() as context:
            for _, _, text, _ in log_parts(context, job_id):
                if text:
                    yield text
                else:
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
                    time.sleep(_POLL_S if end is None else max(0.0, min(_POLL_S, end - time.monotonic())))

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

    def follow(self, job_id: int) -> Iterator[str]:
        for fields in self._stream(f"jobs/{job_id}/log/stream", None, None):
            if fields.get("event") == "log":
                yield json.loads(fields["data"])["text"]
            elif fields.get("event") == "end":
                return

    def events(self, after: int | None, end: float | None) -> Generator[Json, None, None]:
        for fields in self._stream("events", None if after is None else str(after), end):
            is_reset = "new" in fields or fields.get("event") == "reset"
            yield {"event": "reset"} if is_reset else json.loads(fields.get("data", "{}"))

    def _stream(self, path: str, last: str | None, end: float | None) -> Iterator[dict[str, str]]:
        """Yields the fields of each server-sent event or comment, and connects again when it is cut off.

        The first comment of a stream without a position has the field "new".
        """
        began, pause, was_connected = time.monotonic(), 0.1, False
        while end is None or time.monotonic() < end:
            wait_s, fields = pause, {"new": ""} if last is None else {}
            try:
                known = {} if last is None else {"Last-Event-ID": last}
                with self._open(path, known, None, _left(end)) as answer:
                    connection = cast(Any, answer.fp).raw._sock  # the public API cannot change its timeout
                    while line := answer.readline():
                        name, colon, value = line.decode().rstrip("\r\n").partition(":")
                        if colon:
                            fields[name] = value.removeprefix(" ")
                        else:  # an empty line ends an event
                            pause, was_connected, last = 0.1, True, fields.get("id", last)
                            yield fields
                            fields = {}
                        connection.settimeout(_left(end))
            except ClientError as error:
                is_lost = was_connected or time.monotonic() - began < _REPEAT_S
                if error.retry_after_s is None and (error.status is not None or not is_lost):
                    raise
                wait_s = error.retry_after_s or pause
            time.sleep(wait_s if end is None else max(0.0, min(wait_s, end - time.monotonic())))
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


def _left(end: float | None) -> float:
    """Returns the seconds for which a stream may stay silent."""
    return _QUIET_S if end is None else max(0.001, min(_QUIET_S, end - time.monotonic()))


Transport = StoreTransport | HttpTransport
