"""A job and a GPU as the client returns them, for the tests of `top`."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "id": 7, "state": "queued", "outcome": None, "reason": None, "infeasible": False, "interrupted": False,
    "cleared": False, "name": "train/bert", "command": "python train.py", "gpus": [], "started_at": None,
    "finished_at": None, "priority": 200, "engine": None, "progress": None, "peaks": {}, "after": [],
    "exit_code": None, "signal": None,
}  # fmt: skip
GPU: dict[str, Any] = {
    "index": 0, "name": "Simulated", "state": "busy", "allocated": 0.5, "memory_used_mib": 12288,
    "memory_total_mib": 24576, "load_percent": 31.4, "fault": None, "suspicion": None, "jobs": [7],
    "reserved_for": [], "claims": [], "claims_problem": None, "pause_reason": None,
}  # fmt: skip
