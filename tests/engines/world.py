"""A scheduler whose jobs run on an engine: the loop and the agent are real, and so are the runners.

The engine is a fake that starts the guard of each job on this machine, when the test lets it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.attempts.executors import EngineExecutor
from gpu_scheduler.core.model.job import AttemptStatus
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.engines.agent import EngineAgent, SharedFolder, copy_runner, owner_of
from gpu_scheduler.engines.engine import EngineJob, EngineUnavailableError, Order, RefusedError, Resources
from tests.loop.rig import Rig

#: Divides the times of the agent and of the guards.
SCALE = 60.0


class FakeEngine:
    """An engine whose jobs begin when `capacity` allows. refusals, impossible: texts of refusals, if any.

    is_away: whether it does not answer. is_full: whether it takes no more jobs for now. loses_answers:
    whether it accepts jobs, but its answers are lost.
    """

    def __init__(self, start: Path, python: str) -> None:
        self._command = (python, "-B", "-I", "-S", str(start), "--guard")
        self.capacity = 100
        self.is_away = self.loses_answers = self.is_full = False
        self.refusal: str | None = None
        self.impossible: dict[Resources, str] = {}
        self.orders: list[Order] = []
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.cancelled: set[str] = set()
        self.forgotten: set[str] = set()

    def submit(self, order: Order) -> None:
        """Accepts the job of an attempt."""
        self._answer()
        if self.refusal is not None:
            raise RefusedError(self.refusal)
        if self.is_full:
            raise EngineUnavailableError("QOSMaxSubmitJobPerUserLimit")
        self.orders.append(order)
        if self.loses_answers:
            raise EngineUnavailableError("the answer was lost")

    def jobs(self) -> Mapping[str, EngineJob]:
        """Starts what fits, and returns the jobs."""
        self._answer()
        found = {}
        for number, order in enumerate(self.orders, 1):
            token = order.token
            running = [one for one in self.processes.get(token, ()) if one.poll() is None]
            if (
                token not in self.processes
                and token not in self.cancelled
                and self._running() < self.capacity
            ):
                running = [self.start(order)]
            state = "running" if running else "ended"
            if token not in self.processes and token not in self.cancelled:
                state = "pending"
            reason = "CANCELLED" if token in self.cancelled else {"pending": "Resources"}.get(state, "")
            node = "here" if token in self.processes else ""
            found[token] = EngineJob(state, str(number), node, reason, token in self.cancelled)  # type: ignore[arg-type]
        return {token: job for token, job in found.items() if token not in self.forgotten}

    def cancel(self, token: str) -> None:
        """Cancels a job, as Slurm does: with SIGTERM to all of its processes."""
        self._answer()
        self.cancelled.add(token)
        for process in self.processes.get(token, ()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def problem(self, resources: Resources) -> str | None:
        """Returns why no node can run such a job."""
        self._answer()
        return self.impossible.get(resources)

    def start(self, order: Order) -> subprocess.Popen[bytes]:
        """Starts the guard of a job, as a node would."""
        env = {
            "PATH": os.environ["PATH"], "SLURM_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": "3",
            "GPU_SCHEDULER_TIME_SCALE": str(SCALE),
        }  # fmt: skip
        process = subprocess.Popen([*self._command, order.folder], env=env, start_new_session=True)
        self.processes.setdefault(order.token, []).append(process)
        return process

    def _running(self) -> int:
        return sum(one.poll() is None for some in self.processes.values() for one in some)

    def _answer(self) -> None:
        if self.is_away:
            raise EngineUnavailableError("the controller does not answer")

    def close(self) -> None:
        """Ends all guards."""
        for some in self.processes.values():
            for process in some:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class World:
    """A rig whose jobs run on a fake engine. `step` runs a look of the agent and the rounds."""

    def __init__(self, folder: Path, python: str) -> None:
        self.rig = Rig(folder)
        self.shared = folder / "shared"
        self.shared.mkdir(exist_ok=True)
        executor = EngineExecutor("slurm")
        self.rig.loop._executors._by_name["slurm"] = executor
        self.rig.launcher._executors._by_name["slurm"] = executor
        self.engine = FakeEngine(copy_runner(self.shared), python)
        self.agent = self.new_agent()

    def new_agent(self) -> EngineAgent:
        """Returns an agent that knows nothing of earlier ones."""
        place = SharedFolder(self.shared / "store", owner_of(self.rig.store, "store"))
        place.claim()
        return EngineAgent("slurm", self.rig.store, self.engine, place, LlmConfig, scale=SCALE)

    def submit(self, command: str, **values: object) -> int:
        """Inserts a job that runs on the engine; returns its id."""
        return self.rig.add_job(command, on="slurm", **values)

    def step(self) -> None:
        """Runs rounds, a look of the agent, and rounds again."""
        self.rig.tick()
        self.agent.look()
        self.rig.tick()

    def status(self, job_id: int) -> AttemptStatus:
        """Returns what the local folder of the newest attempt shows."""
        [one] = [a for a in self.rig.tick().attempts if a.job_id == job_id]
        return one.status

    def shared_folder(self, job_id: int) -> Path:
        """Returns the folder in which the runner of the newest attempt works."""
        return self.agent._shared.path / self.rig.store.attempts(job_id)[-1].token
