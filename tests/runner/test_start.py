"""Tests that a runner starts fast: without slow imports, and with code that is compiled only once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_scheduler.runner
from gpu_scheduler.attempts.executors import DirectExecutor
from tests.runner.attempt import patched
from tests.runner.conftest import Make

#: Modules whose import takes longer than everything that the runner does before it spawns the command.
SLOW = {
    *(
        "collections",
        "contextlib",
        "ctypes",
        "dataclasses",
        "enum",
        "functools",
        "inspect",
        "json",
        "logging",
    ),
    *("pathlib", "pty", "random", "re", "selectors", "signal", "site", "socket", "subprocess", "tempfile"),
    *("threading", "traceback", "typing"),
}
NOTES_MODULES = """
real = os.posix_spawn
def noting(*args, **more):
    with open(sys.argv[-1] + "/modules", "w") as file:
        file.write(" ".join(sys.modules))
    return real(*args, **more)
os.posix_spawn = noting
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_the_runner_imports_no_slow_modules_before_it_spawns_the_command(
    make: Make, tmp_path: Path, terminal: bool
) -> None:
    claims = {"folder": str(tmp_path), "gpus": [{"name": "GPU-a", "mib": 5, "total_mib": 10}]}
    attempt = make("exit 0", terminal=terminal, gpu_claims=claims)
    attempt.launch(patched(tmp_path, NOTES_MODULES))
    assert attempt.result().exit_code == 0
    loaded = set((attempt.folder / "modules").read_text().split())
    assert "runner.supervise" in loaded
    assert not {name.partition(".")[0] for name in loaded} & SLOW


def test_the_runners_modules_are_compiled_once_and_then_loaded_from_the_cache(
    make: Make, tmp_path: Path
) -> None:
    source = Path(gpu_scheduler.runner.__file__).parent
    copy = tmp_path / "somewhere" / "runner"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    executor = DirectExecutor(sys.executable, str(copy / "start.py"))
    make("exit 0").launch(executor).result()
    cached = {path: path.stat().st_mtime_ns for path in (copy / "__pycache__").iterdir()}
    names = {path.name.partition(".")[0] for path in cached}
    assert {"supervise", "folder", "output", "child", "locks", "termination"} <= names
    make("exit 0").launch(executor).result()
    assert cached == {path: path.stat().st_mtime_ns for path in (copy / "__pycache__").iterdir()}


def test_files_beside_the_runner_do_not_shadow_standard_modules(make: Make, tmp_path: Path) -> None:
    copy = tmp_path / "runner"
    shutil.copytree(Path(gpu_scheduler.runner.__file__).parent, copy)
    (tmp_path / "select.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "time.py").write_text("raise SystemExit('shadowed')")
    attempt = make("exit 5").launch(DirectExecutor(sys.executable, str(copy / "start.py")))
    assert attempt.result().exit_code == 5


def test_an_import_of_the_runners_modules_changes_nothing_in_the_process() -> None:
    """Processes that a scheduler or a test starts inherit its signal mask."""
    folder = Path(gpu_scheduler.runner.__file__).parent
    names = [f"gpu_scheduler.runner.{path.stem}" for path in folder.glob("*.py") if path.stem != "start"]
    code = (
        "import signal\n"
        "def state(): return signal.pthread_sigmask(signal.SIG_BLOCK, []), os.umask(0o22), os.getcwd()\n"
        "import os, importlib\n"
        "os.umask(0o22)\n"
        "before = state()\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "assert state() == before, (before, state())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder.parents[1])
