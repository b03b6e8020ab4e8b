"""The `events` command without a running scheduler, and with --follow."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests import changes
from tests.cli.desk import Desk
from tests.reasons import worded
from tests.waiting import wait_for


def three_jobs(desk: Desk) -> list[int]:
    """Inserts a job that was cancelled while it waited, a job that ran, and a job that waits."""
    jobs = [desk.job("echo first"), desk.job("echo second"), desk.job("echo third")]
    desk.record(changes.finish(jobs[0], Outcome.CANCELLED, worded("line removed")))
    attempt = desk.attempt(jobs[1]).id
    desk.record(changes.run(attempt))
    desk.record(changes.set_attempt(attempt, misplaced=(("SIM-1", 77),)))
    desk.record(changes.end(attempt, Outcome.FAILED, worded("exit code 3")))
    desk.record(changes.pause("SIM-1"))
    return jobs


def test_events_prints_one_line_per_event(desk: Desk) -> None:
    three_jobs(desk)
    code, out, err = desk.run("events")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    told = [line[21:] for line in lines]
    assert told[:6] == [
        "job 1 queued: echo first",
        "job 2 queued: echo second",
        "job 3 queued: echo third",
        "job 1 cancelled: line removed",
        "job 2 starts on gpu [0] (share 0.5) — echo second",
        "job 2 running",
    ]
    assert told[6].startswith("job 2 was given GPU 0 but uses GPU 1 (process 77)")
    end = r"job 2 finished \[FAILED\] in \d+\.\ds — exit code 3 \| peak vram n/a \| declared share 0\.5"
    assert re.fullmatch(end, told[7])
    assert told[8:] == ["GPU 1 paused"]


def test_events_prints_the_last_events_as_json(desk: Desk) -> None:
    three_jobs(desk)
    assert desk.run("events", "-n", 0) == (0, "", "")
    code, out, _ = desk.run("events", "--jsonl", "-n", 3)
    assert code == 0
    said = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in said] == ["misplaced_process", "finished", "paused"]
    assert (said[0]["allocated"], said[0]["gpu"], said[0]["pid"]) == ([0], 1, 77)
    assert said[1]["id"] == said[2]["id"] - 1
    everything = [json.loads(line) for line in desk.run("events", "--jsonl", "-n", 10**6)[1].splitlines()]
    assert everything[3] == {**everything[3], "event": "finished", "job": 1, "outcome": "cancelled"}
    assert len(everything) == 9


def test_every_key_of_an_attempts_events_is_documented(desk: Desk) -> None:
    three_jobs(desk)
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    table = text.partition("| event | keys |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (`[^|]+) \| (.+) \|$", table, re.MULTILINE))
    common = {"id", "at", "event", "job", "reason", "command"}
    said = [json.loads(line) for line in desk.run("events", "--jsonl")[1].splitlines()]
    for event, row in (
        ("starting", "`starting`"),
        ("finished", "`finished`, `queued` or `held` at an attempt's end"),
    ):
        (one,) = [one for one in said if one["event"] == event and "attempt" in one]
        assert set(one) - common <= set(re.findall("`([a-z_]+)`", rows[row])), event
        assert "learned" in one


def test_events_names_the_outcome_of_each_end_of_a_job(desk: Desk) -> None:
    job = desk.job("echo first")
    desk.record(changes.finish(job, Outcome.CANCELLED, worded("line removed")))
    desk.record(changes.queue(job, worded("asked for")))
    desk.record(changes.finish(job, Outcome.SKIPPED, worded("job 3 failed")))
    told = [line[21:] for line in desk.run("events")[1].splitlines()]
    assert told[1:] == [
        "job 1 cancelled: line removed", "job 1 queued: asked for", "job 1 skipped: job 3 failed",
    ]  # fmt: skip


def test_events_prints_each_event_once_even_with_gaps_in_the_ids(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.show.events._BATCH_SIZE", 2)
    three_jobs(desk)
    desk.store.db.connection.execute("DELETE FROM event WHERE id < 4 OR id = 6")
    ids = [json.loads(line)["id"] for line in desk.run("events", "--jsonl")[1].splitlines()]
    assert ids == [4, 5, 7, 8, 9]


def test_events_uses_the_schedulers_tolerance(desk: Desk) -> None:
    job = desk.job()
    attempt = desk.record(act.Start(job, ("SIM-0",), 0, vram=1000))[job]
    desk.record(changes.run(attempt), changes.measure(attempt, 1.0, ("SIM-0", 1200, 1.0)))
    desk.record(changes.end(attempt, Outcome.COMPLETED))
    assert "under-declared (+20%)" in desk.run("events")[1]
    desk.store.record_options(StartOptions(tolerance=0.25))
    assert "within ±25%" in desk.run("events")[1]


def test_events_fails_without_a_store(desk: Desk) -> None:
    code, _, err = desk.run("events")
    assert code == 1
    assert "no scheduler store" in err


def test_show_lists_the_events_of_one_job(desk: Desk) -> None:
    jobs = three_jobs(desk)
    history = json.loads(desk.run("show", jobs[1], "--json")[1])["history"]
    assert [(one["state"], one["reason"]) for one in history] == [
        ("queued", None), ("starting", None), ("running", None), ("misplaced_process", "pid 77 on GPU 1"),
        ("finished", "exit code 3"),
    ]  # fmt: skip
    assert "misplaced process: pid 77 on GPU 1" in desk.run("show", jobs[1])[1]


@contextmanager
def following(desk: Desk, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `events -f` in a separate process."""
    command = [sys.executable, "-m", "gpu_scheduler", "events", "-f", *words]
    with subprocess.Popen(
        command, cwd=desk.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.timeout(30)
def test_events_follows_until_ctrl_c(desk: Desk) -> None:
    job = desk.job("echo first")
    with following(desk, "--jsonl") as process:
        assert read(process)["event"] == "queued"
        desk.record(changes.hold(job, worded("held by the user")))
        assert read(process)["event"] == "held"
        desk.job("echo second")
        assert read(process)["job"] == job + 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_events_follows_until_its_reader_closes_the_pipe(desk: Desk) -> None:
    desk.job("echo first")
    with following(desk, "--jsonl") as process:
        assert read(process)["event"] == "queued"
        assert process.stdout is not None
        process.stdout.close()
        # `events` must notice the closed pipe without a new event to print.
        wait_for(lambda: process.poll() is not None, "its end")
        assert process.returncode == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
