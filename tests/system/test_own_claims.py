"""Claims of a process itself and of its ancestors, with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Claims so many MiB of GPU-a, or the whole GPU for 0, and executes the command in its arguments.
CLAIM_AND_EXECUTE = """
import os, sys
from gpu_scheduler.runner.locks import Wanted, claim_gpus
wanted = Wanted("GPU-a", int(sys.argv[2]) or None, 100)
assert isinstance(claim_gpus(sys.argv[1], [wanted], inheritable=True), list)
os.execv(sys.argv[3], sys.argv[3:])
"""
#: Prints the GPUs of which it knows own claims, and the locked ranges.
PRINT_OWN_CLAIMS = """
import sys
from pathlib import Path
from gpu_scheduler.system.gpu_claims import read_locks_of
from gpu_scheduler.system.gpu_claims import own_claims
for _ in range(2):
    locks = read_locks_of(Path(sys.argv[1]), ("GPU-a", "GPU-b")).locks
    print(sorted(own_claims(locks)), [(lock.start, lock.end) for held in locks.values() for lock in held])
"""
#: Executes the command in its arguments in a grandchild.
BELOW = ["/bin/sh", "-c", '(sh -c \'"$@"; true\' sh "$@"); true', "sh"]
PRINT = [sys.executable, "-c", PRINT_OWN_CLAIMS]


def claiming(folder: Path, mib: int) -> list[str]:
    """Returns the words that claim so many MiB, or the whole GPU for 0, before a command."""
    return [sys.executable, "-c", CLAIM_AND_EXECUTE, str(folder), str(mib)]


def output_of(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_process_without_claims_has_none_even_if_another_process_has_one(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [*claiming(tmp_path, 0), "/bin/sh", "-c", "echo claimed; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"claimed\n"
    assert output_of(*PRINT, str(tmp_path)) == ["[] [(0, None)]"] * 2
    holder.communicate(timeout=60)


def test_an_executed_program_has_the_claim_of_the_program_that_executed_it(tmp_path: Path) -> None:
    found = output_of(*claiming(tmp_path, 0), *PRINT, str(tmp_path))
    assert found == ["['GPU-a'] [(0, None)]"] * 2


def test_a_descendant_has_the_claim_of_its_ancestor(tmp_path: Path) -> None:
    found = output_of(*claiming(tmp_path, 0), *BELOW, *PRINT, str(tmp_path))
    assert found == ["['GPU-a'] [(0, None)]"] * 2


@pytest.mark.parametrize("below", [[], BELOW])
def test_a_claim_on_part_of_a_gpu_is_read_but_belongs_to_the_command_alone(
    tmp_path: Path, below: list[str]
) -> None:
    found = output_of(*claiming(tmp_path, 40), *below, *PRINT, str(tmp_path))
    assert found == ["[] [(0, 40)]"] * 2
