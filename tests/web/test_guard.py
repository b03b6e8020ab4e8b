"""The rules of the guard, each over every route and method of the application's OpenAPI document.

The guard is called directly, with the uid that the server would have found. The application behind it only
notes who reached it, so that a refusal is the guard's own. `test_connections` shows what depends on sockets.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from gpu_scheduler.show.location import Location
from gpu_scheduler.web import guard as module
from gpu_scheduler.web.app import create_app
from gpu_scheduler.web.guard import PUBLIC, SESSION, Caller, Guard, problem
from gpu_scheduler.web.operations import Context
from gpu_scheduler.web.tokens import Tokens
from tests.web.served import OWNER, small_app

#: The applications whose routes the guard must protect.
APPLICATIONS: Mapping[str, Callable[[], FastAPI]] = {
    "small": small_app,
    "api": lambda: create_app(Context(Location(), "/", "api:local")),
}
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")
READING = ("GET", "HEAD", "OPTIONS")
PORT = 8000
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Ask:
    """A request. By default the owner makes it, and every rule admits it."""

    method: str = "GET"
    path: str = "/queue"
    headers: Headers = (("host", f"localhost:{PORT}"), ("content-type", "application/json"))
    uid: int | None = OWNER
    chunks: tuple[bytes, ...] = (b"",)
    raw_path: bytes | None = None

    def having(self, name: str, *values: str) -> Ask:
        """Returns the request with these values of a header instead of those that it has."""
        kept = tuple(one for one in self.headers if one[0] != name)
        return replace(self, headers=(*kept, *((name, value) for value in values)))

    def scope(self) -> Scope:
        return {
            "type": "http",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode() if self.raw_path is None else self.raw_path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in self.headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", PORT),
            "state": {"peer_uid": self.uid},
        }


@dataclass
class Application:
    """Stands for the guarded application. Answers 200 and notes the requests. bodies: those that it read."""

    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"done"})

    @property
    def callers(self) -> list[Caller]:
        return [scope["state"]["caller"] for scope in self.scopes]


@dataclass
class Box:
    """A guard, its application and its tokens."""

    folder: Path
    guarded: dict[str, Any] = field(default_factory=dict)
    app: Application = field(default_factory=Application)

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.folder)
        given = {"is_loopback": True, "port": PORT, "allowed_hosts": ("box", "PROXY:443"), "owner_uid": OWNER}
        self.guard = Guard(self.app, tokens=self.tokens, **{**given, **self.guarded})

    def bearer(self, name: str, **rights: bool) -> str:
        return f"Bearer {self.tokens.create(name, **rights)}"

    def answer(self, ask: Ask) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, headers and body of the answer."""
        sent: list[Message] = []
        unread = list(ask.chunks)

        async def receive() -> Message:
            if not unread:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": unread.pop(0), "more_body": bool(unread)}

        async def send(message: Message) -> None:
            sent.append(message)

        asyncio.run(self.guard(ask.scope(), receive, send))
        names = [name.decode().lower() for name, _ in sent[0]["headers"]]
        assert len(names) == len(set(names))
        headers = dict(zip(names, (value.decode() for _, value in sent[0]["headers"]), strict=True))
        return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])

    def status(self, ask: Ask) -> int:
        """Returns the status of the answer. Checks that a refused request did not reach the application."""
        before = len(self.app.scopes)
        status, headers, body = self.answer(ask)
        assert (len(self.app.scopes) > before) == (status == 200), ask
        if status != 200:
            assert headers["content-type"] == "application/problem+json"
            assert json.loads(body)["status"] == status
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in headers)
        assert ("www-authenticate" in headers) == (status == 401)
        return status


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """Provides a guard that counts no changes, because the tables below make many in a second."""
    monkeypatch.setattr(module, "MAX_CHANGES", 10**6)
    return Box(tmp_path)


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yields every path of the application's OpenAPI document with every method, and a path of its own."""
    paths = app.openapi()["paths"]
    assert len(paths) > 3
    for path in (*paths, "/openapi.json", "/docs", "/unknown"):
        if path == SESSION:
            continue  # it needs no token
        for part in path.split("/"):
            if part.startswith("{"):
                path = path.replace(part, "1")
        yield from ((method, path) for method in METHODS)


@lru_cache
def every(app: str) -> tuple[Ask, ...]:
    return tuple(Ask(method, path) for method, path in operations(APPLICATIONS[app]()))


def cross_site(name: str, value: str) -> Callable[[Ask], Ask]:
    return lambda ask: ask.having(name, value)


BAD_HOSTS = (
    "", "evil.test", "evil.test:8000", "localhost", "localhost:8001", "localhost.evil.test:8000",
    "evil.localhost:8000", "localhost:8000.evil.test", "localhost:8000@evil.test", "localhost.:8000",
    "127.0.0.2:8000", "127.1:8000", "0.0.0.0:8000", "[::1]", "[::]:8000", "::1:8000", "2130706433:8000",
    "box:8001", "box", "proxy:8000", "localhost:08000", "localhost:8000,localhost:8000", "box:80",
)  # fmt: skip
GOOD_HOSTS = (
    "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:8000", "box:8000", "Box:8000", "proxy:443",
    "proxy",
)  # fmt: skip

#: What makes a request that the guard refuses, with the status of the answer.
RULES: Mapping[str, tuple[Callable[[Ask], Ask], int]] = {
    "other user": (lambda ask: replace(ask, uid=OWNER + 1), 401),
    "root": (lambda ask: replace(ask, uid=0), 401),
    "unknown user": (lambda ask: replace(ask, uid=None), 401),
    "wrong token": (cross_site("authorization", "Bearer gps_wrong"), 401),
    "empty token": (cross_site("authorization", ""), 401),
    "basic": (cross_site("authorization", "Basic b3duZXI6"), 401),
    "no host": (lambda ask: ask.having("host"), 403),
    "two hosts": (lambda ask: ask.having("host", "localhost:8000", "localhost:8000"), 403),
    **{f"host {host!r}": (cross_site("host", host), 403) for host in BAD_HOSTS},
    "origin": (cross_site("origin", "http://evil.test"), 403),
    "origin null": (cross_site("origin", "null"), 403),
    "origin with another port": (cross_site("origin", "http://localhost:8888"), 403),
    "origin of another name of ours": (cross_site("origin", "http://127.0.0.1:8000"), 403),
    "two origins": (lambda ask: ask.having("origin", "http://localhost:8000", "http://evil.test"), 403),
    **{
        f"fetch site {site}": (cross_site("sec-fetch-site", site), 403)
        for site in ("cross-site", "same-site", "", "what")
    },
    **{
        header: (cross_site(header, "192.0.2.1"), 401)
        for header in ("forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded")
    },
    "dots": (lambda ask: replace(ask, path=f"{ask.path}/../jobs"), 400),
    "encoded dots": (lambda ask: replace(ask, path=f"{ask.path}/%2e%2e/jobs"), 400),
    "encoded slash": (lambda ask: replace(ask, raw_path=ask.path.encode() + b"%2Fx"), 400),
    "NUL": (lambda ask: replace(ask, path=f"{ask.path}\0"), 400),
    "line break": (lambda ask: replace(ask, path=f"{ask.path}\n"), 400),
    "backslash": (lambda ask: replace(ask, path=f"{ask.path}\\x"), 400),
    "encoded backslash": (lambda ask: replace(ask, path=f"{ask.path}%5cx"), 400),
    "whole URL": (lambda ask: replace(ask, path=f"http://localhost:8000{ask.path}"), 400),
    "long body": (lambda ask: replace(ask, chunks=(b"x" * 2**20, b"x")), 413),
}
#: The same, for changes only: what a form or a script of another site can send without asking.
RULES_OF_CHANGES: Mapping[str, tuple[Callable[[Ask], Ask], int]] = {
    "no content type": (lambda ask: ask.having("content-type"), 415),
    **{
        f"content type {value!r}": (cross_site("content-type", value), 415)
        for value in (
            "", "text/plain", "text/plain;application/json", "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x", "application/jsonx", "application/json, text/plain",
            "application/problem+json",
        )
    },
    "two content types": (lambda ask: ask.having("content-type", *["application/json"] * 2), 415),
}  # fmt: skip


@pytest.mark.parametrize("app", APPLICATIONS)
def test_the_owner_is_admitted(box: Box, app: str) -> None:
    for ask in every(app):
        assert box.status(ask) == 200, ask
    assert set(box.app.callers) == {Caller("local")}


@pytest.mark.parametrize("app", APPLICATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_every_operation_is_refused(box: Box, app: str, rule: str) -> None:
    change, status = RULES[rule]
    for ask in every(app):
        assert box.status(change(ask)) == status, ask


@pytest.mark.parametrize("app", APPLICATIONS)
@pytest.mark.parametrize("rule", RULES_OF_CHANGES)
def test_every_change_is_refused(box: Box, app: str, rule: str) -> None:
    change, status = RULES_OF_CHANGES[rule]
    for ask in every(app):
        assert box.status(change(ask)) == (200 if ask.method in READING else status), ask


@pytest.mark.parametrize("app", APPLICATIONS)
def test_a_token_admits_whoever_has_it(box: Box, app: str) -> None:
    bearer = box.bearer("nb")
    for ask in every(app):
        ask = ask.having("authorization", bearer).having("x-forwarded-for", "192.0.2.1")
        assert box.status(replace(ask, uid=OWNER + 1)) == 200, ask
    assert set(box.app.callers) == {Caller("nb")}


@pytest.mark.parametrize("app", APPLICATIONS)
@pytest.mark.parametrize("logs", [False, True])
def test_a_read_only_token_changes_nothing(box: Box, app: str, logs: bool) -> None:
    bearer = box.bearer("ro", read_only=True, logs=logs)
    for ask in every(app):
        expected = 200 if ask.method in READING else 403
        assert box.status(ask.having("authorization", bearer)) == expected, ask
    assert set(box.app.callers) == {Caller("ro", may_change=False, may_read_logs=logs)}


@pytest.mark.parametrize("app", APPLICATIONS)
@pytest.mark.parametrize("guarded", [{"is_loopback": False}, {"owner_uid": 0}], ids=["any bind", "root"])
def test_other_binds_and_root_need_a_token(tmp_path: Path, app: str, guarded: dict[str, Any]) -> None:
    box = Box(tmp_path, guarded)
    uid = guarded.get("owner_uid", OWNER)
    bearer = box.bearer("nb")
    for ask in every(app):
        assert box.status(replace(ask, uid=uid)) == 401, ask
        assert box.status(replace(ask, uid=None)) == 401, ask
    assert box.status(Ask(uid=uid).having("authorization", bearer)) == 200


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_allowed_hosts_and_their_own_pages(box: Box, host: str) -> None:
    own = Ask("POST", "/jobs").having("host", host)
    assert box.status(own) == 200
    assert box.status(own.having("origin", f"http://{host.lower()}")) == 200
    assert box.status(own.having("origin", f"https://{host.lower()}").having("sec-fetch-site", "none")) == 200


@pytest.mark.parametrize(("port", "host", "status"), [(80, "localhost", 200), (8080, "localhost", 403)])
def test_a_host_without_a_port_has_the_default_port(
    tmp_path: Path, port: int, host: str, status: int
) -> None:
    assert Box(tmp_path, {"port": port}).status(Ask().having("host", host)) == status


def test_a_token_does_not_open_the_door_for_other_sites(box: Box) -> None:
    ask = Ask("POST", "/jobs").having("authorization", box.bearer("nb"))
    assert box.status(ask) == 200
    assert box.status(ask.having("host", "evil.test:8000")) == 403
    assert box.status(ask.having("origin", "http://evil.test")) == 403
    assert box.status(ask.having("content-type", "text/plain")) == 415


@pytest.mark.parametrize("form", ["{}", "Basic {}", "Token {}", "Bearer{}", "Bearer x {}", "Bearer {} x"])
def test_a_token_in_another_form_is_refused(box: Box, form: str) -> None:
    secret = box.tokens.create("nb")
    assert box.status(Ask().having("authorization", form.format(secret))) == 401


def test_two_tokens_are_refused(box: Box) -> None:
    bearer = box.bearer("nb")
    assert box.status(Ask().having("authorization", bearer, bearer)) == 401


@pytest.mark.parametrize("form", ["bearer {}", "BEARER {}", "Bearer   {} "])
def test_the_scheme_of_a_token_has_no_case(box: Box, form: str) -> None:
    secret = box.tokens.create("nb")
    assert box.status(Ask(uid=None).having("authorization", form.format(secret))) == 200


def test_revoked_tokens_are_refused_at_once(box: Box) -> None:
    ask = Ask().having("authorization", box.bearer("nb"))
    assert box.status(ask) == 200
    box.tokens.revoke("nb")
    assert box.status(ask) == 401


def test_unusable_tokens_are_an_error_of_the_server(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    ask = Ask().having("authorization", box.bearer("nb"))
    (box.folder / "tokens.json").chmod(0o644)
    assert box.status(ask) == 503
    assert "open to other users" in caplog.text
    assert box.status(Ask()) == 200  # the owner needs no token


def test_the_application_sees_neither_the_token_nor_a_log(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bearer = box.bearer("nb")
    assert box.status(Ask().having("authorization", bearer)) == 200
    assert bearer.split()[1] not in repr(box.app.scopes) + caplog.text
    assert (b"host", b"localhost:8000") in box.app.scopes[0]["headers"]


def test_the_longest_body_arrives_whole(box: Box) -> None:
    assert box.status(Ask("POST", "/jobs", chunks=(b"a", b"b" * (2**20 - 1)))) == 200
    assert box.app.bodies == [b"a" + b"b" * (2**20 - 1)]


def test_a_caller_who_leaves_in_the_middle_gets_no_answer(box: Box) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(box.guard(Ask("POST", "/jobs").scope(), receive, send))
    assert (sent, box.app.scopes) == ([], [])


def test_a_caller_may_make_twenty_changes_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, now = Box(tmp_path), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    post = Ask("POST", "/jobs")
    assert [box.status(post) for _ in range(20)] == [200] * 20
    status, headers, _ = box.answer(post)
    assert (status, headers["retry-after"]) == (429, "1")
    assert box.status(Ask()) == 200  # reading is free
    assert box.status(post.having("authorization", box.bearer("nb"))) == 200  # another caller
    now[0] += 0.99
    assert box.status(post) == 429
    now[0] += 0.01
    assert [box.status(post) for _ in range(21)] == [200] * 20 + [429]


def test_websockets_are_refused(box: Box) -> None:
    for headers in ([], [(b"host", b"localhost:8000"), (b"origin", b"http://localhost:8000")]):
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        scope = {**Ask().scope(), "type": "websocket", "headers": headers}
        asyncio.run(box.guard(scope, receive, send))
        assert sent == [{"type": "websocket.close", "code": 1008}]
    assert box.app.scopes == []


def test_a_problem_names_its_status_and_may_have_more_members() -> None:
    response = problem(404, "no such job", {"X-A": "b"}, field="job")
    assert json.loads(bytes(response.body)) == {
        "type": "about:blank", "title": "Not Found", "status": 404, "detail": "no such job", "field": "job",
    }  # fmt: skip
    assert (response.headers["x-a"], response.status_code) == ("b", 404)


# Paths that every user may read.


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (Ask(path="/metrics", uid=OWNER + 1), 200),
        (Ask(path="/metrics", uid=None), 200),
        (Ask("POST", "/metrics", uid=None), 401),
        (Ask(path="/metrics/", uid=None), 401),
        (Ask(path="/queue", uid=None), 401),
        (Ask(path="/metrics", uid=None).having("x-forwarded-for", "192.0.2.1"), 401),
        (Ask(path="/metrics", uid=None).having("authorization", "Bearer gps_wrong"), 401),
        (Ask(path="/metrics", uid=None).having("host", "evil.test"), 403),
        (Ask(path="/metrics", uid=None).having("origin", "http://evil.test"), 403),
    ],
)
def test_an_open_path_may_be_read_by_every_user_of_this_machine(
    tmp_path: Path, ask: Ask, status: int
) -> None:
    assert Box(tmp_path, {"open_paths": ("/metrics",)}).status(ask) == status


def test_no_path_is_open_to_other_machines(tmp_path: Path) -> None:
    box = Box(tmp_path, {"open_paths": ("/metrics",), "is_loopback": False})
    assert box.status(Ask(path="/metrics", uid=None)) == 401


# Streams.


class Stream:
    """An application with a stream that ends when `end` is set, and the requests that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.end = asyncio.Event()
        self.begins = True
        self.error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open += 1
        try:
            if self.begins:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await self.end.wait()
            if self.error is not None:
                raise self.error
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.open -= 1


class Open:
    """A stream that a caller has opened. `sent` lists the messages of the answer."""

    def __init__(self, guard: Guard, ask: Ask) -> None:
        self.sent: list[Message] = []
        unread: list[Message] = [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            self.sent.append(message)

        self.task = asyncio.ensure_future(guard(ask.scope(), receive, send))

    async def status(self) -> int:
        while not self.sent:
            await asyncio.sleep(0)
        found: int = self.sent[0]["status"]
        return found


STREAMS = ("/api/v1/events", "/api/v1/jobs/3/log/stream")


def guard_of(app: Stream, tmp_path: Path) -> Guard:
    guard = Guard(
        app, tokens=Tokens(tmp_path), is_loopback=True, port=PORT, allowed_hosts=(), owner_uid=OWNER
    )
    guard.token_check_s = 0.05
    return guard


def test_a_caller_may_have_32_streams(tmp_path: Path) -> None:
    async def play() -> None:
        app = Stream()
        guard = guard_of(app, tmp_path)
        opened = [Open(guard, Ask(path=STREAMS[i % 2])) for i in range(32)]
        assert [await one.status() for one in opened] == [200] * 32
        refused = Open(guard, Ask(path=STREAMS[0]))
        assert await refused.status() == 429
        assert (b"retry-after", b"10") in refused.sent[0]["headers"]
        secret = Tokens(tmp_path).create("nb")
        other = Open(guard, Ask(path=STREAMS[1]).having("authorization", f"Bearer {secret}"))
        assert await other.status() == 200
        opened[0].task.cancel()  # as when the caller leaves
        await asyncio.wait({opened[0].task})
        for _ in range(100):  # the application learns of it in one of the next turns of the loop
            await asyncio.sleep(0)
        assert app.open == 32
        again = Open(guard, Ask(path=STREAMS[1]))
        assert await again.status() == 200
        app.end.set()
        await asyncio.gather(*(one.task for one in (*opened[1:], other, again)))
        assert app.open == 0
        assert await Open(guard, Ask(path=STREAMS[1])).status() == 200

    asyncio.run(play())


@pytest.mark.parametrize("end", ["revoked", "expired", "unreadable"])
def test_a_stream_ends_with_its_token(tmp_path: Path, end: str) -> None:
    async def play() -> None:
        app, now = Stream(), [1000.0]
        checks: list[float] = []

        def read_clock() -> float:
            checks.append(now[0])
            return now[0]

        tokens = Tokens(tmp_path, read_clock)
        guard = guard_of(app, tmp_path)
        guard._tokens = tokens
        asks = [
            Ask(path=STREAMS[0]).having("authorization", f"Bearer {tokens.create(name, days=1)}")
            for name in ("nb", "other")
        ]
        opened = [Open(guard, ask) for ask in (*asks, Ask(path=STREAMS[0]))]
        for one in opened:
            assert await one.status() == 200
        checks.clear()
        while len(checks) < 6:  # three checks of each token
            await asyncio.sleep(0.01)
        assert app.open == 3
        if end == "revoked":
            tokens.revoke("nb")
        elif end == "expired":
            now[0] += 86400
        else:
            (tmp_path / "tokens.json").chmod(0o644)
        await asyncio.wait_for(opened[0].task, 20)
        assert opened[0].sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        if end != "revoked":
            await asyncio.wait_for(opened[1].task, 20)
        assert app.open == (2 if end == "revoked" else 1)  # the owner's stream has no token
        assert await Open(guard, asks[0]).status() == (503 if end == "unreadable" else 401)
        app.end.set()
        await asyncio.gather(*(one.task for one in opened))

    asyncio.run(play())


def test_a_stream_that_has_not_begun_is_refused_with_its_token(tmp_path: Path) -> None:
    async def play() -> None:
        app = Stream()
        app.begins = False
        tokens = Tokens(tmp_path)
        ask = Ask(path=STREAMS[0]).having("authorization", f"Bearer {tokens.create('nb')}")
        opened = Open(guard_of(app, tmp_path), ask)
        while not app.open:
            await asyncio.sleep(0)
        tokens.revoke("nb")
        await asyncio.wait_for(opened.task, 20)
        assert await opened.status() == 401

    asyncio.run(play())


def test_an_error_of_a_stream_reaches_the_server(tmp_path: Path) -> None:
    async def play() -> None:
        app = Stream()
        app.error = RuntimeError("broken")
        opened = Open(guard_of(app, tmp_path), Ask(path=STREAMS[0]))
        await opened.status()
        app.end.set()
        with pytest.raises(RuntimeError, match="broken"):
            await opened.task

    asyncio.run(play())


@pytest.mark.parametrize("path", PUBLIC)
def test_the_files_of_the_page_need_no_token_and_admit_nothing_else(box: Box, path: str) -> None:
    ask = Ask("GET", path, uid=None).having("sec-fetch-site", "cross-site")
    assert box.status(ask) == 200
    assert set(box.app.callers) == {Caller("")}
    assert box.status(replace(ask, method="POST")) == 403
    assert box.status(Ask("POST", path, uid=None)) == 401
    assert box.status(Ask("GET", f"{path}x", uid=None)) == 401
    assert box.status(ask.having("host", "other.example")) == 403


def test_tries_of_links_have_no_limit(tmp_path: Path) -> None:
    box = Box(tmp_path)
    ask = Ask("POST", SESSION, uid=None)
    assert {box.status(ask) for _ in range(2 * module.MAX_CHANGES)} == {200}
    assert box.status(Ask("POST", "/jobs")) == 200
    assert box.status(ask.having("content-type", "text/plain")) == 415
    assert box.status(ask.having("sec-fetch-site", "cross-site")) == 403
    assert box.status(replace(ask, method="GET")) == 401


def test_a_link_is_no_token(box: Box) -> None:
    assert box.status(Ask(uid=None).having("authorization", f"Bearer {box.tokens.create_link()}")) == 401
