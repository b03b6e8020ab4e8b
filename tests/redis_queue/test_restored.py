"""Redis gets back what it has lost, and learns of jobs that were retried or forgotten at their box."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

from gpu_scheduler.store.taken_items import kept_items, open_items, set_item
from tests.processes import stop_between_writes
from tests.redis_queue.conftest import (
    WAIT,
    Box,
    Boxes,
    Server,
    ends,
    insert_gated_job,
    open_queue,
    runs,
    store_of,
    traces,
)
from tests.redis_queue.source_document import SourceQueue
from tests.stress.redis_source import record_of, submit
from tests.waiting import wait_for


def start_afresh(box: Box) -> None:
    """Forgets all jobs, and starts the scheduler with its agent again."""
    assert box.cli("stop", "--jobs").returncode == 0
    for process in box.processes:
        process.terminate()
        process.wait(30)
    box.start("--fresh", "--yes")


def test_without_its_data_redis_gets_records_and_arguments_back(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start()
    ended = queue.submit("job.py")
    words = ("redis-submit", "--redis", box.url, "long.py", "--gpu-memory-mb", "500", "--lr", "1")
    running = box.cli(*words).stdout.strip()
    ends(queue, ended)
    wait_for(lambda: queue.status(running) == "running" and queue.job(running)["pid"], "a running job")
    before = queue.job(running)
    queue.r.flushall()
    wait_for(lambda: queue.r.exists(*[f"scheduler:job:{one}" for one in (ended, running)]) == 2, "records")
    assert (queue.job(running), queue.status(ended)) == (before, "completed")
    open_queue(box, queue)
    assert "asked" in box.cli("redis-queue", "cancel", running, "--redis", box.url).stdout
    ends(queue, running, status="failed")
    (box.folder / "go").touch()
    assert box.cli("redis-queue", "retry", running, "--redis", box.url).returncode == 0
    ends(queue, running)
    assert traces(box) == ["a job.py", "a long.py --lr 1", "a long.py --lr 1"]


def test_an_id_that_is_submitted_again_survives_a_restart_of_redis(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    box = boxes()
    box.start_scheduler()
    agent = box.agent()
    item = queue.submit("job.py")
    ends(queue, item)
    wait_for(lambda: not queue.r.smembers("gpusched:claims"), "the end of its claim")
    stop_between_writes(agent.pid, box.home.database)
    submit(queue.r, record_of(item, "job.py", 1000))
    server.kill()
    server.start()
    agent.send_signal(signal.SIGCONT)
    wait_for(lambda: len(traces(box)) == 2, "its second run")
    ends(queue, item)


def test_a_local_retry_of_an_ended_item_is_known_to_redis(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start()
    item = queue.submit("long.py")
    runs(queue, item)
    (box.folder / "go").touch()
    ends(queue, item)
    (box.folder / "go").unlink()
    assert box.cli("retry", "1").returncode == 0
    wait_for(lambda: queue.status(item) == "running", "its second run")
    refused = box.cli("redis-queue", "retry", item, "--redis", box.url)
    assert (refused.returncode, "is on a box" in refused.stderr) == (1, True)
    (box.folder / "go").touch()
    ends(queue, item)
    assert len(traces(box)) == 2


def test_a_local_retry_of_an_item_that_was_queued_again_is_listed(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start_scheduler()
    agent = box.agent()
    item = queue.submit("long.py")
    runs(queue, item)
    (box.folder / "go").touch()
    ends(queue, item)
    (box.folder / "go").unlink()
    wait_for(lambda: not queue.r.smembers("gpusched:claims"), "the end of its claim")
    stop_between_writes(agent.pid, box.home.database)
    assert box.cli("redis-queue", "retry", item, "--redis", box.url).returncode == 0
    assert box.cli("retry", "1").returncode == 0
    wait_for(lambda: len(traces(box)) == 2, "its second run")
    agent.send_signal(signal.SIGCONT)
    wait_for(
        lambda: "also runs there" in box.cli("redis-queue", "--redis", box.url).stdout,
        "a run that is not asked for",
    )
    (box.folder / "go").touch()
    ends(queue, item)


def test_jobs_that_are_forgotten_keep_their_ends_and_give_back_what_never_started(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    box = boxes()
    box.script("long.py", WAIT)
    box.start_scheduler()
    agent = box.agent()
    done = queue.submit("long.py")
    runs(queue, done)
    agent.kill()
    agent.wait()
    unstarted = queue.submit("job.py")
    with closing(store_of(box)) as store:
        insert_gated_job(store, box, queue, unstarted)
    server.kill()
    (box.folder / "go").touch()
    wait_for(lambda: "1 completed" in box.cli("status").stdout, "the end of the job")
    assert box.cli("stop").returncode == 0
    for process in box.processes:
        process.wait(30)
    box.start("--fresh", "--yes")
    wait_for(lambda: "cannot be reached" in box.cli("status").stdout, "the agent")
    server.start()
    ends(queue, done)
    open_queue(box, queue)
    ends(queue, unstarted)
    assert sorted(traces(box)) == ["a job.py", "a long.py"]


def test_a_job_that_was_given_back_says_so_and_a_retry_does_not_start_it(
    boxes: Boxes, queue: SourceQueue
) -> None:
    box, item = boxes(), queue.submit("job.py")
    box.start_scheduler()
    with closing(store_of(box)) as store:
        known = insert_gated_job(store, box, queue, item)
        queue.r.hset(f"gpusched:claim:{item}", mapping={"box": "ghost", "confirmed": "1"})
        box.agent()
        open_queue(box, queue)

        def job() -> Any:
            return store.job(known.job_id)

        wait_for(lambda: job().outcome == "cancelled", "its cancel")
        assert "given back to the Redis queue" in box.cli("show", "1").stdout
        first = job().finished_at
        assert box.cli("retry", "1").returncode == 0
        wait_for(lambda: job().outcome == "cancelled" and job().finished_at > first, "its second cancel")
    assert traces(box) == []


def test_ended_items_are_forgotten_after_thirty_days(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    box.start_scheduler()
    items = [queue.submit("job.py") for _ in range(3)]
    with closing(store_of(box)) as store:
        old, new, waits = [insert_gated_job(store, box, queue, item) for item in items]
        for one in (old, new):
            set_item(store, one, "ended")
        with store.db.transaction() as db:
            db.execute("UPDATE job SET state = 'finished', outcome = 'failed' WHERE id <> ?", (waits.job_id,))
            sql = "UPDATE taken_item SET set_at = ? WHERE redis_id <> ?"
            db.execute(sql, (time.time() - 31 * 86400, new.redis_id))
        assert [one.redis_id for one in kept_items(store)] == [new.redis_id, waits.redis_id]
        assert [one.redis_id for one in open_items(store)] == [waits.redis_id]
