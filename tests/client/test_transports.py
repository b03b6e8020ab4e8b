"""The client over HTTP when the connection or the server fails, and what importing the package costs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpu_scheduler import Client
from gpu_scheduler.client import Job
from gpu_scheduler.errors import ClientError
from tests.client.desk import STATE, Desk, free_port
from tests.stress.harness import environment

http_only = pytest.mark.parametrize("desk", ["http"], indirect=True)


@contextmanager
def cutting_proxy(port: int, lost: int) -> Iterator[int]:
    """Yields a port that forwards requests to `port`, but drops the answers to the first `lost` ones."""
    left = [lost]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, socket.create_connection(("127.0.0.1", port)) as server:
                    data = b""
                    while b"\r\n\r\n" not in data:
                        data += client.recv(65536)
                    head, _, body = data.partition(b"\r\n\r\n")
                    length = int((head.lower().split(b"content-length: ")[1:] or [b"0"])[0].split(b"\r")[0])
                    while len(body) < length:
                        body += client.recv(65536)
                    server.sendall(head + b"\r\n\r\n" + body)
                    answer = b"".join(iter(lambda: server.recv(65536), b""))
                    if left[0] > 0:
                        left[0] -= 1
                    else:
                        client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Yields the URL of a server that answers every request with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        do_GET = do_POST = lambda self: answer(self)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()
            thread.join()


def reply(to: BaseHTTPRequestHandler, status: int, value: object, **headers: str) -> None:
    """Answers a request with JSON."""
    to.rfile.read(int(to.headers.get("Content-Length", 0)))
    body = json.dumps(value).encode()
    to.send_response(status)
    for name, text in {"Content-Length": str(len(body)), **headers}.items():
        to.send_header(name.replace("_", "-"), text)
    to.end_headers()
    to.wfile.write(body)


@http_only
def test_a_submission_whose_answer_is_lost_is_made_once(desk: Desk) -> None:
    with cutting_proxy(desk.port, lost=2) as port:
        job = Client(f"http://127.0.0.1:{port}").submit(command="true", hold=True)
    assert [one.id for one in desk.client().jobs()] == [job.id]


@http_only
def test_a_change_whose_answer_is_lost_is_not_repeated(desk: Desk) -> None:
    job = desk.client().submit(command="true", hold=True)
    with cutting_proxy(desk.port, lost=1) as port, pytest.raises(ClientError) as raised:
        Client(f"http://127.0.0.1:{port}").release(job)
    assert raised.value.status is None
    assert raised.value.remedy is not None


def test_a_server_that_is_put_off_is_asked_again_when_it_says() -> None:
    seen: list[tuple[float, str | None]] = []

    def answer(to: BaseHTTPRequestHandler) -> None:
        seen.append((time.monotonic(), to.headers["Idempotency-Key"]))
        if len(seen) == 1:
            reply(to, 429, {"detail": "too many changes"}, Retry_After="1")
        else:
            reply(to, 200, {"ids": [7], "warnings": []})

    with server(answer) as url:
        assert Client(url).submit(command="true").id == 7
    assert len(seen) == 2
    assert seen[1][0] - seen[0][0] >= 1
    assert seen[0][1] == seen[1][1] is not None


def test_the_token_goes_into_one_header_and_not_to_another_server() -> None:
    seen: list[tuple[str, str | None]] = []

    def other(to: BaseHTTPRequestHandler) -> None:
        seen.append((to.path, to.headers["Authorization"]))
        reply(to, 200, {"jobs": [], "next": None})

    with server(other) as elsewhere:

        def answer(to: BaseHTTPRequestHandler) -> None:
            seen.append((to.path, to.headers["Authorization"]))
            reply(to, 302, {}, Location=f"{elsewhere}/api/v1/jobs")

        with server(answer) as url:
            assert Client(url, "secret").jobs() == []
    assert [token for _, token in seen] == ["Bearer secret", None]
    assert not any("secret" in path for path, _ in seen)


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with server(lambda to: reply(to, 200, {"jobs": [], "next": None})) as url:
        assert Client(url).jobs() == []


@pytest.mark.parametrize(
    "url",
    ["box:8000", "file:///etc/passwd", "ftp://box", "http://", "http://me:pw@box", "http://box?token=x"],
)
def test_only_plain_urls_are_accepted(url: str) -> None:
    with pytest.raises(ClientError, match="must look like"):
        Client(url)


def test_refusals_and_foreign_servers_are_client_errors() -> None:
    with server(lambda to: reply(to, 401, {"detail": "this needs a token; run `token create`"})) as url:
        with pytest.raises(ClientError) as raised:
            Client(url).jobs()
        assert (raised.value.status, raised.value.remedy) == (401, "run `token create`")
        with pytest.raises(ClientError, match="needs a token"):
            Client(url).wait([3])
        with pytest.raises(ClientError, match="needs a token"):
            next(Client(url).events())
    with server(lambda to: reply(to, 500, "oops")) as url, pytest.raises(ClientError, match="answered 500"):
        Client(url).health()


def test_a_stream_that_falls_silent_ends_with_the_timeout() -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        if "/events" not in to.path:
            reply(to, 200, {"jobs": [{"id": 1, "state": "queued", "recorded": True}], "next": None})
            return
        to.send_response(200)
        to.end_headers()
        to.wfile.write(b": events\n\nid: 5\nevent: event\ndata: {}\n\n")
        to.rfile.read(1)  # until the client goes

    with server(answer) as url:
        began = time.monotonic()
        assert not Client(url).wait([1], timeout=0.7)
        assert 0.7 <= time.monotonic() - began < 5


@pytest.mark.parametrize("is_lost", [False, True], ids=["comments", "lost connections"])
def test_the_caller_can_stop_to_follow_a_silent_log(is_lost: bool) -> None:
    """The server sends comments, or is lost each time after the first one."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        if to.headers["Last-Event-ID"] is not None and is_lost:
            return  # closes the connection
        to.send_response(200)
        to.end_headers()
        to.wfile.write(b'id: 1:4\nevent: log\ndata: {"text": "one\\n"}\n\n' + b": \n\n" * 3 * (not is_lost))
        if not is_lost:
            to.rfile.read(1)  # until the client goes

    with server(answer) as url:
        stream = Job(1, Client(url)).follow()
        assert [next(stream) for _ in range(4)] == ["one\n", "", "", ""]


@pytest.mark.parametrize("desk", ["store"], indirect=True)
def test_the_command_line_imports_neither_client_nor_web_nor_mcp(desk: Desk) -> None:
    desk.client().submit(command="true")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpu_scheduler", "status", "--state-file", STATE],
        cwd=desk.folder, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "gpu_scheduler.cli.parser" in imported
    rooms = ("gpu_scheduler.client", "gpu_scheduler.web", "gpu_scheduler.mcp_server", "mcp", "asyncio")
    assert [one for one in imported if one.startswith(rooms)] == []
    assert "gpu_scheduler.show.status" in imported
