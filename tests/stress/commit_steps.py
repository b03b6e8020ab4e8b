"""Adds a step before and after each commit to the store, for the programs that are killed at one of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_scheduler.store.database import Database


def step_at_commits(step: Callable[[str], None]) -> None:
    """Calls `step` in this process before and after each commit, with the name of the moment."""
    transaction = Database.transaction

    @contextmanager
    def stepping_transaction(self: Database, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        if self.connection.in_transaction:
            yield self.connection
            return
        with transaction(self, synced=synced) as db:
            yield db
            step("before a commit")
        step("after a commit")

    Database.transaction = stepping_transaction  # type: ignore[method-assign]
