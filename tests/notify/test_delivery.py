"""Tests which events a receiver gets, which share a message, and when a failed delivery is repeated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.notify.delivery import GIVE_UP_S, Retry, is_wanted, message_text, next_message


def an_end(outcome: str = "completed", at: float = 0.0, kind: str = "finished", id: int = 1) -> Event:
    return Event(id, at, kind, 1, data={"outcome": outcome}, name="train/a")


@pytest.mark.parametrize(
    ("event", "outcomes", "pattern", "wanted"),
    [
        (an_end(), {"completed"}, None, True),
        (an_end(), {"failed"}, None, False),
        (an_end("failed"), {"failed"}, None, True),
        (an_end("timed_out"), {"failed"}, "train/*", True),
        (an_end("failed"), {"failed"}, "eval/*", False),
        (an_end("cancelled"), {"completed", "failed"}, None, False),
        (an_end("failed", kind="queued"), {"failed"}, None, False),
    ],
)
def test_a_receiver_gets_the_final_ends_that_it_wants(
    event: Event, outcomes: set[str], pattern: str | None, wanted: bool
) -> None:
    assert is_wanted(event, outcomes, pattern) is wanted


@pytest.mark.parametrize(
    ("times", "count"),
    [([], 0), ([0] * 5, 1), ([0] * 6, 6), ([0, 1, 2, 3, 4, 30, 31], 6), ([0, 1, 2, 3, 4, 31, 32], 1)],
)
def test_more_than_five_ends_in_30_s_share_a_message(times: Sequence[float], count: int) -> None:
    assert len(next_message([an_end(at=at, id=index) for index, at in enumerate(times)])) == count


def test_the_waits_double_up_to_ten_minutes_and_a_day_is_the_end() -> None:
    retry, now, waits = Retry(), 0.0, []
    while not retry.is_hopeless(now):
        retry = retry.failed(now)
        waits.append(retry.wait_s)
        now = retry.due_at
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == 600
    assert GIVE_UP_S <= now < GIVE_UP_S + 600


def test_a_message_has_name_outcome_reason_and_event_id_and_no_secret() -> None:
    end = Event(7, 0.0, "finished", 3, "exit code 1: --api-key=abc123", {"outcome": "failed"}, name="train/a")
    title, body = message_text([end])
    assert title == "job 3 (train/a): failed"
    assert body == "job 3 (train/a): failed: exit code 1: --api-key=(hidden) [event 7]"
    title, body = message_text([end] * 6)
    assert title == "6 jobs ended"
    assert body.count("[event 7]") == 6
