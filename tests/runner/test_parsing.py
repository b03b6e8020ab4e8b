"""Tests that reading an attempt's files always returns a value, no matter what the files contain or are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import (
    is_usable,
    observe,
    parse_claim,
    parse_result,
    parse_stop,
    request_stop,
    wake_runner,
)
from gpu_scheduler.core.model.job import AttemptStatus, OnTimeout, StopRequest
from gpu_scheduler.runner.folder import UnusableFile, checked_spec, read_spec

CLAIM = {"token": "t", "pid": 5, "start_ticks": 6, "boot_id": "b", "session": None, "log": "/x.log"}
STOP = {"token": "t", "cause": "cancelled", "grace_s": 1.5, "follow": "kill"}
RESULT = {
    "token": "t", "cause": None, "exit_code": 0, "signal": None, "began": True, "survivors": [7],
    "started_at": 1.0, "ended_at": 2, "oom_kills": None, "message": None, "lost_bytes": 0,
}  # fmt: skip
SPEC = {
    "token": "t", "boot_id": "b", "cwd": "/", "umask": 0, "env": {"A": "1"}, "terminal": False,
    "session": None, "log": "/x.log", "header": "", "timeout_s": None, "term_grace_s": 1.0,
}  # fmt: skip
#: The cause, the grace period and the end of a request to stop.
StopFields = tuple[str, float, OnTimeout]
NAMES = ("claim", "stop", "withdrawn", "result")
PARSERS: dict[str, tuple[Callable[[dict[str, Any], str], object], dict[str, Any]]] = {
    "claim": (parse_claim, CLAIM),
    "stop": (parse_stop, STOP),
    "result": (parse_result, RESULT),
}
OPTIONAL = {"session", "log", "oom_kills", "lost_bytes"}
NEVER_RIGHT = [float("inf"), float("nan"), -1, 10**400, {}, ["x"], [True], [-1]]


def make_large(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a full folder": lambda path: (path / "x").mkdir(parents=True),
    "a FIFO": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "large": make_large,
    "empty": lambda path: path.touch(),
    "zero bytes": lambda path: path.write_bytes(bytes(512)),
    "no UTF-8": lambda path: path.write_bytes(b'{"token": "\xff"}'),
    "cut short": lambda path: path.write_text('{"token": "t", "cau'),
    "two values": lambda path: path.write_text(json.dumps(RESULT) * 2),
    "a list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "deep lists": lambda path: path.write_text("[" * 200_000),
    "deep objects": lambda path: path.write_text('{"token": "t", "cause": ' + '{"a":' * 200_000),
    "the token alone": lambda path: path.write_text('{"token": "t"}'),
    "another token": lambda path: path.write_text(json.dumps({**RESULT, **CLAIM, **STOP, "token": "u"})),
    "a token that is a list": lambda path: path.write_text('{"token": ["t"]}'),
    "a long number": lambda path: path.write_text('{"token": "t", "pid": ' + "9" * 5000 + "}"),
    "NaN": lambda path: path.write_text('{"token": "t", "grace_s": NaN}'),
}


@pytest.mark.parametrize(
    ("stop", "counts"),
    [
        ({"follow": "withdraw", "id": "1"}, False),
        ({"follow": "withdraw", "id": "2"}, True),
        ({"follow": "withdraw", "id": ""}, True),
        ({"follow": "kill", "id": "1"}, True),
    ],
)
def test_a_stop_that_repeats_a_withdrawn_preemption_does_not_count(
    tmp_path: Path, stop: dict[str, str], counts: bool
) -> None:
    preemption = {**STOP, "cause": "preempted", "signal": "TERM"}
    (tmp_path / "withdrawn").write_text(json.dumps({**preemption, "follow": "withdraw", "id": "1"}))
    (tmp_path / "stop").write_text(json.dumps({**preemption, **stop}))
    status = observe(tmp_path, "t")
    assert (status.stop is not None) == counts
    assert status.withdrawn is not None
    assert status.withdrawn.stop_id == "1"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("preempted", 2.0, "kill"), ("preempted", 60.0, "withdraw"), ("preempted", 2.0, "kill")),
        (("preempted", 2.0, "withdraw"), ("preempted", 60.0, "kill"), ("preempted", 60.0, "kill")),
        (("preempted", 2.0, "withdraw"), ("preempted", 60.0, "withdraw"), ("preempted", 2.0, "withdraw")),
        (("preempted", 2.0, "withdraw"), ("cancelled", 60.0, "kill"), ("cancelled", 60.0, "kill")),
        (("cancelled", 60.0, "kill"), ("preempted", 2.0, "withdraw"), ("cancelled", 60.0, "kill")),
    ],
)
def test_a_second_stop_request_is_combined_with_the_open_one(
    tmp_path: Path, first: StopFields, second: StopFields, expected: StopFields
) -> None:
    for cause, grace_s, on_timeout in (first, second):
        request_stop(tmp_path, "t", StopRequest(cause, grace_s, on_timeout))
    stop = observe(tmp_path, "t").stop
    assert stop is not None
    assert (stop.cause, stop.grace_s, stop.on_timeout) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_unusable_file_of_an_attempt_is_reported_and_counts_as_absent(
    tmp_path: Path, name: str, kind: str
) -> None:
    KINDS[kind](tmp_path / name)
    seen = observe(tmp_path, "t")
    assert (seen.stop, seen.result, seen.pid) == (None, None, None)
    assert seen.claim == ("invalid" if name == "claim" else "none")
    assert len(seen.anomalies) == 1
    assert f"{name} " in seen.anomalies[0]
    assert (seen.damage is not None) is (name in ("claim", "result"))
    assert wake_runner(tmp_path, "t") is False


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_reports_an_unreadable_file_of_an_attempt(tmp_path: Path) -> None:
    (tmp_path / "claim").write_text(json.dumps(CLAIM))
    (tmp_path / "claim").chmod(0)
    assert observe(tmp_path, "t").damage == "the file claim is not readable"


def test_reads_complete_files_of_an_attempt(tmp_path: Path) -> None:
    for name, value in {"claim": CLAIM, "stop": STOP, "result": RESULT}.items():
        (tmp_path / name).write_text(f" {json.dumps(value)}  \n")
    seen = observe(tmp_path, "t")
    assert (seen.claim, seen.pid, seen.log, seen.anomalies) == ("dead", 5, "/x.log", ())
    assert seen.stop is not None
    assert (seen.stop.cause, seen.stop.grace_s, seen.stop.on_timeout) == ("cancelled", 1.5, "kill")
    assert seen.result is not None
    assert (seen.result.exit_code, seen.result.survivors, seen.result.ended_at) == (0, (7,), 2)


@pytest.mark.parametrize("file", PARSERS)
def test_rejects_attempt_files_with_missing_fields_or_invalid_values(file: str) -> None:
    parse, good = PARSERS[file]
    assert not isinstance(parse(good, "t"), UnusableFile)
    for field in good.keys() - {"lost_bytes"}:
        for value in NEVER_RIGHT:
            assert isinstance(parse({**good, field: value}, "t"), UnusableFile), (field, value)
        missing = {name: good[name] for name in good.keys() - {field}}
        assert isinstance(parse(missing, "t"), UnusableFile) is (field not in OPTIONAL), field


@pytest.mark.parametrize(
    "change",
    [
        {"pid": True}, {"pid": 0}, {"pid": "5"}, {"pid": 5.0}, {"pid": 2**31}, {"pid": None},
        {"start_ticks": None}, {"start_ticks": False}, {"boot_id": 1}, {"session": 1},
    ],
)  # fmt: skip
def test_rejects_a_claim_that_does_not_identify_a_process(change: dict[str, object]) -> None:
    assert isinstance(parse_claim({**CLAIM, **change}, "t"), UnusableFile)


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": None},
        {"exit_code": 0, "signal": 9},
        {"exit_code": 256},
        {"exit_code": True},
        {"exit_code": "0"},
        {"began": 1},
        {"survivors": None},
        {"ended_at": "now"},
        {"ended_at": None},
        {"claimed_gpu": 1},
        {"claimed_by": 0},
    ],
)
def test_rejects_a_result_unless_it_has_either_an_exit_code_or_a_signal(change: dict[str, object]) -> None:
    assert isinstance(parse_result({**RESULT, **change}, "t"), UnusableFile)


def test_only_the_result_of_a_watched_process_may_lack_a_code_and_a_signal() -> None:
    found = parse_result({**RESULT, "exit_code": None, "watched": True}, "t")
    assert not isinstance(found, UnusableFile)
    assert (found.exit_code, found.signal, found.began) == (None, None, True)
    assert isinstance(parse_result({**RESULT, "exit_code": None, "watched": False}, "t"), UnusableFile)
    assert isinstance(parse_result({**RESULT, "watched": 1}, "t"), UnusableFile)


WATCH = {"pid": 5, "start_ticks": 6, "boot_id": "b", "started_at": 7.5}


def test_accepts_a_process_to_watch_and_no_log() -> None:
    assert isinstance(checked_spec({**SPEC, "watch": WATCH, "log": None}), dict)


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 1}, {"pid": -5}, {"pid": True}, {"pid": "5"}, {"start_ticks": None}, {"start_ticks": 1.5},
        {"boot_id": None}, {"started_at": None}, {"started_at": -1},
    ],
)  # fmt: skip
def test_rejects_a_process_to_watch_that_is_not_identified(change: dict[str, object]) -> None:
    assert isinstance(checked_spec({**SPEC, "watch": {**WATCH, **change}}), UnusableFile)
    assert isinstance(checked_spec({**SPEC, "watch": [5]}), UnusableFile)


def test_a_message_in_a_result_is_converted_to_valid_utf_8() -> None:
    found = parse_result({**RESULT, "message": "x\ud800"}, "t")
    assert not isinstance(found, UnusableFile)
    assert found.message == "x?"


def test_an_attempt_with_an_unusable_spec_is_not_launched(tmp_path: Path) -> None:
    (tmp_path / "command.sh").touch()
    spec = tmp_path / "spec.json"
    assert not is_usable(tmp_path, "t")
    spec.write_text(json.dumps(SPEC))
    assert is_usable(tmp_path, "t")
    assert not is_usable(tmp_path, "u")
    for field in SPEC:
        assert isinstance(checked_spec({name: SPEC[name] for name in SPEC.keys() - {field}}), UnusableFile)
    for kind in KINDS.values():
        spec.unlink() if not spec.is_dir() else spec.rename(tmp_path / os.urandom(8).hex())
        kind(spec)
        assert not is_usable(tmp_path, "t")
        with pytest.raises(OSError, match=r"spec\.json"):
            read_spec(tmp_path)


GPU_CLAIM = {"name": "GPU-a", "mib": 5, "total_mib": 10}


@pytest.mark.parametrize(
    "claims",
    [
        None,
        {"folder": "/x", "gpus": []},
        {"folder": "/x", "gpus": [GPU_CLAIM, {"name": "GPU-b", "mib": None, "total_mib": None}]},
    ],
)
def test_accepts_the_claims_of_an_attempt(claims: object) -> None:
    assert isinstance(checked_spec({**SPEC, "gpu_claims": claims}), dict)


@pytest.mark.parametrize(
    "claims",
    [
        [],
        {"gpus": []},
        {"folder": "/x"},
        {"folder": "/\0", "gpus": []},
        {"folder": "/x", "gpus": [GPU_CLAIM, {**GPU_CLAIM, "mib": None}]},
        *(
            {"folder": "/x", "gpus": [{**GPU_CLAIM, **change}]}
            for change in (
                {"name": None}, {"name": "../a"}, {"name": "a\0"}, {"mib": -1}, {"mib": True}, {"mib": 1.0},
                {"total_mib": None}, {"total_mib": "10"},
            )
        ),
        {"folder": "/x", "gpus": ["GPU-a"]},
    ],
)  # fmt: skip
def test_rejects_claims_that_do_not_name_memory_on_different_gpus(claims: object) -> None:
    assert isinstance(checked_spec({**SPEC, "gpu_claims": claims}), UnusableFile)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_request_replaces_whatever_has_its_file_name(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "stop")
    request_stop(tmp_path, "t", StopRequest("cancelled", 2.0))
    seen: AttemptStatus = observe(tmp_path, "t")
    assert seen.stop is not None
    assert (seen.stop.cause, seen.anomalies) == ("cancelled", ())
    assert (tmp_path / "stop.aside-1").is_dir() is kind.endswith("folder")


def test_reads_the_files_of_an_earlier_version() -> None:
    old = parse_result(RESULT, "t")
    assert not isinstance(old, UnusableFile)
    assert (old.left, old.left_count, old.verdict) == ((), None, None)
    assert isinstance(checked_spec(SPEC), dict)


@pytest.mark.parametrize("change", [{"left": [1]}, {"left": "x"}, {"left_count": 0}, {"verdict": 1}])
def test_rejects_a_result_with_an_invalid_note(change: dict[str, Any]) -> None:
    assert isinstance(parse_result({**RESULT, **change}, "t"), UnusableFile)


@pytest.mark.parametrize(
    "change",
    [{"leftover_wait_s": -1}, {"background": "later"}, {"ends_in_pipe": 1}, {"ignore_hangup": None}],
)
def test_rejects_a_spec_with_an_invalid_handling_of_leftovers(change: dict[str, Any]) -> None:
    assert isinstance(checked_spec({**SPEC, **change}), UnusableFile)
