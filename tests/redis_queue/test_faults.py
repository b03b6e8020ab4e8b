"""Faults of docs/redis.md that need a copied box, an older snapshot of Redis, or a box that is gone."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing, suppress
from typing import Any

import pytest

from gpu_scheduler.redis_queue.queue import Queue
from gpu_scheduler.show.store_access import requested_verbs
from tests.processes import stop_between_writes
from tests.redis_queue.conftest import (
    SCALE,
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
from tests.waiting import wait_for


def listing(box: Box) -> dict[str, Any]:
    """Returns what `redis-queue` knows, with the times that the boxes use."""
    queue = Queue(box.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_SCHEDULER_REDIS_TIME_SCALE", str(SCALE))
        try:
            return queue.listing()
        finally:
            queue.redis.close()


def beats_besides(queue: SourceQueue, box: bytes) -> int:
    """Returns how often other boxes than this one have raised their counters."""
    return sum(int(beats) for key, beats in queue.r.hgetall("gpusched:counter").items() if key != box)


def test_a_copy_of_a_box_runs_none_of_its_items_again(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes("a")
    box.script("long.py", WAIT)
    box.script("ended.py", "")
    scheduler, agent = box.start_scheduler(), box.agent()
    ended, running = queue.submit("ended.py"), queue.submit("long.py")
    ends(queue, ended)
    runs(queue, running)
    agent.kill()
    agent.wait()
    opened = queue.submit("job.py")
    with closing(store_of(box)) as store:
        insert_gated_job(store, box, queue, opened)
    original = queue.r.hget(f"gpusched:claim:{running}", "box").decode()
    stop_between_writes(scheduler.pid, box.home.database)
    shutil.copytree(box.folder, box.folder.with_name("copy"))
    scheduler.send_signal(signal.SIGCONT)

    copy = boxes("copy")
    copy.start("--fresh", "--yes")
    wait_for(lambda: set(listing(box)["boxes"]) - {original}, "the copy as another box")
    box.agent()
    ends(queue, opened)
    new = [queue.submit("new.py") for _ in range(3)]
    copy.script("new.py", "")  # only the copy has it
    ends(queue, *new)
    assert queue.status(running) == "running"
    assert not any(one.get("second") for one in listing(box)["boxes"].values()), "the copy has no old jobs"
    (box.folder / "go").touch()
    (copy.folder / "go").touch()
    ends(queue, running)
    assert [one.split()[1] for one in traces(box)].count("job.py") == 1
    assert [one for one in traces(box) if "job.py" not in one] == [
        "a ended.py", "a long.py", *["copy new.py"] * 3,
    ]  # fmt: skip
    assert queue.waiting() == []


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_accepting_a_loss_starts_what_older_data_have_in_the_set_although_a_box_away_holds_it(
    server: Server, boxes: Boxes, queue: SourceQueue, state: str
) -> None:
    away, here = boxes("away"), boxes("here")
    away.script("held.py", WAIT)
    here.script("held.py", "")
    here.script("other.py", "")
    scheduler, agent = away.start_scheduler(), away.agent()
    ends(queue, queue.submit("job.py"))
    stop_between_writes(agent.pid, away.home.database)
    held, waiting = queue.submit("held.py"), queue.submit("other.py")
    server.save()
    if state == "claimed":
        stop_between_writes(scheduler.pid, away.home.database)
    agent.send_signal(signal.SIGCONT)
    if state == "running":
        runs(queue, held)
    else:
        with closing(store_of(away)) as store:
            wait_for(lambda: ["confirm"] in requested_verbs(store).values(), "a confirmed claim")
    box_away = queue.r.hget(f"gpusched:claim:{held}", "box")
    agent.kill()
    agent.wait()
    server.roll_back()
    assert set(queue.waiting()) == {held, waiting}

    here.start()
    wait_for(lambda: beats_besides(queue, box_away) >= 4, "rounds of the other box")
    assert "claims wait until" in here.cli("redis-queue", "--redis", here.url).stdout
    assert set(queue.waiting()) == {held, waiting}
    assert here.cli("redis-queue", "accept-loss", "--redis", here.url).returncode == 0
    ends(queue, held, waiting)
    scheduler.send_signal(signal.SIGCONT)
    wait_for(lambda: "away held.py" in traces(here), "the run of the box away")
    assert traces(here) == ["away held.py", "away job.py", "here held.py", "here other.py"]


def test_the_first_box_of_a_redis_without_our_data_runs_what_a_box_away_already_runs(
    server: Server, boxes: Boxes, queue: SourceQueue
) -> None:
    away, new = boxes("away"), boxes("new")
    away.script("held.py", WAIT)
    new.script("held.py", "")
    held = queue.submit("held.py")
    server.save()
    away.start_scheduler()
    agent = away.agent()
    runs(queue, held)
    wait_for(lambda: traces(away), "its trace")
    agent.kill()
    agent.wait()
    server.roll_back()
    assert queue.waiting() == [held]
    new.start()
    ends(queue, held)
    assert traces(new) == ["away held.py", "new held.py"]


def test_the_items_of_a_box_that_is_gone_are_listed_and_run_once_more_after_one_command(
    boxes: Boxes, queue: SourceQueue
) -> None:
    gone, other = boxes("gone"), boxes("other")
    gone.script("long.py", WAIT)
    other.script("long.py", "")
    gone.start(gpus="4")
    items = [queue.submit("long.py") for _ in range(4)]
    runs(queue, *items)
    wait_for(lambda: all(queue.job(one)["pid"] for one in items) and len(traces(gone)) == 4, "processes")
    pids = [queue.job(one)["pid"] for one in items]
    gone.kill()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(os.getpgid(pid), signal.SIGKILL)
    other.start()
    open_queue(other, queue)

    def silent() -> set[str]:
        return {one["id"] for one in listing(other)["claims"] if one["silent_s"] is not None}

    wait_for(lambda: silent() == set(items), "the items of the silent box")
    shown = other.cli("redis-queue", "--redis", other.url).stdout
    assert all(f"{item}   running" in shown for item in items)
    assert shown.count("silent for") == 4
    assert traces(other) == ["gone long.py"] * 4
    done = other.cli("redis-queue", "requeue", *items, "--redis", other.url)
    assert (done.returncode, done.stdout.count("queued again")) == (0, 4)
    ends(queue, *items)
    assert traces(other) == ["gone long.py"] * 4 + ["other long.py"] * 4
    assert listing(other)["claims"] == []
