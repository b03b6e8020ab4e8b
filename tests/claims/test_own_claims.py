"""Claims of a process itself and of its ancestors, with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Claims GPU-a and executes the command in its arguments.
CLAIM_AND_EXECUTE = """
import os, sys
from gpu_scheduler.runner.gpu_lock import Wanted, claim_gpus
assert isinstance(claim_gpus(sys.argv[1], [Wanted("GPU-a", None, 100)], inheritable=True), list)
os.execv(sys.argv[2], sys.argv[2:])
"""
#: Prints the GPUs of which it knows own claims.
PRINT_OWN_CLAIMS = """
import sys
from pathlib import Path
from gpu_scheduler.claims.gpu_claims import read_gpu_locks
from gpu_scheduler.claims.own_claims import own_claims
folder = Path(sys.argv[1])
for _ in range(2):
    locks = {uuid: read_gpu_locks(folder, uuid) for uuid in ("GPU-a", "GPU-b")}
    print(sorted(own_claims(folder, locks)))
"""
PRINT = [sys.executable, "-c", PRINT_OWN_CLAIMS]


def output_of(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_process_without_claims_has_none_even_if_another_process_has_one(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_EXECUTE, str(tmp_path), "/bin/sh", "-c", "echo claimed; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"claimed\n"
    assert output_of(*PRINT, str(tmp_path)) == ["[]", "[]"]
    holder.communicate(timeout=60)


def test_an_executed_program_has_the_claim_of_the_program_that_executed_it(tmp_path: Path) -> None:
    claim = [sys.executable, "-c", CLAIM_AND_EXECUTE, str(tmp_path)]
    assert output_of(*claim, *PRINT, str(tmp_path)) == ["['GPU-a']", "['GPU-a']"]


def test_a_descendant_has_the_claim_of_its_ancestor(tmp_path: Path) -> None:
    claim = [sys.executable, "-c", CLAIM_AND_EXECUTE, str(tmp_path)]
    below = ["/bin/sh", "-c", '(sh -c \'"$@"; true\' sh "$@"); true', "sh"]
    assert output_of(*claim, *below, *PRINT, str(tmp_path)) == ["['GPU-a']", "['GPU-a']"]
