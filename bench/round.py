"""Measures the processor time of a round with many waiting jobs, by the number of different requests.

`python -m bench.round [--specs 1000 10000] [--jobs N] [--repeats 20]` prints a table of medians. It runs the
real loop and store in this process, on simulated GPUs that are all in use; nothing is launched. By default,
there is one job for each request, and 100,000 jobs for 1 and for 10 requests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise, starmap
from pathlib import Path

from msgspec.structs import replace

from gpu_scheduler.attempts.executors import DirectExecutor, EngineExecutor, Executors
from gpu_scheduler.attempts.folder import ENGINE_FILE
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import GpuSample, Snapshot
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.attempt_end import end_attempt
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.rounds.loop import Loop
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store

GPUS = 8
TOTAL_MIB = 24_576
#: The memory of the jobs on every second GPU. Less than the smallest request remains.
HELD_MIB = 22_000
_MAX_ROUNDS = 100

MEASUREMENTS = (
    ("first", "the first round after a restart"),
    ("quiet", "a round with nothing to do"),
    ("append", "the rounds after a job with a new request was added"),
    ("end", "the rounds after a job has left a paused GPU"),
    ("start", "the round that starts a job on a free GPU"),
    ("after", "the rounds that follow it"),
    ("slurm", "a round with nothing to do while 1,000 jobs run on Slurm"),
)
ON_SLURM = 1_000


def main() -> None:
    """Measures a queue with each number of requests and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.round", description=__doc__)
    parser.add_argument("--specs", type=int, nargs="+", default=[1, 10, 1_000, 10_000], metavar="N")
    parser.add_argument("--jobs", type=int, help="number of jobs (default: one for each of many requests)")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    columns = []
    for specs in options.specs:
        jobs = options.jobs or (specs if specs > 10 else 100_000)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            columns.append((specs, jobs, RoundBench(Path(folder), specs, jobs).measure(options.repeats)))
    print("processor time in ms, medians")
    print(f"{'requests':8}" + "".join(f"{specs:>11,}" for specs, _, _ in columns))
    print(f"{'jobs':8}" + "".join(f"{jobs:>11,}" for _, jobs, _ in columns))
    for name, meaning in MEASUREMENTS:
        print(f"{name:8}" + "".join(f"{values[name]:11.1f}" for _, _, values in columns) + f"   {meaning}")


class RoundBench:
    """A loop whose GPUs are all in use, and a queue with this many jobs and different requests."""

    def __init__(self, folder: Path, specs: int, jobs: int) -> None:
        self.specs, self.jobs, self.folder = specs, jobs, folder
        self.clock = Clock()
        self.store = Store(DataDir.of(str(folder / "state.json")), create=True)
        self.watch = GpuWatch()
        samples = tuple(GpuSample(f"U{n}", n, "card", TOTAL_MIB, 0, 0.0, ()) for n in range(GPUS))
        self.watch.accept_sample(Snapshot(self.clock.now().boot, samples))
        self.loop = self._new_loop()
        uuids = [gpu.uuid for gpu in samples]
        self.loop.recorder.record_gpus(samples, uuids, self.clock.now())
        with self.store.db.transaction():
            for uuid in uuids:
                self._hold(uuid)
            for number in range(jobs):
                self.store.insert_job(self._spec(number % specs, f"echo {number}"), "bench")

    def _new_loop(self) -> Loop:
        # Nothing claims the attempts, so each of them stays open and holds its GPUs.
        settings = Settings(launch_deadline_s=1e9)
        executors = Executors(DirectExecutor(), EngineExecutor("slurm"))
        return Loop(self.store, self.watch, self._prepare, executors, settings, self.clock)

    def _prepare(self, attempt_id: int) -> None:
        attempt = self.store.attempt(attempt_id)
        assert attempt is not None
        folder = self.store.data_dir.attempt_folder(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("spec.json", "command.sh"):
            (folder / name).touch()

    def _spec(self, number: int, command: str) -> JobSpec:
        """Returns one of many requests: for memory, for the default of a model, for memory on two GPUs."""
        if number % 3 == 1:
            command += f" --llm m{number}"
        base = JobSpec("command", command, str(self.folder), command=command)
        if number % 3 == 1:
            return base
        vram = TOTAL_MIB - HELD_MIB + number
        if number % 3 == 2:
            return replace(base, vram=vram, gpus=2)
        return replace(base, vram=vram, allowed=tuple(range(number % GPUS, GPUS)))

    def _hold(self, uuid: str) -> None:
        job = self.store.insert_job(JobSpec("command", "held", str(self.folder), command="held"), "bench")
        shared = int(uuid[1:]) % 2
        start = act.Start(job, (uuid,), 0, vram=HELD_MIB) if shared else act.Start(job, (uuid,), 1000)
        self.loop.recorder.record([start], self.clock.now())

    def _run_on_slurm(self) -> None:
        """Starts jobs on Slurm, and writes what its agent would write. A round never waits for the agent."""
        for number in range(ON_SLURM):
            spec = JobSpec("command", "far", str(self.folder), command=f"far {number}", on="slurm")
            start = act.Start(self.store.insert_job(spec, "bench"), (), 0, engine="slurm")
            self.loop.recorder.record([start], self.clock.now())
        self._rest()
        for one in self.store.active_attempts():
            if one.is_on_engine:
                folder = self.store.data_dir.attempt_folder(one)
                claim = {"token": one.token, "pid": 5, "start_ticks": 5, "boot_id": "node"}
                engine = {
                    "token": one.token, "state": "running", "native_id": "7", "node": "n1", "reason": "",
                }  # fmt: skip
                (folder / "claim").write_text(json.dumps(claim))
                (folder / ENGINE_FILE).write_text(json.dumps(engine))
        self._rest()

    def _free(self, uuid: str) -> None:
        """Ends the attempts on a GPU."""
        for attempt in self.store.active_attempts():
            if uuid in attempt.gpus:
                now = self.clock.now()
                end = end_attempt(attempt, Outcome.COMPLETED, now, self.loop.settings)
                released = end.released(now)
                steps = [attempt, end, released, released.closed()]
                self.loop.recorder.record(starmap(act.AttemptChanged, pairwise(steps)), now)

    def _pause(self, uuid: str, *, paused: bool) -> None:
        gpu = next(one for one in self.store.gpus() if one.uuid == uuid)
        change = act.GpuChanged(gpu, replace(gpu, paused=paused))
        self.loop.recorder.record([change], self.clock.now())

    def measure(self, repeats: int) -> dict[str, float]:
        """Returns the median of each measurement in ms, by its name."""
        found: dict[str, list[float]] = {name: [] for name, _ in MEASUREMENTS}
        self._rest()
        for _ in range(3):
            self.loop = self._new_loop()
            found["first"].append(self._timed(self._rest))
        for number in range(repeats):
            uuid = f"U{number % GPUS}"
            found["quiet"].append(self._timed(self._rest))
            self.store.insert_job(self._spec(self.specs + 3 * number, f"fresh {number}"), "bench")
            found["append"].append(self._timed(self._rest))
            self._pause(uuid, paused=True)
            self._rest()
            self._free(uuid)
            found["end"].append(self._timed(self._rest))
            self._pause(uuid, paused=False)
            found["start"].append(self._timed(self.loop.tick))
            found["after"].append(self._timed(self._rest))
            if not any(uuid in attempt.gpus for attempt in self.store.active_attempts()):
                raise SystemExit(f"no job has started on GPU {uuid[1:]}")
        self._run_on_slurm()
        found["slurm"] = [self._timed(self._rest) for _ in range(repeats)]
        return {name: statistics.median(values) for name, values in found.items()}

    def _rest(self) -> None:
        """Runs rounds until nothing is left to do."""
        for _ in range(_MAX_ROUNDS):
            if self.loop.tick() is not None:
                return
        raise SystemExit(f"the loop does not come to rest within {_MAX_ROUNDS} rounds")

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return 1000 * (time.process_time() - began)


if __name__ == "__main__":
    main()
