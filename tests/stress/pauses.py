"""P9: three writers edit the pauses in the state file while a busy scheduler updates the same file.

Each writer has its own way of saving, and sometimes calls `pause` or `resume` instead. The scheduler is
killed from time to time. The last change to each GPU must hold, keys that are not the scheduler's must stay,
and the jobs file must never be touched.

The writers take turns, because no rule could decide between two users who overwrite each other. In its turn,
a writer reads the file, changes one GPU and saves the file. The scheduler does not wait for turns.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from gpu_scheduler.store.requests import add_request, request_answer
from tests.stress import editors
from tests.stress.harness import Stage, pause
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_GPUS = 8
#: How the three writers save a file. The first writer has two ways of writing in place.
_WRITERS = ((editors.truncate, editors.slow), (editors.rename,), (editors.backup,))
#: Seconds that must pass before a GPU is changed again. Two quick changes that cancel each other out may
#: leave the file as it was, so that no reader could notice them.
_AGAIN_S = 0.5
#: Possible seconds between two turns, at full size (key True, 0.32 on average) and at smaller sizes.
_GAPS_S = {True: (0.0, 0.0, 0.02, 0.2, 0.6, 1.1), False: (0.0, 0.0, 0.02, 0.1)}


def toggles(order: Order) -> Findings:
    """Makes 5,000 changes in half an hour."""
    found, dice, count = Findings(), order.rng("toggles"), order.scaled(5000, 20)
    stage = _stage(order)
    jobs_file = _identity(stage)
    process = stage.start()
    wait_for(stage.home.state_file.exists, "the state file")
    users = _Users(stage, order, dice)
    users.put_keys()
    every = min(count, 200)
    try:
        for number in range(1, count + 1):
            users.turn(found)
            pause(dice.choice(_GAPS_S[order.full_length]))
            if not order.is_control and number % 250 == 15:
                process.kill()
                process.wait()
                process = stage.start()
                users.wait_for_round()
                found.count("scheduler kills")
            if number % every == 0:
                users.check(found)
                if _identity(stage) != jobs_file:
                    found.fault("jobs file written", f"{_identity(stage)[:3]} was {jobs_file[:3]}")
                    jobs_file = _identity(stage)
    finally:
        _end(stage, order, process)
    found.figures = {"changed pauses": count, **users.figures, **found.figures}
    return found


def _stage(order: Order) -> Stage:
    folder, dice = order.folder, order.rng("jobs")
    shortest, longest = (1.0, 4.0) if order.full_length else (0.2, 0.8)
    lines = [
        f"[share=0.5] sleep {dice.uniform(shortest, longest):.2f}{n:05}"
        for n in range(order.scaled(9000, 50))
    ]
    (folder / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
    if not order.is_control:
        return Stage(folder, gpus=_GPUS)
    state = folder / "gpu_scheduler_state.json"
    state.write_text('{"paused_gpus": []}')
    return Stage(folder, command=[sys.executable, "-m", "tests.stress.control_state", str(state)])


def _identity(stage: Stage) -> tuple[int, int, int, bytes]:
    status = os.stat(stage.jobs_file)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, stage.jobs_file.read_bytes()


def _end(stage: Stage, order: Order, process: subprocess.Popen[bytes]) -> None:
    if order.is_control:
        process.kill()
    else:
        stage.cli("stop", "--jobs")
    process.wait(120)


class _Users:
    """The three writers, with the pauses that they want."""

    def __init__(self, stage: Stage, order: Order, dice: random.Random) -> None:
        self._stage, self._is_control, self._dice = stage, order.is_control, dice
        self._path = stage.home.state_file
        self._wanted = dict.fromkeys(range(_GPUS), False)
        self._keys: dict[str, Any] = {"notes": "mine, ünchanged", "turns": 0}
        self._turned_at = dict.fromkeys(range(_GPUS), 0.0)
        self._last = ""
        self.figures: dict[str, int | float | str] = {}

    def put_keys(self) -> None:
        """Writes keys that the scheduler does not know."""
        state = self._read()
        self._save({**state, **self._keys}, editors.rename)

    def turn(self, found: Findings) -> None:
        """Lets one of the writers change one GPU."""
        gpu = self._next_gpu()
        writer = self._dice.randrange(len(_WRITERS))
        if not self._is_control and self._dice.random() < 0.05:
            self._wanted[gpu] = not self._wanted[gpu]
            verb = "pause" if self._wanted[gpu] else "resume"
            done = self._stage.cli(verb, str(gpu))
            if done.returncode != 0:
                found.fault("refused", f"{verb} {gpu}: {done.stderr}")
            self._count_turn(f"command {verb} {gpu}")
            return
        state = self._read()
        paused = set(state.get("paused_gpus", []))
        paused ^= {gpu}
        self._wanted[gpu] = gpu in paused
        self._keys["turns"] += 1
        style = self._dice.choice(_WRITERS[writer])
        self._save({**state, "paused_gpus": sorted(paused), "turns": self._keys["turns"]}, style)
        self._count_turn(f"{style.__name__} {'pauses' if gpu in paused else 'resumes'} {gpu}")

    def _next_gpu(self) -> int:
        free: list[int] = []
        while not free:
            now = time.monotonic()
            free = [gpu for gpu, at in self._turned_at.items() if now - at > _AGAIN_S]
            pause(0.0 if free else 0.02)
        gpu = self._dice.choice(free)
        self._turned_at[gpu] = time.monotonic()
        return gpu

    def _count_turn(self, text: str) -> None:
        style = text.split()[0]
        kind = "commands" if style == "command" else f"{style} saves"
        self.figures[kind] = int(self.figures.get(kind, 0)) + 1
        self._last = f"{self._last[-300:]}; {text}"

    def _read(self) -> dict[str, Any]:
        """Waits until the state file can be read, and returns its content."""
        found: dict[str, Any] = {}

        def look() -> bool:
            try:
                found.update(json.loads(self._path.read_text()))
            except (OSError, ValueError):
                return False
            return True

        wait_for(look, f"{self._path} can be read", every_s=0.002)
        return found

    def _save(self, state: dict[str, Any], style: editors.Style) -> None:
        content = (json.dumps(state, indent=1, ensure_ascii=False) + "\n").encode()
        for _ in style(self._path, content, self._dice):
            pause(self._dice.choice((0.0, 0.0, 0.001, 0.02)))

    def check(self, found: Findings) -> None:
        """Waits without further edits, and checks that the last changes hold in the store and in the file."""
        deadline = time.monotonic() + (0.5 if self._is_control else 6.0)
        while (wrong := self._wrong()) and time.monotonic() < deadline:
            pause(0.05)
        for text in wrong:
            found.fault("overwritten", f"{text} (after {self._last})")
        # Accept what is there now, so that a fault is counted only once.
        self._wanted = self._recorded()
        self._keys["turns"] = self._read().get("turns", 0)
        found.count("checks")

    def _wrong(self) -> list[str]:
        recorded, state = self._recorded(), self._read()
        wrong = [
            f"GPU {gpu} paused: {recorded[gpu]}" for gpu in recorded if recorded[gpu] != self._wanted[gpu]
        ]
        if set(state.get("paused_gpus", [])) != {gpu for gpu, paused in self._wanted.items() if paused}:
            wrong.append(f"the file says {state.get('paused_gpus')}")
        return wrong + [f"key {k}: {state.get(k)!r}" for k, v in self._keys.items() if state.get(k) != v]

    def _recorded(self) -> dict[int, bool]:
        if self._is_control:
            paused = self._read().get("paused_gpus", [])
            return {gpu: gpu in paused for gpu in range(_GPUS)}
        store = self._stage.store()
        try:
            return {row.index: row.paused for row in store.gpus()}
        finally:
            store.close()

    def wait_for_round(self) -> None:
        """Waits until a new scheduler has read the file. Before that, removing the file counts as an edit."""
        store = self._stage.store()
        try:
            request = add_request(store, "release", "0", "stress")
            store.data_dir.ring_doorbell()
            wait_for(lambda: request_answer(store, request), "an answer from the scheduler", timeout_s=60)
        finally:
            store.close()
