"""Tests that the tests' environment does not depend on who runs the tests."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_scheduler.daemon.log_output import Console, configure_logging
from tests.isolation import HIDDEN, isolated, logging_restored

ROOT = Path(__file__).parents[1]


def test_settings_of_the_caller_do_not_reach_the_tests(tmp_path: Path) -> None:
    caller = {
        "BASH_ENV": "/x", "CI": "1", "CONDA_PREFIX": "/opt/conda", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/h",
        "LC_ALL": "C", "PYTEST_ADDOPTS": "-x", "SCREENRC": "/h/.screenrc", "STY": "1.x", "TMPDIR": "/far",
        "VIRTUAL_ENV": "/v",
    }  # fmt: skip
    env = isolated(caller, tmp_path)
    assert env == {
        "CI": "1", "PYTEST_ADDOPTS": "-x", "LANG": "C.UTF-8", "SHELL": "/bin/bash",
        "HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin"),
    }  # fmt: skip
    assert list((tmp_path / "home").iterdir()) == []


def test_tests_find_the_programs_of_the_caller_except_those_that_have_fakes(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("theirs-alone", "python3", *HIDDEN):
        (theirs / name).write_text("#!/bin/sh\necho theirs\n")
        (theirs / name).chmod(0o755)
    (theirs / "no-program").touch(0o644)
    made = tmp_path / "made"
    made.mkdir()
    env = isolated({"PATH": f"relative::{theirs}"}, made)
    found = {path.name for path in (made / "bin").iterdir()}
    assert {"bash", "python", "python3", "theirs-alone"} <= found
    assert not found & {*HIDDEN, "no-program"}
    ours = subprocess.run(
        ["python3", "-c", "import sys; print(sys.prefix)"], env=env, capture_output=True, text=True
    )
    assert ours.stdout == f"{sys.prefix}\n"


def test_isolation_replaces_the_environment_the_home_folder_and_the_umask() -> None:
    script = (
        "import os, tempfile; from pathlib import Path; from tests.isolation import isolate; isolate();"
        "print(sorted(os.environ), list(Path.home().iterdir()), oct(os.umask(0)), tempfile.gettempdir())"
    )
    env = {"PATH": os.environ["PATH"], "TMPDIR": os.getcwd(), "CUDA_VISIBLE_DEVICES": "3", "STY": "1.x"}
    shell = ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-c", script]
    told = subprocess.run(shell, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    names = "['GPU_SCHEDULER_LOCK_DIR', 'HOME', 'LANG', 'PATH', 'SHELL', 'XDG_STATE_HOME']"
    assert tempfile.gettempdir() in ("/tmp", "/dev/shm")
    assert told == f"{names} [] 0o22 {tempfile.gettempdir()}\n"


def test_logging_is_restored_after_a_test(tmp_path: Path) -> None:
    log = logging.getLogger("gpu_scheduler")

    def seen() -> tuple[int, bool, list[str]]:
        return log.level, log.propagate, [type(handler).__module__ for handler in log.handlers]

    before = seen()
    with logging_restored():
        console = Console()
        configure_logging(tmp_path / "main.log", console)
        assert seen() != before
        console.close()
    assert seen() == before
