"""The completion scripts, tested in the real shells that are installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.cli.commands import COMMANDS
from gpu_scheduler.cli.parser import completion_script
from tests.cli.desk import Desk

ROOT = Path(__file__).parents[2]

#: Prints the completion settings of both program names and the completions of a command line.
TRY = """
complete -p scheduler.py
complete -p gpu-scheduler
compopt() { :; }
COMP_WORDS=(./scheduler.py stat); COMP_CWORD=1
_shtab_gpu_scheduler
echo "$COMPREPLY"
"""
ASK = """\
source ./script
compopt() { :; }
shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_gpu_scheduler
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(folder: Path, *words: str, **env: str) -> list[str]:
    """Returns the completions that bash offers for the last word. env: its variables."""
    (folder / "script").write_text(completion_script("bash"))
    (folder / "ask.sh").write_text(ASK)
    done = subprocess.run(
        ["bash", "--norc", "ask.sh", "-", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **env},
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_choices_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "file_a").touch()
    (tmp_path / "folder_b").mkdir()
    assert set(completed(tmp_path, "gpu-scheduler", "")) == set(COMMANDS)
    assert completed(tmp_path, "scheduler.py", "doc") == ["doctor"]
    assert {"--drain", "--daemon"} <= set(completed(tmp_path, "gpu-scheduler", "start", "--d"))
    offered = completed(tmp_path, "gpu-scheduler", "start", "--gpu-probe", "")
    assert offered == ["auto", "nvml", "gputil", "simulated"]
    assert sorted(completed(tmp_path, "gpu-scheduler", "lint", "f")) == ["file_a", "folder_b"]
    for command in ("add", "submit"):
        assert sorted(completed(tmp_path, "gpu-scheduler", command, "f")) == ["file_a", "folder_b"]
    assert completed(tmp_path, "gpu-scheduler", "start", "--log-dir", "f") == ["folder_b"]
    assert completed(tmp_path, "gpu-scheduler", "submit", "--dir", "f") == ["folder_b"]
    assert completed(tmp_path, "gpu-scheduler", "--state-file", "x.json", "sto") == ["stop"]
    assert completed(tmp_path, "gpu-scheduler", "completion", "z") == ["zsh"]


def test_bash_completes_jobs_groups_gpus_and_conda_environments(desk: Desk, tmp_path: Path) -> None:
    for name in ("train/1", "train/2", "bert"):
        desk.job(name=name)
    program = tmp_path / "gpu-scheduler"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpu_scheduler "$@"\n')
    program.chmod(0o755)
    listed = tmp_path / "home" / ".conda" / "environments.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text("/opt/conda\n/opt/conda/envs/torch\n")
    env = {
        "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home"),
        "GPU_SCHEDULER_STATE_FILE": str(desk.data_dir.state_file),
    }  # fmt: skip

    def offered(*words: str) -> list[str]:
        return completed(tmp_path, str(program), *words, **env)

    jobs = ["3", "2", "1", "bert", "train/2", "train/1", "train"]
    assert offered("logs", "") == offered("submit", "--after", "") == offered("recover", "--jobs", "") == jobs
    assert offered("cancel", "3", "tr") == ["train/2", "train/1", "train"]
    assert offered("pause", "") == offered("run", "--allowed", "") == ["all", "0", "1"]
    assert offered("submit", "--conda", "") == ["base", "torch"]
    env["GPU_SCHEDULER_STATE_FILE"] = str(tmp_path / "none.json")
    assert offered("logs", "") == offered("pause", "") == []
    assert not (tmp_path / "none.d").exists()


def test_the_completion_command_in_the_docs_works_in_a_clone(tmp_path: Path) -> None:
    (line,) = re.findall(r"`(source <\([^`]+\))`", (ROOT / "docs" / "commands.md").read_text())
    shutil.copy2(ROOT / "scheduler.py", tmp_path)
    (tmp_path / "gpu_scheduler").symlink_to(ROOT / "gpu_scheduler")
    python = tmp_path / ".venv" / "bin" / "python"  # as `make install` creates it, but not on PATH
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "--norc", "-c", line + TRY],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    bound = [text.split()[-1] for text in done.stdout.splitlines()]
    assert bound == ["scheduler.py", "gpu-scheduler", "status"]


def test_bash_completes_both_names_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(completion_script("bash"))
    done = subprocess.run(
        ["bash", "--norc", "-c", "source ./script; complete -p"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "_shtab_gpu_scheduler gpu-scheduler\n" in done.stdout
    assert "_shtab_gpu_scheduler scheduler.py\n" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_every_command_under_both_names(desk: Desk, shell: str) -> None:
    code, out, err = desk.run("completion", shell)
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS)
    assert any("scheduler.py" in line and "gpu-scheduler" in line for line in out.splitlines())
    assert "Usage" in "".join(line for line in out.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_completion_script_is_valid_in_its_shell(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(completion_script(shell))
    done = subprocess.run([shell, "-n", "script"], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_unsupported_shell_is_a_usage_error(desk: Desk) -> None:
    code, out, err = desk.run("completion", "cmd.exe")
    assert (code, out) == (2, "")
    assert "bash" in err
