"""Creates test databases by copying an empty database.

Running the migrations is slower, since each is synced.
"""

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
#: An empty database for each schema version.
_templates: dict[int, sqlite3.Connection] = {}


@contextmanager
def copied_schema() -> Iterator[None]:
    """Patches `Database` for the block: a new database copies the schema in one commit.

    Databases with an earlier schema, and those of other processes, are migrated as usual.
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
