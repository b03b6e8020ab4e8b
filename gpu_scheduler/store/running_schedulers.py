"""Lists the running schedulers of this user, so that commands in other folders find their queues.

Each running scheduler has a file in a private folder of its user. The file counts only on the host that it
names, because hosts may share a home folder, and while a scheduler holds the lock of a store of this user.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from gpu_scheduler.core.text import strict_json
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.host import Host, this_host
from gpu_scheduler.store.permissions import is_ours
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.system.safe_file import FileProblem, read, writable_by_others
from gpu_scheduler.system.users import user_state_dir


def running_schedulers() -> list[tuple[str, str | None, int]]:
    """Returns the state file, the data directory and the pid of each scheduler of this user on this machine.

    The data directory is None if it is beside the state file; the pid is 0 in another pid namespace. A
    scheduler must not call this function while it holds its lock (`scheduler_pid`).
    """
    found = []
    for state_file, folder, _ in sorted(_entries()):
        pid = scheduler_pid(Path(folder, "lock")) if is_ours(Path(folder)) else None
        if pid is not None:
            is_beside = os.path.realpath(DataDir.of(state_file).folder) == folder
            found.append((state_file, None if is_beside else folder, pid))
    return found


@contextmanager
def listed(home: DataDir) -> Iterator[str | None]:
    """Lists the caller, which holds the lock of the store, during the block.

    Yields why that is not possible; None if it is. Removes the files of stores that no longer exist.
    """
    from gpu_scheduler.system.atomic_file import replace_file  # needed only by `start`

    value = asdict(this_host(os.path.realpath(home.folder)))
    digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
    path, problem = _folder() / f"{digest}.json", None
    try:
        _create(path.parent)
        replace_file(path, json.dumps(value | {"state_file": str(home.state_file)}).encode())
        for _, folder, other in _entries():
            if not os.path.lexists(folder):
                other.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{error.filename or path.parent}: {error.strerror}"
    try:
        yield problem
    finally:
        with suppress(OSError):
            path.unlink()


def _folder() -> Path:
    return user_state_dir() / "gpu_scheduler" / "schedulers"


def _create(folder: Path) -> None:
    above = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    # With `sudo`, HOME may be that of another user, who could not write to a folder that root creates there.
    if folder.is_absolute() and os.stat(above).st_uid in (0, os.geteuid()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(errno.EPERM, "is no folder that only this user can write to", str(folder))


def _entries() -> Iterator[tuple[str, str, Path]]:
    """Yields the state file and the data directory of each entry of this host, and the entry's path."""
    here, folder = this_host(), _folder()
    for path in folder.glob("[!.]*.json") if _is_private(folder) else ():
        content = read(path)
        if isinstance(content, FileProblem) or content.status.st_uid != os.geteuid():
            continue
        try:
            value = strict_json.parse(strict_json.decode(content.data))
            if Host(str(value["name"]), value["machine"]).is_same_machine(here):
                yield str(value["state_file"]), str(value["data_dir"]), path
        except (ValueError, LookupError, TypeError):
            continue


def _is_private(folder: Path) -> bool:
    return is_ours(folder) and not writable_by_others(os.lstat(folder))
