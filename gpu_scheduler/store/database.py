"""The SQLite file: opening it durably, one transaction at a time, and bringing its schema up to date."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from gpu_scheduler.errors import DamagedRecordError, NoRecordError, SchedulerError, SchemaError
from gpu_scheduler.store import private

_MIGRATIONS = Path(__file__).with_name("migrations")


def no_record(path: Path) -> NoRecordError:
    """The error of a reader that finds no database at this path."""
    return NoRecordError(
        f"no scheduler record in {path.parent}; "
        "run `start` there first, or name the state file with --state-file"
    )


def _log_pages(folder: Path) -> int:
    """After how many pages the write-ahead log is emptied: SQLite's own 1000 alone fill a small disk."""
    disk = os.statvfs(folder)
    return max(32, min(1000, disk.f_bavail * disk.f_frsize // 8 // 4096))


def peek(path: Path, sql: str) -> list[sqlite3.Row] | None:
    """The rows of a query on a database that is not changed, not even to a newer schema; None: there is none,
    or it cannot be read now."""
    if not os.path.exists(path) or not private.is_ours(path.parent):  # also where it may not be looked for
        return None
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA query_only = 1")
            return db.execute(sql).fetchall()
    except sqlite3.Error:
        return None  # whoever opens it next tells what is wrong with it


def is_damage(error: BaseException) -> bool:
    """Whether an error tells that the database file is damaged. What cannot be opened, read or written now,
    and what breaks a rule of a table, has a class of its own."""
    return type(error) is sqlite3.DatabaseError


def damaged(path: Path, error: BaseException) -> DamagedRecordError:
    """The error that tells of a damaged database, with the remedy."""
    return DamagedRecordError(
        f"{path} is damaged ({error}); running jobs go on\n"
        "`start --restore` goes on from its newest backup, once no scheduler runs on it"
    )


class Database:
    """One connection. Every write is BEGIN IMMEDIATE … COMMIT with a full fsync (WAL, synchronous=FULL), but
    for what may be lost with the machine's power.

    create: make it where there is none; it may have an earlier schema, which `upgraded` brings up to date.
    Else raises SchemaError where it has another schema than this version's. refusal: why nothing may be
    written, since this is a copy of our own; None: it may.
    """

    def __init__(self, path: Path, *, create: bool = False, refusal: str | None = None) -> None:
        self._refusal = refusal
        if not create and not path.exists():
            raise no_record(path)
        old = os.umask(0o077)
        try:
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            try:
                self._begin(path, create=create)
            except BaseException:
                self.connection.close()
                raise
        except sqlite3.OperationalError:
            raise  # it cannot be opened or written now, which says nothing of what is in it
        except sqlite3.DatabaseError as error:
            raise damaged(path, error) from None
        finally:
            os.umask(old)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        """All or nothing; a transaction inside another is part of it.

        synced: False for what the next look at folders and GPUs tells again. It survives the death of every
        process, and is on the disk with the next one that is synced; only a power cut may take it.
        """
        if self.connection.in_transaction:
            yield self.connection
            return
        if self._refusal is not None:
            raise SchedulerError(self._refusal)
        # Not to be changed inside a transaction, so it is said before each.
        self.connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            # A full disk has rolled it back already.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def shrink(self) -> None:
        """Give back the room that the write-ahead log takes, as far as that is possible without waiting."""
        timeout = self.connection.execute("PRAGMA busy_timeout").fetchone()[0]
        try:
            self.connection.execute("PRAGMA busy_timeout = 0")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError:
            pass
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {timeout}")

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """The first row of a query, or None."""
        found: sqlite3.Row | None = self.connection.execute(sql, values).fetchone()
        return found

    def meta(self, key: str) -> str | None:
        """A value of the table meta."""
        row = self.row("SELECT value FROM meta WHERE key = ?", key)
        return row["value"] if row else None

    def set_meta(self, key: str, value: str) -> None:
        """Set a value of the table meta."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def read_only(self) -> None:
        """Refuse every write from now on."""
        self.connection.execute("PRAGMA query_only = 1")

    @property
    def schema(self) -> int:
        """The number of its schema; 0: it has none."""
        number: int = self.connection.execute("PRAGMA user_version").fetchone()[0]
        return number

    @contextmanager
    def upgraded(self) -> Iterator[None]:
        """Inside, the schema is that of this version; it stays so if the block ends well. For the one
        scheduler."""
        if self.schema == newest_schema():
            yield
            return
        with self.transaction():
            self._apply_steps()
            yield

    def _begin(self, path: Path, *, create: bool) -> None:
        self.connection.row_factory = sqlite3.Row
        version = self.schema
        if version > newest_schema():
            raise SchemaError(f"{_schemas(path, version)}: use the newer version that wrote it")
        if not create and version == 0:
            raise no_record(path)  # a scheduler is about to make it
        if not create and version < newest_schema() and self._refusal is None:
            raise SchemaError(f"{_schemas(path, version)}: {_remedy(path)}")
        # temp_store: a query needs no further file, which there may be no room for.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
            self.connection.execute(f"PRAGMA {pragma}")
        if version == 0 or self._refusal is not None:
            self._migrate(path)
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {_log_pages(path.parent)}")

    def _migrate(self, path: Path) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self._apply_steps()
        self.connection.execute("COMMIT")

    def _apply_steps(self) -> None:
        """The missing steps of the schema, in the transaction of the caller."""
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        for number, path in sorted(_steps().items()):
            if number > version:
                for statement in _statements(path.read_text("utf-8")):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")


def newest_schema() -> int:
    """The number of the schema of this version."""
    return max(_steps())


@cache
def _steps() -> dict[int, Path]:
    return {int(path.name.partition("_")[0]): path for path in _MIGRATIONS.glob("*.sql")}


def _schemas(path: Path, version: int) -> str:
    return f"the record in {path.parent} has schema {version}; this version reads schema {newest_schema()}"


def _remedy(path: Path) -> str:
    from gpu_scheduler.store.instance import scheduler_pid

    pid = scheduler_pid(path.with_name("lock"))
    if pid is None:
        return "`start` with this version brings it up to date"
    return (
        f"its scheduler (pid {pid}) is an older version: use that version, or end it with `kill {pid}` and"
        " `start` this version; running jobs go on meanwhile"
    )


def _statements(script: str) -> Iterator[str]:
    """The statements of a script: `executescript` would end the transaction that it is called in."""
    text = ""
    for part in script.split(";")[:-1]:
        text += f"{part};"
        if sqlite3.complete_statement(text):
            yield text
            text = ""
