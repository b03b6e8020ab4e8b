"""Searches for good settings with Optuna, which asks for trials and is told how each job ended.

    pip install optuna
    python3 examples/optuna_search.py [URL]         # 20 trials, of which 4 run at a time

The objective is a job, so trials run on any free GPU, survive this script, and show up in `status`.
"""

from __future__ import annotations

import os
import re
import sys

import optuna
from optuna.trial import Trial, TrialState

from gpu_scheduler import Client
from gpu_scheduler.client import Job

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "score.py")
TRIALS, AT_ONCE = 20, 4


def main() -> None:
    client = Client(sys.argv[1] if sys.argv[1:] else None, os.environ.get("QUEUE_TOKEN"))
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    running: dict[Job, Trial] = {}
    for _ in range(TRIALS):
        if len(running) == AT_ONCE:
            tell(study, running, next(client.as_completed(running)))
        trial = study.ask()
        lr, layers = trial.suggest_float("lr", 1e-5, 1.0, log=True), trial.suggest_int("layers", 1, 8)
        name = f"optuna/{trial.number}"
        running[client.submit(SCRIPT, "--lr", lr, "--layers", layers, name=name, vram="2G")] = trial
    for job in client.as_completed(list(running)):
        tell(study, running, job)
    counts = {state.name.lower(): len(study.get_trials(states=[state])) for state in TrialState}
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    print(f"best: {study.best_value:.4f} with {study.best_params}")


def tell(study: optuna.Study, running: dict[Job, Trial], job: Job) -> None:
    """Tells the study how the job of a trial ended."""
    trial, log = running.pop(job), job.log()
    score = re.search(r"^score: (\S+)", log, re.MULTILINE)
    if not job.result().ok:
        study.tell(trial, state=TrialState.FAIL)
    elif score is None:
        for step, value in re.findall(r"^step (\d+): (\S+)", log, re.MULTILINE):
            trial.report(float(value), int(step))
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, float(score[1]))


if __name__ == "__main__":
    main()
