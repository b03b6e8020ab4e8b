"""Tests that a runner still does its work after the files of its package have been replaced."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

import gpu_scheduler.runner
from gpu_scheduler.attempts.executors import DirectExecutor
from tests.runner.conftest import Make

RUNNER = Path(gpu_scheduler.runner.__file__).parent
#: The modules that a runner imports late, perhaps after a newer version has replaced the files.
LATE = ("group_signals", "leftovers", "process_scan", "watch")
#: What these modules may import from the modules that the runner has loaded at its start, which may be those
#: of an earlier version: names that every version has had. To add one, let a version go by in between.
LOADED = {
    "child": {"has_children"},
    "folder": {
        "COMMAND_FILE", "COMMAND_SIZE", "MARKED_DIGITS", "SHORTAGE", "TOKEN", "boot_id", "fields_of",
        "has_ended", "init_ticks", "is_alive", "living_fields", "mark_of", "try_read_proc",
    },
    "output": {"Poller"},
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_modules_that_are_imported_late_need_nothing_new_of_those_that_are_loaded(name: str) -> None:
    for node in ast.walk(ast.parse((RUNNER / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level and node.module not in (None, *LATE):
            assert {one.name for one in node.names} <= LOADED.get(str(node.module), set()), node.module


def test_the_modules_that_are_imported_late_have_the_names_by_which_runners_know_them() -> None:
    for path in RUNNER.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and path.name not in ("fork_server.py", *LATE):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom) and node.level:
                        found = [one.name for one in node.names] if node.module is None else [node.module]
                        assert set(found) <= set(LATE), f"{path.name}, line {node.lineno}"


def test_a_runner_ends_what_its_command_left_although_its_files_are_gone(make: Make, tmp_path: Path) -> None:
    copy = tmp_path / "gpu_scheduler" / "runner"
    shutil.copytree(RUNNER, copy)
    script = f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.01; done; setsid sleep 300 & exit 0"
    attempt = make(script, leftover_wait_s=0.2).launch(DirectExecutor(start=str(copy / "start.py")))
    attempt.until_logged("up")
    shutil.rmtree(copy)
    (tmp_path / "go").touch()
    result = attempt.result()
    assert (result.exit_code, result.left, result.survivors) == (0, ("sleep 300",), ())
