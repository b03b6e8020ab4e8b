"""Records are parsed strictly: all but the nine fields of the source document is refused with a reason."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from gpu_scheduler.redis_queue.queue import MAX_BYTES, RecordError, parse_arguments, parse_record

GOOD: dict[str, Any] = {
    "model_script": "train.py", "gpu_memory_mb": 16000, "num_gpus": 1, "priority": 100,
    "job_id": "0123456789ab", "status": "queued", "assigned_gpus": [], "created_at": 1795742872.49,
    "pid": None,
}  # fmt: skip


def parsed(text: bytes) -> Any:
    return parse_record(text.decode("utf-8", "surrogateescape"), "0123456789ab")


def test_a_record_is_written_back_with_exactly_its_nine_fields() -> None:
    record = parsed(json.dumps(GOOD).encode())
    assert json.loads(record.to_json()) == GOOD
    assert record.score == 100 * 1e10 + 1795742872.49
    running = json.loads(record.with_status("running", (1, 2), 77).to_json())
    assert running == {**GOOD, "status": "running", "assigned_gpus": [1, 2], "pid": 77}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"no json", b"[]", b"1", b'"text"', b"null", pickle.dumps(GOOD), b"\xff\xfe", b"[" * 20000,
        b'{"a": 1, "a": 2}', json.dumps({**GOOD, "model_script": "x" * MAX_BYTES}).encode(),
    ],
)  # fmt: skip
def test_rejects_what_is_no_object(text: bytes) -> None:
    with pytest.raises(RecordError):
        parsed(text)


@pytest.mark.parametrize("name", list(GOOD))
def test_rejects_a_record_without_a_field(name: str) -> None:
    with pytest.raises(RecordError, match=f"'{name}' is missing"):
        parsed(json.dumps({key: value for key, value in GOOD.items() if key != name}).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_script", ""), ("model_script", 1), ("model_script", "a\nb"), ("model_script", "a\0b"),
        ("gpu_memory_mb", -1), ("gpu_memory_mb", "16000"), ("gpu_memory_mb", 1.5), ("gpu_memory_mb", True),
        ("gpu_memory_mb", 10**30), ("num_gpus", -1), ("num_gpus", 5000), ("priority", -1),
        ("priority", 10**12), ("priority", "NORMAL"), ("job_id", "other"), ("job_id", 12), ("status", "held"),
        ("status", None), ("assigned_gpus", "0"), ("assigned_gpus", [-1]), ("assigned_gpus", [0.5]),
        ("created_at", "now"), ("created_at", -5), ("created_at", 1e300), ("created_at", False),
        ("pid", "7"), ("pid", 0), ("extra", 1),
    ],
)  # fmt: skip
def test_rejects_a_wrong_value(name: str, value: object) -> None:
    with pytest.raises(RecordError, match=name):
        parsed(json.dumps({**GOOD, name: value}).encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_rejects_a_time_that_is_no_number(number: str) -> None:
    with pytest.raises(RecordError):
        parsed(json.dumps({**GOOD, "created_at": 0.5}).replace("0.5", number).encode())


def test_reads_the_arguments_of_redis_submit() -> None:
    found = parse_arguments('{"args": ["--lr", "1"], "cwd": "/data", "env": {"A": "b"}}')
    assert (found.args, found.cwd, found.env) == (("--lr", "1"), "/data", (("A", "b"),))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b'{"args": [1], "cwd": null, "env": {}}', b'{"args": [], "cwd": 1, "env": {}}',
        b'{"args": [], "cwd": null, "env": []}', b'{"args": [], "cwd": null, "env": {"A B": "1"}}',
        b"x" * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_rejects_wrong_arguments(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"arguments|variable"):
        parse_arguments(text.decode())
