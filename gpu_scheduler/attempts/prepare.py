"""Prepares an attempt's folder for the launch: writes spec.json and command.sh, each atomically."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from gpu_scheduler.runner.folder import move_aside
from gpu_scheduler.runner.spec import read_spec
from gpu_scheduler.system.atomic_file import replace_file, sync


def prepare(folder: Path, spec: Mapping[str, object], command_sh: str) -> None:
    """Makes the folder (mode 0700) with the files that a runner needs, or completes a partly made one.

    Syncs all new parent folders, so that a result survives a power failure. Raises OSError.
    """
    _make_folder(folder)
    replace(folder, "command.sh", command_sh.encode("utf-8", "surrogateescape"))
    # Written last, so that a folder with a spec is complete.
    replace(folder, "spec.json", _one_line_per_key(spec).encode("ascii"))


def is_prepared(folder: Path) -> bool:
    """Returns whether the folder has all the files that a runner needs."""
    return _is_file(folder / "spec.json") and _is_file(folder / "command.sh")


def is_usable(folder: Path, token: str) -> bool:
    """Returns whether the folder is complete and its spec belongs to this attempt. Raises OSError."""
    if not is_prepared(folder):
        return False
    try:
        return bool(read_spec(folder)["token"] == token)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise


def _one_line_per_key(value: Mapping[str, object]) -> str:
    """Returns a JSON object as text with one line per key.

    The `indent` of json.dumps would do this too, but it is implemented in Python and ten times slower.
    """
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()) + "\n}\n"


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _make_folder(folder: Path) -> None:
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
    for path in missing:
        sync(path.parent)


def replace(folder: Path, name: str, data: bytes) -> None:
    """Writes a file of mode 0600 atomically; first renames any folder with that name. Raises OSError."""
    try:
        replace_file(folder / name, data)
    except IsADirectoryError:
        move_aside(str(folder / name))
        replace_file(folder / name, data)
