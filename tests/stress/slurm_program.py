"""Runs the program with an agent that is soon started again: python -m tests.stress.slurm_program COMMAND…

The scheduler sees no process of the nodes, as on a real cluster, so it cannot end what a guard should end.
With SLURM_TWICE in its environment, it is a negative control: its agent does not look for the name after a
lost answer, but submits a copy of the attempt folder at once, so that the claim protects nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from typing import Any

from gpu_scheduler.daemon import companions
from gpu_scheduler.engines.agent import EngineAgent
from gpu_scheduler.engines.engine import EngineUnavailableError, Order, Resources
from gpu_scheduler.runner import process_scan
from gpu_scheduler.system import own_process

TWICE = "SLURM_TWICE"
_submit, _all = EngineAgent._submit, process_scan.newest_first


def _submit_twice(self: EngineAgent, place: Any) -> bool:
    if not _submit(self, place):
        copy = place.there.with_name(f"{place.token}-again")
        shutil.copytree(place.there, copy)
        with suppress(EngineUnavailableError):
            self._engine.submit(Order(place.token, str(copy), Resources()))
    return True


def _newest_first() -> list[int]:
    return [pid for pid in _all() if b"SLURMD_NODENAME=" not in process_scan.environment(pid)]


def main() -> Any:
    """Runs the command; returns its exit code."""
    if TWICE in os.environ:
        EngineAgent._submit = _submit_twice  # type: ignore[method-assign]
    process_scan.newest_first = _newest_first
    companions._LONGEST_WAIT_S = 1.0
    # Companions run this program, too. The first word is the root of the package.
    own_process._PROGRAM = (
        "import sys; del sys.argv[1]; from tests.stress.slurm_program import main; sys.exit(main())"
    )
    from gpu_scheduler.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
