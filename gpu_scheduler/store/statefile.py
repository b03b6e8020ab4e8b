"""The JSON state file: what it says, how an edit of it is told, how it is replaced.

`_scheduler.paused_gpus` is the base, as last written by us: an outside edit is exactly where `paused_gpus`
differs from it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.core import jsontext
from gpu_scheduler.safefile import Kind, json_bytes, judge, owners

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_OURS = ("gpu_status", "paused_gpus", "jobs", "_scheduler")


def digest(content: bytes) -> str:
    """What tells one version of the file from another."""
    return hashlib.sha256(content).hexdigest()


def parse(content: bytes) -> dict[str, Any]:
    """The object in the file, its paused GPUs as integers. Raises ValueError saying what is wrong with it."""
    raw = jsontext.parse(jsontext.decode(content))
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
    """A GPU number, also as scripts write it: 2, 2.0 or "2"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", value):
        return int(value)
    return value if type(value) is int else None


def is_older(state: Mapping[str, Any]) -> bool:
    """Whether the older scheduler wrote this: what it gave away and what is paused, and nothing of ours."""
    return "gpu_status" in state and "_scheduler" not in state


def edits(state: Mapping[str, Any], recorded: Collection[int]) -> dict[int, bool]:
    """GPU index -> whether it shall be paused, for each GPU on which the file was edited.

    recorded: the paused GPUs on the record, the base of a file that has none of its own.
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
    """The file's new content; keys that are not ours are kept as they were."""
    pauses = sorted(paused)
    new = {key: value for key, value in old.items() if key not in _OURS}
    new = {"gpu_status": shares, "paused_gpus": pauses, "jobs": jobs, **new}
    new["_scheduler"] = {"paused_gpus": pauses}
    return _lined(new)


def with_pauses(old: Mapping[str, Any], gpus: Collection[int], paused: bool) -> bytes:
    """The file with these GPUs paused or resumed, for a record that does not exist yet: it has no base but an
    empty one, so that every paused GPU is an edit to the first start. All else is kept as it was."""
    now = set(old.get("paused_gpus", []))
    new = {**old, "paused_gpus": sorted(now | set(gpus) if paused else now - set(gpus))}
    if "_scheduler" in old:
        new["_scheduler"] = {"paused_gpus": []}  # that of a record which is gone
    return _lined(new)


def _lined(state: Mapping[str, Any]) -> bytes:
    # A line a key: short lists stay readable, and easy to edit.
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in state.items())
    # A lone surrogate has no form in UTF-8, but one in JSON, which is what this writes: \ud800.
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "backslashreplace")


def read(path: Path, *, trust: bool = False) -> bytes | None:
    """Reads the file; None: there is none. trust: whoever owns it or may write it. Raises OSError, also for
    what is refused to be read."""
    try:
        return json_bytes(path, trust=trust)
    except FileNotFoundError:
        return None


def target(path: Path) -> Path:
    """The file that a link stands for, beside which everything happens: the link stays as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def set_aside(lying: Path, path: Path) -> Path:
    """Move a version that cannot be used, wherever it lies, to where it is kept; returns that place. Beside
    those that lie there already; the last place is used again. Raises OSError."""
    path = target(path)
    places = [path.with_name(f"{path.name}.bad{number}") for number in ("", ".1", ".2", ".3", ".4")]
    place = next((place for place in places if not os.path.lexists(place)), places[-1])
    os.replace(lying, place)
    return place


def displaced(path: Path) -> Path:
    """Where a replaced version lies until it has been examined for an edit."""
    path = target(path)
    return path.with_name(f".{path.name}.replaced")


def exchange(path: Path, content: bytes) -> bytes | None:
    """Put `content` in the file's place, atomically. Returns what lay there, or None if nothing did. Of a
    link, the file that it names is replaced.

    The replaced version also lies at `displaced(path)` until `forget` is called. Raises OSError; the file is
    then as it was.
    """
    path = target(path)
    spare = displaced(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(spare, flags, 0o600)
    try:
        with open(fd, "wb") as file:
            # One that another user has planted there would become the state file.
            problem = judge(os.fstat(fd), None, owners(spare))
            if problem is not None and problem.kind is not Kind.WORLD_WRITABLE:
                raise problem.error(spare)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        forget(path)  # half of our own words are nobody's edit
        raise
    if _put_where_nothing_is(spare, path):
        return None
    os.chmod(spare, path.stat().st_mode & 0o777)
    return json_bytes(spare, trust=True) if _exchanged(spare, path) else _renamed(spare, path)


def _put_where_nothing_is(spare: Path, path: Path) -> bool:
    """Rename; False, and nothing done, where a file is there."""
    try:
        os.link(spare, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        os.rename(spare, path)
        return True
    os.unlink(spare)
    return True


def forget(path: Path) -> None:
    """Remove the replaced version: it has been examined."""
    displaced(path).unlink(missing_ok=True)


def _renamed(spare: Path, path: Path) -> bytes:
    """Compare, then rename, where the file system cannot exchange two names (NFS, CIFS, FUSE)."""
    fresh = path.with_name(f".{path.name}.fresh")
    os.rename(spare, fresh)
    while True:
        status = os.stat(path)
        before = json_bytes(path, trust=True)
        spare.write_bytes(before)
        if is_same(os.stat(path), status):
            os.rename(fresh, path)
            return before


def is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two looks saw the same version of a file."""
    return (one.st_ino, one.st_mtime_ns, one.st_size) == (other.st_ino, other.st_mtime_ns, other.st_size)


def _exchanged(one: Path, other: Path) -> bool:
    import ctypes  # 6 ms, and readers of the state file never come here

    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))
