"""Creates the store for a command that submits jobs, if there is none."""

from __future__ import annotations

import sqlite3
import time

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.new_store import check_state_file, create_store

#: Seconds to wait for a store that another program is creating, and between two attempts to open it.
_CREATION_TIMEOUT_S, _POLL_INTERVAL_S = 10.0, 0.02


def create_missing_store(location: Location) -> bool:
    """Creates the store if there is none. Returns whether it did.

    Raises SchedulerError if there is no store afterwards.
    """
    home = location.resolve()
    end = time.monotonic() + _CREATION_TIMEOUT_S
    is_created = False
    while True:
        try:
            with open_store(location, read_only=True):
                return is_created
        except StoreNotFoundError:
            if time.monotonic() > end:
                raise
        is_created = _create(location, home)
        if not is_created:
            time.sleep(_POLL_INTERVAL_S)


def _create(location: Location, home: DataDir) -> bool:
    check_state_file(location.state_file)
    try:
        return create_store(home)
    except (OSError, sqlite3.OperationalError) as error:
        from gpu_scheduler.health.storage import describe_store_error

        raise SchedulerError(describe_store_error(home, error)) from None
