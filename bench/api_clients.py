"""The clients of `python -m bench.api`, all in one process, which is cheap beside the server.

Standard input has one line, a JSON object {"port", "token", "clients", "streams"}. Prints "ready" when the
streams are open. At the end of standard input, prints a JSON object: the ms of each page, the number of pages
that were not answered with 200, and the number of events that the streams got.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

PAGES = ("/api/v1/jobs?limit=50", "/queue", "/api/v1/gpus")
_EVERY_S = 2.0


class Clients:
    """The clients of one server. ms: the time of each page."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._port, self._token = order["port"], order["token"]
        self.ms: list[float] = []
        self.failed = self.events = self.open = 0

    async def _get(self, path: str, close: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Connection: {close}\r\n\r\n".encode()
        )
        return reader, writer

    async def read_pages(self, number: int, of: int) -> None:
        """Reads a page every 2 s. The clients take turns within these seconds."""
        due = time.monotonic() + _EVERY_S * number / of
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += _EVERY_S
            began = time.monotonic()
            try:
                reader, writer = await self._get(PAGES[number % len(PAGES)], "close")
                answer = await reader.read(-1)
                writer.close()
            except OSError:
                answer = b""
            self.ms.append((time.monotonic() - began) * 1000)
            self.failed += not answer.startswith(b"HTTP/1.1 200 ")
            number += 1

    async def read_stream(self) -> None:
        """Reads the events."""
        reader, _ = await self._get("/api/v1/events", "keep-alive")
        line = await reader.readline()
        self.failed += b" 200 " not in line
        self.open += 1
        while line := await reader.readline():
            self.events += line.startswith(b"event: event")
        self.failed += 1  # it ended


async def main() -> None:
    """Runs the clients until the end of standard input."""
    order = json.loads(sys.stdin.readline())
    clients = Clients(order)
    tasks = [asyncio.ensure_future(clients.read_stream()) for _ in range(order["streams"])]
    while clients.open < order["streams"]:
        await asyncio.sleep(0.01)
    tasks += [asyncio.ensure_future(clients.read_pages(n, order["clients"])) for n in range(order["clients"])]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    print(json.dumps({"pages": clients.ms, "failed": clients.failed, "events": clients.events}))


if __name__ == "__main__":
    asyncio.run(main())
