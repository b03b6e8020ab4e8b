"""Creates test databases by copying an empty one instead of running migrations, each of which is synced."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.store.database import Database, newest_schema_version

_original_migrate = Database._migrate
_lock = threading.Lock()
#: Schema version -> an empty database.
_templates: dict[int, sqlite3.Connection] = {}


@contextmanager
def copied_schema() -> Iterator[None]:
    """Patches `Database` for the block, to copy the schema into a new database in one commit.

    An earlier schema is migrated as usual, and so are the databases of other processes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_migrate", _migrate)
        yield
    while _templates:
        _templates.popitem()[1].close()


def _migrate(self: Database, path: Path) -> None:
    with _lock:
        if self.connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            _template().backup(self.connection)
    _original_migrate(self, path)


def _template() -> sqlite3.Connection:
    version = newest_schema_version()
    if version not in _templates:
        empty = object.__new__(Database)
        empty.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _original_migrate(empty, Path(":memory:"))
        _templates[version] = empty.connection
    return _templates[version]
