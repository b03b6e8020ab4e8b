"""Compares `plan` with what happens afterwards, and measures how long it takes.

`python -m bench.forecast [--jobs 60] [--gpus 4] [--seed 1]`. Three programs run for about 1, 2 and 4 s, each
with a spread of 15 % (sigma of the lognormal distribution). Eight runs of each are completed first, so that
their times are learned. Then the jobs are appended to the jobs file at once: one in four needs two GPUs, one
in four a half. `plan` is called as soon as all of them are queued, and again for 1,000 jobs (goal: < 1 s).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from bench.scheduler import HERE, Scheduler, environment

_T = TypeVar("_T")
_MEDIAN_S = {"short.sh": 1.0, "medium.sh": 2.0, "long.sh": 4.0}
_SIGMA = 0.15
_REQUESTS = ("share=1", "share=1", "gpus=2 share=1", "share=0.5")
_LEARNED_RUNS = 8
_MANY = 1000
#: The errors that are printed: the title, the key in `plan --json`, and the key of the real time.
_ERRORS = (("start", "start_at", "started_at"), ("end", "end_at", "finished_at"))


def main() -> None:
    """Runs the jobs and prints the errors of their forecast."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast", description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with Scheduler(HERE, f"--simulate={options.gpus}", "--poll=1") as scheduler:
        for name in _MEDIAN_S:
            script = scheduler.folder / name
            script.write_text('#!/bin/sh\nexec sleep "$1"\n')
            script.chmod(0o755)
        learned = list(_lines([name for name in _MEDIAN_S for _ in range(_LEARNED_RUNS)], ["share=0.5"], rng))
        scheduler.append(learned)
        _until(lambda: _counts(scheduler).get("finished") == len(learned))
        names = rng.choices(list(_MEDIAN_S), k=options.jobs)
        scheduler.append(list(_lines(names, _REQUESTS, rng)))
        _until(lambda: sum(_counts(scheduler).values()) == len(learned) + options.jobs)
        forecast = _json(scheduler, "plan")
        _until(lambda: _counts(scheduler) == {"finished": len(learned) + options.jobs})
        _print_errors(forecast, _json(scheduler, "status", "--all")["jobs"])
        scheduler.append(list(_lines(rng.choices(list(_MEDIAN_S), k=_MANY), _REQUESTS, rng)))
        _until(lambda: sum(_counts(scheduler).values()) >= len(learned) + options.jobs + _MANY)
        times = [_cpu_s(lambda: _words(scheduler, "plan", "--all")) for _ in range(3)]
        print(f"`plan` for {_MANY:,} jobs takes {statistics.median(times):.2f} s of processor time")
        _words(scheduler, "stop", "--jobs", "--grace", "0")


def _lines(names: Iterable[str], requests: tuple[str, ...] | list[str], rng: random.Random) -> Iterator[str]:
    for name in names:
        seconds = _MEDIAN_S[name] * rng.lognormvariate(0.0, _SIGMA)
        yield f"[{rng.choice(requests)}] ./{name} {seconds:.3f}"


def _print_errors(forecast: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
    real = {job["id"]: job for job in jobs}
    waiting = [job for job in forecast["jobs"] if job["state"] == "queued" and job["start_at"] is not None]
    until = max(job["start_at"] for job in waiting) - forecast["now"]
    guesses = sum(not job["has_estimate"] for job in waiting)
    print(f"{len(waiting)} waiting jobs, the last to start after {until:.0f} s; {guesses} guesses")
    for title, expected, happened in _ERRORS:
        errors = [real[job["id"]][happened] - job[expected] for job in waiting]
        sizes = sorted(map(abs, errors))
        print(
            f"error of the {title:5}: median {statistics.median(sizes):.2f} s, 90 % within"
            f" {sizes[int(0.9 * (len(sizes) - 1))]:.2f} s, mean {statistics.mean(errors):+.2f} s"
        )
    within = sum(real[job["id"]]["finished_at"] <= job["end_p90_at"] for job in waiting)
    print(f"{100 * within / len(waiting):.0f} % of the jobs ended by the upper time")


def _counts(scheduler: Scheduler) -> dict[str, int]:
    counts: dict[str, int] = _json(scheduler, "status")["counts"]
    return counts


def _json(scheduler: Scheduler, *words: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_words(scheduler, *words, "--json"))
    return value


def _words(scheduler: Scheduler, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", *words],
        cwd=scheduler.folder, env=environment(scheduler.tree, scheduler.folder),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip


def _cpu_s(action: Callable[[], object]) -> float:
    """Returns the processor time of the programs that an action runs, which other programs hardly change."""
    began = os.times()
    action()
    ended = os.times()
    return ended.children_user + ended.children_system - began.children_user - began.children_system


def _until(condition: Callable[[], _T], timeout_s: float = 600.0) -> _T:
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit("the jobs did not get that far in time")
        time.sleep(0.2)
    return found


if __name__ == "__main__":
    main()
