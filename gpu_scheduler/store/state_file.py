"""Parses and renders the JSON state file, turns edits to it into requests, and replaces it atomically.

`_scheduler.paused_gpus` is the base: the list of paused GPUs as the scheduler last wrote it. Every difference
between `paused_gpus` and the base is an edit.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.core.text.parsing import parse_json
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import read_meta
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import (
    Content,
    ProblemKind,
    check_status,
    file_version,
    read_json_bytes,
    trusted_owners,
)

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_OWN_KEYS = ("gpu_status", "paused_gpus", "jobs", "_scheduler")


def digest(content: bytes) -> str:
    """Returns a digest that distinguishes versions of the file."""
    return hashlib.sha256(content).hexdigest()


def parse(content: bytes) -> dict[str, Any]:
    """Returns the object in the file, with paused GPUs as integers. Raises ValueError with the problem."""
    raw = parse_json(content)
    if not isinstance(raw, dict):
        raise ValueError("it is not a JSON object")
    for part in (raw, raw.get("_scheduler", {})):
        paused = part.get("paused_gpus", []) if isinstance(part, dict) else None
        numbers = [_number(value) for value in paused] if isinstance(paused, list) else [None]
        if None in numbers:
            raise ValueError('its "paused_gpus" must be a list of GPU numbers, such as [0, 2]')
        if numbers:
            part["paused_gpus"] = numbers
    return raw


def _number(value: object) -> int | None:
    """Returns the GPU number, or None if the value is not one. Accepts 2, 2.0 and "2"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", value):
        return int(value)
    return value if type(value) is int else None


def is_from_older_scheduler(state: Mapping[str, Any]) -> bool:
    """Returns whether the older scheduler wrote this state, which has `gpu_status` but no `_scheduler`."""
    return "gpu_status" in state and "_scheduler" not in state


def pause_edits(state: Mapping[str, Any], recorded: Collection[int]) -> dict[int, bool]:
    """Returns the GPUs whose pause was edited, by index: True if the GPU should be paused, False if not.

    recorded: the GPUs that are paused in the store, which are the base if the file has none.
    """
    if "paused_gpus" not in state:
        return {}
    ours = state.get("_scheduler", {})
    base = set(ours["paused_gpus"]) if "paused_gpus" in ours else set(recorded)
    wanted = set(state["paused_gpus"])
    return {gpu: gpu in wanted for gpu in sorted(base ^ wanted)}


def render(
    old: Mapping[str, Any], shares: list[float], paused: Collection[int], jobs: Mapping[str, Any]
) -> bytes:
    """Returns the new content of the file. Keeps the keys that other programs added."""
    pauses = sorted(paused)
    new = {key: value for key, value in old.items() if key not in _OWN_KEYS}
    new = {"gpu_status": shares, "paused_gpus": pauses, "jobs": jobs, **new}
    new["_scheduler"] = {"paused_gpus": pauses}
    return _one_key_per_line(new)


def with_pauses(old: Mapping[str, Any], gpus: Collection[int], paused: bool) -> bytes:
    """Returns the file's content with these GPUs paused or resumed, for use before a store exists.

    The base in the content is empty, so the first start treats every paused GPU as an edit. Everything else
    is kept.
    """
    now = set(old.get("paused_gpus", []))
    new = {**old, "paused_gpus": sorted(now | set(gpus) if paused else now - set(gpus))}
    if "_scheduler" in old:
        new["_scheduler"] = {"paused_gpus": []}  # the old base came from a deleted store
    return _one_key_per_line(new)


def _one_key_per_line(state: Mapping[str, Any]) -> bytes:
    # One line per key keeps short lists readable and easy to edit.
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in state.items())
    # A lone surrogate cannot be encoded in UTF-8, so it is written as a JSON escape such as \ud800.
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "backslashreplace")


def read(path: Path, *, trust: bool = False) -> bytes | None:
    """Reads the file. Returns None if it does not exist.

    trust: accept the file regardless of its owner and mode. Raises OSError if the file cannot be read or is
    not trusted.
    """
    try:
        return read_json_bytes(path, trust=trust)
    except FileNotFoundError:
        return None


def link_target(path: Path) -> Path:
    """Returns the path or, if it is a link, its target, so that a replacement does not affect the link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def set_aside(lying: Path, path: Path) -> Path:
    """Renames an unusable version of the file, adding the first unused of `.bad`, `.bad.1` … `.bad.4`.

    If all names are in use, overwrites the last of these files. Returns the new path. Raises OSError.
    """
    path = link_target(path)
    places = [path.with_name(f"{path.name}.bad{number}") for number in ("", ".1", ".2", ".3", ".4")]
    place = next((place for place in places if not os.path.lexists(place)), places[-1])
    os.replace(lying, place)
    return place


def displaced_path(path: Path) -> Path:
    """Returns the path at which a replaced version is kept until it has been examined for an edit."""
    path = link_target(path)
    return path.with_name(f".{path.name}.replaced")


def exchange(path: Path, content: bytes) -> bytes | None:
    """Replaces the file atomically. Returns the previous content, or None if there was no file.

    If the path is a link, its target is replaced. The previous version is also at `displaced_path(path)`
    until `forget_displaced` is called. Raises OSError if the file cannot be replaced; it is then unchanged.
    """
    path = link_target(path)
    spare = displaced_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(spare, flags, 0o600)
    try:
        with open(fd, "wb") as file:
            # Without this check, a file that another user put at this path would become the state file.
            problem = check_status(os.fstat(fd), None, trusted_owners(spare))
            if problem is not None and problem.kind is not ProblemKind.WORLD_WRITABLE:
                raise problem.as_error(spare)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        forget_displaced(path)  # a half-written version is not an edit
        raise
    if _create_new(spare, path):
        return None
    os.chmod(spare, path.stat().st_mode & 0o777)
    return (
        read_json_bytes(spare, trust=True)
        if _exchange_names(spare, path)
        else _compare_and_rename(spare, path)
    )


def _create_new(spare: Path, path: Path) -> bool:
    """Renames the new file to `path` if nothing is there. Otherwise changes nothing and returns False."""
    try:
        os.link(spare, path)
    except FileExistsError:
        return False
    except OSError:  # the file system does not support hard links
        if path.exists():
            return False
        os.rename(spare, path)
        return True
    os.unlink(spare)
    return True


def forget_displaced(path: Path) -> None:
    """Removes the replaced version once it has been examined."""
    displaced_path(path).unlink(missing_ok=True)


def _compare_and_rename(spare: Path, path: Path) -> bytes:
    """Replaces the file on a file system that cannot exchange two names (NFS, CIFS, FUSE)."""
    fresh = path.with_name(f".{path.name}.fresh")
    os.rename(spare, fresh)
    while True:
        status = os.stat(path)
        before = read_json_bytes(path, trust=True)
        spare.write_bytes(before)
        if file_version(os.stat(path)) == file_version(status):
            os.rename(fresh, path)
            return before


def _exchange_names(one: Path, other: Path) -> bool:
    import ctypes  # this import takes 6 ms, and readers of the state file do not need it

    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


# Turns edits to the state file into requests to pause or resume GPUs. These requests and those from commands
# take effect in the order in which they were made, and none is lost.


#: An edit with the same base as the last edit counts as made on top of it if it comes within this many
#: seconds.
SAME_EDIT_S = 5.0


def requested_pauses(store: Store) -> dict[str, bool]:
    """Returns whether each GPU, by UUID, will be paused once every open request has been carried out."""
    rows = store.db.rows(
        "SELECT uuid, coalesce((SELECT verb = 'pause' FROM request WHERE answered_at IS NULL"
        " AND verb IN ('pause', 'resume') AND target = uuid ORDER BY id DESC LIMIT 1), paused)"
        " FROM gpu WHERE managed ORDER BY idx"
    )
    return {uuid: bool(paused) for uuid, paused in rows}


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
    read(path)  # also raises OSError if the path is a link that belongs to another user
    path = link_target(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # concurrent commands take turns
        there = read(path)
        content = _with_pauses(there, gpus, paused)
        while content is not None and content != there:
            displaced = exchange(path, content)
            if displaced == there:
                break
            there, content = content, _with_pauses(displaced, gpus, paused)
        forget_displaced(path)
    finally:
        os.close(folder)


def _with_pauses(there: bytes | None, gpus: Collection[int], paused: bool) -> bytes | None:
    state = {} if there is None else parse(there)
    if set(gpus) & set(state.get("paused_gpus", [])) == (set(gpus) if paused else set()):
        return there
    return with_pauses(state, gpus, paused)


def apply_edit(store: Store, content: bytes) -> list[str]:
    """Turns an edit to the state file into requests, once for each version of the file.

    Returns messages about the edit. Raises ValueError if the content is not that of a state file.
    """
    version = digest(content)
    if store.db.meta("statefile_examined") == version:
        return []
    state = parse(content)
    messages = []
    older = is_from_older_scheduler(state) and store.db.meta("statefile_written") is None
    if older:
        messages.append(
            "the older scheduler wrote the state file; its pauses are kept, and the shares are recomputed"
        )
    with store.db.transaction():
        by_index = store.managed_gpus()
        requested = requested_pauses(store)
        recorded = [index for index, uuid in by_index.items() if requested[uuid]]
        for index, paused in pause_edits(_rebased_on_last_edit(store, state), recorded).items():
            uuid = by_index.get(index)
            if uuid is None:
                messages.append(f"GPU {index} in paused_gpus is ignored, because it is not managed")
            elif requested[uuid] != paused:
                # A file that the older scheduler left behind is not an edit.
                cause = None if older else "state_file_edited"
                add_request(store, "pause" if paused else "resume", uuid, "state file", cause=cause)
        kept = {key: state[key] for key in ("paused_gpus", "_scheduler") if key in state}
        last = {"version": version, "state": kept, "at": time.time()}
        store.db.set_meta("statefile_examined", version)
        store.db.set_meta("statefile_edit", json.dumps(last))
    return messages


def imports_old_state_file(home: DataDir) -> bool:
    """Returns whether the first start here would import a state file that the older scheduler wrote."""
    try:
        state = parse(read(home.state_file, trust=True) or b"")
    except (OSError, ValueError):
        return False
    return is_from_older_scheduler(state) and read_meta(home.database, "statefile_written") is None


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


def resume_all(store: Store) -> None:
    """Resumes every GPU if the state file was removed while no scheduler was running, once per removal."""
    if store.db.meta("statefile_written") != "1":
        return
    with store.db.transaction():
        store.db.set_meta("statefile_written", "0")
        for uuid, paused in requested_pauses(store).items():
            if paused:
                add_request(store, "resume", uuid, "state file removed", cause="state_file_removed")
