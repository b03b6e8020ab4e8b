"""The application in this process: requests go to it without a socket and without the guard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from msgspec.structs import replace
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_scheduler.show.location import Location
from gpu_scheduler.web.app import create_app
from gpu_scheduler.web.guard import Caller
from gpu_scheduler.web.operations import Context
from tests.cli.conftest import desk as desk
from tests.cli.desk import Desk
from tests.waiting import wait_for

LOCAL = Caller("local")
#: The callers with a read-only token, without and with --logs.
READER, LOG_READER = Caller("reader", may_change=False, may_read_logs=False), Caller("r", may_change=False)
Api = Callable[..., TestClient]


def with_caller(app: ASGIApp, caller: Caller) -> ASGIApp:
    """Returns an application whose requests `caller` makes, or READER those with the header Reader: yes."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        is_reader = (b"reader", b"yes") in scope.get("headers", ())
        scope.setdefault("state", {})["caller"] = READER if is_reader else caller
        await app(scope, receive, send)

    return called


@pytest.fixture
def api(desk: Desk) -> Iterator[Api]:
    """Returns a function that makes a client of the queue in the test's folder.

    caller: who makes the requests, unless the header Reader: yes says that a reader does. Other values
    replace those of the application's context.
    """
    clients, apps = [], []

    def make(caller: Caller = LOCAL, **values: Any) -> TestClient:
        context = replace(Context(Location(), str(desk.path), "api:local"), **values)
        app = create_app(context)
        apps.append(app)

        clients.append(TestClient(with_caller(app, caller), base_url="http://localhost:8000"))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    for app in apps:
        app.state.close()


@pytest.fixture
def port(desk: Desk) -> Iterator[int]:
    """Serves the queue of the test's folder. Yields the port."""
    app = create_app(Context(Location(), str(desk.path), "api:local"))

    config = uvicorn.Config(
        with_caller(app, LOCAL), port=0, http="h11", ws="none", lifespan="off", log_config=None,
        access_log=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, "the server")
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()
    app.state.close()
