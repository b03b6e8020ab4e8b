"""Tests of which programs a job's bash finds, given the environment that it inherits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_scheduler.core.jobsfile.job_line import BUILTINS, RESERVED
from gpu_scheduler.intake.jobs_file_text import job_shell


def test_finds_programs_on_path_and_files_in_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "bin" / "folder").mkdir(parents=True)
    (tmp_path / "bin" / "tool").touch(mode=0o755)
    (tmp_path / "bin" / "plain").touch(mode=0o644)
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "train.py").touch()
    (tmp_path / "work" / "sub" / "near").touch(mode=0o755)
    shell = job_shell({"PATH": f"/nowhere:{tmp_path}/bin:sub"})
    assert shell is not None
    names = ("tool", "plain", "folder", "train.py", "near", "none")
    found = [name for name in names if shell.can_find(name, str(tmp_path / "work"))]
    assert found == ["tool", "train.py", "near"]


@pytest.mark.parametrize("env", [{"PATH": "/bin", "BASH_ENV": "/etc/profile.d/modules.sh"}, {}])
def test_returns_no_shell_if_its_programs_cannot_be_determined(env: dict[str, str]) -> None:
    assert job_shell(env) is None


def test_finds_inherited_functions() -> None:
    bash = subprocess.run(
        ["bash", "--norc", "-c", "module() { :; }; export -f module; env"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    shell = job_shell(dict(line.split("=", 1) for line in bash.stdout.splitlines() if "=" in line))
    assert shell is not None
    assert set(shell.functions) == {"module"}


def test_lists_of_builtins_and_reserved_words_match_those_of_bash() -> None:
    bash = subprocess.run(
        ["bash", "--norc", "-c", "compgen -b; compgen -k"], capture_output=True, text=True, check=True
    )
    # `in` and `]]` cannot begin a command, so the lists leave them out.
    assert set(bash.stdout.split()) - {"in", "]]"} <= {*BUILTINS, *RESERVED}
