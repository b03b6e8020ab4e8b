"""P12: a scheduler is killed before or after one of its commits, or at a failpoint, while jobs end.

Lines of a jobs file wait for a job that fails, so that some of them are skipped. Then the job is retried and
completes. In both halves, a first scheduler dies at one step and a second one does the rest.
"""

from __future__ import annotations

import signal
from pathlib import Path

from gpu_scheduler.store.requests import add_request
from tests.stress.dependency_judge import (
    install_triggers,
    judge_counts,
    judge_outcomes,
    judge_skips,
    judge_starts,
)
from tests.stress.dependency_state import judge_lines
from tests.stress.dependency_trace import JOB, JobsTrace
from tests.stress.dying_scheduler import DIES_AT
from tests.stress.gated import end_scheduler
from tests.stress.harness import Stage, environment, scheduler
from tests.stress.part import Findings, Order

#: The attributes of each line, and the outcomes of its job while the first job fails and after its retry.
_LINES = (
    ("name=first", "failed", "completed"),
    ("name=second after=first", "skipped", "completed"),
    ("after=second", "skipped", "completed"),
    ("name=any after-any=first", "completed", "completed"),
    ("after=any after-any=second", "completed", "completed"),
)
_TIMEOUT_S = 60.0


def steps(order: Order) -> Findings:
    """Kills a scheduler at every third step of each half, beginning with a random one."""
    found, stride = Findings(), round(3 / order.factor)
    for half in range(2):
        step, died = order.rng("steps").randint(1, stride), True
        while died:
            died = _kill_at(order.folder / f"{half}-{step}", half, step, found)
            step += stride
    return found


def _kill_at(folder: Path, half: int, step: int, found: Findings) -> bool:
    """Runs both halves, and kills the scheduler of one of them. Returns whether it has reached this step."""
    (folder / "codes").mkdir(parents=True)
    (folder / "job.sh").write_text(JOB)
    env = {**environment(), DIES_AT: "0"}
    stage = Stage(folder, command=scheduler(folder, program="tests.stress.dying_scheduler"), env=env)
    stage.jobs_file.touch()
    end_scheduler(stage.start())
    store = stage.store()
    install_triggers(store)
    for number in range(len(_LINES)):
        (folder / "codes" / str(number)).write_text("0" if number else "7")
    command = f"sh {folder}/job.sh {stage.trace}"
    stage.append([f"[{block}] {command} {n} 0 {folder}/codes" for n, (block, *_) in enumerate(_LINES)])
    died = False
    for part in range(2):
        if part:
            (folder / "codes" / "0").write_text("0")
            add_request(store, "retry", "1", "stress")
        if part == half:
            stage.env[DIES_AT] = str(step)
            died = stage.drain(_TIMEOUT_S) == -signal.SIGKILL
            found.count("kills", int(died))
            stage.env[DIES_AT] = "0"
        stage.drain(_TIMEOUT_S)
        rows = store.db.rows("SELECT outcome FROM job ORDER BY id")
        outcomes = [row["outcome"] for row in rows]
        if outcomes != [line[1 + part] for line in _LINES]:
            found.fault("wrong outcomes", f"half {half}, step {step}: {outcomes} after half {part}")
    trace = JobsTrace.read(stage.trace)
    judge_starts(store, trace, found)
    judge_skips(store, found)
    judge_counts(store, found)
    judge_outcomes(store, trace, found)
    judge_lines(store, stage.jobs_file, found)
    store.close()
    return died
