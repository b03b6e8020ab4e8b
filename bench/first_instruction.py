"""From the append of a line to the first instruction of its job, beside the bare chain on the same job.

`python -m bench.first_instruction [--rounds 20]` prints medians in milliseconds. The bare chain is the same
runner on the same folder, started by hand (direct, and with `screen -dmS`), without a scheduler. Rounds of
both alternate, so that other work on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_scheduler.core.command import build
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.session import session_name
from gpu_scheduler.executors import Executor
from gpu_scheduler.executors.direct import DirectExecutor
from gpu_scheduler.executors.screen import ScreenExecutor
from gpu_scheduler.runner.protocol import prepare


def main() -> None:
    """Measure both executors and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_instruction", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"append to first instruction, medians of {rounds}, milliseconds")
    print(f"{'':8} {'scheduler':>10} {'bare chain':>11} {'difference':>11}")
    for name, executor in (("direct", DirectExecutor()), ("screen", ScreenExecutor())):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            ours, bare = measure(Path(folder), executor, rounds)
        one, other = statistics.median(ours), statistics.median(bare)
        print(f"{name:8} {one:10.1f} {other:11.1f} {one - other:11.1f}", flush=True)


def measure(folder: Path, executor: Executor, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each round, with the scheduler and without."""
    (folder / "jobs.txt").touch()
    options = ["--screen"] if isinstance(executor, ScreenExecutor) else []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with (folder / "out").open("wb") as out:
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "gpu_scheduler", "start", "--simulate=4", "--log-dir=logs", *options],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        _seen(folder / "out", "scheduler up")
        ours: list[float] = []
        bare: list[float] = []
        for n in range(rounds):
            ours.append(_appended(folder, n))
            bare.append(_by_hand(folder, executor, n))
    finally:
        scheduler.terminate()
        scheduler.wait()
    return ours, bare


def _appended(folder: Path, n: int) -> float:
    line = f"[share=0.25] {_command(folder / f'ours{n}')}\n"
    with (folder / "jobs.txt").open("a") as file:
        began = time.time()
        file.write(line)
    return _first(folder / f"ours{n}", began)


def _by_hand(folder: Path, executor: Executor, n: int) -> float:
    token = secrets.token_hex(16)
    command = _command(folder / f"bare{n}")
    spec = JobSpec("command", command, str(folder), command=command)
    built = build(spec, [0], os.environ, token, 10_000 + n, 1, None, "physical")
    log = folder / f"bare{n}.log"
    log.touch(mode=0o600)
    terminal = isinstance(executor, ScreenExecutor)
    run = folder / "bare" / str(n)
    prepare(
        run,
        {
            "job": 10_000 + n, "attempt": 1, "token": token,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "cwd": str(folder), "umask": 0o022, "env": built.env, "terminal": terminal,
            "session": session_name([0], spec.mode, 10_000 + n) if terminal else None,
            "log": str(log), "header": "", "timeout_s": None, "term_grace_s": 10.0,
        },
        built.command_sh,
    )  # fmt: skip
    began = time.time()
    executor.launch(run)
    first = _first(folder / f"bare{n}", began)
    executor.reap()
    return first


def _command(path: Path) -> str:
    return f"echo $EPOCHREALTIME > {path}.tmp; mv {path}.tmp {path}"


def _first(path: Path, began: float) -> float:
    text = _seen(path, "\n")
    time.sleep(0.1)  # both kinds of round begin on a machine at rest
    return (float(text.replace(",", ".")) - began) * 1000


def _seen(path: Path, text: str) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and text in (found := path.read_text()):
            return found
        time.sleep(0.002)
    raise SystemExit(f"{path} did not come")


if __name__ == "__main__":
    main()
