"""The producer, the readers and the scheduler of the source document share a queue with a box of ours."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redis_queue.conftest import Box, Boxes, ends, traces
from tests.redis_queue.source_document import SourceQueue
from tests.stress.redis_source import CRITICAL, QUEUE, RECORD, SourceScheduler, record_of
from tests.waiting import wait_for

#: A script runs until the file beside it exists.
WAIT = "while not pathlib.Path(__file__).with_name('go').exists(): time.sleep(0.02)"


@pytest.fixture
def source(queue: SourceQueue, tmp_path: Path) -> Iterator[SourceScheduler]:
    """Provides the source's scheduler with two GPUs. A test calls its rounds."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "RUNS": str(tmp_path / "runs"), "BOX": "source"}
    made = SourceScheduler(queue.r, 2, env)
    yield made
    made.end()


@pytest.fixture
def submit(boxes: Boxes, queue: SourceQueue) -> Callable[..., str]:
    """Provides a function that submits a script of a box by its whole path, which the source needs too."""

    def submit(box: Box, script: str, **given: Any) -> str:
        return queue.submit(str(box.folder / script), **given)

    return submit


def test_an_item_is_run_by_the_scheduler_that_takes_it_and_read_by_all(
    boxes: Boxes, queue: SourceQueue, source: SourceScheduler, submit: Callable[..., str]
) -> None:
    box = boxes()
    items, began = [], time.time() - 14
    for number in range(14):
        box.script(f"job{number}.py", WAIT)
        # The score of an item is too coarse for two times within a millisecond.
        items.append(submit(box, f"job{number}.py", created_at=began + number))
    assert [one["job_id"] for one in queue.peek(50)] == items
    assert [source.round(), source.round(), source.round()] == [*items[:2], None]
    assert sorted(queue.waiting()) == sorted(items[2:])
    box.start()

    def beside(is_done: Callable[[], bool]) -> bool:
        source.round()  # while its GPUs are full, it pops an item and adds it again
        queue.peek(50)
        return is_done()

    wait_for(lambda: beside(lambda: len(traces(box)) >= 6), "jobs on the box")
    (box.folder / "go").touch()
    wait_for(lambda: beside(lambda: all(queue.status(one) == "completed" for one in items)), "all ends")
    runs = Counter(one.split()[1] for one in traces(box))
    assert runs == {f"job{number}.py": 1 for number in range(14)}
    assert {one.split()[0] for one in traces(box)} == {"a", "source"}
    assert queue.waiting() == []


def test_a_job_that_the_source_preempts_and_queues_again_goes_on_at_a_box(
    boxes: Boxes, queue: SourceQueue, source: SourceScheduler, submit: Callable[..., str]
) -> None:
    box = boxes()
    for script in ("low.py", "normal.py", "critical.py"):
        box.script(script, WAIT)
    low = submit(box, "low.py", priority=300)
    assert source.round() == low
    normal = submit(box, "normal.py")
    assert source.round() == normal
    wait_for(lambda: len(traces(box)) == 2, "two jobs of the source")
    critical = submit(box, "critical.py", priority=CRITICAL)
    assert source.round() == critical
    assert (queue.waiting(), queue.status(low), queue.job(low)["assigned_gpus"]) == ([low], "queued", [0])
    assert source.round() is None  # it pops the job, and adds it again
    box.start()
    wait_for(lambda: queue.status(low) == "running", "the job on the box")
    assert queue.waiting() == []
    (box.folder / "go").touch()
    ends(queue, low)

    def are_over() -> bool:
        source.round()
        return queue.status(normal) == queue.status(critical) == "completed"

    wait_for(are_over, "the ends of the source's jobs")
    assert traces(box) == ["a low.py", "source critical.py", "source low.py", "source normal.py"]


def test_an_item_that_the_source_took_before_its_record_was_written_is_queued_again_by_retry(
    boxes: Boxes, queue: SourceQueue, source: SourceScheduler
) -> None:
    box = boxes()
    record = record_of("00000000000a", "job.py", 1000)
    queue.r.zadd(QUEUE, {record["job_id"]: 1})
    assert source.round() is None
    queue.r.set(RECORD + record["job_id"], json.dumps(record))
    assert (queue.waiting(), queue.status(record["job_id"])) == ([], "queued")
    box.start()
    assert box.cli("redis-queue", "--redis", box.url, "retry", record["job_id"]).returncode == 0
    ends(queue, record["job_id"])
    assert traces(box) == ["a job.py"]
