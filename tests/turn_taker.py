"""A process that waits in line for GPUs, or holds one, as another program that takes turns does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_scheduler.system.gpu_claims import boot_s

_PROGRAM = """
import json, sys
from pathlib import Path
from gpu_scheduler.system import gpu_claims
mine = gpu_claims.Turns(Path(sys.argv[1]))
now = gpu_claims.boot_s
for line in sys.stdin:
    name, *words = json.loads(line)
    if name == "wait":
        # The process has moved for the last time at this moment.
        gpu_claims.boot_s = lambda: words[2] or now()
    answer = getattr(mine, {"wait": "wait_in_line"}.get(name, name))(*words[: 2 if name == "wait" else None])
    gpu_claims.boot_s = now
    print(json.dumps(answer), flush=True)
"""


class TurnTaker:
    """The process. Each method calls that of its Turns."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def wait_in_line(self, uuid: str, ago_s: float = 10.0, moved_ago_s: float = 0.0) -> None:
        """Takes a place on a GPU, as if it had waited for this time and had moved for the last time later."""
        moved_at = boot_s() - moved_ago_s if moved_ago_s else 0.0
        self._say("wait", {uuid: boot_s() - ago_s}, [uuid], moved_at)

    def move(self) -> None:
        """Moves on in line."""
        self._say("move")

    def hold(self, uuid: str) -> bool:
        """Takes the hold on a GPU; returns whether nobody else has it."""
        return bool(self._say("hold", uuid))

    def ahead(self, uuid: str, ago_s: float = 0.0) -> int | None:
        """Returns the other process that has the hold on a GPU or is ahead of one that has waited this time.

        Returns None if there is none.
        """
        found = self._say("ahead", uuid, boot_s() - ago_s)
        return None if found is None else int(found)

    def give_up(self) -> None:
        """Gives up every hold."""
        self._say("keep", [])

    def kill(self) -> None:
        """Kills the process and waits until it has ended."""
        self.process.kill()
        self.process.wait()

    def _say(self, *words: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def turn_taker(folder: Path) -> Iterator[TurnTaker]:
    """Runs a process that takes turns on the GPUs with lock files in this folder, which must exist."""
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        taker = TurnTaker(process)
        taker.move()  # waits until the process is ready
        yield taker
        process.kill()
