"""Serves the REST API without its guard: `python -m tests.client.api_process PORT FOLDER STATE_FILE`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from gpu_scheduler.show.location import Location
from gpu_scheduler.web.app import create_app
from gpu_scheduler.web.guard import Caller
from gpu_scheduler.web.operations import Context


def main() -> None:
    port, folder, state_file = sys.argv[1:]
    app = create_app(Context(Location(state_file), folder, "api:test"))

    async def with_caller(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["caller"] = Caller("test")
        await app(scope, receive, send)

    uvicorn.run(with_caller, host="127.0.0.1", port=int(port), log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
