"""Which conda the next launch uses, with real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_scheduler.health.job_checks import conda_sh_of


@pytest.mark.parametrize("named", [None, "/given/conda.sh"])
def test_conda_is_searched_with_the_variables_of_the_running_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    for name in ("scheduler", "caller"):
        (tmp_path / name / "etc" / "profile.d").mkdir(parents=True)
        (tmp_path / name / "etc" / "profile.d" / "conda.sh").touch()
        monkeypatch.setenv("CONDA_EXE", str(tmp_path / name / "bin" / "conda"))
        if name == "scheduler":
            scheduler = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            # /proc shows the variables of a new program a little after Popen has returned.
            scheduler.stdin.write(b"\n")  # type: ignore[union-attr]
            scheduler.stdout.readline()  # type: ignore[union-attr]
    with scheduler:
        found = [conda_sh_of(pid, named) for pid in (scheduler.pid, None)]
    expected = [str(tmp_path / name / "etc/profile.d/conda.sh") for name in ("scheduler", "caller")]
    assert found == (expected if named is None else [named, named])
