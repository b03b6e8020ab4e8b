"""Checks the fields of the files in an attempt folder, and reads the attempt's spec."""

from __future__ import annotations

import errno
import os

from .folder import FileProblem, load, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: Largest accepted number of seconds.
_MAX_S = 1e12


def invalid_field(value: dict[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> FileProblem | None:
    """Returns a problem for the first of these fields that is missing or invalid; None if all are valid."""
    for name, is_right in fields.items():
        if name not in value or not is_right(value[name]):
            return FileProblem(f"has no valid {name!r}")
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


#: The fields of `stop` and `withdrawn`, each with its check. An unknown cause counts as a cancel.
STOP_FIELDS = {"cause": is_text, "grace_s": is_seconds, "follow": lambda value: value in ("kill", "withdraw")}
#: The fields of `spec.json`, each with its check.
SPEC_FIELDS = {
    "token": lambda value: isinstance(value, str) and value.isascii(),
    "boot_id": is_text,
    "cwd": is_text,
    "umask": lambda value: type(value) is int and 0 <= value <= 0o777,
    "env": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    "terminal": lambda value: isinstance(value, bool),
    "session": is_optional_text,
    "log": is_text,
    "header": is_text,
    "timeout_s": lambda value: value is None or is_seconds(value),
    "term_grace_s": is_seconds,
}


def read_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the spec in an attempt folder. Raises OSError if it is missing or not usable."""
    folder = open_folder(os.fspath(path))
    try:
        spec = load(folder, "spec.json")
    finally:
        os.close(folder)
    if spec is None:
        raise FileNotFoundError(f"spec.json is missing in {os.fspath(path)}")
    problem = spec if isinstance(spec, FileProblem) else invalid_field(spec, SPEC_FIELDS)
    if problem is not None or isinstance(spec, FileProblem):
        raise OSError(errno.EINVAL, f"spec.json {problem and problem.text}", os.fspath(path))
    return spec
