"""A small application with the guard's routes, and a real server around it, for the tests of the guard."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.types import ASGIApp

from gpu_scheduler.web.guard import Guard, GuardedProtocol, Listener
from gpu_scheduler.web.tokens import Tokens
from tests.waiting import wait_for

#: The uid of the owner in tests that need one who is not root.
OWNER = 12345


def small_app() -> FastAPI:
    """Returns an application with routes of every kind that the guard treats differently.

    `seen` in its state lists the callers and the headers that reached it.
    """
    app = FastAPI()
    app.state.seen = []

    def note(request: Request) -> dict[str, Any]:
        app.state.seen.append((request.state.caller, dict(request.headers)))
        return {"caller": request.state.caller.name, "uid": request.state.peer_uid}

    @app.get("/queue")
    @app.get("/api/v1/jobs/{number}/log")
    def read(request: Request) -> dict[str, Any]:
        return note(request)

    @app.post("/jobs")
    @app.put("/api/v1/jobs")
    @app.delete("/api/v1/jobs")
    @app.patch("/api/v1/jobs")
    async def change(request: Request) -> dict[str, Any]:
        return {**note(request), "size": len(await request.body())}

    @app.get("/big")
    def big(request: Request) -> StreamingResponse:
        note(request)

        async def chunks() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)  # the server accepts any amount from a caller who has gone

        return StreamingResponse(chunks())

    @app.get("/api/v1/events")
    @app.get("/api/v1/jobs/{number}/log/stream")
    def stream(request: Request) -> StreamingResponse:
        note(request)

        async def lines() -> AsyncIterator[bytes]:
            yield b": here\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app


class Served:
    """A server on a loopback socket. `app`: what the guard protects."""

    def __init__(self, app: ASGIApp, folder: Path, owner_uid: int, host: str, **limits: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = Listener(socket.create_server((host, 0), family=family), b"HTTP/1.1 503 Full\r\n\r\n")
        self.host, self.port = self.socket.getsockname()[:2]
        self.app, self.tokens = app, Tokens(folder)
        self.guard = Guard(
            app,
            tokens=self.tokens,
            is_loopback=True,
            port=self.port,
            allowed_hosts=("box", "proxy:80"),
            owner_uid=owner_uid,
        )
        protocol = type("Limited", (GuardedProtocol,), {})
        for name, limit in limits.items():
            setattr(self.socket if hasattr(self.socket, name) else protocol, name, limit)
        config = uvicorn.Config(
            self.guard, http=protocol, ws="none", proxy_headers=False, lifespan="off", log_level="debug"
        )
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: self.server.run([self.socket]))

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self.server.started, "the server has started")

    def stop(self) -> None:
        self.server.force_exit = self.server.should_exit = True
        self._thread.join(20)
        self.socket.close()
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        """Returns a new connection of this process."""
        made = socket.create_connection((self.host, self.port))
        made.settimeout(30)
        return made

    def head(self, first_line: str, **headers: str) -> bytes:
        """Returns the head of a request with a Host header. The underscores of names become dashes."""
        lines = [f"{first_line} HTTP/1.1", f"Host: localhost:{self.port}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def ask(self, data: bytes) -> bytes:
        """Sends bytes over a connection of its own, and returns all that comes until the server closes it."""
        with self.connect() as one:
            one.sendall(data)
            return until_closed(one)

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Returns the status, the headers (with small letters) and the body of an answer."""
        return request(self.host, self.port, method, path, headers, body)


def request(
    host: str,
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Does what `Served.request` does; another user's process calls it. Reads no body of a stream."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    given = {"Host": f"localhost:{port}", **(headers or {})}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    is_endless = answer.status == 200 and "content-length" not in found
    text = b"" if is_endless else answer.read()
    connection.close()
    return answer.status, found, text


def until_closed(one: socket.socket) -> bytes:
    """Returns all bytes until the other end closes the connection. Fails after the socket's timeout."""
    found = b""
    try:
        while piece := one.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


@contextmanager
def serving(
    app: ASGIApp, folder: Path, *, owner_uid: int = OWNER, host: str = "127.0.0.1", **limits: float
) -> Iterator[Served]:
    """Serves the application while the context lasts. limits: attributes of Listener and GuardedProtocol."""
    served = Served(app, folder, owner_uid, host, **limits)
    served.start()
    try:
        yield served
    finally:
        served.stop()
