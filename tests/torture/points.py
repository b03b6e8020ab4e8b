"""P1 and P2: the scheduler dies at each of its named steps, five times at each, with jobs about."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.torture.harness import Stage
from tests.torture.part import Found, Order
from tests.torture.trace import JOB, judge, number_of

_CODES = (0, 7, 0, 3)
#: The steps of a round that jobs go through; see `reached` in the loop and the launcher.
_STEPS = (
    "planned", "recorded", "folder made", "performed Start", "performed Move", "performed Close",
    "performed Release", "performed Cooled",
)  # fmt: skip


def points(order: Order) -> Found:
    """Each step five times in both executors."""
    found = Found()
    for step in _STEPS:
        for nth in range(1, 1 + order.of(5)):
            for executor in ("direct", "screen"):
                _die(order.folder / f"{step} {nth} {executor}".replace(" ", "_"), step, nth, executor, found)
    found.figures = {"steps": len(_STEPS), **found.figures}
    return found


def _die(folder: Path, step: str, nth: int, executor: str, found: Found) -> None:
    """Die the nth time that the step is reached, then run to the end, and compare."""
    folder.mkdir()
    (folder / "trace.sh").write_text(JOB)
    stage = Stage(folder, command=[sys.executable, "-m", "tests.loop.crashing"])
    store = Store(Home.of(str(folder / "state.json")), create=True)
    for n, code in enumerate(_CODES):
        command = f"sh {folder}/trace.sh {stage.trace} {n} 0.02 {code}"
        store.insert_job(JobSpec("command", command, str(folder), command=command, share=500), "torture")
    died = stage.start(step, str(nth), executor, ready=False).wait(60)
    found.count("dead at the step" if died == -signal.SIGKILL else "not reached")
    stage.start("", "1", executor, ready=False).wait(60)
    said = {number_of(row["text"]): row["exit_code"] for row in store.db.rows("SELECT * FROM job")}
    store.close()
    judge(stage.trace, dict(enumerate(_CODES)), dict(said), killed=False).tell(found)
