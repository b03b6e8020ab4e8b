"""Runs a scheduler without GPUs that holds the lock and carries out requests by the real rules.

Usage: python -m tests.cli.scheduler_process STATE_FILE [deaf|rising]. A `deaf` scheduler never answers. A
`rising` scheduler is still starting when it is asked to end.
"""

from __future__ import annotations

import sys
import time

from gpu_scheduler.attempts.executors import DirectExecutor, Executors, LaunchError
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.scheduling.actions import AnswerRequest
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.rounds.loop import Loop
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import InstanceLock
from gpu_scheduler.store.store import Store


def refuse_launch(attempt_id: int) -> None:
    raise LaunchError("this scheduler starts nothing")


def main() -> None:
    home = DataDir.of(sys.argv[1])
    lock = InstanceLock(home.lock)
    assert lock.acquire()
    while not home.database.exists():
        time.sleep(0.005)
    store = Store(home)
    loop = Loop(store, GpuWatch(), refuse_launch, Executors(DirectExecutor()), Settings(), Clock())
    if "rising" in sys.argv:
        while not (found := [wish.request_id for wish in open_requests(store)]):
            time.sleep(0.005)
        loop.recorder.record(
            [AnswerRequest(wish, RequestAnswer(AnswerCode.SCHEDULER_ENDED)) for wish in found], Clock().now()
        )
    while not loop.stop_requested:
        if "deaf" not in sys.argv:
            while not loop.stop_requested and loop.tick() is None:
                pass
        time.sleep(0.005)


if __name__ == "__main__":
    main()
