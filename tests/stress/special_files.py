"""P8: FIFOs, devices, folders, endless files or nested JSON replace the files that the scheduler reads.

They replace the state file, the jobs file or llm_config.json, before the scheduler starts or while it runs.
The scheduler must keep starting jobs, use little memory and end at SIGTERM. After that it must start again or
refuse to start, within a time limit.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.core.model.job_spec import JobSpec
from tests.stress.gated import GatedJobs, each_folder, end_scheduler, killed_at_exit
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

#: Seconds within which a job must start and a scheduler must end. The negative control gets less time.
_ANSWER_S, _CONTROL_ANSWER_S = 30.0, 0.7
#: Highest permitted memory use of a scheduler, in MiB. Reading a whole file of 16 MiB needs less.
_MEMORY_MIB = 300
_STATE, _CONFIG, _JOBS = "gpu_scheduler_state.json", "llm_config.json", "jobs.txt"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def _nested_brackets(path: Path) -> None:
    path.write_text("[" * 200_000)


def _broken_link(path: Path) -> None:
    path.symlink_to("missing/file")


_KINDS: tuple[Callable[[Path], None], ...] = (
    _fifo,
    _folder,
    _endless_zeros,
    _sparse_file,
    _nested_brackets,
    _broken_link,
)


def special_files(order: Order) -> Findings:
    """Replaces one to three files in each of 60 folders."""
    found, dice, rounds = Findings(), order.rng("special files"), order.scaled(60)
    found.figures = {"folders": rounds}
    for stage, jobs in each_folder(order, dice, rounds):
        _one(stage, jobs, order, dice, found)
    return found


def _one(stage: Stage, jobs: GatedJobs, order: Order, dice: random.Random, found: Findings) -> None:
    stage.append(jobs.lines(1))
    with killed_at_exit(process := stage.start()):
        jobs.until_started(1)
        names = [_STATE] if order.is_control else dice.sample([_STATE, _CONFIG, _JOBS], dice.randint(1, 3))
        kinds = {name: _fifo if order.is_control else dice.choice(_KINDS) for name in names}
        for name, kind in kinds.items():
            _put(stage.folder / name, kind)
            found.count(kind.__name__.strip("_").replace("_", " "))
        label = ", ".join(f"{kind.__name__} as {name}" for name, kind in kinds.items())
        # The first round of the negative control may have begun before the file was replaced.
        for _ in range(2 if order.is_control else 1):
            _answers(stage, process, jobs, order, label, found)
        _ends(process, order, label, found)
    if not order.is_control:
        _starts_again(stage, jobs, order, label, found)
    for name in names:
        _take_away(stage.folder / name)
    jobs.open_gate()
    if not order.is_control:
        stage.drain(60)
        jobs.judge(stage, order, found)


def _put(path: Path, kind: Callable[[Path], None]) -> None:
    """Moves the file aside, as an editor does, and makes a file of another kind in its place."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}.aside"))
    kind(path)


def _take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.aside")
    if aside.exists():
        aside.rename(path)


def _answers(
    stage: Stage, process: subprocess.Popen[bytes], jobs: GatedJobs, order: Order, label: str, found: Findings
) -> None:
    """Checks that a job that is submitted now starts."""
    before = jobs.started()
    [line] = jobs.lines(1, gated=False)
    if order.is_control:
        stage.append([line])
    else:
        command = line.partition("] ")[2]
        store = stage.store()
        store.insert_job(JobSpec("command", command, str(stage.folder), command=command, share=500), "stress")
        store.data_dir.ring_doorbell()
        store.close()
    try:
        jobs.until_started(before + 1, _CONTROL_ANSWER_S if order.is_control else _ANSWER_S)
    except AssertionError:
        found.fault("not responsive", f"{label}: {stage.output_file.read_text()[-500:]}")
    memory = _peak_mib(process)
    if memory > _MEMORY_MIB:
        found.fault("memory", f"{label}: {memory} MiB")


def _peak_mib(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is not None:
        return 0
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _ends(process: subprocess.Popen[bytes], order: Order, label: str, found: Findings) -> None:
    if process.poll() is not None:
        found.fault("ended", f"{label}: with {process.returncode}")
        return
    try:
        end_scheduler(process, timeout_s=_CONTROL_ANSWER_S if order.is_control else _ANSWER_S)
    except subprocess.TimeoutExpired:
        found.fault("ignores SIGTERM", f"{label}: SIGTERM does not end it")


def _starts_again(stage: Stage, jobs: GatedJobs, order: Order, label: str, found: Findings) -> None:
    """Checks that a new scheduler continues with the jobs, or refuses with a message but no traceback."""
    at = stage.output_file.stat().st_size
    process = stage.start(ready=False)

    def output() -> str:
        return stage.output_file.read_bytes()[at:].decode(errors="replace")

    with killed_at_exit(process):
        began = time.monotonic()
        wait_for(lambda: process.poll() is not None or "scheduler up" in output(), f"a start: {label}", 60)
        if process.poll() is None:
            found.count("starts that succeeded")
            _answers(stage, process, jobs, order, f"{label}, at start", found)
            _ends(process, order, label, found)
        else:
            found.count("starts refused")
            if process.returncode not in (1, 2) or "Traceback" in output():
                found.fault("wrong end", f"{label}: {process.returncode}: {output()[-500:]}")
        if time.monotonic() - began > _ANSWER_S:
            found.fault("slow start", label)
