"""Parses and writes the records of the queue: JSON objects of exactly nine fields. Accesses nothing.

The programs of the source document read and write these records too, so nothing is added to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from gpu_scheduler.core.text.parsing import parse_json

STATUSES = ("queued", "running", "completed", "failed")
#: Longest accepted record in bytes.
MAX_BYTES = 64 * 1024
#: Priorities are multiplied by this for the score.
_SCORE_FACTOR = 1e10
_MAX_TIME = 1e10
#: The largest value of each whole number.
MOST = {"gpu_memory_mb": 1 << 30, "num_gpus": 1024, "priority": 1_000_000}
#: The names of the source document.
PRIORITIES = {"CRITICAL": 0, "HIGH": 100, "NORMAL": 200, "LOW": 300}


class RecordError(ValueError):
    """Raised for a text that is no record. Its message says why."""


class Record(Struct, frozen=True):
    """An item of the queue, with the fields of the source document in their order."""

    model_script: str
    gpu_memory_mb: int
    num_gpus: int
    priority: int
    job_id: str
    status: str
    assigned_gpus: tuple[int, ...]
    created_at: float
    pid: int | None

    @property
    def score(self) -> float:
        """The place in the queue, lowest first."""
        return self.priority * _SCORE_FACTOR + self.created_at

    def to_json(self) -> str:
        """Returns the text of the record."""
        return json.dumps(asdict(self))

    def with_status(self, status: str, gpus: Sequence[int] = (), pid: int | None = None) -> Record:
        """Returns the record with another status."""
        return replace(self, status=status, assigned_gpus=tuple(gpus), pid=pid)


class Arguments(Struct, frozen=True):
    """The arguments, the folder and the variables of a script, which `redis-submit` adds to its record."""

    args: tuple[str, ...] = ()
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """Returns the text that `parse_arguments` reads."""
        return json.dumps({"args": self.args, "cwd": self.cwd, "env": dict(self.env)})


def parse_record(text: bytes, job_id: str) -> Record:
    """Returns the record of an item. Raises RecordError."""
    values = _object(text, "the record")
    names = set(Record.__struct_fields__)
    if wrong := sorted(names ^ values.keys()):
        kind = "missing" if wrong[0] in names else "unknown"
        raise RecordError(f"field {wrong[0][:40]!r} is {kind}")
    script = values["model_script"]
    if not isinstance(script, str) or not 0 < len(script) <= 4096 or not script.isprintable():
        raise RecordError("field 'model_script' is no text of 1 to 4096 printable characters")
    for name, most in MOST.items():
        _check_number(values[name], name, 0, most)
    if values["job_id"] != job_id:
        raise RecordError("field 'job_id' is not the id of the item")
    if values["status"] not in STATUSES:
        raise RecordError(f"field 'status' is none of {', '.join(STATUSES)}")
    gpus, created_at = values["assigned_gpus"], values["created_at"]
    if not isinstance(gpus, list) or len(gpus) > MOST["num_gpus"]:
        raise RecordError("field 'assigned_gpus' is no list of GPUs")
    for gpu in gpus:
        _check_number(gpu, "assigned_gpus", 0, MOST["num_gpus"])
    if type(created_at) not in (int, float) or not 0 <= created_at < _MAX_TIME:
        raise RecordError("field 'created_at' is no time in seconds since 1970")
    if values["pid"] is not None:
        _check_number(values["pid"], "pid", 1, 1 << 32)
    return Record(**{**values, "assigned_gpus": tuple(gpus)})


def record_or_problem(text: bytes | None, job_id: str) -> Record | str:
    """Returns the record of an item, or why it has none."""
    try:
        return "it has no record" if text is None else parse_record(text, job_id)
    except RecordError as error:
        return str(error)


def parse_arguments(text: bytes) -> Arguments:
    """Returns what `redis-submit` has added to a record. Raises RecordError."""
    values = _object(text, "the text of its arguments")
    args, cwd, env = (values.get(name) for name in ("args", "cwd", "env"))
    if len(values) != 3 or not isinstance(args, list) or not isinstance(env, dict):
        raise RecordError("its arguments are no object of args, cwd and env")
    for word in (*args, *env, *env.values(), *([cwd] if cwd is not None else [])):
        if not isinstance(word, str) or "\0" in word:
            raise RecordError("its arguments are no texts")
    for name in env:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise RecordError(f"{name[:40]!r} is no name of a variable; use letters, digits and _")
    return Arguments(tuple(args), cwd, tuple(sorted(env.items())))


def _object(text: bytes, what: str) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise RecordError(f"{what} is larger than {MAX_BYTES} bytes")
    try:
        values = parse_json(text.decode("utf-8"))
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError("the record has a text that is no UTF-8") from None
    except (ValueError, RecursionError):
        raise RecordError(f"{what} is not JSON") from None
    if not isinstance(values, dict):
        raise RecordError(f"{what} is no JSON object")
    return values


def _check_number(value: object, name: str, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise RecordError(f"field {name!r} is no whole number from {least} to {most}")
