"""Boxes share a queue in a real Redis: every item runs once, whatever ends, hangs or loses its data."""

from __future__ import annotations

import json
import os
import pickle
import signal
from contextlib import closing
from typing import Any

import pytest

from gpu_scheduler.errors import NoSuchJobError
from gpu_scheduler.redis_queue.queue import Queue
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import box_id, open_items
from gpu_scheduler.web import operations
from tests.processes import stop_between_writes
from tests.redis_queue.conftest import (
    WAIT,
    Box,
    Boxes,
    Server,
    claim,
    ends,
    insert_gated_job,
    open_queue,
    runs,
    store_of,
    traces,
)
from tests.redis_queue.source_document import SourceQueue
from tests.waiting import wait_for


def test_items_of_the_source_run_and_their_status_is_written_back(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.script("bad.py", "sys.exit(3)")
    box.start()
    items = [queue.submit("long.py"), queue.submit("bad.py")]
    wait_for(lambda: queue.status(items[0]) == "running" and queue.job(items[0])["pid"], "a running job")
    record = queue.job(items[0])
    assert record["assigned_gpus"] in ([0], [1])
    os.kill(record["pid"], 0)
    ends(queue, items[1], status="failed")
    (box.folder / "go").touch()
    ends(queue, items[0])
    # The queue may have opened between the two claims, so that the second item is job 1.
    assert f"redis:{items[0]}" in box.cli("show", "1").stdout + box.cli("show", "2").stdout
    assert queue.job(items[0]) == {**record, "status": "completed", "pid": None}
    context = operations.Context(Location(str(box.home.state_file)), str(box.folder), "api")
    for name in (items[0], f"redis:{items[0]}"):
        found = operations.model_job_of(context, name)
        assert (found["job_id"], found["status"]) == (items[0], "completed")
    with pytest.raises(NoSuchJobError):
        operations.model_job_of(context, "0123456789ab")


def test_two_boxes_and_the_schedulers_own_jobs_run_each_item_once(boxes: Boxes, queue: SourceQueue) -> None:
    both = [boxes("a"), boxes("b")]
    items = [queue.submit("job.py") for _ in range(12)]
    for box in both:
        box.start()
    ends(queue, *items)
    assert len(traces(both[0])) == 12


def test_redis_submit_passes_arguments_folder_and_variables(boxes: Boxes, queue: SourceQueue) -> None:
    box, elsewhere = boxes("a"), boxes("b")
    box.script(
        "env.py", "open('got', 'w').write(' '.join([os.environ['COLOUR'], os.getcwd(), *sys.argv[1:]]))"
    )
    done = box.cli("redis-submit", "--redis", box.url, "env.py", "--gpu-memory-mb", "500",
                   "--env=COLOUR=red", "--priority", "HIGH", "--lr", "1 2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    item = done.stdout.strip()
    assert queue.job(item)["priority"] == 100
    elsewhere.start()
    ends(queue, item)
    assert (box.folder / "got").read_text() == f"red {box.folder} --lr 1 2"
    assert json.loads(box.cli("redis-queue", "--redis", box.url, "--json").stdout)["length"] == 0


def test_bad_items_are_set_aside_and_never_in_the_way(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.env["GPU_SCHEDULER_REDIS_TIME_SCALE"] = "60"  # an item without a record is set aside after 10 s
    bad: dict[str, Any] = {
        "pickle": pickle.dumps({"a": 1}), "list": b"[1]", "huge": b"x" * 1_000_000, "empty": b"{}",
    }  # fmt: skip
    for name, text in bad.items():
        queue.r.zadd("scheduler:queue", {name: 0})
        queue.r.set("scheduler:job:" + name, text)
    queue.r.zadd("scheduler:queue", {b"\xff\xfe": 0, "set": 0, "x" * 5000: 0, "absent": 0})
    queue.r.set(b"scheduler:job:\xff\xfe", b"{")
    queue.r.sadd("scheduler:job:set", "a")
    good, lacking = queue.submit("job.py"), queue.submit("nowhere.py")
    large = queue.submit("job.py", 10**6)
    box.start()
    ends(queue, good)
    wait_for(lambda: set(queue.waiting()) == {lacking, large}, "the rest of the queue")
    found = json.loads(box.cli("redis-queue", "--redis", box.url, "--json").stdout)
    assert len(found["rejected"]) == 8
    assert {"it has no record", "the record is larger than 65536 bytes"} <= {
        one["reason"] for one in found["rejected"]
    }
    shown = wait_for(
        lambda: (
            text if "cannot run on" in (text := box.cli("redis-queue", "--redis", box.url).stdout) else ""
        ),
        "the box that lacks the script",
    )
    assert "fits no box: needs 1 GPUs of 1000000 MiB" in shown
    assert len(traces(box)) == 1


def test_what_a_silent_box_has_not_confirmed_is_given_back(boxes: Boxes, queue: SourceQueue) -> None:
    box, item = boxes(), queue.submit("job.py")
    claim(queue, item, "ghost", confirmed=False)
    box.start()
    queue.r.hset("gpusched:run", "x", "y")
    open_queue(box, queue)
    ends(queue, item)
    assert len(traces(box)) == 1


def test_what_a_silent_box_has_confirmed_is_listed_and_requeued_by_hand(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box, item = boxes(), queue.submit("job.py")
    claim(queue, item, "ghost", confirmed=True)
    box.start()
    open_queue(box, queue)
    other = queue.submit("job.py")
    ends(queue, other)
    shown = box.cli("redis-queue", "--redis", box.url).stdout
    assert f"{item}   queued         on ghost" in shown
    assert queue.waiting() == []
    assert box.cli("redis-queue", "retry", item, "--redis", box.url).returncode == 1
    assert "queued again" in box.cli("redis-queue", "requeue", item, "--redis", box.url).stdout
    ends(queue, item)
    assert len(traces(box)) == 2


def test_confirmed_items_of_a_silent_box_are_requeued_if_the_user_accepts_two_runs(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box, item = boxes(), queue.submit("job.py", status="running")
    claim(queue, item, "ghost", confirmed=True)
    box.start("--requeue-silent-after", "2")
    open_queue(box, queue)
    ends(queue, item)
    assert len(traces(box)) == 1
    assert queue.waiting() == []


def test_an_agent_that_is_killed_and_restarted_goes_on(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start_scheduler()
    agent = box.agent()
    items = [queue.submit("long.py") for _ in range(2)]
    runs(queue, *items)
    agent.kill()
    (box.folder / "go").touch()
    wait_for(lambda: "2 completed" in box.cli("status").stdout, "two ends")
    assert queue.status(items[0]) == "running"
    box.agent()
    ends(queue, *items)
    assert len(traces(box)) == 2


def test_a_box_whose_item_was_given_to_another_does_not_start_it(boxes: Boxes, queue: SourceQueue) -> None:
    """The agent hangs for longer than its box counts as living, before it has confirmed its claim."""
    box, other = boxes("a"), boxes("b")
    box.start_scheduler()
    item = queue.submit("job.py")
    store = store_of(box)
    known = insert_gated_job(store, box, queue, item)
    other.start()
    open_queue(other, queue)
    ends(queue, item)
    box.agent()
    wait_for(lambda: not open_items(store), "the end of the stale job")
    wait_for(lambda: store.job(known.job_id).outcome == "cancelled", "its cancel")  # type: ignore[union-attr]
    store.close()
    assert [one.split()[0] for one in traces(box)] == ["b"]


def test_a_claimed_item_without_a_record_is_listed_and_accept_loss_requeues_none(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box, item = boxes(), queue.submit("job.py")
    claim(queue, item, "ghost", confirmed=True)
    assert box.cli("redis-queue", "accept-loss", item, "--redis", box.url).returncode == 2
    assert queue.waiting() == []
    queue.r.delete("scheduler:job:" + item)
    assert f"{item}   no record      on ghost" in box.cli("redis-queue", "--redis", box.url).stdout


def test_no_command_starts_a_job_that_is_not_confirmed(boxes: Boxes, queue: SourceQueue) -> None:
    commands = (["release", "1"], ["retry", "2"], ["resume", "--job", "3"], ["set", "4", "vram=2000"])
    box, items = boxes(), [queue.submit("job.py") for _ in commands]
    box.start_scheduler()
    store = store_of(box)
    for item in items:
        insert_gated_job(store, box, queue, item)

    def waiting() -> list[int]:
        jobs = json.loads(box.cli("status", "--json").stdout)["jobs"]
        return [job["id"] for job in jobs if "not confirmed" in (job["reason"] or "")]

    assert waiting() == [1, 2, 3, 4]
    assert box.cli("hold", "1-4").returncode == 0
    for words in commands:
        box.cli(*words)
    box.cli("release", "1-4")
    assert box.cli("submit", "job.py").returncode == 0
    wait_for(lambda: "1 completed" in box.cli("status").stdout, "the end of the other job")
    assert waiting() == [1, 2, 3, 4]
    store.close()
    box.agent()
    open_queue(box, queue)
    ends(queue, *items)
    assert len(traces(box)) == 5


def test_an_item_that_does_not_start_after_its_confirmation_is_given_back(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box, item = boxes(), queue.submit("job.py")
    box.start_scheduler()
    store = store_of(box)
    wait_for(lambda: not box.cli("pause", "0", "1").returncode, "paused GPUs")
    known = insert_gated_job(store, box, queue, item)
    box.agent()
    open_queue(box, queue)
    wait_for(lambda: queue.waiting() == [item], "the item in the queue")
    wait_for(lambda: not open_items(store), "the end of its job here")
    wait_for(lambda: store.job(known.job_id).outcome == "cancelled", "its cancel")  # type: ignore[union-attr]
    assert box.cli("resume", "0", "1").returncode == 0
    ends(queue, item)
    assert len(traces(box)) == 1
    store.close()


def test_a_running_item_is_cancelled_through_redis(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start()
    item = queue.submit("long.py")
    runs(queue, item)
    assert "asked" in box.cli("redis-queue", "cancel", item, "--redis", box.url).stdout
    ends(queue, item, status="failed")
    assert queue.r.smembers("gpusched:cancelled") == set()
    (box.folder / "go").touch()
    assert box.cli("redis-queue", "retry", item, "--redis", box.url).returncode == 0
    ends(queue, item)


def test_without_its_data_redis_gets_the_claims_back_and_no_item_runs_twice(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start()
    ended = queue.submit("job.py")
    ends(queue, ended)
    running = queue.submit("long.py")
    runs(queue, running)
    pipe = queue.r.pipeline(transaction=True)
    pipe.flushall()
    for item in (ended, running):  # as an older snapshot has them
        pipe.zadd("scheduler:queue", {item: 5})
        pipe.set("scheduler:job:" + item, json.dumps({**queue.job(item), "status": "queued", "pid": None}))
    pipe.execute()
    wait_for(lambda: queue.waiting() == [], "an empty queue")
    new = queue.submit("job.py")
    ends(queue, new)
    (box.folder / "go").touch()
    ends(queue, running)
    assert len(traces(box)) == 3


def test_while_redis_is_away_the_box_goes_on_and_status_says_so(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start()
    item = queue.submit("long.py")
    runs(queue, item)
    server.kill()
    wait_for(lambda: "the Redis queue cannot be reached" in box.cli("status").stdout, "a warning")
    (box.folder / "go").touch()
    wait_for(lambda: "1 completed" in box.cli("status").stdout, "the end of the job")
    server.start()
    ends(queue, item)
    wait_for(lambda: "cannot be reached" not in box.cli("status").stdout, "no warning")
    ends(queue, queue.submit("job.py"))
    assert len(traces(box)) == 2


def test_without_redis_the_scheduler_starts_and_runs_jobs(server: Server, boxes: Boxes) -> None:
    server.kill()
    box = boxes()
    box.start()
    store_of(box).close()
    assert box.cli("submit", "job.py").returncode == 0
    wait_for(lambda: "1 completed" in box.cli("status").stdout, "the end of the job")


def test_a_scheduler_that_hangs_starts_nothing_that_it_gave_back(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    scheduler = box.start_scheduler()
    box.agent()
    ends(queue, queue.submit("job.py"))
    stop_between_writes(scheduler.pid, box.home.database)
    item = queue.submit("job.py")
    other = boxes("b")
    other.start()
    wait_for(lambda: item not in queue.waiting(), "a claim")
    scheduler.send_signal(signal.SIGCONT)
    ends(queue, item)
    assert len(traces(box)) == 2


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://localhost", "give a URL"),
        ("redis://other:6379/0", "give a password"),
        ("redis://192.0.2.1", "runs code as you"),
        ("redis://localhost:notaport", "--redis"),
    ],
)
def test_start_refuses_a_url(boxes: Boxes, url: str, problem: str) -> None:
    done = boxes().cli("start", "--simulate", "1", "--redis", url)
    assert done.returncode == 2
    assert problem in done.stderr


def test_no_password_is_shown_or_stored(boxes: Boxes, server: Server) -> None:
    box = boxes()
    url = "redis://:s3cret@127.0.0.1:1/0"
    box.env["GPU_SCHEDULER_REDIS_URL"] = url
    box.script("env.py", "open('got', 'w').write(repr(dict(os.environ)))")
    box.begin("start", "--simulate", "1", "--log-dir", "logs", "--redis")
    wait_for(lambda: "jobs of this box continue" in box.log(), "a message about Redis")
    assert box.cli("submit", "env.py").returncode == 0
    wait_for(lambda: (box.folder / "got").exists() and (box.folder / "got").read_text(), "the variables")
    assert "s3cret" not in (box.folder / "got").read_text()
    assert "s3cret" not in box.log() + (box.folder / "output").read_text()
    with Store(box.home).db.connection as connection:
        assert all("s3cret" not in row[0] for row in connection.execute("SELECT value FROM meta"))
    assert Queue(url).url == "redis://(hidden)@127.0.0.1:1/0"


def store_with_id(box: Box) -> Store:
    """Starts the scheduler of a box and returns its store once the store's folder has an id."""
    box.start_scheduler()
    store = store_of(box)
    wait_for(lambda: store.db.meta("folder"), "the id of the folder")
    return store


def test_a_store_that_was_lost_lists_what_it_had_confirmed(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    store = store_with_id(box)
    mine = box_id(store)
    store.close()
    lost, unconfirmed = queue.submit("job.py"), queue.submit("job.py")
    claim(queue, lost, mine, confirmed=True)
    claim(queue, unconfirmed, mine, confirmed=False)
    box.agent()
    open_queue(box, queue)
    ends(queue, unconfirmed)
    wait_for(
        lambda: "which has lost its job" in box.cli("redis-queue", "--redis", box.url).stdout, "the lost item"
    )
    assert len(traces(box)) == 1


def test_an_agent_takes_no_id_from_a_store_that_is_not_complete_yet(boxes: Boxes, queue: SourceQueue) -> None:
    """`start` creates the store first and gives it an id later."""
    box = boxes()
    box.home.create()
    with closing(Store(box.home, create=True)) as store:
        box.agent()
        wait_for(lambda: "waiting for `start`" in (box.folder / "output").read_text(), "the agent")
        box.start_scheduler()
        ends(queue, queue.submit("job.py"))
        assert box_id(store) == json.loads(store.db.meta("redis_box") or "")["box"]


def test_a_copied_store_is_another_box(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    store = store_with_id(box)
    mine = box_id(store)
    assert box_id(store) == mine
    folder = json.loads(store.db.meta("folder") or "")
    store.db.set_meta("folder", json.dumps({**folder, "id": "that of the copy"}))
    assert box_id(store) != mine
    store.close()
