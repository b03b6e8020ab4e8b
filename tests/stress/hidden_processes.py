"""P6: jobs' processes hide from the scheduler while runners and schedulers are killed and jobs are cancelled.

Each process hides its environment, leaves its session or leaves its parents; some do all three. It holds a
lock for its GPU as long as it lives, so that the next job on that GPU detects whether it is alone. In the
end, no job may have left a process behind, and no foreign process may have been signalled.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.requests import add_request
from tests.stress.gated import stage_in
from tests.stress.harness import Stage, kill, pause, runners_of
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, number_of, outcomes_of
from tests.waiting import wait_for

#: Run as `sh hidden.sh TRACE N SECONDS CODE LOCK`.
_SCRIPT = """\
exec 9>>"$5"
flock -n 9 || echo "$2 beside $$" >> "$1"
echo "$2 start $$" >> "$1"
sleep "$3"
echo "$2 end $4" >> "$1"
exit "$4"
"""
#: Script of a foreign process, which has no token and records every signal.
_BYSTANDER = """\
trap 'echo "$2 bystander" >> "$1"; exit 0' TERM INT HUP
echo up
while :; do sleep 0.1; done
"""
#: Templates of command lines that start a job's process, by the way in which it hides.
_WAYS = {
    "environment cleared": "{clear} sh {script} {arguments}",
    "environment overwritten": "{python} -I -S {hide} {arguments}",
    "cleared in a session of its own": "setsid -w {clear} sh {script} {arguments}; exit {code}",
    "cleared and forked twice": "({clear} sh {script} {arguments} &); sleep {longer}; exit {code}",
    "its own session, forked twice": "(setsid sh {script} {arguments} &); sleep {longer}; exit {code}",
    "in every way": "(setsid {clear} sh {script} {arguments} &); sleep {longer}; exit {code}",
}
_CODES = (0, 0, 3, 42)
#: Seconds within which processes must end after every attempt has been reconciled.
_EXIT_GRACE_S = 10.0


def hidden(order: Order) -> Findings:
    """Runs 300 jobs on two GPUs, kills about half of their runners, and cancels some jobs.

    Some runners are killed while they end the job.
    """
    found, dice, count = Findings(), order.rng("hidden"), order.scaled(300, 5)
    stage = stage_in(order.folder, order, gpus=2)
    (order.folder / "hidden.sh").write_text(_SCRIPT)
    codes = {number: dice.choice(_CODES) for number in range(count)}
    longest = 2.0 if order.full_length else 0.6
    lines = [_line(stage, number, code, dice.uniform(0.2, longest)) for number, code in codes.items()]
    found.figures = {"jobs": count, "runners killed": 0, "cancelled": 0, "schedulers killed": 0}
    with _bystanders(stage, found):
        killed, cancelled = _run(stage, lines, order, dice, found)
        _nothing_left(stage, found)
    _judge(stage, order, codes, killed, cancelled, found)
    return found


def _line(stage: Stage, number: int, code: int, seconds: float) -> str:
    way = list(_WAYS.values())[number % len(_WAYS)]
    arguments = f"{stage.trace} {number} {seconds:.2f} {code} {stage.folder}/gpu$CUDA_VISIBLE_DEVICES"
    return "[share=1] " + way.format(
        clear="env -i PATH=$PATH", script=stage.folder / "hidden.sh", python=sys.executable,
        hide=Path(__file__).with_name("hide_environment.py"),
        arguments=arguments, code=code, longer=seconds + 0.3,
    )  # fmt: skip


@contextlib.contextmanager
def _bystanders(stage: Stage, found: Findings) -> Iterator[None]:
    """Runs three foreign processes, which must not be signalled."""
    script = stage.folder / "bystander.sh"
    script.write_text(_BYSTANDER)
    processes = [
        subprocess.Popen(
            ["sh", script, stage.trace, "0"], start_new_session=own, env={}, stdout=subprocess.PIPE
        )
        for own in (True, True, False)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
        for process in processes:
            if process.poll() is not None:
                found.fault("foreign process ended", f"with {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _run(
    stage: Stage, lines: list[str], order: Order, dice: random.Random, found: Findings
) -> tuple[set[int], set[int]]:
    """Runs all lines. Returns the ids of jobs whose runner was killed, and the ids of cancelled jobs."""
    killed: set[int] = set()
    cancelled: set[int] = set()
    stage.append(lines)
    process = stage.start()
    try:
        end = time.monotonic() + (2.0 if order.is_control else 30 + 5 * len(lines))
        while time.monotonic() < end and (order.is_control or _open(stage, len(lines))):
            pause(dice.uniform(0.0, 0.3))
            for pid, job_id in _runners(stage)[: dice.choice([0, 0, 1, 2])]:
                if kill(pid):
                    killed.add(job_id)
                    found.count("runners killed")
            if order.is_control:
                continue
            if dice.random() < 0.05:
                process.kill()
                process.wait()
                process = stage.start()
                found.count("schedulers killed")
            elif dice.random() < 0.1 and (running := _runners(stage)):
                runner, job_id = dice.choice(running)
                cancelled.add(job_id)
                store = stage.store()
                add_request(store, "cancel", str(job_id), "stress", grace_s=1.0)
                store.data_dir.ring_doorbell()
                store.close()
                found.count("cancelled")
                if dice.random() < 0.5:
                    pause(dice.uniform(0.0, 0.1))
                    if kill(runner):
                        killed.add(job_id)
                        found.count("runners killed")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    if not order.is_control:
        stage.drain(120 + 5 * len(lines))
    return killed, cancelled


def _open(stage: Stage, count: int) -> bool:
    """Returns whether some job is neither finished nor held."""
    store = stage.store()
    counts = state_counts(store)
    store.close()
    return counts.get("finished", 0) + counts.get("held", 0) < count


def _runners(stage: Stage) -> list[tuple[int, int]]:
    """Returns (pid, job id) of each live runner that holds a claim."""
    return [(pid, int(folder.parent.name)) for pid, folder in runners_of(stage.folder)]


def _nothing_left(stage: Stage, found: Findings) -> None:
    """Checks that no process is left whose command line contains a script or the trace of this folder."""
    marks = [str(stage.folder / "hidden.sh").encode(), str(stage.trace).encode()]

    def left() -> list[int]:
        pids = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes()
                if any(mark in words for mark in marks) and b"bystander.sh" not in words:
                    pids.append(int(path.parent.name))
        return pids

    try:
        wait_for(lambda: not left(), "the ends of all processes of the jobs", _EXIT_GRACE_S)
    except AssertionError:
        for pid in left():
            found.fault("left behind", Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
            kill(pid)


def _judge(
    stage: Stage, order: Order, codes: dict[int, int], killed: set[int], cancelled: set[int], found: Findings
) -> None:
    outcomes: dict[int, int | str | None] = {**codes}
    ids: dict[int, int] = {}
    if not order.is_control:
        status = stage.status()
        outcomes, ids = outcomes_of(status), {number_of(job["command"]): job["id"] for job in status["jobs"]}
    for line in stage.trace.read_text().splitlines():
        if line.split()[1] == "beside":
            found.fault(
                "not alone on a GPU", f"job {line.split()[0]} started while another process held its GPU"
            )
        if line.split()[1] == "bystander":
            found.fault("foreign process signalled", line)
    for number, outcome in outcomes.items():
        if outcome == "interrupted" and ids.get(number) not in killed:
            found.fault("wrong codes", f"job {number} is interrupted, but nobody killed its runner")
    judged = {number: code for number, code in codes.items() if ids.get(number) not in cancelled}
    judge(stage.trace, judged, outcomes, killed=True).report_to(found)
