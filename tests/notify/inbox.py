"""A receiver of notifications on the loopback interface, which behaves as a test wants."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Inbox:
    """An HTTP server for json:// URLs of apprise. `close` and `open` may be repeated, on the same port.

    behaviours: how it treats the next requests: "slow", "refuse", "hang" (until it is closed) or "reset";
    afterwards, it accepts them. messages: the title and body of each that it accepted.
    """

    def __init__(self, behaviours: Iterable[str] = ()) -> None:
        self.behaviours, self.messages = iter(behaviours), list[tuple[str, str]]()
        self._port = 0
        self.open()

    @property
    def url(self) -> str:
        """The URL of apprise, with a password."""
        return f"json://me:s3cret@127.0.0.1:{self._port}/"

    @property
    def events(self) -> list[int]:
        """The ids of the events in the messages."""
        return [int(found) for _, body in self.messages for found in re.findall(r"\[event (\d+)\]", body)]

    def open(self) -> None:
        """Listens."""
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler(), bind_and_activate=True)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Refuses connections from now on."""
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                behaviour = next(inbox.behaviours, "accept")
                if behaviour == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    return
                inbox._over.wait({"hang": 60.0, "slow": 0.5}.get(behaviour, 0.0))
                if behaviour != "hang":
                    if behaviour != "refuse":
                        inbox.messages.append((message["title"], message["message"]))
                    self.send_response(503 if behaviour == "refuse" else 200)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):  # a client that was killed, or our reset
                    pass

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    pass

        return Handler


def an_inbox() -> Iterator[Inbox]:
    """Yields an inbox and closes it; the body of a fixture."""
    made = Inbox()
    yield made
    made.close()
