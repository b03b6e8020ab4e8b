"""Builds a fake /proc from ordinary files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpu_scheduler.system.procfs import INITIAL_PID_NAMESPACE


class FakeProc:
    """A fake /proc in which the reading process has pid 50 and session 50."""

    def __init__(self, root: Path, namespace: str = INITIAL_PID_NAMESPACE) -> None:
        self.root = root
        (root / "self" / "ns").mkdir(parents=True)
        (root / "self" / "ns" / "pid").symlink_to(namespace)
        (root / "stat").write_text("cpu 1\nbtime 1000000\n")
        self.add_process(1, parent=0, session=1)
        self.add_process(50, cgroup="/user.slice/session-7.scope", name="self")

    def add_process(
        self,
        pid: int,
        *,
        parent: int = 1,
        session: int | None = None,
        token: str | None = None,
        start: int = 500,
        cgroup: str = "/",
        inner_pids: tuple[int, ...] = (),
        open_path: str | None = None,
        state: str = "S",
        threads: int = 1,
        name: str | None = None,
        command_line: tuple[str, ...] = (),
        user: int = os.getuid(),
    ) -> int:
        """Adds or replaces a process; returns its pid. start: in clock ticks; open_path: for descriptor 3."""
        folder = self.root / (name or str(pid))
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        fields = [state, parent, pid, pid if session is None else session, *[0] * 13, threads, 0, start, 0]
        (folder / "stat").write_text(f"{pid} (a) b (c) {' '.join(map(str, fields))}\n")
        (folder / "environ").write_text(f"A=1\0GPU_SCHEDULER_TOKEN={token}\0" if token else "A=1\0")
        (folder / "cgroup").write_text(f"4:memory:/{pid}\n0::{cgroup}\n")
        numbers = " ".join(map(str, inner_pids))
        (folder / "status").write_text(f"Name:\tx\nUid:\t{user}\t{user}\nNSpid:\t{pid}\t{numbers}\n")
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in command_line))
        if open_path is not None:
            (folder / "fd" / "3").symlink_to(open_path)
        return pid

    def remove_process(self, pid: int) -> None:
        """Removes a process."""
        shutil.rmtree(self.root / str(pid))
