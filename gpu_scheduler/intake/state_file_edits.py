"""Turns edits to the state file into requests to pause or resume GPUs.

These requests and those from commands take effect in the order in which they were made, and none is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import has_meta
from gpu_scheduler.store.requests import add_request, open_requests
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import Content, ProblemKind

#: An edit with the same base as the last edit counts as made on top of it if it comes within this many
#: seconds.
SAME_EDIT_S = 5.0


def requested_pauses(store: Store) -> dict[str, bool]:
    """Returns whether each GPU, by UUID, will be paused once every open request has been carried out."""
    paused = store.recorded_pauses()
    for request in open_requests(store):
        if request.verb in ("pause", "resume") and request.target in paused:
            paused[request.target] = request.verb == "pause"
    return paused


def request_pauses(
    store: Store, uuids: Iterable[str], paused: bool, by: str, *, scheduler_is_up: bool
) -> list[int]:
    """Applies edits to the state file, then requests pauses or resumes. Returns the request ids."""
    with store.db.transaction():
        found = safe_file.read(store.data_dir.state_file, trust=store.recorded_options().trust_files)
        if isinstance(found, Content):
            try:
                apply_edit(store, found.data)
            except ValueError:
                pass  # an invalid file changes nothing; the scheduler reports it
        elif found.kind is ProblemKind.MISSING and not scheduler_is_up:
            resume_all(store)  # removing the file is an edit too, and it came first
        return [add_request(store, "pause" if paused else "resume", uuid, by) for uuid in uuids]


def edit_pauses_in_file(path: Path, gpus: Collection[int], paused: bool) -> None:
    """Pauses or resumes these GPUs in the state file, which the first start reads.

    For use before a store exists. Keeps concurrent edits. Raises OSError if the file cannot be read or
    written, and ValueError if it is not a state file.
    """
    state_file.read(path)  # also raises OSError if the path is a link that belongs to another user
    path = state_file.link_target(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # concurrent commands take turns
        there = state_file.read(path)
        content = _with_pauses(there, gpus, paused)
        while content is not None and content != there:
            displaced = state_file.exchange(path, content)
            if displaced == there:
                break
            there, content = content, _with_pauses(displaced, gpus, paused)
        state_file.forget_displaced(path)
    finally:
        os.close(folder)


def _with_pauses(there: bytes | None, gpus: Collection[int], paused: bool) -> bytes | None:
    state = {} if there is None else state_file.parse(there)
    if set(gpus) & set(state.get("paused_gpus", [])) == (set(gpus) if paused else set()):
        return there
    return state_file.with_pauses(state, gpus, paused)


def apply_edit(store: Store, content: bytes) -> list[str]:
    """Turns an edit to the state file into requests, once for each version of the file.

    Returns messages about the edit. Raises ValueError if the content is not that of a state file.
    """
    version = state_file.digest(content)
    if store.db.meta("statefile_examined") == version:
        return []
    state = state_file.parse(content)
    messages = []
    older = state_file.is_from_older_scheduler(state) and store.db.meta("statefile_written") is None
    if older:
        messages.append(
            "the older scheduler wrote the state file; its pauses are kept, and the shares are recomputed"
        )
    with store.db.transaction():
        by_index = store.managed_gpus()
        requested = requested_pauses(store)
        recorded = [index for index, uuid in by_index.items() if requested[uuid]]
        for index, paused in state_file.pause_edits(_rebased_on_last_edit(store, state), recorded).items():
            uuid = by_index.get(index)
            if uuid is None:
                messages.append(f"GPU {index} in paused_gpus is ignored, because it is not managed")
            elif requested[uuid] != paused:
                # A file that the older scheduler left behind is not an edit.
                cause = None if older else "state_file_edited"
                add_request(store, "pause" if paused else "resume", uuid, "state file", cause=cause)
        last = {"version": version, "state": _pause_keys(state), "at": time.time()}
        store.db.set_meta("statefile_examined", version)
        store.db.set_meta("statefile_edit", json.dumps(last))
    return messages


def imports_old_state_file(home: DataDir) -> bool:
    """Returns whether the first start here would import a state file that the older scheduler wrote."""
    try:
        state = state_file.parse(state_file.read(home.state_file, trust=True) or b"")
    except (OSError, ValueError):
        return False
    return state_file.is_from_older_scheduler(state) and not has_meta(home.database, "statefile_written")


def _rebased_on_last_edit(store: Store, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state in the file, with the last edit as its base if this edit was made on top of it.

    If a second edit follows before the scheduler has rewritten the file, both edits have the same base. If
    the second edit undoes part of the first one, that part equals the base again and would not count as an
    edit, although it is the later decision.
    """
    last = json.loads(store.db.meta("statefile_edit") or "null")
    if last is None or "_scheduler" not in state or state["_scheduler"] != last["state"].get("_scheduler"):
        return state
    unanswered = store.db.meta("statefile_examined") == last["version"]
    # The file may have been rewritten while the second edit was being made.
    if unanswered or 0 <= time.time() - last["at"] < SAME_EDIT_S:
        return {**state, "_scheduler": {"paused_gpus": last["state"].get("paused_gpus", [])}}
    return state


def forget_last_edit(store: Store) -> None:
    """Forgets the last edit. For use when the next edit was not made on top of it."""
    store.db.set_meta("statefile_edit", "null")


def _pause_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of the state file that concern pauses."""
    return {key: state[key] for key in ("paused_gpus", "_scheduler") if key in state}


def resume_all(store: Store) -> None:
    """Resumes every GPU if the state file was removed while no scheduler was running, once per removal."""
    if store.db.meta("statefile_written") != "1":
        return
    with store.db.transaction():
        store.db.set_meta("statefile_written", "0")
        for uuid, paused in requested_pauses(store).items():
            if paused:
                add_request(store, "resume", uuid, "state file removed", cause="state_file_removed")
