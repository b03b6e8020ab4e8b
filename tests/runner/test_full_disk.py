"""A full disk loses log bytes, never the code: attempts on a file system of 512 KiB that fills up."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.runner.attempt import Attempt

ROOT = Path(__file__).parents[2]
SCRIPT = "dd if=/dev/zero of={home}/filler bs=4k 2>/dev/null; head -c 100000 /dev/zero; exit 9"


def inside(home: Path) -> None:
    """Run one attempt on the full file system, and say what became of it."""
    attempt = Attempt(home, SCRIPT.format(home=home)).launch()
    result = attempt.result()
    print(json.dumps([result.exit_code, result.cause, attempt.log.stat().st_size]))


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode != 0,
    reason="no file system can be mounted here",
)
def test_code_survives_a_full_disk() -> None:
    with tempfile.TemporaryDirectory() as home:
        mount = f"mount -t tmpfs -o size=512k tmpfs {home} && exec {sys.executable} -m {__name__} {home}"
        answer = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", mount], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert answer.returncode == 0, answer.stderr
    code, cause, logged = json.loads(answer.stdout)
    assert (code, cause) == (9, None)
    assert logged < 100000


if __name__ == "__main__":
    inside(Path(sys.argv[1]))
