"""Nothing that stands in the queue, and nothing that Redis refuses, stops the other items without a word."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_scheduler.redis_queue import agent as agent_module
from gpu_scheduler.redis_queue.agent import Agent
from gpu_scheduler.redis_queue.queue import BEGIN, LOOK, LOOK_LIMIT, Queue
from gpu_scheduler.show.location import Location
from tests.redis_queue.conftest import Boxes, Server, ends, traces
from tests.redis_queue.source_document import SourceQueue
from tests.redis_queue.test_scripts import RIGHTS
from tests.stress.redis_source import record_of
from tests.waiting import wait_for


def test_ids_and_texts_that_are_no_utf_8_are_set_aside(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    for name, record in (
        (b"bad\xff", record_of("bad\udcff", "job.py", 1000)),
        (b"fine", record_of("fine", "job\ud800.py", 1000)),
    ):
        queue.r.set(b"scheduler:job:" + name, json.dumps(record))
        queue.r.zadd("scheduler:queue", {name: 0})
    shown = box.cli("redis-queue", "--redis", box.url)
    assert (shown.returncode, shown.stdout.count("no UTF-8")) == (0, 2)
    good = queue.submit("job.py")
    box.start()
    ends(queue, good)
    wait_for(lambda: queue.waiting() == [], "an empty queue")
    shown = box.cli("redis-queue", "--redis", box.url)
    assert (shown.returncode, shown.stdout.count("set aside")) == (0, 2)


@pytest.fixture
def agent(server: Server, queue: SourceQueue, tmp_path: Path) -> Iterator[Agent]:
    """An agent without a store, in a run of Redis that is open."""
    found = Queue(server.url)
    made = Agent(Location(str(tmp_path / "state.json")), found, str(tmp_path))
    made._box, made._sizes, made._number = "box-a", [20000], "1"
    found.run(BEGIN, "1", "1", 60, 0)
    (tmp_path / "job.py").touch()
    with closing(found.redis):
        yield made


def rows(agent: Agent) -> list[Any]:
    return list(agent._queue.run(LOOK, LOOK_LIMIT, 0)[3])


def test_an_unexpected_error_about_one_item_leaves_the_others(
    agent: Agent, queue: SourceQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue.submit("bad.py")
    good = queue.submit("job.py")
    check = agent._check

    def failing(script: str, *args: Any) -> Any:
        return check(script, *args) if script == "job.py" else 1 / 0

    store: Any = SimpleNamespace(gpus=lambda: [SimpleNamespace(total_mib=20000)])
    taken: list[str] = []

    def claim(found: Any) -> bool:
        taken.append(found.record.job_id)
        return False

    monkeypatch.setattr(agent, "_checked", failing)
    monkeypatch.setattr(agent, "_claim", claim)
    monkeypatch.setattr(agent_module, "scheduler_pid_of", lambda store: 1)
    monkeypatch.setattr(agent_module, "items_to_start", lambda store, jobs: range(len(jobs)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            agent._take(store, rows(agent), 0.0)
    assert taken == [good] * 2
    assert caplog.text.count("left alone: ZeroDivisionError") == 1


def test_an_item_whose_job_cannot_be_inserted_is_given_back_and_its_id_forges_no_line(
    agent: Agent, queue: SourceQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    item = queue.submit("job.py", job_id="x\nERROR forged\x1b[31m")
    [row] = rows(agent)
    found = agent._candidate(row, 0.0)
    assert found is not None
    monkeypatch.setattr(agent_module, "insert_gated", lambda *args: 1 / 0)
    assert not agent._claim(found)
    assert queue.waiting() == [item]
    assert agent._candidate(row, 0.0) is None  # for some time
    [record] = caplog.records
    assert "is given back" in record.getMessage()
    assert record.getMessage().isprintable()


@pytest.mark.parametrize(
    "given", [{"status": "running"}, {"gpu_memory_mb": 10**7}], ids=["running", "too large"]
)
def test_a_thousand_items_that_cannot_be_taken_do_not_block_the_queue(
    boxes: Boxes, queue: SourceQueue, given: dict[str, Any]
) -> None:
    box, pipe = boxes(), queue.r.pipeline()
    for number in range(LOOK_LIMIT):
        name = f"{number:012}"
        pipe.set("scheduler:job:" + name, json.dumps(record_of(name, "job.py", 1000) | given))
        pipe.zadd("scheduler:queue", {name: number})
    pipe.execute()
    items = [queue.submit("job.py") for _ in range(2)]
    box.start()
    ends(queue, *items)
    ends(queue, queue.submit("job.py"))
    assert len(traces(box)) == 3
    shown = box.cli("redis-queue", "--redis", box.url).stdout
    assert ("000000000000   as running" in shown) == ("status" in given)


def test_a_redis_that_refuses_writes_is_named_until_it_accepts_them(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.start()
    ends(queue, queue.submit("job.py"))
    queue.r.config_set("min-replicas-to-write", 1)
    try:
        queue.r.config_resetstat()

        def refusals() -> int:
            return int(queue.r.info("errorstats").get("errorstat_NOREPLICAS", {}).get("count", 0))

        wait_for(lambda: refusals() >= 4, "refused writes")
        assert "the Redis queue cannot be used" in box.cli("status").stdout
        assert box.log().count("the jobs of this box continue") == 1
    finally:
        queue.r.config_set("min-replicas-to-write", 0)
    wait_for(lambda: "cannot be used" not in box.cli("status").stdout, "no warning")


def test_a_queue_that_waits_for_a_box_says_for_which(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    box = boxes()
    box.start()
    ends(queue, queue.submit("job.py"))
    queue.r.hset("gpusched:boxes", "c098", json.dumps({"host": "gpu7", "run": "older"}))
    queue.r.hset("gpusched:boxes", "c099", "{}")
    server.kill()
    server.start()
    text = "waits until gpu7 (c098), box (c099) has reported"
    wait_for(lambda: text in box.cli("status").stdout, "a warning in `status`")
    assert "box c099  has not reported yet" in box.cli("redis-queue", "--redis", box.url).stdout
    item = queue.submit("job.py")
    assert box.cli("redis-queue", "accept-loss", "--redis", box.url).returncode == 0
    ends(queue, item)
    assert box.log().count(text) == 1
    wait_for(lambda: "waits until" not in box.cli("status").stdout, "no warning")


def test_a_user_with_the_rights_of_the_page_can_do_everything(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    rights = [f"+{one}" for one in RIGHTS]
    words = ("reset", "on", ">secret", "~scheduler:*", "~gpusched:*", *rights)
    queue.r.execute_command("ACL", "SETUSER", "gpu-scheduler", *words)
    box = boxes()
    box.url = server.url.replace("unix://", "unix://gpu-scheduler:secret@")
    box.env["GPU_SCHEDULER_REDIS_URL"] = box.url
    box.begin("start", "--simulate", "2", "--log-dir", "logs", "--redis")
    item = box.cli("redis-submit", "job.py", "--gpu-memory-mb", "500").stdout.strip()
    ends(queue, item)
    assert box.cli("redis-queue").returncode == 0
    assert box.cli("redis-queue", "retry", item).returncode == 0
    wait_for(lambda: len(traces(box)) == 2, "its second run")
    assert "jobs of this box continue" not in box.log()
