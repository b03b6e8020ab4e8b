"""A process that claims the memory of a GPU, as the command of `run` does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_scheduler.system.safe_file import name_of_user

_CLAIM = """
import sys
from gpu_scheduler.runner.locks import Wanted, claim_gpus
folder, uuid, mib = sys.argv[1:]
print(isinstance(claim_gpus(folder, [Wanted(uuid, int(mib) or None, 24576)]), list), flush=True)
sys.stdin.read()
"""


@contextmanager
def claim_holder(folder: Path, uuid: str, mib: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that claims so many MiB of a GPU with 24 GiB; 0 means the whole GPU."""
    command = [sys.executable, "-c", _CLAIM, str(folder), uuid, str(mib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def holder_words(pid: int) -> str:
    """Returns how commands show a process of this user that holds a claim."""
    return f"run, pid {pid}, user {name_of_user(os.getuid())}"
