"""Stands in for the guard: it only passes requests on."""

from __future__ import annotations

from typing import Any


class Guard:
    def __init__(self, app: Any, **given: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)
