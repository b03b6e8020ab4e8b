"""Runs the scheduler of any checkout for a benchmark, using only its command line and files."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parents[1]
#: Pattern of the message about a completed job, in this version and in versions without placement by memory.
COMPLETED = r"finished \[OK\]|completed after"
#: Seconds to wait before each round, so that the scheduler becomes idle.
_IDLE_S = 0.15


def environment(tree: Path, folder: Path) -> dict[str, str]:
    """Returns the environment for a scheduler of this checkout in this folder.

    It is not in the user's list of running schedulers, and does not read this list.
    """
    return {**os.environ, "PYTHONPATH": str(tree), "XDG_STATE_HOME": str(folder / "state")}


class Scheduler:
    """A scheduler that runs with these options in a new folder, where the file `out` gets its output."""

    def __init__(self, tree: Path, *options: str) -> None:
        self.tree = tree
        self._options = options
        self._stack = ExitStack()

    def __enter__(self) -> Scheduler:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.jobs = self.folder / "jobs.txt"
        self.jobs.touch()
        with (self.folder / "out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpu_scheduler", "start", "--log-dir=logs", *self._options],
                cwd=self.folder, env=environment(self.tree, self.folder),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self._stack.callback(self._end)
        self.wait_until_printed("scheduler up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def append(self, lines: Sequence[str]) -> float:
        """Appends lines to the jobs file in one write; returns the wall-clock time right before it."""
        text = "".join(f"{line}\n" for line in lines)
        with self.jobs.open("a") as file:
            began = time.time()
            file.write(text)
        return began

    def count_printed(self, pattern: str) -> int:
        """Returns how often this regular expression matches in the output."""
        return len(re.findall(pattern, (self.folder / "out").read_text("utf-8", "replace")))

    def wait_until_printed(
        self, pattern: str, times: int = 1, timeout_s: float = 60.0, every_s: float = 0.01
    ) -> None:
        """Waits until the pattern matches `times` times in the output. Raises SystemExit at the timeout."""
        end = time.monotonic() + timeout_s
        while self.count_printed(pattern) < times:
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"{self.tree} did not print {pattern!r} {times} times:\n{self._tail()}")
            time.sleep(every_s)

    def _tail(self) -> str:
        return (self.folder / "out").read_text("utf-8", "replace")[-2000:]


def parse_arguments(module: str, about: str | None, rounds: int | None = None) -> argparse.Namespace:
    """Parses a benchmark's command line: the checkouts and, unless `rounds` is None, the number of rounds."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{module}".rstrip("."), description=about)
    parser.add_argument(
        "--tree", type=Path, action="append", metavar="PATH",
        help="checkout to measure (default: this one); if given several times, the rounds alternate",
    )  # fmt: skip
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parsed = parser.parse_args()
    parsed.trees = [path.resolve() for path in parsed.tree or [HERE]]
    return parsed


def measure_in_turn(
    trees: Sequence[Path],
    rounds: int,
    kind: str,
    gpus: int,
    measure: Callable[[Scheduler, int], Iterable[float]],
) -> list[list[float]]:
    """Returns the values of each checkout. Rounds of several checkouts alternate.

    Each round begins with an idle scheduler. kind: "direct" or "screen"; measure: is called with the
    scheduler and the number of the round.
    """
    options = [f"--simulate={gpus}", *(["--screen"] if kind == "screen" else [])]
    values: list[list[float]] = [[] for _ in trees]
    with ExitStack() as stack:
        schedulers = [stack.enter_context(Scheduler(tree, *options)) for tree in trees]
        for number in range(rounds):
            for scheduler, found in zip(schedulers, values, strict=True):
                time.sleep(_IDLE_S)
                found += measure(scheduler, number)
    return values


def read_timestamp(path: Path) -> float:
    """Returns the wall-clock time that a job wrote into a file."""
    return float(path.read_text().replace(",", "."))
