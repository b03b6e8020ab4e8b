"""Opens the SQLite file, runs durable transactions on it and upgrades its schema."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from gpu_scheduler.errors import DamagedStoreError, SchemaError, StoreNotFoundError
from gpu_scheduler.store import data_dir

# Reads a database without opening it as a store, so nothing is created, changed or upgraded.


def connect_read_only(path: Path, *, immutable: bool = False, timeout_s: float = 5.0) -> sqlite3.Connection:
    """Opens a database for reading. Raises sqlite3.Error.

    immutable: the caller ensures that no process writes to the database, and SQLite creates no file beside
    it.
    """
    mode = "immutable=1" if immutable else "mode=ro"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=timeout_s)


def query_read_only(path: Path, sql: str) -> list[sqlite3.Row] | None:
    """Returns the rows of a query without changing the database, not even its schema.

    Returns None if there is no database or it cannot be read at the moment.
    """
    if not os.path.exists(path) or not data_dir.is_ours(path.parent):  # also if access is denied
        return None
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA query_only = 1")
            return db.execute(sql).fetchall()
    except sqlite3.Error:
        return None  # the next attempt to open the database reports the error


def read_meta(path: Path, key: str) -> str | None:
    """Returns the value of a key in the table `meta`; None if there is none or the database is unreadable."""
    rows = query_read_only(path, "SELECT key, value FROM meta") or []
    return next((row["value"] for row in rows if row["key"] == key), None)


def is_missing_or_empty(database: Path) -> bool:
    """Returns whether the database is missing or has no jobs table; False if it cannot be read."""
    try:
        if os.stat(database).st_size == 0:
            return True
    except FileNotFoundError:
        return True
    try:
        with closing(connect_read_only(database)) as db:
            return not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone()
    except sqlite3.Error:
        return False


def check_integrity(path: Path, timeout_s: float) -> tuple[int, str | None]:
    """Returns a database's schema version and the damage found within the time limit (None if none).

    Raises sqlite3.Error if the database cannot be read.
    """
    end = time.monotonic() + timeout_s
    with closing(connect_read_only(path, timeout_s=2.0)) as db:
        db.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        schema: int = db.execute("PRAGMA user_version").fetchone()[0]
        try:
            result = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "interrupt" not in str(error):
                raise
            result = "ok"  # too large to be read in time; the part that was read is intact
    return schema, None if result == "ok" else str(result)


_MIGRATIONS = Path(__file__).with_name("migrations")
#: The application id that every released schema sets. Databases from development versions do not have it.
_APPLICATION_ID = 1196446576


def no_store_error(path: Path) -> StoreNotFoundError:
    """Returns the error for a reader that finds no database at this path."""
    return StoreNotFoundError(
        f"no scheduler store in {path.parent}; "
        "run `start` there first, or name the state file with --state-file"
    )


def _checkpoint_pages(folder: Path) -> int:
    """Returns the number of pages after which the write-ahead log is checkpointed.

    With SQLite's default of 1000 pages, the log alone could fill a small disk.
    """
    disk = os.statvfs(folder)
    return max(32, min(1000, disk.f_bavail * disk.f_frsize // 8 // 4096))


def is_damage(error: BaseException) -> bool:
    """Returns whether an error means that the database file is damaged.

    Only DatabaseError itself means damage. SQLite raises one of its subclasses if the file cannot be opened,
    read or written at the moment, or if a constraint is violated.
    """
    return type(error) is sqlite3.DatabaseError


def damaged_error(path: Path, error: BaseException | str) -> DamagedStoreError:
    """Returns the error for a damaged database, with the remedy."""
    return DamagedStoreError(
        f"{path} is damaged ({error}); running jobs continue\n"
        "once no scheduler uses the store, `start --restore` continues from its newest backup"
    )


class Database:
    """One connection to the database.

    Every write is a BEGIN IMMEDIATE … COMMIT transaction with a full fsync (WAL, synchronous=FULL), except
    for writes that a power cut may undo.

    create: create a missing database, and accept an earlier schema, which `upgraded` then upgrades. Without
    `create`, raises StoreNotFoundError if there is no database, and SchemaError if the schema is an earlier
    one. Always raises SchemaError if the schema is a later one.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.exists():
            raise no_store_error(path)
        #: True within `Store.snapshot`.
        self.is_reading = False
        # Only a new file needs it. All threads share the umask, so two of them would restore a wrong one.
        old = os.umask(0o077) if create else None
        try:
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            try:
                self._begin(path, create=create)
            except BaseException:
                self.connection.close()
                raise
        except sqlite3.OperationalError:
            raise  # the file cannot be opened or written at the moment, which is no sign of damage
        except sqlite3.DatabaseError as error:
            raise damaged_error(path, error) from None
        finally:
            if old is not None:
                os.umask(old)

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        """Commits all changes in the block or none. An inner transaction is part of the outer one.

        synced: False for changes that the next round would find again in the folders and on the GPUs. Such
        changes survive the death of every process and reach the disk with the next synced transaction. Only a
        power cut can undo them.
        """
        assert not self.is_reading, "a snapshot of the store is only read"
        if self.connection.in_transaction:
            yield self.connection
            return
        # This pragma cannot be changed inside a transaction, so it is set before each one.
        self.connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            # If the disk is full, SQLite has already rolled the transaction back.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def shrink(self) -> None:
        """Truncates the write-ahead log as far as possible without waiting."""
        timeout = self.value("PRAGMA busy_timeout")
        try:
            self.connection.execute("PRAGMA busy_timeout = 0")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError:
            pass
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {timeout}")

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Returns all rows of a query."""
        return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """Returns the first row of a query, or None."""
        found: sqlite3.Row | None = self.connection.execute(sql, values).fetchone()
        return found

    def value(self, sql: str, *values: object) -> Any:
        """Returns the first column of the first row of a query, or None if it has no rows."""
        row = self.row(sql, *values)
        return None if row is None else row[0]

    def column(self, sql: str, *values: object) -> list[Any]:
        """Returns the first column of all rows of a query."""
        return [row[0] for row in self.rows(sql, *values)]

    def write(self, sql: str, *values: object, synced: bool = True) -> int:
        """Runs one statement in a transaction. Returns the number of changed rows. synced: as there."""
        with self.transaction(synced=synced) as db:
            return db.execute(sql, values).rowcount

    def meta(self, key: str) -> str | None:
        """Returns the value of a key in the table `meta`, or None."""
        found: str | None = self.value("SELECT value FROM meta WHERE key = ?", key)
        return found

    def set_meta(self, key: str, value: str, *, synced: bool = True) -> None:
        """Sets the value of a key in the table `meta`. synced: as for `transaction`."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value, synced=synced)

    def make_read_only(self) -> None:
        """Makes every later write fail."""
        self.connection.execute("PRAGMA query_only = 1")

    @property
    def data_version(self) -> int:
        """A number that changes with every commit by another connection."""
        number: int = self.value("PRAGMA data_version")
        return number

    @property
    def schema_version(self) -> int:
        """The schema version; 0 if the database has no schema."""
        number: int = self.value("PRAGMA user_version")
        return number

    @contextmanager
    def upgraded(self) -> Iterator[None]:
        """Upgrades the schema to the newest version before the block, and undoes this if the block fails.

        Only the scheduler that holds the locks may call this method.
        """
        if self.schema_version == newest_schema_version():
            yield
            return
        with self.transaction():
            self._apply_migrations()
            yield

    def _begin(self, path: Path, *, create: bool) -> None:
        self.connection.row_factory = sqlite3.Row
        version = self.schema_version
        # Tables and version are created together, so the version is read again after the tables are seen.
        if not version and self.row("SELECT 1 FROM sqlite_master") and not self.schema_version:
            raise damaged_error(path, "it has tables, but its schema version is 0")
        if is_development_schema(self.connection):
            raise development_schema_error(path)
        if version > newest_schema_version():
            raise SchemaError(
                f"{_version_mismatch(path, version)}; use the newer version that wrote the store"
            )
        if not create and version == 0:
            raise no_store_error(path)  # a scheduler is about to create the store
        if not create and version < newest_schema_version():
            raise SchemaError(f"{_version_mismatch(path, version)}; {_upgrade_remedy(path)}")
        # temp_store=MEMORY avoids temporary files, for which the disk may have no space.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
            self.connection.execute(f"PRAGMA {pragma}")
        if version == 0:
            self._migrate(path)
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {_checkpoint_pages(path.parent)}")

    def _migrate(self, path: Path) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self._apply_migrations()
        self.connection.execute("COMMIT")

    def _apply_migrations(self) -> None:
        """Applies the missing migrations in the caller's transaction."""
        version = self.schema_version
        for number, path in sorted(_migration_files().items()):
            if number > version:
                for statement in _statements(path.read_text("utf-8")):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")


def insert(db: sqlite3.Connection, table: str, **values: object) -> int:
    """Inserts a row with these values by column name. Returns the id of the row."""
    marks = ", ".join("?" * len(values))
    cursor = db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def is_development_schema(db: sqlite3.Connection) -> bool:
    """Returns whether a development version wrote the database. No release can read such a schema."""
    [version] = db.execute("PRAGMA user_version").fetchone()
    [application] = db.execute("PRAGMA application_id").fetchone()
    return bool(version) and application != _APPLICATION_ID


def development_schema_error(path: Path) -> SchemaError:
    """Returns the error for a database that a development version wrote, with the remedies."""
    from gpu_scheduler.store.scheduler_lock import scheduler_pid

    pid = scheduler_pid(path.with_name("lock"))
    # `stop` cannot end that scheduler, because it would have to write a request to the unreadable store.
    first = f"end its scheduler with `kill {pid}`; then " if pid else ""
    return SchemaError(
        f"the store in {path.parent} is from a development version and cannot be read; {first}`start --fresh`"
        " forgets its jobs, and --state-file OTHER.json creates a separate store"
    )


def newest_schema_version() -> int:
    """Returns the schema version that this version of gpu-scheduler reads and writes."""
    return max(_migration_files())


@cache
def _migration_files() -> dict[int, Path]:
    return {int(path.name.partition("_")[0]): path for path in _MIGRATIONS.glob("*.sql")}


def _version_mismatch(path: Path, version: int) -> str:
    newest = newest_schema_version()
    return (
        f"the store in {path.parent} has schema version {version}, but this version of gpu-scheduler reads"
        f" schema version {newest}"
    )


def _upgrade_remedy(path: Path) -> str:
    from gpu_scheduler.store.scheduler_lock import scheduler_pid

    pid = scheduler_pid(path.with_name("lock"))
    if pid is None:
        return "run `start` with this version to upgrade the store"
    return (
        f"its scheduler (pid {pid}) is an older version; use that version, or end the scheduler with"
        f" `kill {pid}` and run `start` with this version (running jobs continue)"
    )


def _statements(script: str) -> Iterator[str]:
    """Splits a script into statements, because `executescript` would end the caller's transaction."""
    text = ""
    for part in script.split(";")[:-1]:
        text += f"{part};"
        if sqlite3.complete_statement(text):
            yield text
            text = ""
