"""Measures loading, appending to, editing and listing a long queue, and the cost of a round while it waits.

`python -m bench.queue [--sizes 1000 10000 100000] [--specs N] [--blocked] [--tree PATH]` prints a table of
medians. It uses only the command line and files, so `--tree` can also measure another commit (with this
interpreter). With --blocked, every second pair of lines waits for the job of the first line.

Three of the four simulated GPUs are busy, and every queued line needs one of these three; appended lines may
use the fourth. The times do not include the 2 s for which a file must be unchanged before the scheduler
accepts an edit (docs/design.md, Jobs file).
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.scheduler import environment

#: Seconds for which the file must be unchanged before the scheduler accepts an edit that is not an append.
EDIT_DELAY_S = 2.0
WAKES = 50
REPEATS = 5

MEASUREMENTS = (
    ("load", "s", "from the start of the scheduler until every line is a job"),
    ("cpu", "s", "processor time of the scheduler while loading"),
    ("store", "MiB", "size of the store after loading"),
    ("rss", "MiB", "resident memory of the scheduler after loading"),
    ("append", "ms", "from appending a line until its job is in the store"),
    ("run", "ms", "from appending a line until its job's first instruction"),
    ("edit", "ms", "from editing a line in the middle until its job has changed, minus the 2 s delay"),
    ("round", "ms", "processor time of a wake-up with nothing to do"),
    ("idle", "ms/s", "processor time of the idle scheduler"),
    ("request", "ms", "the whole command `pause` or `resume`"),
    ("text", "ms", "the whole command `status`"),
    ("json", "ms", "the whole command `status --json`"),
    ("all", "ms", "the whole command `status --all`"),
    ("restart", "s", "from a start with the full store until the file has been read"),
    ("rss_end", "MiB", "resident memory of the scheduler at the end"),
)


def main() -> None:
    """Measures a queue of every size and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], metavar="LINES")
    parser.add_argument(
        "--specs", type=int, default=2, help="number of different resource specs (default: 2)"
    )
    parser.add_argument(
        "--blocked", action="store_true", help="let half of the lines wait for the first line"
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    blocked = ", half of them blocked" if options.blocked else ""
    print(f"queue of N lines{blocked}, {options.specs} resource specs, medians")
    columns = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            bench = QueueBench(Path(folder), options.tree.resolve(), size, options.specs, options.blocked)
            columns.append(bench.measure())
        print(f"  {size:,} lines measured", file=sys.stderr, flush=True)
    print(f"{'':8} {'':5}" + "".join(f"{size:>12,}" for size in options.sizes))
    for name, unit, meaning in MEASUREMENTS:
        values = "".join(f"{column[name]:12.1f}" for column in columns)
        print(f"{name:8} {unit:5}{values}   {meaning}")


class QueueBench:
    """A benchmark of a queue with `size` lines, in its own folder."""

    def __init__(self, folder: Path, tree: Path, size: int, spec_classes: int, blocked: bool) -> None:
        self.folder, self.size, self.spec_classes, self.blocked = folder, size, spec_classes, blocked
        self.file = folder / "jobs.txt"
        self.environment = environment(tree, folder)
        self.tree = tree
        self.jobs = size

    def measure(self) -> dict[str, float]:
        """Returns the value for every row of the table, by the name of the row."""
        busy = [f"[allowed={gpu} name=busy{gpu}] exec sleep 100000\n" for gpu in range(3)]
        self.file.write_text("".join(busy) + "".join(map(self._line, range(self.size - len(busy)))))
        found: dict[str, float] = {}
        try:
            began = time.monotonic()
            with self._scheduler() as pid:
                self._until(lambda: self._count() >= self.size, every_s=0.05)
                found["load"] = time.monotonic() - began
                found["cpu"] = main_thread_ms(pid) / 1000
                self._until(lambda: self._count("state = 'running'") == len(busy))
                time.sleep(1.5)  # until the state file has been written and nothing is due
                found["rss"] = _rss_mib(pid)
                files = self.folder.glob("gpu_scheduler_state.d/scheduler.db*")
                found["store"] = sum(file.stat().st_size for file in files) / 2**20
                found |= self._measure_changes() | self._measure_commands() | self._measure_idle_costs(pid)
                found["rss_end"] = _rss_mib(pid)
            found["restart"] = self._measure_restart()
        finally:
            self._command("cancel", "1", "2", "3", "--grace", "0")
        return found

    def _line(self, n: int) -> str:
        model = f"--llm m{n % self.spec_classes}" if self.spec_classes > 2 else ""
        after = "after=busy0" if self.blocked and n // 2 % 2 else ""
        if n % 2:
            block = f"[{after}] " if after else ""
            return f"{block}200,/data/train.py,env,--lr 0.001 --seed {n} --name run{n} {model},0-2\n"
        return f"[allowed=0-2 gpus=2 {after}] python train.py --seed {n} --name run{n} {model} > log{n}.txt\n"

    @contextmanager
    def _scheduler(self) -> Iterator[int]:
        options = ["--simulate=4", "--log-dir=logs"]
        with (self.folder / "out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_scheduler", "start", *options],
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def _measure_changes(self) -> dict[str, float]:
        recorded, run, edited = [], [], []
        for n in range(REPEATS):
            self._append(f"[share=0.1 allowed=0-2] echo waits{n}\n")
            recorded.append(self._measure_ms(self._is_recorded))
        for n in range(REPEATS):
            mark = self.folder / f"mark{n}"
            self._append(f"[share=0.1] echo > {mark}\n")
            run.append(self._measure_ms(mark.exists))
        self._until(lambda: self._count("state = 'running'") == 3)
        for n in range(3):
            at = self.size // 2 + n
            lines = self.file.read_text().split("\n")
            lines[at - 1] = (
                f"[name=edited{n}] python edited.py" if n == 2 else f"[name=edited{n}] {lines[at - 1]}"
            )
            lines[at - 1] = lines[at - 1].replace("] [", " ")
            spare = self.folder / "spare"
            spare.write_text("\n".join(lines))
            spare.replace(self.file)
            edited.append(
                self._measure_ms(lambda n=n: self._count(f"name = 'edited{n}'") == 1) - 1000 * EDIT_DELAY_S
            )
        return {
            "append": statistics.median(recorded),
            "run": statistics.median(run),
            "edit": statistics.median(edited),
        }

    def _measure_commands(self) -> dict[str, float]:
        many = 1 if self.size > 20_000 else 3
        return {
            "request": statistics.median(
                self._measure_ms(lambda verb=verb: self._command(verb, "3"))
                for verb in ("pause", "resume") * REPEATS
            ),
            "text": statistics.median(
                self._measure_ms(lambda: self._command("status")) for _ in range(2 * REPEATS)
            ),
            "json": statistics.median(
                self._measure_ms(lambda: self._command("status", "--json")) for _ in range(REPEATS)
            ),
            "all": statistics.median(
                self._measure_ms(lambda: self._command("status", "--all")) for _ in range(many)
            ),
        }

    def _measure_idle_costs(self, pid: int) -> dict[str, float]:
        """Measures the cost of idling and of a wake-up by the doorbell, which every command rings."""
        time.sleep(2.0)
        doorbell = self.folder / "gpu_scheduler_state.d" / "doorbell"
        before = main_thread_ms(pid)
        for _ in range(WAKES):
            doorbell.touch()
            time.sleep(0.02)
        rung = (main_thread_ms(pid) - before) / WAKES
        before = main_thread_ms(pid)
        time.sleep(6.0)
        return {"round": rung, "idle": (main_thread_ms(pid) - before) / 6.0}

    def _measure_restart(self) -> float:
        self._append("[share=0.1 allowed=0-2] echo last\n")
        began = time.monotonic()
        with self._scheduler():
            self._until(self._is_recorded)
            return time.monotonic() - began

    def _append(self, line: str) -> None:
        self.jobs = self._count()
        with self.file.open("a") as file:
            file.write(line)

    def _is_recorded(self) -> bool:
        return self._count() == self.jobs + 1

    def _count(self, which: str = "") -> int:
        """Returns the number of jobs that match an SQL condition; without one, the highest job id."""
        database = self.folder / "gpu_scheduler_state.d" / "scheduler.db"
        sql = f"SELECT count(*) FROM job WHERE {which}" if which else "SELECT max(id) FROM job"
        try:
            with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60.0) as connection:
                return int(connection.execute(sql).fetchone()[0] or 0)
        except sqlite3.OperationalError:
            return 0  # not created yet
        finally:
            if "connection" in locals():
                connection.close()

    def _command(self, *words: str) -> bool:
        command = [sys.executable, "-m", "gpu_scheduler", *words]
        subprocess.run(command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, check=True)
        return True

    def _measure_ms(self, done: Callable[[], bool]) -> float:
        began = time.monotonic()
        self._until(done)
        return 1000 * (time.monotonic() - began)

    def _until(self, done: Callable[[], bool], every_s: float = 0.002) -> None:
        end = time.monotonic() + 300
        while not done():
            if time.monotonic() > end:
                raise SystemExit(
                    "gave up after 300 s; the scheduler printed:\n" + (self.folder / "out").read_text()
                )
            time.sleep(every_s)


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def main_thread_ms(pid: int) -> float:
    """Returns the processor time of the scheduler's main thread, which runs the rounds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


if __name__ == "__main__":
    main()
