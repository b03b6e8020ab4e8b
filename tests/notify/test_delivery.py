"""Tests which events a receiver gets, in which messages, and when again. The tests own the clock."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import UsageError
from gpu_scheduler.notify import delivery
from gpu_scheduler.notify.delivery import DRAINED, Delivery, Receiver, is_wanted, message_text, next_message
from gpu_scheduler.store.events import newest_event_id
from tests import changes
from tests.cli.desk import Desk
from tests.notify.inbox import Inbox

ALL = frozenset({"completed", "failed", "drained"})
ENDS = frozenset({"completed", "failed"})
URL = "json://me:s3cret@h"


def an_end(outcome: str = "completed", kind: str = "finished") -> Event:
    return Event(1, 0.0, kind, 1, data={"outcome": outcome}, name="train/a")


@pytest.mark.parametrize(
    ("event", "on", "pattern", "wanted"),
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
def test_a_receiver_gets_the_events_that_it_wants(
    event: Event, on: set[str], pattern: str | None, wanted: bool
) -> None:
    assert is_wanted(event, on, pattern) is wanted


@pytest.mark.parametrize(
    ("waiting", "sent", "count"),
    [(0, [], 0), (1, [], 1), (5, [], 1), (6, [], 6), (200, [], 50), (3, [0, 75, 76, 77, 78, 79], 0),
     (9, [71, 72, 73, 74, 75], 0), (9, [70, 72, 73, 74, 75], 9), (1, [900] * 5, 1)],
)  # fmt: skip
def test_more_than_five_ends_share_a_message_and_thirty_seconds_have_five_messages(
    waiting: int, sent: Sequence[float], count: int
) -> None:
    assert next_message(waiting, sent, now=100.0) == count


def test_a_message_has_name_outcome_run_time_reason_and_event_id_and_no_secret() -> None:
    data = {"outcome": "failed", "attempt": 1, "exit_code": 1, "signal": None, "seconds": 125.0, "gpus": [],
            "peaks": [], "declared": None, "budgets": None, "share": 0, "load": None, "log": None,
            "survivors": []}  # fmt: skip
    end = Event(7, 0.0, "finished", 3, "exit code 1: --api-key=abc123", data, name="train/a")
    title, body = message_text([end])
    assert title == "job 3 (train/a): failed"
    assert body == "job 3 (train/a) finished [FAILED] in 125s — exit code 1: --api-key=(hidden) [event 7]"
    assert message_text([end], is_short=True) == ("job 3: failed", "job 3: failed [event 7]")
    title, body = message_text([end] * 5 + [Event(8, 0.0, DRAINED)])
    assert title == "6 events"
    assert body.count("[event 7]") == 5
    assert body.endswith("\nthe queue is empty [event 8]")


class Shelf:
    """A receiver in this process, which keeps what it accepts. It refuses all while it is closed."""

    def __init__(self) -> None:
        self.messages, self.is_closed, self.refused = list[tuple[str, str]](), False, "-"

    @property
    def events(self) -> list[int]:
        """The ids of the events in the messages."""
        return [int(found) for _, body in self.messages for found in re.findall(r"\[event (\d+)\]", body)]

    def take(self, argv: Sequence[str], text: str, output: int | None = None) -> str | None:
        """Takes the request of a process that would send it."""
        message = json.loads(text)
        if self.is_closed or self.refused in message["body"]:
            return "refuses"
        self.messages.append((message["title"], message["body"]))
        return None


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()
    monkeypatch.setattr(delivery, "_problem_of", made.take)
    return made


class Post:
    """The delivery to one receiver, with a clock that moves only when it waits."""

    def __init__(self, desk: Desk, receiver: Receiver, on: frozenset[str] = ENDS) -> None:
        self._desk, self._given = desk, (receiver, desk.server, on, None)
        self.now = time.time()
        self.restart()

    def restart(self) -> None:
        """Goes on as after a restart."""
        self.delivery = Delivery(*self._given, newest_event_id(self._desk.store))

    def pass_time(self, seconds: float = 0.0) -> None:
        """Steps until nothing is to be done, and on for so many seconds."""
        end = self.now + seconds
        while True:
            wait_s = self.delivery.step(self.now)
            if wait_s and self.now >= end:
                return
            self.now += wait_s

    def end_jobs(self, count: int, outcome: Outcome = Outcome.COMPLETED) -> list[int]:
        """Ends so many jobs. Returns the ids of the events."""
        found = []
        for _ in range(count):
            self._desk.record(changes.finish(self._desk.job(), outcome))
            found.append(newest_event_id(self._desk.store))
        return found


def test_a_new_receiver_starts_with_the_newest_event_and_goes_on_after_a_restart(
    desk: Desk, inbox: Inbox
) -> None:
    Post(desk, Receiver(1, "json://other")).end_jobs(1)
    post = Post(desk, Receiver(1, inbox.url))
    wanted = post.end_jobs(1)
    post.restart()
    post.pass_time()
    post.restart()
    wanted += post.end_jobs(1)
    post.pass_time()
    assert inbox.events == wanted
    assert inbox.messages[0] == (
        "job 2 (echo hello): completed",
        f"job 2 (echo hello) completed [event {wanted[0]}]",
    )
    for file in desk.data_dir.folder.glob("notify-*"):
        assert file.stat().st_mode & 0o777 == 0o600
        assert "s3cret" not in f"{file}: {file.read_text()}"


@pytest.mark.timeout(400)
def test_every_end_reaches_a_receiver_that_is_slow_refuses_hangs_resets_goes_away_and_comes_back(
    desk: Desk, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "_DEADLINE_S", 12.0)
    caplog.set_level(logging.INFO)
    inbox.behaviours = iter(["slow", "refuse", "hang", "reset", "refuse", "accept", "reset"])
    post, wanted = Post(desk, Receiver(1, inbox.url)), []
    for seconds in (0, 40, 0, 40):
        wanted += post.end_jobs(2)
        post.pass_time(seconds)
    inbox.close()
    wanted += post.end_jobs(2)
    post.pass_time(10)
    inbox.open()
    post.restart()
    post.pass_time(40)
    assert sorted(set(inbox.events)) == wanted
    assert caplog.messages[0].startswith(str(Receiver(1, inbox.url)))
    assert any(text.endswith("accepts messages again") for text in caplog.messages)
    assert "s3cret" not in caplog.text


def test_a_dead_receiver_is_skipped_after_a_day_with_one_warning_that_status_shows(
    desk: Desk, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.is_closed = True
    post = Post(desk, Receiver(1, URL))
    old = post.end_jobs(2)
    post.pass_time()
    for _ in range(3):
        post.now += delivery.GIVE_UP_S / 2 + 1
        post.pass_time()
    text = f"messages to receiver 1 (json) up to event {old[-1]} were skipped; it accepted none for 24 h"
    assert [text in one for one in caplog.messages] == [False, True]
    assert text in desk.run("status")[1]
    assert "s3cret" not in desk.run("status")[1]
    shelf.is_closed = False
    new = post.end_jobs(1)
    post.pass_time()
    assert shelf.events == new
    assert text in shelf.messages[0][1]
    assert "skipped" not in desk.run("status")[1]


def test_at_the_end_everything_that_waits_is_delivered_at_once(desk: Desk, shelf: Shelf) -> None:
    post, ending = Post(desk, Receiver(1, URL)), threading.Event()
    wanted = []
    for _ in range(6):  # the sixth would have to wait
        wanted += post.end_jobs(1)
        post.pass_time()
    wanted += post.end_jobs(1)
    assert shelf.events == wanted[:5]
    ending.set()
    post.delivery.run(ending)
    assert shelf.events == wanted
    assert len(shelf.messages) == 6


def test_a_burst_is_one_message(desk: Desk, shelf: Shelf) -> None:
    post = Post(desk, Receiver(1, URL))
    wanted = post.end_jobs(6)
    post.pass_time()
    assert ([title for title, _ in shelf.messages], shelf.events) == (["6 events"], wanted)


def test_the_queue_is_reported_empty_once_and_held_jobs_do_not_count(desk: Desk, shelf: Shelf) -> None:
    post = Post(desk, Receiver(1, URL), frozenset({"drained"}))
    kept, held = desk.job(), desk.job()
    desk.record(changes.hold(held))
    post.end_jobs(1)
    post.pass_time()
    assert shelf.messages == []
    desk.record(changes.finish(kept, Outcome.CANCELLED))
    post.pass_time()
    assert [title for title, _ in shelf.messages] == ["the queue is empty"]
    desk.record(changes.finish(held, Outcome.CANCELLED))
    post.pass_time()
    assert len(shelf.messages) == 1
    post.end_jobs(1)
    post.pass_time()
    assert len(shelf.messages) == 2


def test_the_queue_is_reported_empty_when_the_last_job_is_held(desk: Desk, shelf: Shelf) -> None:
    post = Post(desk, Receiver(1, URL), ALL)
    kept = desk.job()
    (ended,) = post.end_jobs(1)
    post.pass_time()
    desk.record(changes.hold(kept))
    post.pass_time()
    assert [title for title, _ in shelf.messages] == ["job 2 (echo hello): completed", "the queue is empty"]
    assert shelf.events[0] == ended


def test_a_command_that_fails_for_one_event_gets_no_other_again(desk: Desk, tmp_path: Path) -> None:
    post = Post(desk, Receiver(1, "read -r line; echo $line >> got; case $line in *drained*) exit 1;; esac",
                               is_command=True), ALL)  # fmt: skip
    post.end_jobs(1)
    post.pass_time(4)
    kinds = [json.loads(line)["event"] for line in (tmp_path / "got").read_text().splitlines()]
    assert kinds[:3] == ["finished", "drained", "drained"]
    assert kinds.count("finished") == 1


def test_a_fault_in_the_text_of_an_event_does_not_stop_the_messages(
    desk: Desk, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> str:
        raise ValueError("bad event")

    post, ending = Post(desk, Receiver(1, URL)), threading.Event()
    wanted = post.end_jobs(1)
    monkeypatch.setattr(delivery, "message_of", fails)
    ending.set()
    post.delivery.run(ending)
    assert "a fault of the program" in caplog.text
    post.delivery.run(ending)
    assert shelf.events == wanted


def test_a_command_gets_each_event_as_json_and_is_repeated_if_it_fails(desk: Desk, tmp_path: Path) -> None:
    command = "cat >> got; test -e ready"
    post = Post(desk, Receiver(1, command, is_command=True), ALL)
    wanted = post.end_jobs(1)
    post.pass_time()
    (tmp_path / "ready").touch()
    post.pass_time(5)
    got = [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()]
    assert [(one["id"], one["event"]) for one in got] == [
        (wanted[0], "finished"), (wanted[0], "finished"), (wanted[0], "drained"),
    ]  # fmt: skip
    assert (got[0]["outcome"], got[0]["job"], got[0]["name"]) == ("completed", 1, None)


def test_a_command_that_hangs_is_killed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_DEADLINE_S", 0.2)
    post = Post(desk, Receiver(1, "sleep 1000", is_command=True))
    post.end_jobs(1)
    began = time.monotonic()
    post.pass_time()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("count", [1, 4])
def test_the_ends_of_a_restored_store_are_delivered(desk: Desk, shelf: Shelf, count: int) -> None:
    """Ids of its events are those of others, below and above the position."""
    post = Post(desk, Receiver(1, URL))
    before = post.end_jobs(2)
    post.pass_time()
    with desk.store.db.transaction() as db:
        db.execute("DELETE FROM event WHERE id > 1")
    post.restart()
    post.pass_time()  # before anything new has happened there
    wanted = post.end_jobs(count)
    assert (wanted[-1] > before[-1]) is (count > 1)
    del shelf.messages[:]
    post.pass_time()
    assert set(shelf.events) >= set(wanted)


def test_forgotten_events_neither_stop_nor_repeat_messages(desk: Desk, shelf: Shelf) -> None:
    post = Post(desk, Receiver(1, URL))
    old = post.end_jobs(3)
    post.pass_time()
    with desk.store.db.transaction() as db:
        db.execute("DELETE FROM event WHERE id = ?", [old[-1]])
    post.restart()
    new = post.end_jobs(2)
    post.pass_time()
    assert shelf.events == old + new


def test_a_text_that_a_receiver_refuses_is_left_out_after_a_few_tries(desk: Desk, shelf: Shelf) -> None:
    shelf.refused = "hello"
    post = Post(desk, Receiver(1, URL))
    wanted = post.end_jobs(2)
    post.pass_time(200)
    assert shelf.events == wanted
    assert shelf.messages[0] == ("job 1: completed", f"job 1: completed [event {wanted[0]}]")


def test_the_log_says_why_nothing_is_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "apprise.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    post = Post(desk, Receiver(1, "json://h"))
    post.end_jobs(1)
    post.pass_time()
    assert "apprise is not installed any more" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_damaged_position_is_refused_with_the_remedy(desk: Desk, content: str) -> None:
    post = Post(desk, Receiver(1, "x", is_command=True))
    (path,) = desk.data_dir.folder.glob("notify-*")
    path.write_text(content)
    with pytest.raises(UsageError, match="without it, messages start from now on"):
        post.restart()
    assert desk.run("status")[0] == 0
