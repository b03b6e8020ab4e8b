"""Stands in for the application: its health, and a stream without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse


def create_app(context: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/api/v1/health")
    async def health() -> dict[str, Any]:
        return {"version": "0"}

    @app.get("/api/v1/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(ticks(), media_type="text/event-stream")

    return app


async def ticks() -> AsyncIterator[str]:
    while True:
        yield "event: tick\n\n"
        await asyncio.sleep(0.1)
