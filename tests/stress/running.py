"""P3: jobs run for seconds while schedulers and Screen sessions are killed.

The scheduler is killed, ended, or replaced with a copy of itself. Every exit code and every log must be exact
and complete.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.store.requests import add_request, request_answer
from tests.stress.harness import ROOT, Stage, environment, kill, pause, scheduler
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, number_of, outcomes_of
from tests.waiting import wait_for

#: Run as `sh talk.sh TRACE N TICKS CODE`. Prints a line every quarter of a second, and another at its end.
_JOB = """\
echo "$2 start $$" >> "$1"
i=0
while [ $i -lt "$3" ]; do echo "job $2 tick $i"; sleep 0.25; i=$((i+1)); done
echo "job $2 says goodbye with $4"
echo "$2 end $4" >> "$1"
exit "$4"
"""
#: Run as `sh wait.sh TRACE N FIFO CODE`. Ends when no process has FIFO open for writing any more.
_WAITER = """\
echo "$2 start $$" >> "$1"
read x < "$3"
echo "$2 end $4" >> "$1"
exit "$4"
"""
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def untouched(order: Order) -> Findings:
    """Runs 300 jobs of 3 to 10 s, mostly in Screen. Ends 300 schedulers and kills 200 Screen sessions."""
    found, dice = Findings(), order.rng("untouched")
    stage = _stage(order)
    count, times, screens = order.scaled(300, 12), order.scaled(300, 6), order.scaled(200, 4)
    slowest = 40 if order.full_length else 7
    ticks = {n: dice.randint(slowest * 3 // 10, slowest) for n in range(count)}
    codes = {n: dice.choice([0, 0, 0, 1, 3, 7, 42, 255]) for n in range(count)}
    lines = [f"sh {order.folder}/talk.sh {stage.trace} {n} {ticks[n]} {code}" for n, code in codes.items()]
    stage.append(lines if order.is_control else [f"[share=0.5] {line}" for line in lines])
    ends: dict[str, int] = {}
    killed: set[int] = set()
    while sum(ends.values()) < times or (len(killed) < screens and _open(stage, codes)):
        process = _start(stage, order, dice)
        pause(dice.uniform(0.05, 0.5))
        for pid in _sessions(stage)[: 0 if order.is_control else dice.randint(1, 3)]:
            if pid not in killed and len(killed) < screens and kill(pid):
                killed.add(pid)
        number = dice.choice(_SIGNALS)
        ends[number.name] = ends.get(number.name, 0) + 1
        process.send_signal(number)
        process.wait(60)
        if not _open(stage, codes):
            break
    stage.drain(240 + count)
    _judge(stage, order, codes, ticks, found)
    found.figures = {
        "jobs": count,
        "schedulers ended": sum(ends.values()),
        "Screen processes killed": len(killed),
    }
    found.figures |= {f"schedulers ended by {name}": number for name, number in sorted(ends.items())}
    return found


def _stage(order: Order) -> Stage:
    folder = order.folder
    (folder / "talk.sh").write_text(_JOB)
    (folder / "jobs.txt").touch()
    if order.is_control:
        control = ["tests.stress.control_scheduler", "jobs.txt", "control.json", "6"]
        return Stage(folder, command=[sys.executable, "-m", *control])
    # An upgrade replaces the program with another copy while runners of the old one still exist.
    shutil.copytree(ROOT / "gpu_scheduler", folder / "upgrade" / "gpu_scheduler")
    return Stage(folder, command=scheduler(folder, gpus=3))


def _start(stage: Stage, order: Order, dice: random.Random) -> subprocess.Popen[bytes]:
    if order.is_control:
        return stage.start()
    stage.env = environment(dice.choice([ROOT, stage.folder / "upgrade"]))
    return stage.start(*["--screen"] * (dice.random() < 0.8))


def _open(stage: Stage, codes: dict[int, int]) -> bool:
    """Returns whether some job has not ended yet."""
    return not stage.trace.exists() or stage.trace.read_text().count(" end ") < len(codes)


def _sessions(stage: Stage) -> list[int]:
    """Returns the pids of the SCREEN processes of running jobs, according to the runners' claims."""
    pids = []
    for folder in stage.home.runs.glob("*/*") if stage.home.runs.exists() else ():
        try:
            session = json.loads((folder / "claim").read_text())["session"]
        except (OSError, ValueError):
            continue
        if session and not (folder / "result").exists():
            pid = int(session.partition(".")[0])
            if b"screen" in _command_of(pid).lower():
                pids.append(pid)
    return pids


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _judge(stage: Stage, order: Order, codes: dict[int, int], ticks: dict[int, int], found: Findings) -> None:
    if order.is_control:
        state = json.loads((stage.folder / "control.json").read_text())
        outcomes = {number_of(line): job["code"] for line, job in state.items()}
        judge(stage.trace, codes, outcomes, killed=False).report_to(found)
        return
    status = stage.status()
    judge(stage.trace, codes, outcomes_of(status), killed=False).report_to(found)
    for job in status["jobs"]:
        number = number_of(job["command"])
        wanted = [f"job {number} tick {i}" for i in range(ticks[number])]
        wanted.append(f"job {number} says goodbye with {codes[number]}")
        text = Path(job["log"]).read_text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        end = "completed" if codes[number] == 0 else f"failed: exit code {codes[number]}"
        if lines[:-1] != wanted or not lines[-1].startswith(f"--- {end}"):
            found.fault("wrong logs", f"job {number}: the log ends with {lines[-3:]}")


def ready(order: Order) -> Findings:
    """Kills the scheduler a dozen times while 200 jobs run. Measures the time until the next one answers."""
    found, count, times = Findings(), order.scaled(200, 10), order.scaled(12, 2)
    folder = order.folder
    (folder / "wait.sh").write_text(_WAITER)
    os.mkfifo(folder / "fifo")
    stage = Stage(folder, gpus=8)
    lines = [
        f"[share=0.04] sh {folder}/wait.sh {stage.trace} {n} {folder}/fifo {n % 4}" for n in range(count)
    ]
    stage.append(lines)
    keeps = os.open(folder / "fifo", os.O_RDWR | os.O_CLOEXEC)
    process = stage.start()
    try:
        wait_for(lambda: stage.trace.exists() and stage.trace.read_text().count("start") == count,
                 f"{count} jobs running", timeout_s=120, every_s=0.1)  # fmt: skip
        up: list[float] = []
        answered: list[float] = []
        for _ in range(times):
            process.kill()
            process.wait()
            began = time.monotonic()
            process = stage.start()
            up.append(time.monotonic() - began)
            _answers(stage)
            answered.append(time.monotonic() - began)
        if len(_alive(stage)) != count:
            found.fault("ended", f"{count} jobs ran, {len(_alive(stage))} are left")
    finally:
        os.close(keeps)
        process.terminate()
        process.wait(60)
    stage.drain(240)
    judge(stage.trace, {n: n % 4 for n in range(count)}, outcomes_of(stage.status()), killed=False).report_to(
        found
    )
    found.figures = {
        "running jobs": count, "scheduler kills": times,
        "median time to restart (s)": round(statistics.median(up), 2),
        "median time to first answer (s)": round(statistics.median(answered), 2),
        "longest time to first answer (s)": round(max(answered), 2),
    }  # fmt: skip
    return found


def _answers(stage: Stage) -> None:
    """Waits until the scheduler has answered a request, which takes a whole round."""
    store = stage.store()
    try:
        uuid = store.gpus()[0].uuid
        request = add_request(store, "resume", uuid, "stress")
        store.data_dir.ring_doorbell()
        wait_for(
            lambda: request_answer(store, request),
            "an answer from the scheduler",
            timeout_s=60,
            every_s=0.002,
        )
    finally:
        store.close()


def _alive(stage: Stage) -> Sequence[str]:
    """Returns the tokens of the attempts whose claim is live."""
    store = stage.store()
    try:
        rows = store.active_attempts()
        folders = [(store.data_dir.attempt_folder(r), r.token) for r in rows]
    finally:
        store.close()
    return [token for folder, token in folders if observe(folder, token).claim == "live"]
