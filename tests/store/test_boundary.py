"""SQL and database rows stay inside the store. All other code receives records."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import gpu_scheduler
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.scheduling.facts import QueuedJob
from gpu_scheduler.store import records

PACKAGE = Path(gpu_scheduler.__file__).parent
_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|PRAGMA|WITH)\b")


def violations(source: str) -> Iterator[int]:
    """Yields the numbers of the lines that contain SQL, open a database, or name the type of its rows."""
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value)) or (
            isinstance(node, ast.Attribute) and ast.unparse(node) in ("sqlite3.Row", "sqlite3.connect")
        ):
            yield node.lineno


def test_sql_and_database_rows_stay_inside_the_store() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "store"]
    assert len(outside) > 100
    found = [(path.name, line) for path in outside for line in violations(path.read_text("utf-8"))]
    assert found == []


def test_records_have_no_column_names_as_keys() -> None:
    kinds: list[type] = [one for one in vars(records).values() if isinstance(one, type)]
    types: list[Any] = [one for one in kinds if issubclass(one, Struct) or hasattr(one, "_fields")]
    assert len(types) > 5
    keyed = [one for one in (*types, Request, QueuedJob) if hasattr(one, "__getitem__")]
    # Named tuples are allowed, because they accept only numbers as keys.
    assert [one for one in keyed if not issubclass(one, tuple)] == []


@pytest.mark.parametrize(
    "source",
    ['db.execute("SELECT 1")', "x: sqlite3.Row", 'sqlite3.connect("x")', 'f"UPDATE {table} SET a = 1"'],
)
def test_the_boundary_check_detects_each_violation(source: str) -> None:
    assert list(violations(source))
