"""Runs the program with an agent that is soon started again: python -m tests.stress.slurm_program COMMAND…

The scheduler sees no process of the nodes, as on a real cluster, so it cannot end what a guard should end.
With SLURM_TWICE in its environment, it is a negative control: its agent does not look for the name after a
lost answer, but submits a copy of the attempt folder at once, so that the claim protects nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from gpu_scheduler.daemon import companions
from gpu_scheduler.engines.agent import EngineAgent
from gpu_scheduler.engines.engine import EngineUnavailableError, Order, Resources
from gpu_scheduler.runner import process_scan

TWICE = "SLURM_TWICE"
_submit, _all = EngineAgent._submit, process_scan.newest_first


def _submit_twice(self: EngineAgent, token: str, local: Path, there: Path) -> None:
    try:
        _submit(self, token, local, there)
    except EngineUnavailableError:
        copy = there.with_name(f"{token}-again")
        shutil.copytree(there, copy)
        self._engine.submit(Order(token, str(copy), Resources()))


def _newest_first() -> list[int]:
    return [pid for pid in _all() if b"SLURMD_NODENAME=" not in process_scan.environment(pid)]


def main() -> Any:
    """Runs the command; returns its exit code."""
    if TWICE in os.environ:
        EngineAgent._submit = _submit_twice  # type: ignore[method-assign]
    process_scan.newest_first = _newest_first
    companions._LONGEST_WAIT_S = 1.0
    # Companions run this program, too. The first word is the root of the package.
    companions._PROGRAM = (
        "import sys; del sys.argv[1]; from tests.stress.slurm_program import main; sys.exit(main())"
    )
    from gpu_scheduler.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
