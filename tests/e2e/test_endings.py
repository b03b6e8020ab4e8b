"""Tests how a drain, a request or a signal ends a scheduler, its exit code, and what happens to its jobs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for


def drained(world: World, *options: str) -> int:
    """Runs a scheduler until it is drained. Returns its exit code."""
    world.start("--drain", *options)
    assert world.process is not None
    return world.process.wait(60)


def test_a_drain_counts_only_the_jobs_of_the_current_lines_in_its_jobs_file(world: World) -> None:
    (world.folder / "a.txt").write_text("[share=1] exit 9\n")
    (world.folder / "b.txt").write_text("[share=1] true\n")
    assert drained(world, "--jobs-file", "a.txt") == 9
    assert drained(world, "--jobs-file", "a.txt") == 9  # The job failed, and its line is still in the file.
    assert drained(world, "--jobs-file", "b.txt") == 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[share=1] kill -9 $$", 137),
        ("[gpus=9] true", 3),
        ("[hold] true", 3),
        ("bad &", 1),
        ("[cancel] true", 1),
    ],
)
def test_a_drain_reports_its_exit_code_and_unfinished_jobs(world: World, line: str, code: int) -> None:
    world.append("[share=1] true", line)
    assert drained(world) == code
    left = {
        "[gpus=9] true": "unfinished: job 2 waits: infeasible: needs 9 idle GPUs, but only 4 are managed",
        "[hold] true": "unfinished: job 2 is held by its line",
        "bad &": "unfinished: line 2 of jobs.txt is malformed: it ends in `&`, so ",
    }
    assert left.get(line, "drained: ") in world.output()


@pytest.mark.parametrize(
    ("parent", "left"),
    [
        ("[hold name=prep] true", "job 1 is held by its line; job 2 waits for job 1 (held); job 3 waits for"),
        (
            "[gpus=9 name=prep] true",
            "infeasible: needs 9 idle GPUs, but only 4 are managed; job 2 waits for job 1",
        ),
    ],
)
def test_a_drain_ends_and_lists_the_jobs_that_wait_for_a_parent_that_needs_the_user(
    world: World, parent: str, left: str
) -> None:
    world.append(parent, "[share=1 after=prep name=b] true", "[share=1 after=b] true", "[share=1] true")
    assert drained(world) == 3
    assert left in world.output()
    assert "drained: 1 of 4 jobs completed; exit code 3" in world.output()


def test_a_drain_counts_the_jobs_that_were_skipped(world: World) -> None:
    world.append(
        "[share=1 name=prep] exit 7",
        "[share=1 after=prep name=b] true",
        "[share=1 after=b] true",
        "[share=1 after-any=prep] true",
    )
    assert drained(world) == 7
    assert "job 2 skipped: job 1 failed" in world.output()
    assert "job 3 skipped: job 2 was skipped" in world.output()
    assert "drained: 1 of 4 jobs completed, 2 skipped; exit code 7" in world.output()


def test_a_drain_counts_the_skipped_jobs_that_have_no_line(world: World) -> None:
    world.run_ok("submit", "--name", "prep", "--", "bash", "-c", "exit 7")
    world.run_ok("submit", "--after", "prep", "--", "true")
    assert drained(world, "--jobs-file", "") == 7
    assert "drained: 0 of 2 jobs completed, 1 skipped; exit code 7" in world.output()


def test_a_drain_ends_when_jobs_wait_only_for_a_paused_gpu(world: World) -> None:
    world.start()
    world.run_ok("pause", "1")
    world.end_scheduler()
    world.append("[share=1 allowed=1] true")
    assert drained(world) == 3
    assert "GPU 1 paused" in world.output()


def test_a_drain_ends_when_a_line_becomes_malformed_while_its_job_runs(world: World) -> None:
    world.append(
        "[share=1 allowed=0] while [ ! -e go ]; do sleep 0.02; done",
        "[vram=20G allowed=0] echo second >> ran",
        "[share=1 allowed=0] echo third >> ran",
        "[hold] true",
    )
    world.start("--drain", module="tests.e2e.short_debounce")
    world.wait_until(lambda jobs: 4 in jobs and jobs[1]["state"] == "running", "job 1 running")
    lines = world.jobs_file.read_text().splitlines(keepends=True)
    saved = world.folder / "saved"
    saved.write_text(lines[0] + lines[1].replace("20G", "20H") + lines[3])
    saved.replace(world.jobs_file)
    typo = "line 2 of jobs.txt is malformed; the job waits until it is corrected"
    gone = r"line removed from jobs.txt; the job is cancelled in \d+ s unless the line is restored"
    world.wait_until(
        lambda jobs: jobs[2]["reason"] == typo and re.fullmatch(gone, jobs[3]["reason"] or ""),
        "the scheduler notices the typo and the removed line",
    )
    (world.folder / "go").touch()
    assert world.process is not None
    assert world.process.wait(60) == 3  # Because a job is held, the exit code is 3 instead of 1.
    jobs = world.jobs()
    assert [jobs[n]["state"] for n in (1, 2, 3, 4)] == ["finished", "queued", "finished", "held"]
    assert jobs[3]["reason"] == "line removed"
    assert "unfinished: line 2 of jobs.txt is malformed: vram: memory '20H' is not valid" in world.output()
    assert "17.5GiB; job 2 waits until line 2 is corrected; job 4 is held by its line\n" in world.output()
    assert not (world.folder / "ran").exists()


def test_an_interrupted_drain_exits_with_an_error(world: World) -> None:
    world.append("[share=1] sleep 60")
    world.start("--drain")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "running")
    assert world.end_scheduler(signal.SIGINT) == 130
    world.start("--drain")
    world.run_ok("stop")
    assert world.process is not None
    assert world.process.wait(60) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_scheduler_but_leaves_its_jobs_running(world: World, number: int) -> None:
    world.append("[share=1] while [ ! -e go ]; do sleep 0.02; done; echo done >> ran")
    world.start()
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "running")
    assert world.end_scheduler(number) == 0
    assert "job 1 keeps running" in world.output()
    (world.folder / "go").touch()
    world.wait_for_lines("ran")
    world.start()
    assert world.wait_finished()[1]["outcome"] == "completed"


def test_a_scheduler_started_with_nohup_ignores_sighup(world: World) -> None:
    with open(world.output_file, "ab") as out:
        world.process = subprocess.Popen(
            ["nohup", sys.executable, "-m", "gpu_scheduler", "start", "--simulate", "1", "--log-dir", "logs"],
            cwd=world.folder, env=world.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    wait_for(lambda: "scheduler up" in world.output(), "scheduler up")
    world.process.send_signal(signal.SIGHUP)
    world.append("[share=1] echo still here >> ran")
    assert world.wait_for_lines("ran") == ["still here"]
    assert world.process.poll() is None


def test_stop_with_jobs_ends_all_jobs_and_starts_no_new_ones(world: World) -> None:
    world.append("[share=1 allowed=0] sleep 60", "[share=1 allowed=0] echo second >> ran")
    world.start()
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "running")
    said = world.run_ok("stop", "--jobs", "--grace", "2")
    assert "job 1: cancelled" in said
    assert world.process is not None
    assert world.process.wait(60) == 0
    jobs = world.jobs()
    assert (jobs[1]["outcome"], jobs[2]["state"]) == ("cancelled", "queued")
    assert [gpu["state"] for gpu in world.status()["gpus"]] == ["available"] * 4
    assert not (world.folder / "ran").exists()


def test_a_stop_request_left_unanswered_does_not_end_the_next_scheduler(world: World) -> None:
    world.start()
    world.end_scheduler()
    store = Store(DataDir.of(str(world.folder / world.state)))
    add_request(store, "stop", jobs=True)
    store.close()
    world.start()
    world.append("[share=1] echo here >> ran")
    assert world.wait_for_lines("ran") == ["here"]
    assert world.process is not None
    assert world.process.poll() is None
