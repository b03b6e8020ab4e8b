"""P8: a running scheduler's limits on processes, open files and memory are lowered and raised again.

No job may fail because of this. Every job must run once and end by itself, and the scheduler must stay up. If
root runs this test, the scheduler gets another uid, because the process limit does not apply to root. The
jobs start no processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import subprocess
from pathlib import Path

from tests.isolation import LOCK_DIR
from tests.stress.gated import end_scheduler, killed_at_exit, stage_in
from tests.stress.harness import Stage, pause
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, outcomes_of
from tests.waiting import wait_for

#: Run as `bash job.sh TRACE N SECONDS CODE FIFO`. The shell itself waits on a FIFO that nobody writes to.
_JOB = """\
echo "$2 start $$" >> "$1"
read -r -t "$3" <> "$5"
echo "$2 end $4" >> "$1"
exit "$4"
"""
_CODES = (0, 0, 3, 7)
#: The option of prlimit(1) for each limit, and the name of the limit in /proc/PID/limits.
_KINDS = {
    "processes": ("nproc", "Max processes"),
    "files": ("nofile", "Max open files"),
    "memory": ("as", "Max address space"),
}
_MIB = 1 << 20


def direct(order: Order) -> Findings:
    """Lowers a limit 120 times while 200 jobs run."""
    return _limits(order, order.scaled(120, 3), order.scaled(200, 8))


def screen(order: Order) -> Findings:
    """Lowers a limit 60 times while 100 jobs run in Screen."""
    return _limits(order, order.scaled(60, 3), order.scaled(100, 8), "--screen")


def _limits(order: Order, times: int, count: int, *mode: str) -> Findings:
    found, dice = Findings(), order.rng(" ".join(("limits", *mode)))
    missing = [name for name in ("setpriv", "prlimit") if shutil.which(name) is None]
    if missing:
        return Findings(skipped=f"{' and '.join(missing)} not installed")
    uid = _uid(dice, *mode)
    stage = _stage(order, uid, *mode)
    codes = {number: dice.choice(_CODES) for number in range(count)}
    lines = [
        f"[share=0.25] exec bash {stage.folder}/job.sh {stage.trace} {number} {dice.uniform(0.05, 0.5):.2f}"
        f" {code} {stage.folder}/fifo"
        for number, code in codes.items()
    ]
    found.figures = {"limit changes": times, "jobs": count, **{f"limits on {kind}": 0 for kind in _KINDS}}
    process = stage.start()
    with killed_at_exit(process):
        per_time = -(-count // times)
        for number in range(times):
            _one(stage, process, uid, order, dice, found, lines[number * per_time : (number + 1) * per_time])
            if process.poll() is not None:
                output = stage.output_file.read_text()[-1500:]
                found.fault("scheduler ended", f"with {process.returncode}: {output}")
                process = stage.start()
        with contextlib.suppress(AssertionError):
            wait_for(lambda: _has_ended(stage, count), "all jobs to end", 3 if order.is_control else 60)
        end_scheduler(process)
    if not order.is_control:
        stage.drain(60)
    outcomes: dict[int, int | str | None] = {**codes}
    judge(
        stage.trace, codes, outcomes if order.is_control else outcomes_of(stage.status()), killed=False
    ).report_to(found)
    return found


def _uid(dice: random.Random, *mode: str) -> int:
    """Returns the uid with which to run the scheduler. Screen needs a uid that has a user name."""
    if os.geteuid() != 0:
        return os.geteuid()
    return pwd.getpwnam("nobody").pw_uid if mode else dice.randint(60_000, 64_000)


def _stage(order: Order, uid: int, *mode: str) -> Stage:
    """Makes a folder that this user owns, and gives them the lock folder.

    The scheduler can read the program's files, as root can.
    """
    folder = order.folder / "limited"
    stage = stage_in(folder, order, *mode)
    (folder / "job.sh").write_text(_JOB)
    os.mkfifo(folder / "fifo")
    if os.geteuid() == 0:
        reads = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
        stage.prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *reads]
        stage.env |= {"HOME": str(folder), "SCREENDIR": str(folder / "screen")}
        (folder / "screen").mkdir(mode=0o700)
        for path in (folder, *folder.iterdir(), Path(os.environ[LOCK_DIR])):
            os.chown(path, uid, uid)
    return stage


def _one(
    stage: Stage,
    process: subprocess.Popen[bytes],
    uid: int,
    order: Order,
    dice: random.Random,
    found: Findings,
    lines: list[str],
) -> None:
    """Lowers one limit, appends jobs, and raises the limit again after a while."""
    kind = "processes" if order.is_control else dice.choice(list(_KINDS))
    found.count(f"limits on {kind}")
    pids = [process.pid]
    if dice.random() < 0.7:
        pids += _helpers(process.pid)
    before = {pid: _soft(pid, kind) for pid in pids}
    for pid in pids:
        _limit(stage, pid, kind, str(_low(kind, uid, dice)))
    stage.append(lines)
    pause(dice.uniform(0.1, 2.0 if order.full_length else 0.8))
    for pid, soft in before.items():
        _limit(stage, pid, kind, soft)
    pause(dice.uniform(0.0, 0.5))


def _soft(pid: int, kind: str) -> str:
    """Returns the soft limit of a process, in the form that prlimit accepts."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return "unlimited"
    name = _KINDS[kind][1]
    return next(line[len(name) :].split()[0] for line in lines if line.startswith(name))


def _limit(stage: Stage, pid: int, kind: str, soft: str) -> None:
    """Sets a soft limit of a process, which may have ended. Runs as the user of the stage."""
    option = f"--{_KINDS[kind][0]}={soft}:"
    subprocess.run([*stage.prefix, "prlimit", "--pid", str(pid), option], check=False, capture_output=True)


def _low(kind: str, uid: int, dice: random.Random) -> int:
    if kind == "processes":
        return max(1, _threads_of(uid) + dice.randint(-3, 1))
    return dice.randint(3, 40) if kind == "files" else dice.randint(20, 250) * _MIB


def _threads_of(uid: int) -> int:
    """Returns the number of threads that the kernel counts towards a user's process limit."""
    count = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == uid:
                count += len(list((path / "task").iterdir()))
    return count


def _helpers(pid: int) -> list[int]:
    """Returns the helper processes of the scheduler."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _has_ended(stage: Stage, count: int) -> bool:
    return stage.trace.exists() and stage.trace.read_text().count(" end ") >= count
