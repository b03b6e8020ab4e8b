"""Pauses, from the command line and from edits of the state file: the later word wins, none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpu_scheduler.store import statefile
from gpu_scheduler.store.store import Store


def wished_pauses(store: Store) -> dict[str, bool]:
    """UUID -> paused, as it will be once every open wish is carried out."""
    paused = {row["uuid"]: bool(row["paused"]) for row in store.gpus()}
    for wish in store.open_wishes():
        if wish["verb"] in ("pause", "resume") and wish["target"] in paused:
            paused[wish["target"]] = wish["verb"] == "pause"
    return paused


def pause(store: Store, uuids: Iterable[str], paused: bool, by: str, *, scheduler_is_up: bool) -> list[int]:
    """Wish these GPUs paused or resumed, after taking in what the state file says. Returns the wishes."""
    with store.db.transaction():
        path = store.home.state_file
        if path.exists():
            try:
                take_in(store, path.read_bytes())
            except ValueError:
                pass  # a broken file changes nothing; the scheduler reports it
        elif not scheduler_is_up:
            resume_all(store)  # its absence is a word too, and an earlier one
        return [store.wish("pause" if paused else "resume", uuid, by) for uuid in uuids]


def take_in(store: Store, content: bytes) -> list[str]:
    """Wish what an edit of the state file asks for, once per version of it.

    Returns what was found, in words. Raises ValueError for a file that cannot be read as one of ours.
    """
    version = statefile.digest(content)
    if store.db.meta("statefile_examined") == version:
        return []
    state = statefile.parse(content)
    said = []
    with store.db.transaction():
        by_index = {row["idx"]: row["uuid"] for row in store.gpus()}
        wished = wished_pauses(store)
        recorded = [index for index, uuid in by_index.items() if wished[uuid]]
        for index, paused in statefile.edits(state, recorded).items():
            uuid = by_index.get(index)
            if uuid is None:
                said.append(f"GPU {index} in paused_gpus is not managed; ignored")
            elif wished[uuid] != paused:
                store.wish("pause" if paused else "resume", uuid, "state file")
                said.append(f"GPU {index} {'paused' if paused else 'resumed'} by an edit of the state file")
        store.db.set_meta("statefile_examined", version)
    return said


def resume_all(store: Store) -> None:
    """The state file was removed while no scheduler was up: every GPU is resumed, once for each removal."""
    if store.db.meta("statefile_written") != "1":
        return
    with store.db.transaction():
        store.db.set_meta("statefile_written", "0")
        for uuid, paused in wished_pauses(store).items():
            if paused:
                store.wish("resume", uuid, "state file removed")


def summary(store: Store) -> tuple[list[float], list[int], dict[str, object]]:
    """What the state file shows: allocated share by index, paused GPUs, jobs by state."""
    rows = store.gpus()
    shares: dict[str, int] = {row["uuid"]: 0 for row in rows}
    for attempt in store.db.rows(
        "SELECT gpus, share FROM attempt WHERE settled = 0 AND released_boot IS NULL"
    ):
        for uuid in json.loads(attempt["gpus"]):
            shares[uuid] = shares.get(uuid, 0) + attempt["share"]
    listed = [0.0] * (max((row["idx"] for row in rows), default=-1) + 1)
    for row in rows:
        listed[row["idx"]] = shares[row["uuid"]] / 1000
    counts = store.db.rows("SELECT state, count(*) AS n FROM job WHERE state <> 'finished' GROUP BY state")
    running = store.db.rows(
        "SELECT id FROM job WHERE state IN ('starting', 'running', 'stopping') ORDER BY id"
    )
    jobs: dict[str, object] = {row["state"]: row["n"] for row in counts}
    jobs["running_ids"] = [row["id"] for row in running]
    return listed, [row["idx"] for row in rows if row["paused"]], jobs
