"""Each script compares the box and the fence, and the run of Redis. They run in a real redis-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.redis_queue import scripts
from gpu_scheduler.redis_queue.queue import Queue, decoded
from tests.redis_queue.conftest import Server
from tests.redis_queue.source_document import SourceQueue

#: Two boxes with the fences of their claims. An item is claimed by A, then by B.
A, B = ("box-a", "1:fence-a"), ("box-b", "2:fence-b")


class Ours:
    """The scripts of one queue, in run "1", which is open."""

    def __init__(self, url: str, source: SourceQueue) -> None:
        self.queue, self.source = Queue(url), source
        self.run = self.queue.run
        self.begin()

    def begin(self, number: str = "1", *, knows_nothing: bool = True) -> str:
        return decoded(self.run(scripts.BEGIN, number, "1" if knows_nothing else "0", 60, 0))

    def record(self, item: str) -> bytes:
        return bytes(self.source.r.get("scheduler:job:" + item))

    def claim(self, item: str, of: tuple[str, str] = A, number: str = "1") -> str:
        box, fence = of
        answer = self.run(scripts.CLAIM, item, box, fence[2:], self.record(item), number, 60)
        return "claimed" if answer == [fence.encode()] else decoded(answer)

    def confirm(self, item: str, of: tuple[str, str] = A, number: str = "1") -> Any:
        return self.run(scripts.CONFIRM, item, *of, number, 60)

    def restore(self, item: str, of: tuple[str, str] = A, ended: str = "0", confirmed: str = "1") -> str:
        return decoded(self.run(scripts.RESTORE, item, *of, "5", ended, confirmed))

    def report(self, box: str, number: str = "1", accept: str = "0", *known: str) -> Any:
        return self.run(scripts.REPORT, box, json.dumps({"run": number}), number, accept, *known)

    def claim_of(self, item: str) -> dict[str, str]:
        found: dict[bytes, bytes] = self.source.r.hgetall(f"gpusched:claim:{item}")
        return {key.decode(): value.decode() for key, value in found.items()}

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


def test_a_record_that_changed_since_it_was_read_is_not_claimed(ours: Ours) -> None:
    item = ours.source.submit("a.py")
    assert ours.run(scripts.CLAIM, item, *A, b"older", "1", 60) == b"changed"
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
    assert ours.run(scripts.CLAIM, other, *A, ours.record(other), "2", 0) == [b"1:" + A[1].encode()]


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
