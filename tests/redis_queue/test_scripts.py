"""Each script compares the box and the fence, and the run of Redis. They run in a real redis-server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.redis_queue import queue as scripts
from gpu_scheduler.redis_queue.queue import Queue
from tests.redis_queue.conftest import Server
from tests.redis_queue.source_document import SourceQueue
from tests.stress.redis_source import record_of, submit

#: Two boxes with the fences of their claims. An item is claimed by A, then by B.
A, B = ("box-a", "1:fence-a"), ("box-b", "2:fence-b")
_PAGE = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
#: The rights that a user of Redis needs, as the page gives them.
RIGHTS = re.findall(r"\+([a-z|]+)", _PAGE.partition("ACL SETUSER")[2].partition("```")[0])


class Ours:
    """The scripts of one queue, in run "1", which is open."""

    def __init__(self, url: str, source: SourceQueue) -> None:
        self.queue, self.source = Queue(url), source
        self.run = self.queue.run
        self.begin()

    def begin(self, number: str = "1", *, knows_nothing: bool = True) -> str:
        return str(self.run(scripts.BEGIN, number, "1" if knows_nothing else "0", 60, 0))

    def record(self, item: str) -> bytes:
        return bytes(self.source.r.get("scheduler:job:" + item))

    def claim(self, item: str, of: tuple[str, str] = A, number: str = "1") -> str:
        box, fence = of
        answer = self.run(scripts.CLAIM, item, box, fence[2:], self.record(item), number, 60)
        return "claimed" if answer == [fence] else str(answer)

    def confirm(self, item: str, of: tuple[str, str] = A, number: str = "1") -> Any:
        return self.run(scripts.CONFIRM, item, *of, number, 60)

    def restore(self, item: str, of: tuple[str, str] = A, ended: str = "0", confirmed: str = "1") -> str:
        record = record_of(item, "a.py", 1000) | {"status": "completed" if ended == "1" else "running"}
        return str(self.run(scripts.RESTORE, item, *of, "5", ended, confirmed, json.dumps(record), "args"))

    def write_back(self, item: str, status: str, of: tuple[str, str] = A) -> Any:
        record = record_of(item, "a.py", 1000) | {"status": status}
        is_over = "1" if status in ("completed", "failed") else "0"
        return self.run(scripts.WRITE_BACK, item, *of, json.dumps(record), is_over, "1")

    def report(self, box: str, number: str = "1", accept: str = "0", *known: str) -> Any:
        return self.run(scripts.REPORT, box, json.dumps({"run": number}), number, accept, *known)

    def claim_of(self, item: str) -> dict[str, str]:
        found: dict[bytes, bytes] = self.source.r.hgetall(f"gpusched:claim:{item}")
        return {key.decode(): value.decode() for key, value in found.items()}

    def arguments(self, item: str) -> tuple[bytes, int]:
        """Returns the arguments of an item, and the seconds after which they expire; -1: never."""
        key = f"gpusched:arguments:{item}"
        return self.source.r.get(key), self.source.r.ttl(key)

    def new_run(self) -> None:
        """Makes the recorded run one of another process of Redis."""
        self.source.r.hset("gpusched:run", "run_id", "0" * 40)


@pytest.fixture
def ours(server: Server, queue: SourceQueue) -> Iterator[Ours]:
    made = Ours(server.url, queue)
    yield made
    made.queue.redis.close()


def test_an_item_is_claimed_once_and_confirmed_by_its_fence_as_often_as_asked(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    assert ours.claim(item) == "claimed"
    assert ours.claim(item, B) == "gone"
    assert ours.source.waiting() == []
    assert [ours.confirm(item), ours.confirm(item)] == [1, 1]
    assert ours.confirm(item, (A[0], B[1])) == 0
    assert ours.confirm(item, (B[0], A[1])) == 0


def test_an_item_that_was_given_back_belongs_to_the_newer_fence(ours: Ours) -> None:
    item = ours.source.submit("a.py", created_at=1795742872.49)
    score = ours.source.r.zscore("scheduler:queue", item)
    ours.claim(item)
    ours.source.r.hset("gpusched:counter", A[0], "3")
    assert ours.run(scripts.GIVE_BACK, item, *A, "2", "0", "", "1") == 0  # its counter was raised
    assert ours.run(scripts.GIVE_BACK, item, *A, "3", "0", "", "1") == 1
    assert ours.source.r.zscore("scheduler:queue", item) == score
    assert ours.confirm(item) == 0
    assert ours.claim(item, B) == "claimed"
    assert [ours.confirm(item), ours.confirm(item, B)] == [0, 1]
    assert ours.run(scripts.WRITE_BACK, item, *A, "{}", "1", "1") == 0
    assert ours.source.status(item) == "queued"


def test_a_confirmed_item_is_not_given_back_unless_asked(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.confirm(item)
    ours.source.r.hset("gpusched:counter", A[0], "3")
    assert ours.run(scripts.GIVE_BACK, item, *A, "3", "0", "", "1") == 0
    assert ours.run(scripts.GIVE_BACK, item, *A, "3", "1", "", "1") == 1


def test_the_rights_of_the_page_are_those_that_the_scripts_use() -> None:
    used = set(
        re.findall(
            r"redis\.call\('([A-Z]+)'",
            "".join(text for text in vars(scripts).values() if str(text).startswith(scripts._COMMON)),
        )
    )
    others = {"ping", "eval", "evalsha", "script|load", "config|get", "multi", "exec", "select"}
    assert set(RIGHTS) - others == {name.lower() for name in used}


def test_a_record_that_changed_since_it_was_read_is_not_claimed(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    assert ours.run(scripts.CLAIM, item, *A, b"older", "1", 60) == "changed"
    assert ours.source.waiting() == [item]


def test_nothing_is_claimed_or_confirmed_before_the_run_is_open(ours: Ours) -> None:
    item, other = ours.source.submit("a.py"), ours.source.submit("b.py")
    ours.claim(item)
    assert ours.claim(other, number="2") == "run"
    ours.new_run()
    assert (ours.claim(other), ours.confirm(item)) == ("run", -1)
    assert ours.begin("2") == "2"
    assert ours.begin("3") == "2"
    assert (ours.claim(other, number="2"), ours.confirm(item, number="2")) == ("run", -1)
    assert ours.report(A[0], "2", "0", B[0]) == 0  # A remembers B, which has not reported
    assert ours.report(B[0], "2") == 1
    assert ours.claim(other, number="2") == "run"  # it is not old enough
    assert ours.run(scripts.CLAIM, other, *A, ours.record(other), "2", 0) == ["1:" + A[1]]


def test_accepting_losses_forgets_the_boxes_that_have_not_reported(ours: Ours) -> None:
    ours.report(B[0])
    ours.new_run()
    ours.begin("2")
    assert ours.report(A[0], "2") == 0
    assert ours.queue.accept_loss()
    assert [one.decode() for one in ours.source.r.hkeys("gpusched:boxes")] == [A[0]]
    assert ours.report(A[0], "2") == 1


@pytest.mark.parametrize("ended", ["0", "1"])
def test_a_claim_that_was_lost_is_written_back_and_its_item_leaves_the_queue(ours: Ours, ended: str) -> None:
    item = ours.source.submit("a.py")
    assert ours.restore(item, B, ended=ended) == "mine"
    assert ours.source.waiting() == []
    assert ours.claim_of(item)["ended"] == ended
    assert ours.restore(item, A, confirmed="0") == "other"
    assert ours.confirm(item, A) == 0


def test_the_newer_claim_counts_after_a_rollback(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item, A)  # what a rolled-back Redis says
    assert ours.restore(item, B, confirmed="1") == "mine"
    assert (ours.confirm(item, B), ours.confirm(item, A)) == (1, 0)
    assert ours.restore(item, A, confirmed="1") == "other"


def test_an_item_that_was_retried_stays_in_the_queue_when_its_box_reports(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.run(scripts.WRITE_BACK, item, *A, ours.record(item).replace(b"queued", b"failed"), "1", "1")
    assert ours.queue.again(item, "retry") == "queued again"
    assert ours.restore(item, ended="1") == "again"
    assert ours.source.waiting() == [item]
    assert ours.source.status(item) == "queued"


def test_a_restored_item_has_its_status_and_its_arguments_again(ours: Ours) -> None:
    running, ended = "000000000001", "000000000002"
    assert (ours.restore(running), ours.restore(ended, ended="1")) == ("mine", "mine")
    assert (ours.source.status(running), ours.source.status(ended)) == ("running", "completed")
    assert ours.arguments(running) == (b"args", -1)
    assert ours.arguments(ended)[0] == b"args"
    assert ours.queue.again(ended, "retry") == "queued again"
    assert ours.arguments(ended) == (b"args", -1)


def test_many_items_are_restored_in_few_round_trips(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    names, sent = [f"{number:012}" for number in range(1010)], []
    send: Any = redis.connection.AbstractConnection.send_packed_command

    def counted(self: Any, command: Any, *args: Any, **words: Any) -> Any:
        sent.append(command)
        return send(self, command, *args, **words)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    record = json.dumps(record_of("", "a.py", 1000))
    ours.queue.run_each(scripts.RESTORE, ([name, *A, "5", "0", "1", record, ""] for name in names))
    assert len(sent) < 10
    assert ours.source.r.scard("gpusched:claims") == 1010
    assert ours.claim_of(names[-1])["fence"] == A[1]


def test_a_restored_item_that_older_data_have_as_running_has_ended(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.write_back(item, "running")
    assert ours.restore(item, ended="1") == "mine"
    assert ours.source.status(item) == "completed"
    assert ours.source.r.smembers("gpusched:claims") == set()


def test_an_id_that_was_submitted_again_after_its_end_stays_in_the_queue(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.write_back(item, "completed")
    submit(ours.source.r, record_of(item, "a.py", 1000))
    assert ours.restore(item, ended="1") == "ended"
    assert ours.write_back(item, "completed") == 1  # repeated, because its answer was lost
    assert (ours.source.waiting(), ours.source.status(item)) == ([item], "queued")
    assert ours.write_back(item, "running") == 0  # its job was run again here
    assert ours.claim(item, B) == "claimed"


def test_an_ended_item_that_its_box_runs_again_is_claimed_again(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.write_back(item, "failed")
    assert ours.write_back(item, "running") == 1
    with pytest.raises(SchedulerError, match="is on a box"):
        ours.queue.again(item, "retry")
    assert ours.source.r.ttl(f"gpusched:claim:{item}") == -1
    assert ours.write_back(item, "completed") == 1
    assert ours.queue.again(item, "retry") == "queued again"


def test_an_ended_claim_is_not_confirmed(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.write_back(item, "failed")
    assert ours.confirm(item) == 0


def test_the_turns_of_an_item_go_on_after_it_was_queued_again_twice(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.write_back(item, "failed")
    for _ in range(2):
        ours.queue.again(item, "retry")
        ours.queue.cancel(item)
    ours.queue.again(item, "retry")
    assert ours.claim(item, B) == "claimed"  # with turn 2
    assert ours.restore(item) == "other"


@pytest.mark.parametrize("end", ["ended", "cancelled", "rejected"])
def test_arguments_expire_with_their_item_unless_it_is_queued_again(ours: Ours, end: str) -> None:
    item = ours.source.submit("a.py")
    ours.source.r.set(f"gpusched:arguments:{item}", "args")
    if end == "ended":
        ours.claim(item)
        assert ours.arguments(item)[1] == -1
        ours.write_back(item, "failed")
    elif end == "cancelled":
        ours.queue.cancel(item)
    else:
        ours.run(scripts.REJECT, item, "no", "")
    assert 0 < ours.arguments(item)[1] <= 30 * 86400
    if end != "rejected":
        ours.queue.again(item, "retry")
        assert ours.arguments(item) == (b"args", -1)


def test_an_item_that_another_program_runs_is_queued_again_only_by_requeue(ours: Ours) -> None:
    item = ours.source.submit("a.py", status="running")
    ours.source.r.zrem("scheduler:queue", item)
    with pytest.raises(SchedulerError, match="by another program"):
        ours.queue.again(item, "retry")
    assert ours.source.waiting() == []
    assert ours.queue.again(item, "requeue") == "queued again"
    assert ours.source.waiting() == [item]


@pytest.mark.parametrize("command", RIGHTS)
def test_without_one_of_its_rights_a_user_loses_no_item(ours: Ours, server: Server, command: str) -> None:
    """Redis undoes nothing of a script in which a command fails."""
    r = ours.source.r
    names = ("claim", "give back", "reject", "cancel", "retry", "end")
    items = {name: ours.source.submit("a.py") for name in names}
    ours.claim(items["give back"])
    ours.claim(items["end"])
    ours.claim(items["retry"])
    ours.write_back(items["retry"], "failed")
    r.execute_command("ACL", "SETUSER", "some", "reset", "on", "nopass", "~*", "+@all", f"-{command}")
    text = ours.record(items["claim"])
    some = Queue(server.url.replace("unix://", "unix://some:x@"))
    with closing(some.redis):
        for script, *args in (
            (scripts.CLAIM, items["claim"], A[0], "x", text, "1", 0),
            (scripts.GIVE_BACK, items["give back"], *A, "", "1", "", "1"),
            (scripts.REJECT, items["reject"], "no", ""),
            (scripts.CANCEL, items["cancel"], "{}"),
            (scripts.AGAIN, items["retry"], "{}", "5", "retry"),
            (scripts.WRITE_BACK, items["end"], *A, text, "1", "1"),
        ):
            with suppress(redis.RedisError):
                some.run(script, *args)
    held = {one[0] for one in ours.run(scripts.LIST)[1]}
    waits = {*held, *ours.source.waiting()}
    is_over = {
        "reject": r.zscore("gpusched:rejected", items["reject"]) is not None,
        "cancel": ours.record(items["cancel"]) == b"{}",
        **{name: ours.claim_of(items[name])["ended"] == "1" for name in ("retry", "end")},
    }
    assert [name for name, item in items.items() if item not in waits and not is_over.get(name)] == []


@pytest.mark.parametrize("is_returned", [False, True])
def test_an_ended_claim_does_not_replace_a_newer_one(ours: Ours, is_returned: bool) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.run(scripts.WRITE_BACK, item, *A, ours.record(item).replace(b"queued", b"failed"), "1", "1")
    ours.queue.again(item, "retry")
    assert ours.claim(item, B) == "claimed"
    if is_returned:
        assert ours.run(scripts.GIVE_BACK, item, *B, "", "0", "", "1") == 1
    assert ours.restore(item, ended="1") == "other"
    assert ours.source.waiting() == [item] * is_returned
    assert ours.confirm(item, B) == (not is_returned)


def test_another_box_gives_back_only_in_a_run_that_is_open(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.report(A[0])
    ours.claim(item)
    ours.source.r.hset("gpusched:counter", A[0], "3")
    ours.new_run()
    ours.begin("2")
    assert ours.run(scripts.GIVE_BACK, item, *A, "3", "0", "", "2") == 0
    ours.report(A[0], "2")
    assert ours.run(scripts.GIVE_BACK, item, *A, "3", "0", "", "2") == 1


def test_an_item_is_cancelled_in_the_queue_or_by_its_box(ours: Ours) -> None:
    waiting, taken = ours.source.submit("a.py"), ours.source.submit("b.py")
    ours.claim(taken)
    assert ours.queue.cancel(waiting) == "cancelled"
    assert (ours.source.status(waiting), ours.source.waiting()) == ("failed", [])
    assert "asked" in ours.queue.cancel(taken)
    assert ours.source.r.smembers("gpusched:cancelled") == {taken.encode()}


def test_the_list_of_what_was_set_aside_keeps_the_newest_thousand(ours: Ours) -> None:
    for number in range(1010):
        ours.run(scripts.REJECT, f"{number:04}", "no", "")
    assert ours.source.r.zcard("gpusched:rejected") == 1000
    assert len(ours.source.r.keys("gpusched:rejected:*")) == 1000


def test_a_claim_that_redis_may_have_lost_is_neither_written_back_nor_given_back(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    ours.claim(item)
    ours.source.r.delete("gpusched:run", f"gpusched:claim:{item}")
    assert ours.run(scripts.WRITE_BACK, item, *A, "{}", "0", "1") == -1
    assert ours.run(scripts.GIVE_BACK, item, *A, "", "1", "", "1") == -1
