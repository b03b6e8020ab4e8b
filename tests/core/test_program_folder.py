"""Finding the folder in which a command runs its program."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.command.shell_words import program_folder
from gpu_scheduler.core.model.job_spec import JobSpec


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("python train.py", "/home/me"),
        ("cd exp05 && python train.py", "/home/me/exp05"),
        ("cd exp05; python train.py", "/home/me/exp05"),
        ("(cd 'my exp' && python train.py) 2>&1 | tee log", "/home/me/my exp"),
        ("cd exp05 || exit 1; python train.py", "/home/me/exp05"),
        ("cd /data && export A=1 && cd run1 && python train.py", "/data/run1"),
        ("source .venv/bin/activate && cd exp05 && python train.py", "/home/me/exp05"),
        ("cd -- exp05 && python train.py", "/home/me/exp05"),
        ("cd ~/exp05 && python train.py", "~/exp05"),
        ("python train.py && cd other && python eval.py", "/home/me"),
        ("python train.py --mode cd", "/home/me"),
        ("for s in 1 2; do python train.py --seed $s; done", "/home/me"),
        ("cd $EXP && python train.py", None),
        ('cd "$(mktemp -d)" && python train.py', None),
        ("cd - && python train.py", None),
        ("cd exp* && python train.py", None),
        ("for d in a b; do cd $d && python train.py; done", None),
    ],
)
def test_follows_the_folder_changes_at_the_beginning(command: str, folder: str | None) -> None:
    spec = JobSpec(kind="command", text=command, cwd="/home/me", command=command)
    assert program_folder(spec) == folder


def test_a_csv_line_runs_in_its_working_folder() -> None:
    assert program_folder(JobSpec(kind="csv", text="", cwd="/home/me", script="cd.py")) == "/home/me"
