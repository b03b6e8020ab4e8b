"""Tests the journal, the status board and `events` of a real scheduler that is killed and then restarted."""

from __future__ import annotations

import json
import re
import signal

from tests.e2e.world import World
from tests.waiting import wait_for


def test_the_journal_the_status_board_and_events_agree_after_the_scheduler_was_killed(world: World) -> None:
    world.append("[share=0.5] echo one", "[share=0.5] sleep 600", "[hold] echo three")
    world.start()
    world.wait_finished(1)
    world.wait_until(lambda jobs: jobs[2]["state"] == "running", "job 2 runs")
    board = world.folder / "logs" / "status.txt"

    def shows(*rows: str) -> bool:
        text = board.read_text() if board.exists() else ""
        return all(re.search(f"^{row}", text, re.MULTILINE) for row in rows)

    # The events on the board have already been recorded as reported. After a kill, the next scheduler logs
    # again only the events that were not.
    wait_for(lambda: shows(r"▶ +2  running +0 ", r"✓ +1  completed "), "both jobs on the board")
    assert shows(r"· +3  held +echo three +held by its line$")
    assert world.end_scheduler(signal.SIGKILL) == -signal.SIGKILL
    world.start()
    world.run_ok("cancel", "2", "--grace", "0")
    world.wait_finished(1, 2)
    world.end_scheduler()
    assert "scheduler stopped" in board.read_text()
    assert shows(r"✗ +2  cancelled ")
    journal = (world.folder / "logs" / "journal.jsonl").read_text()
    assert journal == world.run_ok("events", "--jsonl")
    events = [json.loads(line) for line in journal.splitlines()]
    assert [one["id"] for one in events] == list(range(1, len(events) + 1))
    # If a job ends at once, the scheduler may never observe it running.
    kinds = [one["event"] for one in events if one["job"] == 1 and one["event"] != "running"]
    assert kinds == ["queued", "starting", "finished"]
    assert len(re.findall(r"job 1 finished \[OK\]", world.output())) == 1
    assert "job 2 finished [CANCELLED] in " in world.run_ok("events")
