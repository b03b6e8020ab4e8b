"""`screens`: lists the Screen sessions of running jobs.

The sessions are known from the store and the attempt folders; Screen is asked only whether one is attached.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping

from gpu_scheduler.cli import sessions
from gpu_scheduler.cli.record import home_of, nothing_yet, opened
from gpu_scheduler.core.sessionlist import SessionList
from gpu_scheduler.core.sighting import Sighting
from gpu_scheduler.core.states import ACTIVE
from gpu_scheduler.errors import NoRecordError
from gpu_scheduler.sight import sight
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.screens import Screens, SessionShown, State, to_json, to_text
from gpu_scheduler.views.words import visible


def screens(options: Namespace) -> int:
    """Prints the sessions; changes nothing."""
    try:
        with opened(options) as store:
            shown = _look(store)
    except NoRecordError:
        if not options.json:
            print(visible(nothing_yet(home_of(options)), lines=True))
            return 0
        shown = Screens(time.time(), ())
    if options.json:
        sys.stdout.write(to_json(shown))
    else:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(to_text(shown, width or None))
    return 0


def _look(store: Store) -> Screens:
    with store.one_moment():
        jobs = {row["id"]: row for row in store.open_jobs(tuple(ACTIVE))}
        attempts = store.newest_attempts(jobs)
        indices = store.indices()
    running = [(row, seen) for row in attempts.values() if (seen := _running(store, row)) is not None]
    ours = sorted((job for job in running if _name(*job) is not None), key=lambda job: int(job[0]["job_id"]))
    lists = _lists(seen.session for _, seen in ours if seen.session is not None and seen.window is not False)
    shown = tuple(_shown(jobs[row["job_id"]], row, seen, indices, lists) for row, seen in ours)
    notes = tuple(sorted({said for said in lists.values() if isinstance(said, str)}))
    return Screens(time.time(), shown, len(running) - len(ours), notes)


def _running(store: Store, attempt: sqlite3.Row) -> Sighting | None:
    """Returns the status of an attempt that is not over; None if it is over."""
    if attempt["outcome"] is not None:
        return None
    try:
        seen = sight(store, attempt)
    except OSError:
        return Sighting("unknown")
    return None if seen.result is not None or seen.claim in ("dead", "void") else seen


def _name(attempt: sqlite3.Row, seen: Sighting) -> str | None:
    """Returns the session's name; before the claim it lacks the pid that it will begin with."""
    name: str | None = seen.session or attempt["session"]
    return name if seen.claim != "live" else seen.session


def _lists(names: Iterable[str]) -> dict[str | None, SessionList | str]:
    """Returns socket folder -> what Screen lists there; Screen is asked once per folder."""
    folders = {sessions.socket_folder(name) for name in names}
    return {folder: sessions.listed(folder) for folder in folders}


def _shown(
    job: sqlite3.Row,
    attempt: sqlite3.Row,
    seen: Sighting,
    indices: Mapping[str, int],
    lists: Mapping[str | None, SessionList | str],
) -> SessionShown:
    name = _name(attempt, seen)
    folder = None if seen.session is None else sessions.socket_folder(seen.session)
    return SessionShown(
        job=job["id"],
        gpus=tuple(sorted(indices.get(uuid, -1) for uuid in json.loads(attempt["gpus"]))),
        session=name,
        state=_state(seen, lists.get(folder)),
        since=attempt["started_at"],
        text=job["text"],
        folder=folder if folder != (os.environ.get("SCREENDIR") or None) else None,
    )


def _state(seen: Sighting, said: SessionList | str | None) -> State:
    if seen.claim != "live" or seen.session is None:
        return "starting" if seen.claim == "none" else "unknown"
    if seen.window is False:
        return "closed"
    if said is None or isinstance(said, str):
        return "unknown"
    attached = said.attached.get(seen.session)
    return "unlisted" if attached is None else "attached" if attached else "detached"
