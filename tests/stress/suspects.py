"""P3: one of four simulated GPUs fails its jobs for a while, and the scheduler is killed meanwhile.

With one retry, no job may be lost. The GPU is put aside after a few failures, in every scheduler anew, and no
other GPU ever is. After `resume`, the GPU takes jobs again.
"""

from __future__ import annotations

from tests.stress.harness import Stage, pause
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_GPUS, _JOBS = 4, 20
#: Failures of the bad GPU in one round: three put it aside, and a job may have started there meanwhile.
_MOST_FAILURES = 4
#: Run as `sh job.sh SECONDS N`. Fails at once on the GPU that the file `bad` names.
_JOB = """\
case $CUDA_VISIBLE_DEVICES in $(cat bad)|SIM-$(cat bad)) exit 1;; esac
sleep "$1"
"""


def one_bad_gpu(order: Order) -> Findings:
    """Runs 10 rounds of 20 jobs; another GPU is bad in each round."""
    found, dice, rounds = Findings(), order.rng("suspects"), order.scaled(10)
    (order.folder / "job.sh").write_text(_JOB)
    (order.folder / "jobs.txt").touch()
    stage = Stage(order.folder, gpus=_GPUS)
    process = stage.start("--fail-retries", "1", "--suspect-after", "3")
    for number in range(rounds):
        bad = dice.randrange(_GPUS)
        (order.folder / "bad").write_text(str(bad))
        first = number * _JOBS + 1
        stage.append([f"sh job.sh {dice.uniform(0.2, 2.0):.2f} {first + at}" for at in range(_JOBS)])
        pause(dice.uniform(0.5, 5.0))
        process.kill()
        process.wait()
        process = stage.start("--fail-retries", "1", "--suspect-after", "3")
        ids = range(first, first + _JOBS)

        def ended(ids: range = ids) -> bool:
            jobs = {job["id"]: job for job in stage.status()["jobs"]}
            return all(n in jobs and jobs[n]["state"] in ("finished", "held") for n in ids)

        wait_for(ended, f"the end of round {number}", timeout_s=300, every_s=0.5)
        report = stage.status()
        jobs = [job for job in report["jobs"] if job["id"] in ids]
        failures = sum(job["attempts"] - 1 for job in jobs)
        found.count("failed attempts", failures)
        for job in jobs:
            if job["outcome"] != "completed":
                found.fault(
                    "lost", f"round {number}, GPU {bad}: job {job['id']}: {job['outcome']}, {job['reason']}"
                )
        suspect = [gpu["index"] for gpu in report["gpus"] if gpu["state"] == "suspect"]
        if failures > _MOST_FAILURES:
            found.fault("too many failures", f"round {number}: {failures} on GPU {bad}")
        if suspect not in ([bad], []) or (failures >= _MOST_FAILURES and not suspect):
            found.fault("wrong suspect", f"round {number}: {suspect} instead of GPU {bad}")
        stage.cli("resume", str(bad))
    stage.cli("stop", "--jobs")
    process.wait(120)
    found.figures |= {"jobs": rounds * _JOBS, "schedulers killed": rounds}
    return found
