"""Processes of a job on a GPU that it was not given: seen in a sample, told once per attempt and GPU.

Nothing is done about them: a job is never ended, and none is moved. A GPU whose processes the probe cannot
list tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.actions import NoteStray
from gpu_scheduler.core.facts import Facts


def strays(facts: Facts) -> list[NoteStray]:
    """What is to be noted of open attempts; of several processes on one GPU the one that uses most."""
    running = {attempt.attempt_id: attempt for attempt in facts.attempts if attempt.outcome is None}
    notes: dict[tuple[int, str], NoteStray] = {}
    for gpu in (*facts.gpus, *facts.others) if running else ():
        processes = (gpu.sample.processes if gpu.sample else None) or ()
        for process in sorted(processes, key=lambda process: -(process.used_mib or 0)):
            attempt = running.get(gpu.owners.get(process.pid) or 0)
            if attempt is None or process.graphics_only or gpu.uuid in (*attempt.gpus, *attempt.strays):
                continue
            note = NoteStray(attempt.job_id, attempt.attempt_id, gpu.uuid, process.pid)
            notes.setdefault((attempt.attempt_id, gpu.uuid), note)
    return list(notes.values())


def stray_words(given: Sequence[int], used: int, pid: int) -> str:
    """Words the rest of a sentence that begins with the job's number. given and used: indices of GPUs."""
    own = f"GPU{'' if len(given) == 1 else 's'} {','.join(map(str, given))}"
    return (
        f"was given {own} and uses GPU {used} (process {pid}): it probably sets"
        " CUDA_VISIBLE_DEVICES itself, which is the scheduler's to do; if it must run there, say so with"
        f" [allowed={used}]"
    )
