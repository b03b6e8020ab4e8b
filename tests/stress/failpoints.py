"""P1 and P2: the scheduler is killed five times at each of its failpoints, while jobs run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order
from tests.stress.trace import JOB, judge, number_of

_CODES = (0, 7, 0, 3)
#: The failpoints that a round with jobs reaches, in the loop and the launcher.
_STEPS = (
    "planned", "recorded", "folder made",
    "performed Start", "performed AttemptChanged running", "performed AttemptChanged ended",
    "performed AttemptChanged released", "performed AttemptChanged closed",
)  # fmt: skip


def failpoints(order: Order) -> Findings:
    """Kills the scheduler five times at each failpoint, with both executors."""
    found = Findings()
    for step in _STEPS:
        for nth in range(1, 1 + order.scaled(5)):
            for executor in ("direct", "screen"):
                _die(order.folder / f"{step} {nth} {executor}".replace(" ", "_"), step, nth, executor, found)
    found.figures = {"named steps": len(_STEPS), **found.figures}
    return found


def _die(folder: Path, step: str, nth: int, executor: str, found: Findings) -> None:
    """Kills the scheduler when it reaches the step for the nth time, drains the queue, and judges results."""
    folder.mkdir()
    (folder / "trace.sh").write_text(JOB)
    stage = Stage(folder, command=[sys.executable, "-m", "tests.loop.crashing"])
    store = Store(DataDir.of(str(folder / "state.json")), create=True)
    for n, code in enumerate(_CODES):
        command = f"sh {folder}/trace.sh {stage.trace} {n} 0.02 {code}"
        store.insert_job(JobSpec("command", command, str(folder), command=command, share=500), "stress")
    died = stage.start(step, str(nth), executor, ready=False).wait(60)
    found.count("kills" if died == -signal.SIGKILL else "steps not reached")
    stage.start("", "1", executor, ready=False).wait(60)
    exit_codes = {number_of(row["text"]): row["exit_code"] for row in store.db.rows("SELECT * FROM job")}
    store.close()
    judge(stage.trace, dict(enumerate(_CODES)), dict(exit_codes), killed=False).report_to(found)
