"""Tests that a scheduler still does its work after the files of its package have been replaced."""

from __future__ import annotations

import subprocess
import sys


def test_a_scheduler_has_loaded_what_it_needs_when_a_job_fails() -> None:
    program = "import sys, gpu_scheduler.daemon.service; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert "gpu_scheduler.core.explain.log_end" in shown.stdout.split()
