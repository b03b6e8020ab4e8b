"""P2: of several runners that race for one attempt, and of ten schedulers started at once, only one wins."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from gpu_scheduler.attempts.executors import DirectExecutor
from tests.runner.attempt import PreparedAttempt, patched
from tests.stress.harness import Stage, environment
from tests.stress.kills import none_left, stage_for
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, outcomes_of
from tests.waiting import wait_for

#: Number of processes that race for each attempt.
RACERS = 3
#: Patch for a runner whose claim file does not exclude other runners (negative control).
_OPEN_CLAIM = """
def link(name, shown, src_dir_fd, dst_dir_fd):
    os.close(os.open(shown, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=dst_dir_fd))
os.link = link
"""


def races(order: Order) -> Findings:
    """Lets three processes claim each of 10,000 attempts at the same time."""
    found, rounds = Findings(), order.scaled(10_000)
    for number in range(rounds):
        (order.folder / str(number)).mkdir()
    # Fork the racers from another process, because a process with threads should not fork.
    raced = subprocess.run(
        [sys.executable, "-m", "tests.stress.racers", str(order.folder), str(rounds), str(RACERS),
         *["control"] * order.is_control],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    won: list[list[int]] = json.loads(raced.stdout)
    for number, winners in enumerate(won):
        if len(winners) != 1:
            found.fault("run twice" if winners else "lost", f"race {number} was won by {winners}")
        elif json.loads((order.folder / str(number) / "claim").read_bytes())["pid"] != winners[0]:
            found.fault("run twice", f"race {number}: the claim names a process other than the winner")
        if len(list((order.folder / str(number)).iterdir())) != 1:
            found.fault("left behind", f"race {number}: {os.listdir(order.folder / str(number))}")
    firsts = Counter(winners[0] for winners in won if winners)
    found.figures = {
        "races": rounds,
        "processes in each race": RACERS,
        "races won by each process": "/".join(map(str, firsts.values())),
    }
    return found


def runners(order: Order) -> Findings:
    """Launches each of 300 attempts three times at once. Only one of the runners may start the command."""
    found, rounds = Findings(), order.scaled(300)
    executor = patched(order.folder, _OPEN_CLAIM) if order.is_control else DirectExecutor()
    for number in range(rounds):
        home = order.folder / str(number)
        home.mkdir()
        attempt = PreparedAttempt(home, f"echo start >> {home}/trace; exit 7")
        attempt.prepare()
        for _ in range(3):
            executor.launch(attempt.ref)
        wait_for(lambda: none_left(executor), "the ends of all runners")
        trace = home / "trace"
        started = trace.read_text().count("start") if trace.exists() else 0
        result = attempt.status().result
        if started != 1:
            found.fault("run twice" if started else "lost", f"race {number}: {started} starts")
        elif result is None or result.exit_code != 7:
            found.fault("wrong codes", f"race {number}: {result}")
    found.figures = {"races": rounds, "runners in each race": 3}
    return found


def instances(order: Order) -> Findings:
    """Starts ten schedulers at once, 20 times, with new jobs each time. Kills the winner each time."""
    found, rounds = Findings(), order.scaled(20)
    stage = stage_for(order.folder, "control" if order.is_control else "direct")
    codes = {}
    for number in range(rounds):
        numbers = range(5 * number, 5 * number + 5)
        codes.update({n: n % 4 for n in numbers})
        lines = [f"sh {order.folder}/trace.sh {stage.trace} {n} 0.2 {codes[n]}" for n in numbers]
        stage.append(lines if order.is_control else [f"[share=0.5] {line}" for line in lines])
        with _ten_schedulers(stage, losers=0 if order.is_control else 9, found=found) as winner:
            if winner is not None:
                winner.kill()
    stage.drain(120)
    outcomes = {} if order.is_control else outcomes_of(stage.status())
    verdict = judge(stage.trace, codes, outcomes if outcomes else dict(codes), killed=False)
    verdict.report_to(found)
    found.figures = {"rounds": rounds, "schedulers in each round": 10, "jobs": len(codes)}
    return found


@contextlib.contextmanager
def _ten_schedulers(stage: Stage, losers: int, found: Findings) -> Iterator[subprocess.Popen[bytes] | None]:
    """Starts ten schedulers, waits until `losers` of them have ended, and yields the one that is left."""
    at = stage.output_file.stat().st_size if stage.output_file.exists() else 0
    processes = [stage.start(ready=False) for _ in range(10)]

    def given_up() -> bool:
        return sum(process.poll() is not None for process in processes) >= losers

    try:
        wait_for(given_up, f"{losers} of 10 schedulers gave up", timeout_s=60)
        left = [process for process in processes if process.poll() is None]
        if losers and len(left) != 1:
            found.fault("several schedulers", f"{len(left)} of 10 are up")
        for process in processes:
            if process.returncode not in (None, 1):
                found.fault("wrong refusal", f"a second scheduler ended with {process.returncode}")
        if left:
            stage.until_up(left[0], at)
        yield left[0] if left else None
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
