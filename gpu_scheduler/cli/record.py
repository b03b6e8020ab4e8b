"""Opens the store for a command, wakes the scheduler, and waits for its answers."""

from __future__ import annotations

import json
import sqlite3
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.database import damaged, is_damage
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import scheduler_pid
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.words import pid_words

#: Seconds that a command waits for the scheduler's answer, and between two polls.
ANSWER_S = 2.0
LOOK_EVERY_S = 0.01


def home_of(options: Namespace) -> Home:
    """Returns the data directory that this command uses."""
    return Home.of(options.state_file, options.data_dir)


@contextmanager
def opened(options: Namespace, *, foreign: bool = False) -> Iterator[Store]:
    """Opens the store and closes it at the end.

    Raises NoRecordError if there is none, SchedulerError if it cannot be used now.

    foreign: read only, and accept the store of another host as it was a moment ago. The attempts of another
    host must not be judged here.
    """
    home = home_of(options)
    try:
        store = Store(home)
        try:
            if store.foreign is not None and not foreign:
                raise SchedulerError(home.refusal(store.foreign))
            if foreign:
                store.db.read_only()
            yield store
        finally:
            store.close()
    except sqlite3.OperationalError as error:
        from gpu_scheduler.storage import refusal

        raise SchedulerError(refusal(home, error)) from None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise damaged(home.database, error) from None


def nothing_yet(home: Home) -> str:
    """Returns the message of read-only commands before the first start."""
    return (
        f"nothing has run here yet: there is no store in {home.folder}\n"
        "`start` creates it; --state-file selects another one"
    )


def pid_of(store: Store) -> int | None:
    """Returns the pid of the running scheduler; None if there is none, or if this host cannot know."""
    return scheduler_pid(store.home.lock) if store.foreign is None else None


def ring_and_wait(store: Store, wishes: Iterable[int], wait_s: float = ANSWER_S) -> dict[int, str | None]:
    """Wakes the scheduler and waits until it has answered these requests.

    Returns request -> answer; None if it is not carried out yet: no scheduler runs, or it took too long.
    """
    store.home.ring()
    answers: dict[int, str | None] = {wish: None for wish in wishes}
    end = time.monotonic() + wait_s
    while True:
        for wish in [wish for wish, answer in answers.items() if answer is None]:
            answers[wish] = store.answer(wish)
        if None not in answers.values() or time.monotonic() >= end or pid_of(store) is None:
            break
        time.sleep(LOOK_EVERY_S)
    for wish in [wish for wish, answer in answers.items() if answer is None]:
        answers[wish] = store.answer(wish)  # the scheduler may have answered just before it ended
    return answers


def unanswered(store: Store) -> str:
    """Returns the message for a request that is recorded but not carried out yet."""
    pid = pid_of(store)
    if pid is None:
        return "recorded; takes effect when the scheduler starts"
    return f"recorded; the scheduler ({pid_words(pid)}) has not answered yet"


def wished_verbs(store: Store) -> dict[int, list[str]]:
    """Returns job -> verbs of its open requests, oldest first; a new attribute value as `priority=5`."""
    verbs: dict[int, list[str]] = {}
    for row in store.open_wishes():
        if row["target"].isascii() and row["target"].isdigit():
            verbs.setdefault(int(row["target"]), []).append(_named(row))
    return verbs


def _named(row: sqlite3.Row) -> str:
    if row["verb"] != "set":
        return str(row["verb"])
    args = json.loads(row["args"])
    return f"{args['name']}={args['value']}"
