"""Tests of connections: whose they are, their limits, and requests that parsers read differently.

Each test has a real server and real connections.
"""

from __future__ import annotations

import http.client
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.web import guard
from gpu_scheduler.web.guard import uid_of_peer
from tests.users import User
from tests.waiting import wait_for
from tests.web.served import OWNER, Served, request, serving, small_app, until_closed
from tests.web.test_guard import METHODS, operations

JSON = {"Content-Type": "application/json"}
#: Whether the tests run as a user who needs no token. Root always needs one.
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Provides a server whose owner is this process's user; if that is root, root needs a token."""
    with serving(small_app(), tmp_path_factory.mktemp("tokens"), owner_uid=os.geteuid()) as one:
        yield one


@pytest.fixture(autouse=True)
def _many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_CHANGES", 10**6)


@pytest.fixture(scope="module")
def bearer(served: Served) -> dict[str, str]:
    return {"Authorization": f"Bearer {served.tokens.create('nb')}"}


@pytest.fixture
def owned(ann: User, tmp_path: Path) -> Iterator[Served]:
    """Provides a server whose owner is ann."""
    with serving(small_app(), tmp_path, owner_uid=ann.uid) as one:
        yield one


# Whose connection it is.


#: Where the server listens and whereto the client connects.
FAMILIES = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::ffff:127.0.0.1")]


@pytest.mark.parametrize(("listens", "connects"), FAMILIES)
def test_finds_the_owner_of_a_connection(listens: str, connects: str, ann: User) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as server:
        port = server.getsockname()[1]
        with socket.create_connection((connects, port)), server.accept()[0] as mine:
            assert uid_of_peer(mine.getpeername()[:2], mine.getsockname()[:2]) == os.geteuid()
        ann.call(_connect, connects, port)
        with server.accept()[0] as mine:
            ends = mine.getpeername()[:2], mine.getsockname()[:2]
            assert uid_of_peer(*ends) == ann.uid
            ann.call(_close)
            assert wait_for(lambda: uid_of_peer(*ends) is None)


_opened: list[socket.socket] = []


def _connect(host: str, port: int, data: bytes = b"") -> None:
    _opened.append(socket.create_connection((host, port)))
    _opened[-1].sendall(data)


def _close() -> None:
    _opened.pop().close()


def _shut() -> None:
    _opened[-1].shutdown(socket.SHUT_WR)


def _read() -> bytes:
    _opened[-1].settimeout(30)
    return until_closed(_opened[-1])


def test_a_closed_socket_is_nobodys() -> None:
    """A socket that was closed after sending shows uid 0, which must not count as root's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with server.accept()[0] as mine:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            ends = mine.getpeername(), mine.getsockname()
            client.shutdown(socket.SHUT_WR)
            assert uid_of_peer(*ends) is None  # no longer ESTABLISHED
            client.close()
            assert uid_of_peer(*ends) is None


def test_a_socket_that_no_program_has_is_nobodys() -> None:
    """Until a program accepts it, the end of the server is ESTABLISHED, with uid 0 and inode 0."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert uid_of_peer(client.getpeername(), client.getsockname()) is None
        with server.accept()[0]:
            assert uid_of_peer(client.getpeername(), client.getsockname()) == os.geteuid()


def test_no_answer_for_sockets_that_do_not_exist() -> None:
    assert uid_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    with socket.create_server(("127.0.0.1", 0)) as server:  # a listening socket is no connection
        assert uid_of_peer(server.getsockname(), ("127.0.0.1", 2)) is None
        assert uid_of_peer(server.getsockname(), ("0.0.0.0", 0)) is None


def test_without_sock_diag_a_connection_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_SOCK_DIAG", 31)  # a netlink protocol that does not exist
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        assert uid_of_peer(client.getsockname(), server.getsockname()) is None


def test_users_from_outside_of_the_container_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    monkeypatch.setattr(guard, "_ask_kernel", lambda *ends: (1, overflow, 7))
    assert uid_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) is None


# Who is served without a token.


def test_the_owner_is_served(owned: Served, ann: User) -> None:
    status, _, body = ann.call(request, owned.host, owned.port, "POST", "/jobs", JSON, b"{}")
    assert (status, b'"caller":"local"' in body, b'"size":2' in body) == (200, True, True)


def test_another_user_is_refused_on_every_route(owned: Served, bob: User) -> None:
    app = small_app()
    for method, path in operations(app):
        if method != "TRACE":  # http.client gives it no body
            status, headers, _ = bob.call(request, owned.host, owned.port, method, path, JSON)
            assert (status, headers["www-authenticate"]) == (401, "Bearer"), (method, path)
    assert owned.app.state.seen == []  # type: ignore[attr-defined]


def test_root_needs_a_token_from_an_owner_who_is_not_root(owned: Served) -> None:
    assert owned.request("GET", "/queue")[0] == (401 if IS_ROOT else 200)


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_root_always_needs_a_token(served: Served, bearer: dict[str, str]) -> None:
    assert served.request("GET", "/queue")[0] == 401
    assert served.request("GET", "/queue", bearer)[0] == 200


@pytest.mark.parametrize("method", METHODS)
def test_a_socket_that_was_closed_after_sending_reaches_nothing(
    owned: Served, ann: User, method: str
) -> None:
    """The server is busy, as on a full machine, until the owner has sent a request and closed the socket."""
    with Paused(owned):
        ann.call(_connect, owned.host, owned.port, owned.head(f"{method} /jobs", **JSON_HEAD))
        ann.call(_close)
    assert owned.request("GET", "/queue")[0] == 401  # by now, the server has served the first one
    assert owned.app.state.seen == []  # type: ignore[attr-defined]


JSON_HEAD = {"Content_Type": "application/json"}


class Paused:
    """Keeps the event loop of a server busy."""

    def __init__(self, served: Served) -> None:
        self._loop = served.server.servers[0].get_loop()

    def __enter__(self) -> None:
        self._go_on, is_paused = False, []

        def pause() -> None:
            is_paused.append(True)
            wait_for(lambda: self._go_on)

        self._loop.call_soon_threadsafe(pause)
        wait_for(lambda: is_paused)

    def __exit__(self, *exception: object) -> None:
        self._go_on = True


def test_a_connection_that_was_reset_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes can still be read, and its port may belong to the owner when the kernel is asked."""
    has_sent = threading.Event()

    def look_up(*_: object) -> int:
        assert has_sent.wait(20)
        if one.fileno() >= 0:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        return OWNER

    monkeypatch.setattr(guard, "uid_of_peer", look_up)
    app = small_app()
    with serving(app, tmp_path) as served:
        one = served.connect()
        one.sendall(served.head("POST /jobs", Content_Length="0", **JSON_HEAD))
        has_sent.set()
        assert served.request("GET", "/queue")[0] == 200
    assert len(app.state.seen) == 1


def test_answers_do_not_wait_for_acknowledgements(served: Served, bearer: dict[str, str]) -> None:
    with closing(http.client.HTTPConnection(served.host, served.port)) as one:
        began = time.monotonic()
        for _ in range(50):
            one.request("GET", "/queue", headers=bearer)
            one.getresponse().read()
    assert time.monotonic() - began < 50 * 0.04


def test_pipelined_requests_keep_the_identity_of_their_connection(owned: Served, ann: User) -> None:
    one, last = owned.head("GET /queue"), owned.head("GET /queue", Connection="close")
    ann.call(_connect, owned.host, owned.port, one * 3 + last)
    answers = ann.call(_read)
    assert (answers.count(b"HTTP/1.1 200"), answers.count(b'"uid":12345')) == (4, 4)
    assert owned.ask(one * 3 + last).count(b"HTTP/1.1 401") == 4


def test_a_token_counts_for_its_own_request_only(served: Served, bearer: dict[str, str]) -> None:
    one, last = served.head("GET /queue", **bearer), served.head("GET /queue", Connection="close")
    answers = served.ask(one + last + one)
    expected = [1, 1] if IS_ROOT else [2, 0]
    assert [answers.count(b"HTTP/1.1 200"), answers.count(b"HTTP/1.1 401")] == expected


def test_a_proxy_of_the_owner_needs_a_token(owned: Served, ann: User) -> None:
    headers = {"X-Forwarded-For": "192.0.2.1"}
    assert ann.call(request, owned.host, owned.port, "GET", "/queue", headers)[0] == 401


def test_a_forwarded_address_does_not_replace_the_peer(owned: Served, bob: User) -> None:
    for address in ("127.0.0.1", "localhost", "::1"):
        headers = {"X-Forwarded-For": address, "X-Forwarded-Proto": "https", "Forwarded": f"for={address}"}
        assert bob.call(request, owned.host, owned.port, "GET", "/queue", headers)[0] == 401


def test_ipv6_connections_are_recognised(tmp_path: Path, ann: User) -> None:
    with serving(small_app(), tmp_path, owner_uid=ann.uid, host="::1") as served:
        assert ann.call(request, "::1", served.port, "GET", "/queue")[0] == 200
        assert served.request("GET", "/queue")[0] == (401 if IS_ROOT else 200)


# Requests that parsers read differently.

#: Heads of requests whose length or host is ambiguous, with the body that follows.
AMBIGUOUS = {
    "two equal lengths": ("Content-Length: 2\r\nContent-Length: 2", b"{}"),
    "two lengths": ("Content-Length: 2\r\nContent-Length: 3", b"{}"),
    "lengths in one header": ("Content-Length: 2, 2", b"{}"),
    "lengths in small letters": ("content-length: 2\r\nCONTENT-LENGTH: 2", b"{}"),
    "length and chunks": ("Content-Length: 2\r\nTransfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"),
    "chunks and length": ("Transfer-Encoding: chunked\r\nContent-Length: 2", b"2\r\n{}\r\n0\r\n\r\n"),
    "two codings": ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"),
    "a second host": ("Host: localhost\r\nContent-Length: 2", b"{}"),
    "negative length": ("Content-Length: -2", b"{}"),
    "signed length": ("Content-Length: +2", b"{}"),
    "blank before the colon": ("Content-Length : 2", b"{}"),
    "folded length": ("Content-Length: 2\r\nContent-Length:\r\n 2", b"{}"),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("piece", [10**6, 7])
def test_ambiguous_requests_end_the_connection(
    served: Served, bearer: dict[str, str], case: str, is_second: bool, piece: int
) -> None:
    lines, body = AMBIGUOUS[case]
    first = served.head("GET /queue", **bearer) if is_second else b""
    good = served.head("POST /jobs", **bearer, **JSON_HEAD)
    data = first + good.removesuffix(b"\r\n") + lines.encode() + b"\r\n\r\n" + body
    data += served.head("GET /queue", **bearer)  # nothing after it is served
    with served.connect() as one:
        for at in range(0, len(data), piece):
            try:
                one.sendall(data[at : at + piece])
            except (BrokenPipeError, ConnectionResetError):
                break
        answers = until_closed(one)
    assert answers.count(b"HTTP/1.1 200") == int(is_second)
    assert answers.count(b"HTTP/1.1 400") == 1
    assert answers.count(b"HTTP/1.1") == 1 + is_second


def test_one_length_or_chunks_are_read(served: Served, bearer: dict[str, str]) -> None:
    for lines, body in (
        ("Content-Length: 2", b"{}"),
        ("Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"),
    ):
        good = served.head("POST /jobs", Connection="close", **bearer, **JSON_HEAD).removesuffix(b"\r\n")
        assert b'"size":2' in served.ask(good + lines.encode() + b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    "line",
    ["GET /queue/..%2f..%2fetc", "GET /queue/%2e%2e/x", "GET /queue/../x", "GET /queue%00", "GET /queue%5c..",
     "GET /queue/%252e%252e%252fx", "GET http://localhost/queue", "OPTIONS *", "CONNECT localhost:1",
     "GET /queue%0d%0aX:"],
)  # fmt: skip
def test_bad_paths_are_refused(served: Served, bearer: dict[str, str], line: str) -> None:
    answer = served.ask(served.head(line, Connection="close", **bearer))
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_websocket_handshake_of_another_site_is_refused(served: Served, bearer: dict[str, str]) -> None:
    answer = served.ask(
        served.head(
            "GET /api/v1/events", **bearer, Upgrade="websocket", Connection="Upgrade, close",
            Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==", Sec_WebSocket_Version="13", Origin="http://evil.test",
        )
    )  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"},
     {"Content-Type": "multipart/form-data; boundary=x"}],
)  # fmt: skip
def test_simple_posts_of_another_site_change_nothing(
    served: Served, bearer: dict[str, str], headers: dict[str, str]
) -> None:
    before = len(served.app.state.seen)  # type: ignore[attr-defined]
    for body in (None, b'{"model_script": "x"}'):
        assert served.request("POST", "/jobs", {**bearer, **headers}, body)[0] == 415
    assert len(served.app.state.seen) == before  # type: ignore[attr-defined]


# Limits.


def memory_kib() -> int:
    """Returns the largest amount of memory that this process, which is also the server, has used."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("is_known", [True, False])
def test_a_long_chunked_body_needs_no_memory(served: Served, bearer: dict[str, str], is_known: bool) -> None:
    """The answer arrives although the rest of the body is unread, and the connection can be used again."""
    headers = bearer if is_known else {"Authorization": "Bearer gps_wrong"}
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = served.head("POST /jobs", Transfer_Encoding="chunked", **headers, **JSON_HEAD)
    before = memory_kib()
    with served.connect() as one:
        one.sendall(head)
        for _ in range(512):  # 32 MiB
            one.sendall(chunk)
        one.sendall(b"0\r\n\r\n" + served.head("GET /queue", Connection="close", **bearer))
        answers = until_closed(one)
    assert answers.startswith(b"HTTP/1.1 413" if is_known else b"HTTP/1.1 401")
    assert answers.count(b"HTTP/1.1 200") == 1
    assert memory_kib() - before < 8 * 1024


def test_a_body_of_2_mib_with_a_length_is_refused(served: Served, bearer: dict[str, str]) -> None:
    assert served.request("POST", "/jobs", {**bearer, **JSON}, b"x" * 2**21)[0] == 413
    status, _, body = served.request("POST", "/jobs", {**bearer, **JSON}, b"x" * 2**20)
    assert (status, b'"size":1048576' in body) == (200, True)


def drips(one: socket.socket, data: bytes) -> float:
    """Sends one byte after the other until the server closes the connection. Returns the seconds."""
    began = time.monotonic()
    one.settimeout(0.05)
    for byte in data:
        try:
            one.sendall(bytes([byte]))
            if not one.recv(65536):
                break
        except TimeoutError:
            pass
        except OSError:
            break
    else:
        raise AssertionError("the server did not close the connection")
    return time.monotonic() - began


def test_slow_headers_end_the_connection(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path, request_timeout_s=0.5) as served:
        with served.connect() as silent:
            assert until_closed(silent) == b""
        with served.connect() as one:
            assert 0.3 < drips(one, served.head("GET /queue", X="x" * 1000)) < 20
        with served.connect() as one:  # the second request of a connection
            one.sendall(served.head("GET /queue"))
            assert one.recv(9) == b"HTTP/1.1 "
            assert drips(one, served.head("GET /queue", X="x" * 1000)) < 20


def test_the_rest_of_a_refused_body_is_read_only_for_a_time(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path, request_timeout_s=0.5) as served, served.connect() as one:
        one.sendall(served.head("POST /jobs", Content_Length="1000000"))
        assert one.recv(12) == b"HTTP/1.1 401"
        assert drips(one, b"x" * 1000) < 20


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_slow_body_is_refused(tmp_path: Path, method: str) -> None:
    with serving(small_app(), tmp_path) as served, served.connect() as one:
        served.guard.body_timeout_s = 0.2
        bearer = {"Authorization": f"Bearer {served.tokens.create('nb')}"}
        one.sendall(served.head(f"{method} /jobs", Content_Length="9", **JSON_HEAD, **bearer) + b"1234")
        assert one.recv(12) == b"HTTP/1.1 400"


def test_a_handler_may_take_longer_than_the_headers(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path, request_timeout_s=0.2) as served:
        bearer = {"Authorization": f"Bearer {served.tokens.create('nb')}"}
        with served.connect() as one:
            one.sendall(served.head("GET /api/v1/events", **bearer))
            assert one.recv(12) == b"HTTP/1.1 200"
            one.settimeout(1)
            with pytest.raises(TimeoutError):
                until_closed(one)


def test_a_reader_who_does_not_read_is_dropped(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path, reader_timeout_s=1) as served:
        bearer = {"Authorization": f"Bearer {served.tokens.create('nb')}"}
        with served.connect() as one:
            one.sendall(served.head("GET /big", **bearer))
            assert one.recv(12) == b"HTTP/1.1 200"
            wait_for(lambda: served.server.server_state.connections)
            wait_for(lambda: not served.server.server_state.connections, "dropped", 30)
            wait_for(lambda: not served.server.server_state.tasks, "the handler has ended", 30)


def test_the_limit_of_connections_counts_per_user(tmp_path: Path, ann: User, bob: User) -> None:
    with serving(small_app(), tmp_path, owner_uid=ann.uid, max_per_peer=3) as served:
        opened = [served.connect() for _ in range(3)]
        wait_for(lambda: len(served.server.server_state.connections) == 3)
        assert served.ask(b"").startswith(b"HTTP/1.1 503")
        assert ann.call(request, served.host, served.port, "GET", "/queue")[0] == 200
        assert bob.call(request, served.host, served.port, "GET", "/queue")[0] == 401
        opened.pop().close()
        wait_for(lambda: len(served.server.server_state.connections) == 2)
        assert served.request("GET", "/queue")[0] == 401
        for one in opened:
            one.close()


def test_others_cannot_keep_the_owner_out(tmp_path: Path, ann: User, bob: User) -> None:
    """The owner's connections, here those of this process, do not need a place."""
    with serving(small_app(), tmp_path, owner_uid=ann.uid, max_connections=2) as served:
        for _ in range(2):
            ann.call(_connect, served.host, served.port)
        wait_for(lambda: len(served.server.server_state.connections) == 2)
        bob.call(_connect, served.host, served.port)
        assert bob.call(_read).startswith(b"HTTP/1.1 503")
        assert served.request("GET", "/queue")[0] == 401
        for _ in range(2):
            ann.call(_close)


def test_streams_of_callers_who_left_do_not_count(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path) as served:
        bearer = {"Authorization": f"Bearer {served.tokens.create('nb')}"}
        opened = [served.connect() for _ in range(32)]
        for one in opened:
            one.sendall(served.head("GET /api/v1/events", **bearer))
            assert one.recv(12) == b"HTTP/1.1 200"
        assert served.request("GET", "/api/v1/events", bearer)[0] == 429
        for one in opened:
            one.close()
        wait_for(lambda: served.request("GET", "/api/v1/events", bearer)[0] == 200)


def test_a_stream_ends_properly_when_its_token_is_revoked(tmp_path: Path) -> None:
    with serving(small_app(), tmp_path) as served, served.connect() as one:
        served.guard.token_check_s = 0.05
        bearer = {"Authorization": f"Bearer {served.tokens.create('nb')}"}
        one.sendall(served.head("GET /api/v1/events", Connection="close", **bearer))
        assert one.recv(12) == b"HTTP/1.1 200"
        served.tokens.revoke("nb")
        assert until_closed(one).endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("rest", [b"zzz\r\n", b"\0\0\0"], ids=["after a refusal", "after an answer"])
def test_garbage_after_an_answer_ends_the_connection_quietly(
    served: Served, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with served.connect() as one:
        chunked = {"Transfer_Encoding": "chunked"} if rest.startswith(b"z") else {}
        one.sendall(served.head("POST /jobs", **chunked))
        assert one.recv(12).startswith(b"HTTP/1.1 4")
        one.sendall(rest)
        until_closed(one)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Tokens do not leak.


def test_the_token_is_in_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "token", "create", "nb"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    secret = made.stdout.strip()
    with serving(small_app(), next(tmp_path.glob("**/tokens.json")).parent) as served:
        headers = {"Authorization": f"Bearer {secret}"}
        assert served.request("GET", "/queue", headers)[0] == 200
        assert served.request("GET", "/queue", {"Authorization": f"Bearer {secret}x"})[0] == 401
        assert served.ask(served.head("GET /queue", **headers, X="\0"))
        assert secret not in repr(served.app.state.seen)  # type: ignore[attr-defined]
    out, err = capfd.readouterr()
    assert "GET /queue" in out + err
    assert secret[4:] not in out + err + made.stderr


def test_the_real_user_is_refused_by_way_of_a_command(owned: Served, run_curl: Callable[..., str]) -> None:
    """A second real user, with a program that is not ours."""
    assert run_curl(f"http://localhost:{owned.port}/queue") == "401"


@pytest.fixture
def run_curl(bob: User) -> Callable[..., str]:
    import shutil

    if shutil.which("curl") is None or shutil.which("setpriv") is None:
        pytest.skip("curl or setpriv is not installed")

    def run(url: str) -> str:
        words = ["setpriv", f"--reuid={bob.uid}", "--clear-groups", "curl", "-s", "-o", "/dev/null"]
        return subprocess.run([*words, "-w", "%{http_code}", url], capture_output=True, text=True).stdout

    return run
