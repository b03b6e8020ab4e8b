"""Fixtures for all tests, and the order in which the tests run."""

# ruff: noqa: E402 - the environment must be set up before other modules read it

from __future__ import annotations

from tests.isolation import isolate, logging_restored, own_folders

isolate()

import gc
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.signals import default_signals
from tests.store_template import copied_schema
from tests.users import User

# How long one example takes depends on the load of the machine.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

#: The folders with the longest tests come first, so that no worker is still busy when all others are done.
_FIRST = (
    "engines",
    "redis_queue",
    "stress",
    "web/serve",
    "web",
    "client",
    "e2e",
    "loop",
    "runner",
    "contract",
    "cli",
    "notify",
)


# The garbage collector would visit the growing number of tests again and again: a third of the time that
# collecting them takes, and later a part of the time of each test.
gc.disable()


def pytest_collection_finish() -> None:
    """Enables the garbage collector again, for what the tests create."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by folder; keeps the order within a folder."""
    here = Path(__file__).parent
    order = {here / name: position for position, name in enumerate(_FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent, len(order)))


@pytest.fixture(scope="session", autouse=True)
def _default_signals_in_children() -> Iterator[None]:
    with default_signals():
        yield


@pytest.fixture(scope="session", autouse=True)
def _new_databases_are_copied() -> Iterator[None]:
    with copied_schema():
        yield


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    """Closes every store that a test itself opened.

    Stores that the program leaves open are not closed, so that Python 3.13 warns about them.
    """
    opened: list[Store] = []
    real = Store.__init__

    def init(store: Store, home: DataDir, *, create: bool = False) -> None:
        real(store, home, create=create)
        if sys._getframe(1).f_globals["__name__"].startswith("tests."):
            opened.append(store)

    with (
        pytest.MonkeyPatch.context() as patch
    ):  # not the fixture `monkeypatch`, whose patches a test may undo
        patch.setattr(Store, "__init__", init)
        yield
    for store in opened:
        with suppress(sqlite3.ProgrammingError):  # another thread opened and closed the store
            store.close()


_test_numbers = count()


@pytest.fixture(autouse=True)
def _own_folders() -> Iterator[None]:
    with own_folders(next(_test_numbers)):
        yield


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    with logging_restored():
        yield


@pytest.fixture
def other_uid(tmp_path: Path) -> int:
    """Returns another user's uid, so that a test can give files to that user. Skips unless run by root."""
    uid, path = 12345, tmp_path / "owned"
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    path.touch()
    try:
        os.chown(path, uid, uid)
    except OSError:
        pytest.skip(f"there is no user {uid} in this container")
    path.unlink()
    return uid


@pytest.fixture
def ann(other_uid: int) -> Iterator[User]:
    """Provides a process of another user."""
    user = User(other_uid)
    yield user
    user.kill()


@pytest.fixture
def bob(other_uid: int) -> Iterator[User]:
    """Provides a process of a third user."""
    user = User(other_uid + 1)
    yield user
    user.kill()
