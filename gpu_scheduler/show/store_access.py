"""Opens or creates the store for a use case, wakes the scheduler, and waits for its answers."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from gpu_scheduler.errors import NoSuchJobError, SchedulerError, StoreNotFoundError
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.database import damaged_error, is_damage
from gpu_scheduler.store.moved_or_copied import refuse_copy
from gpu_scheduler.store.requests import open_requests, request_answer, request_target
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.request import Request, RequestAnswer
    from gpu_scheduler.store.data_dir import DataDir

#: Seconds that a command waits for the scheduler's answer.
ANSWER_TIMEOUT_S = 2.0
#: Seconds to wait for a store that another program is creating.
CREATION_TIMEOUT_S = 10.0
#: Seconds between two polls.
POLL_INTERVAL_S = 0.01


@contextmanager
def open_store(location: Location, *, read_only: bool = False) -> Iterator[Store]:
    """Opens the store, and closes it when the context ends.

    Raises StoreNotFoundError if there is no store, and SchedulerError if the store cannot be used: a copy of
    another store can only be read.
    """
    home = location.resolve()
    try:
        store = Store(home)
        try:
            if read_only:
                store.db.make_read_only()
            else:
                refuse_copy(store)
            yield store
        finally:
            store.close()
    except sqlite3.OperationalError as error:
        raise SchedulerError(_describe(home, error)) from None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise damaged_error(home.database, error) from None


def create_missing_store(location: Location) -> bool:
    """Creates the store if there is none, for a command that adds jobs. Returns whether it did.

    Raises SchedulerError if there is no store afterwards.
    """
    from gpu_scheduler.store.new_store import check_state_file, create_store  # few commands need it

    home, end, is_created = location.resolve(), time.monotonic() + CREATION_TIMEOUT_S, False
    while True:
        try:
            with open_store(location, read_only=True):
                return is_created
        except StoreNotFoundError:
            if time.monotonic() > end:
                raise
        check_state_file(location.state_file)
        try:
            is_created = create_store(home)
        except (OSError, sqlite3.OperationalError) as error:
            raise SchedulerError(_describe(home, error)) from None
        if not is_created:
            time.sleep(POLL_INTERVAL_S)


def _describe(home: DataDir, error: OSError | sqlite3.OperationalError) -> str:
    from gpu_scheduler.health.storage import describe_store_error

    return describe_store_error(home, error)


@contextmanager
def job_lookup(location: Location) -> Iterator[Callable[[str], bool]]:
    """Yields a function that returns whether a reference is the id or the name of a job.

    Without a store, there is no job. If the store cannot be read, the function accepts every reference.
    """
    # `pause` uses this module too and must not import the records.
    from gpu_scheduler.store.job_lists import job_exists

    with ExitStack() as stack:
        try:
            found = partial(job_exists, stack.enter_context(open_store(location, read_only=True)))
        except SchedulerError as error:
            is_empty = isinstance(error, StoreNotFoundError)
            yield lambda reference: not is_empty
            return
        yield found


def scheduler_pid_of(store: Store) -> int | None:
    """Returns the pid of the running scheduler; None if no scheduler is running."""
    return scheduler_pid(store.data_dir.lock)


def scheduler_is_running(location: Location) -> bool:
    """Returns whether a scheduler is running on this store."""
    return scheduler_pid(location.resolve().lock) is not None


def recorded_request(location: Location, request_id: int) -> tuple[int, RequestAnswer | None]:
    """Returns the job of a request (0 if it concerns no single job) and its answer, None if it has none yet.

    Raises NoSuchJobError if there is no such request.
    """
    with open_store(location, read_only=True) as store:
        target = request_target(store, request_id)
        if target is None:
            raise NoSuchJobError(f"there is no request {request_id} in {store.data_dir.folder}")
        return (int(target) if target.isdigit() else 0), request_answer(store, request_id)


def requested_verbs(store: Store) -> dict[int, list[str]]:
    """Returns the verbs of each job's open requests, oldest first. `set` appears as `priority=5`."""
    verbs: dict[int, list[str]] = {}
    for request in open_requests(store):
        if request.target.isascii() and request.target.isdigit():
            verbs.setdefault(int(request.target), []).append(_verb_with_value(request))
    return verbs


def _verb_with_value(request: Request) -> str:
    if request.verb != "set":
        return request.verb
    from gpu_scheduler.core.jobsfile.attributes import format_change

    return format_change(request.args["name"], request.args["value"])
