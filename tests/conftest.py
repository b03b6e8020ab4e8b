"""What holds for every test."""

# ruff: noqa: E402 - the environment is made before anything reads it

from __future__ import annotations

from tests.isolation import isolate, log_put_back

isolate()

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.emptyrecord import copied
from tests.signals import heard

# How long one example takes says what else the machine does.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

#: The folders whose tests take longest begin: at the end no worker waits for the last long test of another.
_FIRST = ("stress", "e2e", "loop", "runner", "contract", "cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the folders in that order; within a folder nothing changes."""
    here = Path(__file__).parent
    order = {here / name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent, len(order)))


@pytest.fixture(scope="session", autouse=True)
def _children_hear_signals() -> Iterator[None]:
    with heard():
        yield


@pytest.fixture(scope="session", autouse=True)
def _records_are_copied() -> Iterator[None]:
    with copied():
        yield


@pytest.fixture(autouse=True)
def _stores_of_tests_are_closed() -> Iterator[None]:
    """Closes each store that a test opened itself.

    One that the program leaves open stays open, of which Python 3.13 warns.
    """
    opened: list[Store] = []
    real = Store.__init__

    def init(store: Store, home: Home, *, create: bool = False) -> None:
        real(store, home, create=create)
        if sys._getframe(1).f_globals["__name__"].startswith("tests."):
            opened.append(store)

    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo that of the fixture
        patch.setattr(Store, "__init__", init)
        yield
    for store in opened:
        with suppress(sqlite3.ProgrammingError):  # opened, and closed, by another thread
            store.close()


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    with log_put_back():
        yield


@pytest.fixture
def stranger(tmp_path: Path) -> int:
    """The number of another user, to whom a test gives what he would have planted."""
    uid, path = 12345, tmp_path / "his"
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    path.touch()
    try:
        os.chown(path, uid, uid)
    except OSError:
        pytest.skip(f"there is no user {uid} in this container")
    path.unlink()
    return uid
