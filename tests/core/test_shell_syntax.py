"""Deciding which commands bash must check."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.jobsfile.shell_syntax import needs_bash


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("python train.py --lr 1e-4", False),
        ("python train.py 'a[1' \"b[2\"", False),
        ("[ -f x ]", False),
        ("ls [ab].txt", False),
        ("python train.py | tee log", True),
        ("if x", True),
        # A subscript extends to its closing bracket, across words and lines.
        ("python[1 train.py", True),
        ("a[0]=1", True),
        ("A=1 b[ c", True),
    ],
)
def test_detects_the_commands_that_bash_must_check(command: str, asks: bool) -> None:
    assert needs_bash(command) is asks
