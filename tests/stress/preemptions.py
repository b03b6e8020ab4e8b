"""P13: jobs are preempted while they ignore it, save their work, end by themselves or are cancelled.

Meanwhile, the scheduler runs, is killed at random moments, or is down. Each job must end in the right state,
and a withdrawn preemption must leave its job alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

from gpu_scheduler.control import job_requests
from gpu_scheduler.control import preempt as app
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.job_lists import jobs_meant
from gpu_scheduler.store.requests import open_requests
from tests.stress.gated import end_scheduler
from tests.stress.harness import Stage, pause, program_for, scheduler
from tests.stress.part import Findings, Order
from tests.stress.preemption_cases import JOB, Case
from tests.waiting import wait_for

_KINDS = ("ignores", "saves", "ends", "cancelled", "twice")
_GPUS = 4
#: Seconds within which every job must have its end in the store after all front ends are done.
_SETTLE_S = 40.0


def races(order: Order) -> Findings:
    """Runs 150 batches, each with a job of every kind: 50 while the scheduler runs, dies, or is down."""
    found, dice = Findings(), order.rng("preemptions")
    for number in range(order.scaled(150)):
        folder = order.folder / str(number)
        folder.mkdir()
        batch = _Batch(folder, order, dice, number, found)
        try:
            batch.run(("up", "killed", "down")[number % 3])
        finally:
            batch.close()
        shutil.rmtree(folder, ignore_errors=order.is_control)
    return found


class _Batch:
    """One job of each kind under one scheduler."""

    def __init__(self, folder: Path, order: Order, dice: random.Random, number: int, found: Findings) -> None:
        (folder / "job.sh").write_text(JOB)
        (folder / "jobs.txt").touch()
        self._dice, self._found, self._is_control = dice, found, order.is_control
        self._stage = Stage(folder, command=scheduler(folder, gpus=_GPUS, program=program_for(order)))
        self._location = Location(str(self._stage.home.state_file), runs_rounds=True)
        first = number * len(_KINDS)
        self._cases = [
            Case(first + index, kind, folder, order.rng(f"{number} {kind}"), self._preempt, self._cancel)
            for index, kind in enumerate(_KINDS)
        ]
        self._process = self._stage.start()

    def run(self, mode: str) -> None:
        """Runs the batch. mode: what happens to the scheduler meanwhile."""
        self._stage.append([self._line(case) for case in self._cases])
        wait_for(lambda: self._trace().count(" start ") == len(self._cases), "all jobs started")
        if mode == "down":
            end_scheduler(self._process, signal.SIGKILL)
        threads = [threading.Thread(target=self._act, args=(case,)) for case in self._cases]
        for thread in threads:
            thread.start()
        while mode == "killed" and any(thread.is_alive() for thread in threads):
            pause(self._dice.uniform(0.0, 0.4))
            end_scheduler(self._process, signal.SIGKILL)
            self._found.count("scheduler kills")
            self._process = self._stage.start()
        for thread in threads:
            thread.join()
        if mode == "down":
            self._process = self._stage.start()
        self._settle()
        self._judge(mode)

    def close(self) -> None:
        """Ends the scheduler and what is left of the jobs."""
        end_scheduler(self._process, signal.SIGKILL)
        (self._stage.folder / "job.sh").unlink()

    def _line(self, case: Case) -> str:
        folder, stage = self._stage.folder, self._stage
        attributes = f"name={case.name} share=0.5 checkpoints={case.checkpoint.parent}/*"
        return f"[{attributes}] sh {folder}/job.sh {stage.trace} {case.number} {case.gate} '{case.on_term}'"

    def _trace(self) -> str:
        return self._stage.trace.read_text() if self._stage.trace.exists() else ""

    def _act(self, case: Case) -> None:
        try:
            case.act()
        except Exception as error:  # noqa: BLE001 - reported as a fault of the case
            case.faults.append(repr(error))

    def _preempt(self, name: str, timeout_s: float, force: bool) -> app.PreemptReport:
        if self._is_control:
            return self._preempt_without_the_scheduler(name, timeout_s)
        return app.preempt(self._location, name, timeout_s, force=force)

    def _cancel(self, name: str, grace_s: float) -> None:
        job_requests.cancel(self._location, [name], grace_s)

    def _preempt_without_the_scheduler(self, name: str, timeout_s: float) -> app.PreemptReport:
        """Signals the job, waits, and takes it for preempted, as simple schedulers do."""
        number = name.removeprefix("job")
        words = [line.split() for line in self._trace().splitlines()]
        [pid] = [int(line[2]) for line in words if line[:2] == [number, "start"]]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        pause(min(timeout_s, 1.0))
        job = self._job(name)
        return app.PreemptReport(job.id, app.PreemptEnd.ENDED, job, outcome=Outcome.PREEMPTED)

    def _job(self, name: str) -> Job:
        store = self._stage.store()
        try:
            return jobs_meant(store, name)[0]
        finally:
            store.close()

    def _settle(self) -> None:
        """Waits until the scheduler has carried out all requests, then lets the running jobs end."""
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end and not all(map(self._is_settled, self._cases)):
            pause(0.05)
        for case in self._cases:
            if not self._is_settled(case):
                case.faults.append(f"stuck: {self._job(case.name)}")
            case.gate.touch()
        while time.monotonic() < end and not all(map(self._has_ended, self._cases)):
            pause(0.05)

    def _is_settled(self, case: Case) -> bool:
        store = self._stage.store()
        try:
            job = jobs_meant(store, case.name)[0]
            is_asked = any(request.target == str(job.id) for request in open_requests(store))
        finally:
            store.close()
        continues = job.state is JobState.RUNNING and job.stop is None
        return not is_asked and (continues or self._has_ended(case))

    def _has_ended(self, case: Case) -> bool:
        return self._job(case.name).state in (JobState.HELD, JobState.FINISHED)

    def _judge(self, mode: str) -> None:
        for case in self._cases:
            case.judge(self._job(case.name), self._trace().splitlines().count(f"{case.number} term"))
            self._found.count(f"{case.kind}, scheduler {mode}")
            ends = ", ".join(report.end.value for report in case.reports)
            for text in case.faults:
                self._found.fault(case.kind, f"{case.name}, scheduler {mode} ({ends}): {text}")
