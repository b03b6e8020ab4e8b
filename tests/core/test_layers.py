"""Imports point inward (docs/architecture.md): our own imports, read from the source, against one table."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "gpu_scheduler"

#: The record, less the loop's pen: jobs and attempts are changed by the loop alone.
RECORD = tuple(
    f"store.{name}"
    for name in (
        "store", "home", "readings", "statefile", "instance", "database", "started", "attempts", "events",
        "measured", "gpukind", "identity", "private",
    )
)  # fmt: skip

#: What each room, or module at the top, may import of ours: "room" or "room.module". Within itself a room is
#: free. A module that is not named here belongs to the shell around the loop (see SHELL_NEVER).
MAY = {
    "core": (),
    "errors": (),
    "config": (),
    "clock": ("core",),
    "safefile": (),
    "shortages": ("safefile", "runner.folder"),
    "store": ("core", "errors", "safefile"),
    "probes": ("core", "errors", "runner.folder"),
    "runner": (),
    # The folder protocol has two halves: what the runner itself needs, and what prepares it.
    "executors": ("core", "runner.folder", "runner.prepare"),
    "views": ("core", "errors"),
    "intake": ("core", "errors", "safefile", "shortages", *RECORD),
    "simjob": ("probes.usage",),
    "asking": (),
    # It looks at what everybody else uses, by their own eyes.
    "doctor": (
        "core",
        "errors",
        "safefile",
        *RECORD,
        "store.filesystem",
        "store.host",
        "store.attemptfolders",
        "store.backups",
        "store.condition",
        "probes",
        "asking",
        "joblogs",
        "storage",
        "llmconfig",
        "executors.screen",
        "gpus",
        "views.widths",
        "views.titles",
        "views.words",
        "oldsessions",
        "intake.filelook",
        "intake.pauses",
    ),
    "oldsessions": ("procfs", "views.words"),
    "procfs": ("shortages",),
}

#: Front ends record wishes and read; they neither decide nor do. `status` may look at the GPUs by itself.
FRONT_ENDS = ("cli", "api")
FRONT_MAY = (
    "core",
    "errors",
    "config",
    "clock",
    "safefile",
    "shortages",
    *RECORD,
    "views",
    "intake",
    "sight",
    "joblogs",
    "storage",
    "asking",
    "doctor",
    "evidence",
    "logtail",
    "llmconfig",
    "probes.asked",
    "probes.visible",
)
RUNNER_CALLS = ("observe", "request_stop", "sweep")

#: The one command that becomes the scheduler.
START = "cli.start"
START_MAY = (*FRONT_MAY, "service", "background", "probes.simulated")

SHELL_NEVER = FRONT_ENDS


@dataclass(frozen=True)
class Import:
    """`module` imports `target`, both without the package's name; `name` is what is taken from it."""

    module: str
    line: int
    target: str
    name: str | None


def ours(root: Path) -> Iterator[Import]:
    """Every import of ours by ours, also those inside functions and for type checking only."""
    for module, line, target, name in every_import(root):
        if target.split(".")[0] != PACKAGE:
            continue
        inner = target.split(".")[1:]
        if name is not None and is_module(root.joinpath(*inner, name)):
            yield Import(module, line, ".".join([*inner, name]), name)
        elif inner:
            yield Import(module, line, ".".join(inner), name)


def every_import(root: Path) -> Iterator[tuple[str, int, str, str | None]]:
    """(module, line, absolute target, name taken from it) of every import statement."""
    for path in sorted(root.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        here = [PACKAGE, *parts[:-1]]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield module, node.lineno, alias.name, None
            elif isinstance(node, ast.ImportFrom):
                above = here[: len(here) - node.level + 1] if node.level else []
                target = ".".join([*above, *filter(None, [node.module])])
                for alias in node.names:
                    yield module, node.lineno, target, alias.name


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or path.is_dir()


def allowed(found: Import) -> bool:
    room, target_room = found.module.split(".")[0], found.target.split(".")[0]
    if room == target_room or not room:
        return True
    if room in FRONT_ENDS:
        if target_room == "runner":
            return found.name in RUNNER_CALLS
        return within(found.target, START_MAY if found.module == START else FRONT_MAY)
    if found.module == "__main__":
        return target_room == "cli"
    if room in MAY:
        return within(found.target, MAY[room])
    return target_room not in SHELL_NEVER


def within(target: str, may: tuple[str, ...]) -> bool:
    return any(target == entry or target.startswith(f"{entry}.") for entry in may)


def violations(root: Path) -> list[str]:
    return [
        f"{found.module}, line {found.line}: imports {found.target}"
        for found in ours(root)
        if not allowed(found)
    ]


def test_our_imports_point_inward() -> None:
    assert len(list(ours(ROOT / PACKAGE))) > 20
    assert violations(ROOT / PACKAGE) == []


def test_the_runner_needs_the_standard_library_only() -> None:
    root = ROOT / PACKAGE
    siblings = {path.stem for path in (root / "runner").glob("*.py")}
    known = sys.stdlib_module_names | siblings | {PACKAGE}
    foreign = [
        f"{module}, line {line}: imports {target}"
        for module, line, target, _ in every_import(root)
        if module.split(".")[0] == "runner" and target.split(".")[0] not in known
    ]
    assert foreign == []


@pytest.mark.parametrize(
    ("path", "source", "bad"),
    [
        ("core/a.py", "from gpu_scheduler.store import store", True),
        ("core/a.py", "from gpu_scheduler import store", True),
        ("core/a.py", "from gpu_scheduler import errors", True),
        ("core/a.py", "from ..store import store", True),
        ("core/a.py", "from . import b", False),
        ("core/a.py", "def f() -> None:\n    import gpu_scheduler.probes.nvml", True),
        ("runner/a.py", "from gpu_scheduler.core import states", True),
        ("executors/a.py", "from gpu_scheduler.runner.folder import write", False),
        ("executors/a.py", "from gpu_scheduler.runner import supervise", True),
        ("store/a.py", "from gpu_scheduler.errors import UsageError", False),
        ("cli/a.py", "from gpu_scheduler.runner import observe", False),
        ("cli/a.py", "from gpu_scheduler.runner.protocol import request_stop", False),
        ("cli/a.py", "from gpu_scheduler.runner.protocol import void", True),
        ("cli/a.py", "from gpu_scheduler.loop import Loop", True),
        ("cli/a.py", "from gpu_scheduler.executors.direct import Direct", True),
        ("cli/start.py", "from gpu_scheduler.service import run", False),
        ("cli/other.py", "from gpu_scheduler.service import run", True),
        ("cli/other.py", "from gpu_scheduler.store.recorder import Recorder", True),
        ("intake/x.py", "from gpu_scheduler.store.recorder import Recorder", True),
        ("loop.py", "from gpu_scheduler.store.store import Store", False),
        ("loop.py", "from gpu_scheduler.cli import main", True),
        ("views/a.py", "from gpu_scheduler.store.store import Store", True),
        ("__main__.py", "from gpu_scheduler.cli import main", False),
    ],
)
def test_the_table_tells_good_from_bad(tmp_path: Path, path: str, source: str, bad: bool) -> None:
    for room in ("core", "store", "probes", "runner", "executors", "cli", "views", "intake"):
        (tmp_path / room).mkdir()
    for module in (
        "store/store.py",
        "store/recorder.py",
        "probes/nvml.py",
        "core/b.py",
        "runner/supervise.py",
        "errors.py",
    ):
        (tmp_path / module).write_text("")
    (tmp_path / path).write_text(source)
    assert bool(violations(tmp_path)) is bad
