"""The web page: its files, the exchange of a link for a token, and the recent use of the GPUs.

Annotations of routes are evaluated by FastAPI, so they are no strings here.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.web import operations
from gpu_scheduler.web.guard import PUBLIC, SESSION, problem
from gpu_scheduler.web.operations import Context, Json
from gpu_scheduler.web.tokens import Tokens

log = logging.getLogger(__name__)

#: Seconds between two samples of the GPUs, and the number of samples that are kept: half an hour.
_SAMPLE_S, _SAMPLES = 10.0, 180
_TYPES = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8", "svg": "image/svg+xml",
}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Link(BaseModel):
    """The secret in the link that `gpu-scheduler link` printed."""

    model_config = ConfigDict(strict=True, extra="forbid")

    secret: Annotated[str, Field(max_length=200)]


class RecentUse:
    """The use of the GPUs that this server has seen in the last half an hour."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._samples: deque[tuple[float, dict[int, tuple[int | None, float | None]]]] = deque(
            maxlen=_SAMPLES
        )

    def sample(self) -> None:
        """Adds the present use."""
        with suppress(SchedulerError):
            gpus = operations.gpus(self._context)["gpus"]
            use = {one["index"]: (one["memory_used_mib"], one["load_percent"]) for one in gpus}
            self._samples.append((time.time(), use))

    def samples(self) -> list[Json]:
        """Returns the samples, oldest first: the memory in MiB and the load in percent of each GPU."""
        return [
            {"at": at, "gpus": [{"index": gpu, "memory_used_mib": mib, "load_percent": load}
                                for gpu, (mib, load) in use.items()]}
            for at, use in tuple(self._samples)
        ]  # fmt: skip

    @asynccontextmanager
    async def sampling(self, _: FastAPI) -> AsyncIterator[None]:
        """Takes samples as long as the application runs."""

        async def work() -> None:
            while True:
                with suppress(OSError):  # such as no descriptor left
                    await asyncio.to_thread(self.sample)
                await asyncio.sleep(_SAMPLE_S)

        task = asyncio.create_task(work())
        yield
        task.cancel()


def add_routes(app: FastAPI, context: Context, responses: Callable[..., Any]) -> None:
    """Adds the files of the page, and the exchange of a link. responses: the error codes of a route."""
    tokens = Tokens(context.location.resolve().folder)
    folder = files("gpu_scheduler.web") / "static"

    def add_file(path: str, name: str) -> None:
        content, kind = (folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]]

        def get() -> Response:
            return Response(content, 200, _HEADERS, kind)

        app.add_api_route(path, get, methods=["GET", "HEAD"], include_in_schema=False)

    for path, name in PUBLIC.items():
        add_file(path, name)

    @app.post(SESSION, response_model=dict[str, Any], responses=responses())
    def session(body: Link) -> Response:
        """Exchanges the secret of a link, which is valid once, for a token."""
        try:
            found = tokens.exchange(body.secret)
        except SchedulerError as error:
            log.error("%s", error)
            return problem(503, "The tokens cannot be read; `token list` says why.")
        if found is None:
            text = "This link was used or has expired; `gpu-scheduler link` prints a new one."
            return problem(401, text, {"WWW-Authenticate": "Bearer"})
        return JSONResponse({"token": found})
