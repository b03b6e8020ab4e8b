"""The guard: one ASGI layer around the whole application, which decides who may do what; its connections.

Whoever may submit a job runs code as the owner, so every request is refused unless a rule admits it, whatever
its path and method. The guard knows no routes except the streams, which it counts and ends.

The kernel says who owns a connection on this machine. A connection counts from the moment at which the kernel
hands it over, so also during a TLS handshake.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h11
from msgspec import Struct
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_scheduler.core.text.formatting import masked_values
from gpu_scheduler.errors import SchedulerError
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
#: The key in the state of a request for the uid of the caller (int or None).
PEER_UID = "peer_uid"

#: The paths of the routes whose answers have no end.
STREAM = re.compile(r"/api/v1/(events|jobs/[^/]+/log/stream)")
#: The files of the page, which need no token, by their paths; and where a link is exchanged for a token.
PUBLIC = {
    "/": "index.html", "/page.js": "page.js", "/page.css": "page.css", "/preact.js": "preact.js",
    "/favicon.ico": "icon.svg",
}  # fmt: skip
SESSION = "/api/v1/session"
#: The name of callers of these routes.
ANYBODY = ""
#: An address and a port.
End = tuple[IPv4Address | IPv6Address, int]

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED = 1
#: struct nlmsghdr (length, type, flags, sequence, port), inet_diag_req_v2 (family, protocol, extensions,
#: padding, states) and inet_diag_sockid (ports, addresses, interface, cookie).
_QUESTION = struct.Struct("=IHHII BBBBI 2s2s16s16sIQ")
#: struct nlmsghdr and inet_diag_msg (family, state, timers, sockid, expiry, two queues, uid, inode).
_ANSWER = struct.Struct("=IHHII BBBB48sIIIII")


class Caller(Struct, frozen=True):
    """Who makes a request. name: "local", the name of the token, or "" for the routes that need none."""

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
    address, unless it is root. open_paths: paths that anyone on this machine may read.
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
        open_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._owner_uid = owner_uid if is_loopback and owner_uid != 0 else None
        self._open_paths = open_paths if is_loopback else ()
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
        is_reading = scope["method"] in _READING
        is_public = is_reading and scope["path"] in PUBLIC
        self._check_site(headers, may_come_from_elsewhere=is_public)
        is_session = scope["method"] == "POST" and scope["path"] == SESSION
        token = None if is_public or is_session else self._token(headers)
        if is_public or is_session:
            caller = Caller(ANYBODY)
        elif token is None:
            self._check_peer(scope, headers, is_open=is_reading and scope["path"] in self._open_paths)
            caller = Caller(LOCAL)
        else:
            caller = Caller(token.name, not token.read_only, token.logs)
        is_change = not is_reading
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

    def _check_site(self, headers: Mapping[str, list[str]], *, may_come_from_elsewhere: bool) -> None:
        """Refuses requests for another name (DNS rebinding), and those that another site's page makes.

        may_come_from_elsewhere: whether a link on another site may lead here.
        """
        host = ",".join(headers.get("host", ())).lower()
        asked = {host} if _PORT.search(host) else {f"{host}:80", f"{host}:443"}  # browsers omit these
        if not asked & self._hosts:
            raise _Refused(403, "The Host header names another server; `serve --allowed-host` allows a name.")
        origins = {value.lower() for value in headers.get("origin", ())}
        if not origins <= {f"http://{host}", f"https://{host}"}:
            raise _Refused(403, "A page of another site (Origin) may not use this server.")
        if not may_come_from_elsewhere and not {*headers.get("sec-fetch-site", ())} <= {
            "same-origin",
            "none",
        }:
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

    def _check_peer(self, scope: Scope, headers: Collection[str], *, is_open: bool) -> None:
        """Refuses a request without a token, unless no proxy passed it on and its socket is the owner's.

        is_open: whether everybody on this machine may make it.
        """
        if any(name.startswith(("forwarded", "via", "x-real-ip", "x-forwarded")) for name in headers):
            raise _unauthorized("A request through a proxy needs a token.")
        uid = scope.get("state", {}).get(PEER_UID)
        if not is_open and (uid is None or uid != self._owner_uid):
            raise _unauthorized("This request needs a token.")

    def _check_change(self, caller: Caller, headers: Mapping[str, list[str]]) -> None:
        """Refuses a change that the caller may not make, that a form could send, or that is one too many."""
        if not caller.may_change:
            raise _Refused(403, f"The token {caller.name} is read-only.")
        types = [value.partition(";")[0].strip().lower() for value in headers.get("content-type", ())]
        if types != ["application/json"]:
            raise _Refused(415, "A change needs `Content-Type: application/json`, even without a body.")
        if caller.name == ANYBODY:  # a link; strangers, who change nothing, must not hold up who has one
            return
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


# Connections: which user owns the other end, how many a user may have, and how long they may be silent.


def uid_of_peer(peer: tuple[str, int | None], local: tuple[str, int | None]) -> int | None:
    """Returns the uid of the open socket on this machine that is connected from `peer` to `local`.

    Returns None if there is none, or if the kernel has no sock_diag. A socket that its program has closed
    does not count, because it shows uid 0; nor does a user from outside of this container, because all of
    these show the same uid.
    """
    try:
        state, uid, inode = _ask_kernel(*((_address(host), port or 0) for host, port in (peer, local)))
    except OSError:
        return None
    is_foreign = uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None if state != _ESTABLISHED or inode == 0 or is_foreign else uid


def _address(host: str) -> IPv4Address | IPv6Address:
    """Returns the address without its scope; an IPv4 address also if it is written as an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _ask_kernel(peer: End, local: End) -> tuple[int, int, int]:
    """Returns the state, the uid and the inode of the peer's socket. Raises OSError if there is no answer."""
    family = socket.AF_INET if peer[0].version == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _, port in (peer, local)]
    question = _QUESTION.pack(
        *(_QUESTION.size, _SOCK_DIAG_BY_FAMILY, 1, 0, 0),  # flag 1: NLM_F_REQUEST
        *(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED),
        *(*ports, peer[0].packed, local[0].packed, 0, 2**64 - 1),  # any interface, any cookie
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.sendto(question, (0, 0))
        answer = kernel.recv(4096)
    if len(answer) < _ANSWER.size or (read := _ANSWER.unpack_from(answer))[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel knows no such socket")
    return read[6], read[-2], read[-1]


class _StrictConnection(h11.Connection):
    """Refuses requests whose length two programs could read differently.

    h11 itself refuses two Host headers and lengths that differ. Of equal lengths it shows one, and it ignores
    a length beside Transfer-Encoding.
    """

    _LENGTH = re.compile(rb"^content-length:(.*)$", re.IGNORECASE | re.MULTILINE)

    def next_event(self) -> Any:
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            lengths = self._LENGTH.findall(before[: len(before) - len(self.trailing_data[0])])
            is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if len(lengths) + is_chunked > 1 or any(b"," in length for length in lengths):
                raise h11.RemoteProtocolError("more than one length")
        return event


class Peer(tuple[Any, ...]):
    """The address of the other end of a connection. uid: its user; None if unknown or on another machine."""

    uid: int | None = None


class Listener(socket.socket):
    """The listening socket of `serve`, whose `accept` finds the caller's uid and keeps to the limits.

    asyncio gives the address that `accept` returns to the protocol, as `peername`. refusal: what a caller
    above the limits is sent.
    """

    #: Maximum number of connections of all callers, above which only the owner may open one, and of one user
    #: of this machine or one address.
    max_connections = 512
    max_per_peer = 128
    #: Seconds after which a caller that reads nothing is dropped.
    reader_timeout_s = 30.0

    def __init__(self, listening: socket.socket, refusal: bytes) -> None:
        super().__init__(fileno=listening.detach())
        self._refusal = refusal
        self._open: dict[socket.socket, object] = {}  # whose each one is

    def accept(self) -> tuple[socket.socket, Peer]:
        """Returns a new connection and its peer.

        Raises ConnectionAbortedError for one above the limits. asyncio ignores this error, but stops to
        listen for a second, or fails, after others.
        """
        made, address = super().accept()
        local, peer = made.getsockname(), Peer(address)
        is_local = _address(local[0]).is_loopback
        if is_local:
            peer.uid = uid_of_peer(address[:2], local[:2])
            if made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED:
                peer.uid = None  # the caller reset the connection; another user may have got its port since
        # The kernel drops a connection whose other end accepts nothing for this time, also if we closed ours.
        limit_ms = int(self.reader_timeout_s * 1000)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        whose = peer.uid if is_local else address[0]
        self._open = {one: owner for one, owner in self._open.items() if one.fileno() >= 0}  # not closed
        is_full = len(self._open) >= self.max_connections and peer.uid != os.geteuid()
        if is_full or list(self._open.values()).count(whose) >= self.max_per_peer:
            with made, suppress(OSError):
                made.send(self._refusal)
            raise ConnectionAbortedError("too many connections")
        self._open[made] = whose
        return made, peer


class GuardedProtocol(H11Protocol):
    """The connections of `serve`, which tell the guard the uid of the caller."""

    #: Seconds for the headers of a request, and for the rest of a body that nobody reads.
    request_timeout_s = 10.0

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.conn = _StrictConnection(h11.SERVER)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        uid = getattr(transport.get_extra_info("peername"), "uid", None)
        self.app_state = {**self.app_state, PEER_UID: uid}
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        if self.scope is not None and STREAM.fullmatch(self.scope["path"]):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun
            self.transport.abort()

    def _watch(self) -> None:
        """Limits the time for bytes that no handler awaits: headers, or the body of a refused request.

        uvicorn itself closes a connection on which nothing arrives after an answer.
        """
        is_unread = self.conn.our_state in (h11.IDLE, h11.DONE) and not self.transport.is_closing()
        if is_unread and self._deadline is None:
            self._deadline = self.loop.call_later(self.request_timeout_s, self.transport.close)
        elif not is_unread and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
