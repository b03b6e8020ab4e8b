"""Detects misplaced processes: processes of a job on a GPU outside its allocation.

They are reported once per attempt and GPU. No job is ended or moved. GPUs whose processes the probe cannot
list are skipped.
"""

from __future__ import annotations

from gpu_scheduler.core.scheduling.actions import RecordMisplacedProcess
from gpu_scheduler.core.scheduling.facts import Facts


def misplaced_processes(facts: Facts) -> list[RecordMisplacedProcess]:
    """Returns the misplaced processes of open attempts.

    For each attempt and GPU, only the process that uses the most memory is returned.
    """
    running = {attempt.attempt_id: attempt for attempt in facts.attempts if attempt.state.is_open}
    found: dict[tuple[int, str], RecordMisplacedProcess] = {}
    for gpu in (*facts.gpus, *facts.unmanaged_gpus) if running else ():
        processes = (gpu.sample.processes if gpu.sample else None) or ()
        for process in sorted(processes, key=lambda process: -(process.used_mib or 0)):
            attempt = running.get(gpu.owners.get(process.pid) or 0)
            if (
                attempt is None
                or process.graphics_only
                or gpu.uuid in (*attempt.gpus, *attempt.misplaced_gpus)
            ):
                continue
            action = RecordMisplacedProcess(attempt.attempt_id, gpu.uuid, process.pid)
            found.setdefault((attempt.attempt_id, gpu.uuid), action)
    return list(found.values())
