"""The guard: one ASGI layer around the whole application, which decides who may do what.

Whoever may submit a job runs code as the owner, so every request is refused unless a rule admits it, whatever
its path and method. The guard knows no routes except the streams, which it counts and ends. `peers` tells
whose connection it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from http import HTTPStatus
from urllib.parse import unquote

from msgspec import Struct
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_scheduler.core.text.formatting import masked_values
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.web.peers import PEER_UID, STREAM
from gpu_scheduler.web.tokens import LOCAL, Token, Tokens

MAX_BODY_BYTES = 1024 * 1024
#: Maximum number of changes of one caller in a second.
MAX_CHANGES = 20
#: Maximum number of open streams of one caller.
MAX_STREAMS = 32

_READING = ("GET", "HEAD", "OPTIONS")
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
_PORT = re.compile(r":[0-9]+$")
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\]")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Caller(Struct, frozen=True):
    """Who makes a request. name: "local", or the name of the token."""

    name: str
    may_change: bool = True
    may_read_logs: bool = True


class _Refused(Exception):
    """The request is refused. The arguments are those of `problem`."""


class AsciiResponse(JSONResponse):
    """JSON in ASCII without secrets. No text in it can control a terminal, and every text can be encoded."""

    def render(self, content: object) -> bytes:
        """Returns the body."""
        return json.dumps(masked_values(content), allow_nan=False, separators=(",", ":")).encode("ascii")


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: object
) -> AsciiResponse:
    """Returns an ASGI application that sends an error as `application/problem+json` (RFC 9457).

    members: further members of the object.
    """
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return AsciiResponse(body | members, status, headers, media_type="application/problem+json")


class Guard:
    """Serves `app` to callers that may use it, with their Caller as `caller` in the state of the request.

    is_loopback: the server listens on a loopback address only. port: its port. allowed_hosts: further names,
    as NAME or NAME:PORT, by which clients may call it. owner_uid: the user who needs no token over a loopback
    address, unless it is root.
    """

    #: Seconds between two checks of the token of a stream.
    token_check_s = 10.0
    #: Seconds in which a body must arrive.
    body_timeout_s = 30.0

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        is_loopback: bool,
        port: int,
        allowed_hosts: Collection[str],
        owner_uid: int,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._owner_uid = owner_uid if is_loopback and owner_uid != 0 else None
        names = [name.lower() for name in (*_OWN_NAMES, *allowed_hosts)]
        self._hosts = {name if _PORT.search(name) else f"{name}:{port}" for name in names}
        self._changes: dict[str, deque[float]] = {}
        self._streams: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            send = _with_headers(send)
            try:
                await self._serve(scope, receive, send)
            except _Refused as refused:
                await problem(*refused.args)(scope, receive, send)
        else:  # the application has no WebSockets
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
        _check_path(scope)
        self._check_site(headers)
        token = self._token(headers)
        if token is None:
            self._check_peer(scope, headers)
            caller = Caller(LOCAL)
        else:
            caller = Caller(token.name, not token.read_only, token.logs)
        is_change = scope["method"] not in _READING
        if is_change:
            self._check_change(caller, headers)
        try:
            body = await asyncio.wait_for(_read_body(receive, is_kept=is_change), self.body_timeout_s)
        except asyncio.TimeoutError:
            raise _Refused(400, f"The body has not arrived within {self.body_timeout_s:g} s.") from None
        if body is None:
            return  # the caller has gone
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_rest() -> Message:
            return unread.pop() if unread else await receive()

        rest = [header for header in scope["headers"] if header[0].lower() != b"authorization"]
        scope = {**scope, "headers": rest, "state": {**scope.get("state", {}), "caller": caller}}
        if STREAM.fullmatch(scope["path"]):
            await self._stream(scope, receive_rest, send, caller, token)
        else:
            await self._app(scope, receive_rest, send)

    def _check_site(self, headers: Mapping[str, list[str]]) -> None:
        """Refuses requests for another name (DNS rebinding), and those that another site's page makes."""
        host = ",".join(headers.get("host", ())).lower()
        asked = {host} if _PORT.search(host) else {f"{host}:80", f"{host}:443"}  # browsers omit these
        if not asked & self._hosts:
            raise _Refused(403, "The Host header names another server; `serve --allowed-host` allows a name.")
        origins = {value.lower() for value in headers.get("origin", ())}
        if not origins <= {f"http://{host}", f"https://{host}"}:
            raise _Refused(403, "A page of another site (Origin) may not use this server.")
        if not {*headers.get("sec-fetch-site", ())} <= {"same-origin", "none"}:
            raise _Refused(403, "A page of another site (Sec-Fetch-Site) may not use this server.")

    def _token(self, headers: Mapping[str, list[str]]) -> Token | None:
        """Returns the token of the request, or None if it brings none. Refuses a token that is not valid."""
        given = headers.get("authorization", [])
        if not given:
            return None
        scheme, _, secret = given[0].partition(" ")
        try:
            token = self._tokens.find(secret.strip())
        except SchedulerError as error:
            logging.getLogger(__name__).error("%s", error)
            raise _Refused(503, "The tokens cannot be read; `token list` says why.") from None
        if token is None or len(given) > 1 or scheme.lower() != "bearer":
            raise _unauthorized("The token is unknown, revoked or expired.")
        return token

    def _check_peer(self, scope: Scope, headers: Collection[str]) -> None:
        """Refuses a request without a token, unless its socket is the owner's and no proxy passed it on."""
        if any(name.startswith(("forwarded", "via", "x-real-ip", "x-forwarded")) for name in headers):
            raise _unauthorized("A request through a proxy needs a token.")
        uid = scope.get("state", {}).get(PEER_UID)
        if uid is None or uid != self._owner_uid:
            raise _unauthorized("This request needs a token.")

    def _check_change(self, caller: Caller, headers: Mapping[str, list[str]]) -> None:
        """Refuses a change that the caller may not make, that a form could send, or that is one too many."""
        if not caller.may_change:
            raise _Refused(403, f"The token {caller.name} is read-only.")
        types = [value.partition(";")[0].strip().lower() for value in headers.get("content-type", ())]
        if types != ["application/json"]:
            raise _Refused(415, "A change needs `Content-Type: application/json`, even without a body.")
        now, recent = time.monotonic(), self._changes.setdefault(caller.name, deque(maxlen=MAX_CHANGES))
        if len(recent) == MAX_CHANGES and now - recent[0] < 1:
            raise _Refused(429, f"More than {MAX_CHANGES} changes in a second.", {"Retry-After": "1"})
        recent.append(now)

    async def _stream(
        self, scope: Scope, receive: Receive, send: Send, caller: Caller, token: Token | None
    ) -> None:
        """Serves a stream until it ends, the caller leaves, or the token is no longer valid."""
        if self._streams[caller.name] >= MAX_STREAMS:
            raise _Refused(429, f"{caller.name} has {MAX_STREAMS} open streams.", {"Retry-After": "10"})
        self._streams[caller.name] += 1
        sent: set[str] = set()

        async def send_noted(message: Message) -> None:
            await send(message)
            sent.add(message["type"])

        serving = asyncio.ensure_future(self._app(scope, receive, send_noted))
        try:
            while not serving.done():
                await asyncio.wait({serving}, timeout=self.token_check_s)
                if token is not None and not self._tokens.is_valid(token):
                    serving.cancel()
                    await asyncio.wait({serving})
        finally:
            self._streams[caller.name] -= 1
            serving.cancel()  # if this request is cancelled
        if not serving.cancelled():
            serving.result()
        elif sent:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            raise _unauthorized("The token was revoked or has expired.")


def _check_path(scope: Scope) -> None:
    """Refuses paths that could leave the folder of a route, also if they are encoded twice."""
    for path in (scope["path"], unquote(scope["path"])):
        if not path.startswith("/") or ".." in path.split("/") or _BAD_CHARACTER.search(path):
            raise _Refused(400, "The path does not begin with `/`, or has `..`, `\\` or a control character.")
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise _Refused(400, "The path has an encoded `/`.")


def _unauthorized(detail: str) -> _Refused:
    remedy = "Send `Authorization: Bearer TOKEN`; the owner makes one with `gpu-scheduler token create NAME`."
    return _Refused(401, f"{detail} {remedy}", {"WWW-Authenticate": "Bearer"})


async def _read_body(receive: Receive, *, is_kept: bool) -> bytes | None:
    """Returns the body, or None if the caller has gone. Refuses a body that is too long.

    is_kept: whether the body counts; otherwise it is read and dropped.
    """
    body, size = bytearray(), 0
    while (message := await receive())["type"] == "http.request":
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            raise _Refused(413, f"The body is longer than {MAX_BODY_BYTES} bytes.")
        body += message.get("body", b"") if is_kept else b""
        if not message.get("more_body", False):
            return bytes(body)
    return None


def _with_headers(send: Send) -> Send:
    """Returns a `send` that adds the headers of every answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sending
