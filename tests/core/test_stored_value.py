"""Tests how values with a kind are stored as JSON, and how JSON of another version is read."""

from __future__ import annotations

import json
import re

import pytest

from gpu_scheduler.core.model.gpu import FaultKind, GpuClaim, GpuFault
from gpu_scheduler.core.model.job import Checkpoint
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import (
    GpuObstacle,
    ObstacleKind,
    ReasonKind,
    StateReason,
    WaitKind,
    WaitReason,
)
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import StoredValue


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (
            RequestAnswer(AnswerCode.WRONG_STATE, JobState.HELD, (JobState.QUEUED,), "hold"),
            {"code": "wrong state", "state": "held", "accepted": ["queued"], "verb": "hold"},
        ),
        (
            RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=Outcome.FAILED, exit_code=7),
            {"code": "already finished", "outcome": "failed", "exit_code": 7},
        ),
        (
            WaitReason(
                WaitKind.NO_FREE_GPU,
                need=Need(2, 500),
                obstacles=(
                    GpuObstacle(0, ObstacleKind.FAULT, fault=GpuFault(FaultKind.LOST)),
                    GpuObstacle(1, ObstacleKind.QUARANTINED, 7, (8, 9)),
                    GpuObstacle(2, ObstacleKind.CLAIMED, claims=(GpuClaim(None, 8), GpuClaim(5, 9, "ann"))),
                ),
            ),
            {
                "kind": "no free gpu",
                "need": {"count": 2, "share": 500},
                "obstacles": [
                    {"gpu": 0, "kind": "fault", "fault": {"kind": "lost"}},
                    {"gpu": 1, "kind": "quarantined", "job_id": 7, "pids": [8, 9]},
                    {
                        "gpu": 2,
                        "kind": "claimed",
                        "claims": [{"mib": None, "pid": 8}, {"mib": 5, "pid": 9, "user": "ann"}],
                    },
                ],
            },
        ),
    ],
)  # fmt: skip
def test_stores_only_the_fields_that_differ_from_their_defaults(value: StoredValue, stored: object) -> None:
    assert json.loads(value.to_json()) == stored
    assert type(value).from_json(value.to_json()) == value


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "",
        "interrupted",
        "7",
        "null",
        '["kind"]',
        '{"kind": "new"}',
        '{"kind": "held", "new": 1}',
        '{"kind": "\\udcff"}',
        '{"kind": "held", "\\udcff": 1}',
    ],
)
def test_reads_a_stored_text_of_another_version_as_unknown(text: str) -> None:
    assert StateReason.from_json(text) == StateReason(ReasonKind.UNKNOWN, message=text)
    assert GpuFault.from_json(text) == GpuFault(FaultKind.UNKNOWN, text)
    assert RequestAnswer.from_json(text) == RequestAnswer(AnswerCode.UNKNOWN)
    assert WaitReason.from_json(text) == WaitReason(WaitKind.UNKNOWN, text)


@pytest.mark.parametrize("part", [3, "lost", ["lost"], {"kind": "new"}])
def test_a_stored_value_with_a_part_of_another_version_is_read_as_unknown(part: object) -> None:
    text = json.dumps({"kind": "interrupted", "next_steps": [part]})
    assert StateReason.from_json(text).kind is ReasonKind.UNKNOWN
    text = json.dumps({"kind": "no free gpu", "obstacles": [{"gpu": 0, "kind": "fault", "fault": part}]})
    assert WaitReason.from_json(text).kind is WaitKind.UNKNOWN


@pytest.mark.parametrize("text", ["", "null", '{"pid": 8}', '{"mib": 5, "pid": 9, "new": 1}'])
def test_a_class_without_an_unknown_value_rejects_a_text_that_it_cannot_read(text: str) -> None:
    message = f"the stored text is not a valid GpuClaim: {text!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GpuClaim.from_json(text)


def test_a_text_with_bytes_that_are_not_utf_8_survives_being_stored() -> None:
    reason = StateReason(ReasonKind.RUNNER_REPORT, message="caf\udce9", left=("\udcff",))
    assert StateReason.from_json(reason.to_json()) == reason
    assert reason.to_json().isascii()


def test_of_a_doubled_key_the_last_value_counts() -> None:
    text = '{"kind": "held", "kind": "request", "cause": "a", "cause": "b"}'
    assert WaitReason.from_json(text) == WaitReason(WaitKind.REQUEST, "b")


def test_reads_and_writes_numbers_that_json_does_not_define() -> None:
    checkpoint = Checkpoint.from_json('{"path": "/a", "step": NaN, "saved_at": Infinity}')
    assert checkpoint.to_json() == '{"path": "/a", "step": NaN, "saved_at": Infinity}'


def test_an_unknown_answer_counts_as_a_refusal() -> None:
    assert RequestAnswer(AnswerCode.UNKNOWN).is_refusal
