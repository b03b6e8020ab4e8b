"""Tests that imports between rooms point inward, as the table in docs/architecture.md shows."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "gpu_scheduler"

#: The modules of the store, without its writer, because only the loop changes jobs and attempts.
STORE = tuple(
    f"store.{name}"
    for name in (
        "attempt_history", "data_dir", "database", "events", "job_lists", "jobs_files", "moved_or_copied",
        "new_store", "pending_groups", "records", "requests", "scheduler_lock", "state_file", "store",
        "taken_items",
    )
)  # fmt: skip

CORE = (
    "core.model",
    "core.text",
    "core.command",
    "core.jobsfile",
    "core.explain",
    "core.scheduling",
)

#: Modules at the top level of the package, which every room may import.
TOP = ("errors", "config", "clock")

#: The rooms or single modules that each room may import. Imports within a room are allowed.
MAY: Mapping[str, tuple[str, ...]] = {
    "core": (),
    "core.text": (),
    "core.model": ("core.text",),
    "core.command": ("core.model", "core.text"),
    "core.explain": ("core.model", "core.text"),
    "core.jobsfile": ("core.model", "core.text", "core.command"),
    "core.scheduling": (
        "core.model", "core.text", "core.explain", "core.jobsfile", "core.command.shell_words",
    ),
    "runner": (),
    "system": (
        "core.model", "errors", "runner.folder", "runner.locks", "runner.process_scan",
    ),
    "store": (*CORE, *TOP, "system", "runner.folder", "runner.locks"),
    "gpus.probes": ("core.model", "errors", "config", "runner.folder", "system.simulated_usage"),
    "gpus": (*CORE, *TOP, "system", "runner.process_scan", "gpus.probes", "store"),
    "attempts": (
        *CORE, *TOP, "system", "runner", *STORE, "store.writer", "store.backups",
    ),
    "intake": (*CORE, *TOP, "system", *STORE),
    "health": (
        "core.model", "core.text", "clock", "system", "runner.folder", "runner.shortage", "store.data_dir",
        "store.state_file", "attempts.job_logs",
    ),
    "health.job_checks": ("core.model", "core.command", "system"),
    "health.doctor": (
        "core.model", "core.text", "core.command", "errors", "config", "system", "health",
        "store.backups", "store.data_dir", "store.database", "store.inspection", "store.moved_or_copied",
        "store.new_store", "store.scheduler_lock", "store.state_file",
        "gpus.probes", "attempts.job_logs", "attempts.executors", "intake",
    ),
    # Use cases that read, with their text and JSON.
    "show": (
        *CORE, *TOP, "system", "runner", *STORE, "attempts", "gpus", "gpus.probes", "intake", "health",
        "rounds.command", "unit",
    ),
    "show.doctor": (*TOP, *STORE, "core.model", "attempts", "health", "show", "engines.start", "unit"),
    # Use cases that change; those that read, in show, do not import them.
    "control": (
        *CORE, *TOP, "system", "runner", *STORE, "attempts", "gpus", "gpus.probes", "intake", "health",
        "rounds.command", "show",
    ),
    "rounds": (
        *CORE, *TOP, "system", "runner", "store", "attempts", "gpus", "intake", "health",
    ),
    "daemon": (
        *CORE, *TOP, "system", "runner", "store", "attempts", "gpus", "gpus.probes", "intake", "health",
        "rounds", "show",
    ),
    "web": (
        "control", "show", "core.model", "core.text", "core.jobsfile.attributes", *TOP,
        "store.job_lists", "store.requests", "system", "runner.folder", "runner.locks", "web.metrics",
    ),
    "web.metrics": (
        "show", "core.model", *TOP, "store.attempt_history", "store.job_lists", "store.pending_groups",
        "store.store",
    ),
    "redis_queue": (
        "control", "show", "core.text", "core.model", *TOP, "store.moved_or_copied", "store.store",
        "store.taken_items",
    ),
    "engines": ("core.text", "core.model", *TOP, "system"),
    "engines.agent": (
        "core.model", *TOP, "engines", "attempts.folder", "attempts.launch", "core.scheduling.facts",
        "core.scheduling.needs", "runner.folder", "store.pending_groups", "store.store",
    ),
    "engines.start": (*TOP, "engines", "intake.llm_config", "store.moved_or_copied", "store.store"),
    "notify": (
        "core.model", "core.text", *TOP, "show", "store.events", "store.job_lists", "system",
    ),
    "unit": (*TOP, "attempts.job_logs", "health.sessions", "store.scheduler_lock", "system"),
    "client": ("control", "show", "core.text", *TOP, "web.operations"),
    "mcp_server": ("client", "core.text", "errors"),
    "top": ("client", "core.model", "core.text", "errors", "show", "web.operations"),
    # The command line only parses arguments and formats results; every use case is in show or control.
    "cli": (
        "control", "show", "core.model", "core.text", "core.jobsfile.attributes",
        "core.jobsfile.compose", "core.jobsfile.job_line", *TOP, "system.own_process",
        "system.safe_file", "system.shortages", "web.server", "web.tokens", "mcp_server", "top", "client",
        "redis_queue", "notify", "engines.start", "unit",
    ),
    "cli.start": (
        "daemon.service", "gpus.probes.simulated", "health.sessions",
    ),
    "simjob": ("system.simulated_usage",),
    "clock": ("core.model",),
    "errors": (),
    "config": ("core.scheduling.settings", "core.model.job_spec"),
    "__main__": ("cli",),
}  # fmt: skip

STREAMS = [("sys", name) for name in ("argv", "stdin", "stdout", "stderr")]

#: Modules of `show` with text and JSON alone.
TEXTS = (
    "gpu_text", "job_findings", "job_text", "layout", "status_json", "status_text", "tables",
    "top_text", "wait_text", "why_text",
)  # fmt: skip

#: Names in `attempts` that use cases may not import, because only the loop uses them.
NOT_FOR_USE_CASES = (
    "void_claim", "prepare", "kill_runner", "Launcher", "DirectExecutor", "ForkingExecutor", "ScreenExecutor",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """An import of `target` by `module`, both without the package's name. `name` is the imported name."""

    module: str
    line: int
    target: str
    name: str | None


def our_imports(root: Path) -> Iterator[Import]:
    """Yields every import between our modules, including those in functions and for type checking."""
    for module, line, target, name in every_import(root):
        if target.split(".")[0] != PACKAGE:
            continue
        inner = target.split(".")[1:]
        if name is not None and is_module(root.joinpath(*inner, name)):
            yield Import(module, line, ".".join([*inner, name]), name)
        elif inner:
            yield Import(module, line, ".".join(inner), name)


def every_import(root: Path) -> Iterator[tuple[str, int, str, str | None]]:
    """Yields (module, line, absolute target, imported name) for every import statement."""
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


def room_of(module: str) -> str:
    """Returns the room of a module, which is the longest entry of the table that contains it."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        room = ".".join(parts[:length])
        if room in MAY and room != "cli.start":
            return room
    return parts[0]


def allowed(found: Import) -> bool:
    room, target_room = room_of(found.module), room_of(found.target)
    if room == target_room or not found.module:
        return True
    if room in ("show", "control") and target_room == "attempts" and found.name in NOT_FOR_USE_CASES:
        return False
    may = MAY.get(room, ()) + (MAY["cli.start"] if found.module == "cli.start" else ())
    return any(
        target_room == entry or found.target == entry or found.target.startswith(f"{entry}.") for entry in may
    )


def violations(root: Path) -> list[str]:
    return [
        f"{found.module}, line {found.line}: imports {found.target}"
        for found in our_imports(root)
        if not allowed(found)
    ]


def test_every_import_is_allowed_by_the_import_table() -> None:
    assert len(list(our_imports(ROOT / PACKAGE))) > 20
    assert violations(ROOT / PACKAGE) == []


@pytest.mark.parametrize("part_of", [room_of, str], ids=["rooms", "modules"])
def test_imports_form_no_cycle(part_of: Callable[[str], str]) -> None:
    """Imports in functions and for type checking count, too."""
    arrows: dict[str, set[str]] = {}
    for found in our_imports(ROOT / PACKAGE):
        one, other = part_of(found.module), part_of(found.target)
        if one != other:
            arrows.setdefault(one, set()).add(other)
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the modules of a cycle


def test_every_package_and_top_level_module_is_in_the_import_table() -> None:
    rooms = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / PACKAGE).glob("*.py")} - {"__init__"}
    assert rooms | modules == {entry.split(".")[0] for entry in MAY}


def test_use_cases_use_neither_the_command_line_nor_the_terminal() -> None:
    root = ROOT / PACKAGE
    for path in sorted([*root.glob("show/*.py"), *root.glob("control/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in STREAMS, f"{path.name}, line {node.lineno}"
            if isinstance(node, ast.Name):
                assert node.id not in ("print", "input", "Namespace"), f"{path.name}, line {node.lineno}"


def test_the_texts_read_nothing() -> None:
    """They import the types of the records that results contain, but read neither the store nor files."""
    rooms = (
        "core.model", "core.text", "core.scheduling", "core.explain", "core.command.shell_words", "show",
        "store.records", "store.jobs_files", "errors",
    )  # fmt: skip
    texts = [f"show.{path.stem}" for path in (ROOT / PACKAGE / "show").glob("*.py") if path.stem in TEXTS]
    assert len(texts) == len(TEXTS)
    assert [
        f"{found.module}, line {found.line}: imports {found.target}"
        for found in our_imports(ROOT / PACKAGE)
        if found.module in texts and not any(f"{found.target}.".startswith(f"{room}.") for room in rooms)
    ] == []


def test_the_runner_needs_only_the_standard_library() -> None:
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
        ("core/model/a.py", "from gpu_scheduler.store import store", True),
        ("core/model/a.py", "from gpu_scheduler import store", True),
        ("core/model/a.py", "from gpu_scheduler import errors", True),
        ("core/model/a.py", "from ...store import store", True),
        ("core/model/a.py", "from . import b", False),
        ("core/model/a.py", "from gpu_scheduler.core.scheduling import plan", True),
        ("core/scheduling/a.py", "from gpu_scheduler.core.model import b", False),
        ("core/model/a.py", "def f() -> None:\n    import gpu_scheduler.gpus.probes.nvml", True),
        ("runner/a.py", "from gpu_scheduler.core.model import states", True),
        ("system/a.py", "from gpu_scheduler.runner.folder import write", False),
        ("system/a.py", "from gpu_scheduler.runner import supervise", True),
        ("show/a.py", "from gpu_scheduler.attempts.executors import DirectExecutor", True),
        ("store/a.py", "from gpu_scheduler.errors import UsageError", False),
        ("show/a.py", "from gpu_scheduler.attempts.observe import observe", False),
        ("show/a.py", "from gpu_scheduler.attempts.folder import request_stop", False),
        ("show/a.py", "from gpu_scheduler.attempts.folder import void_claim", True),
        ("show/a.py", "from gpu_scheduler.store.writer import StoreWriter", True),
        ("show/a.py", "from gpu_scheduler.rounds.loop import Loop", True),
        ("show/a.py", "from gpu_scheduler.control.stop import stop", True),
        ("control/a.py", "from gpu_scheduler.store.writer import StoreWriter", True),
        ("cli/a.py", "from gpu_scheduler.show.status import status", False),
        ("cli/a.py", "from gpu_scheduler.attempts.observe import observe", True),
        ("cli/a.py", "from gpu_scheduler.store.store import Store", True),
        ("cli/a.py", "from gpu_scheduler.rounds.loop import Loop", True),
        ("cli/a.py", "from gpu_scheduler.attempts.executors import Direct", True),
        ("cli/start.py", "from gpu_scheduler.daemon.service import run", False),
        ("cli/other.py", "from gpu_scheduler.daemon.service import run", True),
        ("cli/other.py", "from gpu_scheduler.store.writer import StoreWriter", True),
        ("intake/x.py", "from gpu_scheduler.store.writer import StoreWriter", True),
        ("rounds/loop.py", "from gpu_scheduler.store.store import Store", False),
        ("rounds/loop.py", "from gpu_scheduler.cli import main", True),
        ("daemon/a.py", "from gpu_scheduler.daemon.reporter import EventReporter", False),
        ("rounds/loop.py", "from gpu_scheduler.show.tables import title", True),
        ("attempts/a.py", "from gpu_scheduler.show.tables import title", True),
        ("health/doctor.py", "from gpu_scheduler.show.tables import title", True),
        ("__main__.py", "from gpu_scheduler.cli import main", False),
    ],
)
def test_the_import_checks_reject_only_forbidden_imports(
    tmp_path: Path, path: str, source: str, bad: bool
) -> None:
    for module in (
        "store/store.py", "store/writer.py", "gpus/probes/nvml.py", "core/model/b.py",
        "core/scheduling/plan.py",
        "runner/supervise.py", "attempts/observe.py", "attempts/executors.py", "daemon/service.py",
        "errors.py", "daemon/reporter.py", "show/tables.py",
    ):  # fmt: skip
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(source)
    assert bool(violations(tmp_path)) is bad
