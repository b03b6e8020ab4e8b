"""The commands refuse what the boxes would not run, and their texts name the cause and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.redis_queue.conftest import Boxes, Server, claim, ends
from tests.redis_queue.source_document import SourceQueue
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["", "--gpu-memory-mb=5"], "model_script"),
        (["a\nb.py", "--gpu-memory-mb=5"], "model_script"),
        (["job.py", "--gpu-memory-mb=5", "--priority=5000000"], "priority"),
        (["job.py", "--gpu-memory-mb=5", "--priority=-1"], "priority"),
        (["job.py", "--gpu-memory-mb=5", "--env=A B=1"], "'A B' is no name of a variable"),
        (["job.py", "--gpu-memory-mb=5", "x" * 70_000], "its arguments is larger than 65536 bytes"),
    ],
    ids=["no script", "newline", "priority", "negative", "variable", "arguments"],
)
def test_redis_submit_refuses_what_the_boxes_would_set_aside(
    boxes: Boxes, queue: SourceQueue, words: list[str], problem: str
) -> None:
    box = boxes()
    done = box.cli("redis-submit", "--redis", box.url, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert queue.r.keys() == []


@pytest.mark.parametrize("record", [None, b"{"])
@pytest.mark.parametrize("is_held", [False, True])
def test_an_item_without_a_record_can_be_cancelled(
    boxes: Boxes, queue: SourceQueue, record: bytes | None, is_held: bool
) -> None:
    box, item = boxes(), queue.submit("job.py")
    queue.r.delete("scheduler:job:" + item)
    if record is not None:
        queue.r.set("scheduler:job:" + item, record)
    if is_held:
        claim(queue, item, "ghost", confirmed=True)
    done = box.cli("redis-queue", "cancel", item, "--redis", box.url)
    assert (done.returncode, queue.waiting()) == (0, []), done.stderr
    assert queue.r.get("scheduler:job:" + item) == record
    assert queue.r.smembers("gpusched:cancelled") == ({item.encode()} if is_held else set())
    assert box.cli("redis-queue", "cancel", "nothing", "--redis", box.url).returncode == 1


def test_redis_queue_says_what_an_unused_and_a_new_queue_wait_for(boxes: Boxes, queue: SourceQueue) -> None:
    box = boxes()
    words = ("redis-queue", "--redis", box.url)
    assert "no box takes items yet; begin with `start --redis`" in box.cli(*words).stdout
    box.env["GPU_SCHEDULER_REDIS_TIME_SCALE"] = "0.1"  # the first items start after 50 s
    box.start()
    shown = wait_for(
        lambda: text if "items start in" in (text := box.cli(*words).stdout) else "", "an open queue"
    )
    assert "the queue has just opened" in shown
    assert json.loads(box.cli(*words, "--json").stdout)["opens_in_s"] > 0
    assert "lost its data" not in box.log()


def test_redis_queue_gives_the_reason_for_which_a_box_cannot_run_an_item(
    boxes: Boxes, queue: SourceQueue
) -> None:
    both = boxes("a"), boxes("b")
    item = queue.submit("nowhere.py")
    for box in both:
        box.start()
    words = ("redis-queue", "--redis", both[0].url)
    shown = wait_for(
        lambda: text if "cannot run on" in (text := box.cli(*words).stdout) else "", "the reason"
    )
    line = next(one for one in shown.splitlines() if item in one)
    assert line.count("cannot run on") == 1, "both boxes have the same host"
    assert "nowhere.py does not exist" in line


def test_a_reason_that_is_not_utf_8_does_not_keep_the_queue_from_opening_again(
    boxes: Boxes, server: Server, queue: SourceQueue
) -> None:
    box, lacking = boxes(), queue.submit("job.py")
    arguments = {"args": [], "cwd": "/nowhere\udcff", "env": {}}
    queue.r.set("gpusched:arguments:" + lacking, json.dumps(arguments))
    box.start()
    words = ("redis-queue", "--redis", box.url)
    # A box may also set such an item aside.
    wait_for(lambda: "cannot run on" in (text := box.cli(*words).stdout) or "set aside" in text, "the reason")
    server.kill()
    server.start()
    ends(queue, queue.submit("job.py"))


@pytest.fixture
def locked(server: Server, queue: SourceQueue) -> Iterator[Server]:
    """The server, which requires a password."""
    server.client.config_set("requirepass", "s3cret")
    yield server
    server.client.config_set("requirepass", "")


def test_a_missing_password_is_named(boxes: Boxes, locked: Server) -> None:
    done = boxes().cli("redis-queue", "--redis", locked.url)
    assert done.returncode == 1
    assert "Redis requires a password; set GPU_SCHEDULER_REDIS_URL" in done.stderr
    assert "HELLO" not in done.stderr


def test_status_forgets_redis_when_the_scheduler_is_started_without_it(boxes: Boxes, server: Server) -> None:
    box = boxes()
    box.url = f"unix://{server.folder}/nothing"
    box.start()
    wait_for(lambda: "the Redis queue" in box.cli("status").stdout, "a warning in `status`")
    box.kill()
    box.start_scheduler()
    assert box.cli("submit", "--wait", "job.py").returncode == 0
    assert "the Redis queue" not in box.cli("status").stdout


def test_an_option_of_the_agent_needs_a_queue(boxes: Boxes) -> None:
    box = boxes()
    process = box.begin("start", "--simulate", "1", "--requeue-silent-after", "30m")
    assert process.wait(30) == 2
    assert "--requeue-silent-after works only with --redis" in (box.folder / "output").read_text()
