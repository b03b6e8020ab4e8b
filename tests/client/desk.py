"""A folder with a scheduler, and a client of its queue: on the store, or over HTTP to a real server."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

from gpu_scheduler.client import Client
from tests import warm
from tests.e2e.world import World
from tests.waiting import wait_for

STATE = "gpu_scheduler_state.json"


class Desk:
    """Starts what a client needs. kind: "store" or "http"."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.world = World(folder)
        self.port = free_port() if kind == "http" else 0
        self._server: warm.Process | None = None
        self.start_server()

    def client(self) -> Client:
        """Returns a new client of the queue."""
        if self.kind == "store":
            return Client(state_file=str(self.folder / STATE))
        return Client(f"http://127.0.0.1:{self.port}")

    def start_server(self) -> None:
        """Starts the server over HTTP, and waits until it answers."""
        if self.kind == "store":
            return
        words = [str(self.port), str(self.folder), str(self.folder / STATE)]
        self._server = warm.Process("tests.client.api_process", words, self.folder, self.world.env, 1, 2)

        def is_up() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/queue"):
                    return True
            except urllib.error.URLError:
                return False

        wait_for(is_up, "the server's first answer")

    def kill_server(self) -> None:
        """Kills the server, if there is one."""
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
            self._server = None

    def close(self) -> None:
        """Ends the server, the scheduler and the jobs."""
        self.kill_server()
        self.world.close()


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
