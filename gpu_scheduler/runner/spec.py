"""Checks the fields of the files in an attempt folder, and reads the attempt's spec."""

from __future__ import annotations

import errno
import os

from .folder import UnusableFile, load, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: Largest accepted number of seconds.
_MAX_S = 1e12


def invalid_field(value: dict[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> UnusableFile | None:
    """Returns a problem for the first of these fields that is missing or invalid; None if all are valid."""
    for name, is_right in fields.items():
        if name not in value or not is_right(value[name]):
            return UnusableFile(f"has no valid {name!r}")
    return None


def is_text(value: object) -> bool:
    """Returns whether a value is a string."""
    return isinstance(value, str)


def is_optional_text(value: object) -> bool:
    """Returns whether a value is a string or null."""
    return value is None or isinstance(value, str)


def is_seconds(value: object) -> bool:
    """Returns whether a value is a usable number of seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_S


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_gpu_claim(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    name, mib, total_mib = value.get("name"), value.get("mib"), value.get("total_mib")
    return (
        isinstance(name, str)
        and not {"/", "\0"} & set(name)
        and (mib is None or (_is_count(mib) and total_mib is not None))
        and (total_mib is None or _is_count(total_mib))
    )


def _are_gpu_claims(value: Any) -> bool:
    """Returns whether a value is a folder with claims on different GPUs."""
    if not isinstance(value, dict) or not isinstance(value.get("gpus"), list):
        return False
    gpus = value["gpus"]
    # Two claims of one process on one GPU would release each other.
    return (
        isinstance(value.get("folder"), str)
        and "\0" not in value["folder"]
        and all(map(_is_gpu_claim, gpus))
        and len({one["name"] for one in gpus}) == len(gpus)
    )


def _is_watched_process(value: Any) -> bool:
    """Returns whether a value describes the process that a runner watches instead of starting one."""
    return isinstance(value, dict) and invalid_field(value, _WATCH_FIELDS) is None


_WATCH_FIELDS = {
    "pid": lambda value: _is_count(value) and value > 1,
    "start_ticks": _is_count,
    "boot_id": is_text,
    "started_at": is_seconds,
}
#: The fields of `stop` and `withdrawn`, each with its check. An unknown cause counts as a cancel, and an
#: unknown signal as SIGTERM.
STOP_FIELDS = {
    "cause": is_text,
    "grace_s": is_seconds,
    "follow": lambda value: value in ("kill", "withdraw"),
    "id": is_text,
    "signal": is_text,
}
#: The fields that an earlier version does not write, with what it meant.
OLDER_STOP = {"id": "", "signal": "TERM"}
#: The fields of `spec.json`, each with its check.
_SPEC_FIELDS = {
    "token": lambda value: isinstance(value, str) and value.isascii(),
    "boot_id": is_text,
    "cwd": is_text,
    "umask": lambda value: type(value) is int and 0 <= value <= 0o777,
    "env": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    "terminal": lambda value: isinstance(value, bool),
    "session": is_optional_text,
    "log": is_optional_text,
    "header": is_text,
    "timeout_s": lambda value: value is None or is_seconds(value),
    "term_grace_s": is_seconds,
    "gpu_claims": lambda value: value is None or _are_gpu_claims(value),
    "watch": lambda value: value is None or _is_watched_process(value),
    "leftover_wait_s": is_seconds,
    "background": lambda value: value in (None, "wait", "ignore"),
    "ends_in_pipe": lambda value: isinstance(value, bool),
    "ignore_hangup": lambda value: isinstance(value, bool),
    "log_limit": lambda value: value is None or _is_count(value),
}
#: The fields that an earlier version does not write, with what it meant.
_OLDER_SPEC = {
    "gpu_claims": None, "watch": None, "leftover_wait_s": 0.0, "background": None, "ends_in_pipe": False,
    "ignore_hangup": False, "log_limit": None,
}  # fmt: skip


def invalid_spec(spec: dict[str, Any]) -> UnusableFile | None:
    """Returns a problem for the first invalid field of a spec; None if all are valid."""
    return invalid_field({**_OLDER_SPEC, **spec}, _SPEC_FIELDS)


def read_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the spec in an attempt folder. Raises OSError if it is missing or not usable."""
    folder = open_folder(os.fspath(path))
    try:
        spec = load(folder, "spec.json")
    finally:
        os.close(folder)
    if spec is None:
        raise FileNotFoundError(f"spec.json is missing in {os.fspath(path)}")
    problem = spec if isinstance(spec, UnusableFile) else invalid_spec(spec)
    if problem is not None or isinstance(spec, UnusableFile):
        raise OSError(errno.EINVAL, f"spec.json {problem and problem.text}", os.fspath(path))
    return spec
