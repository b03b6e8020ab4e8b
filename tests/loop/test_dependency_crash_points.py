"""Kills the scheduler, or `submit`, at every step that concerns dependencies, recoveries and cleared jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.store.job_lists import dependencies_of, job_count
from gpu_scheduler.store.requests import add_request, launch_context, open_requests
from tests.loop.crash_place import Place
from tests.processes import kill_attempts
from tests.stress.dying_scheduler import DIES_AT
from tests.stress.harness import environment
from tests.stress.trace import judge
from tests.waiting import wait_for


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, "direct")
    yield made
    made.end_processes()


def outcomes(place: Place) -> list[str]:
    """Returns the outcome of each job or, without one, its state."""
    rows = place.store.db.rows("SELECT coalesce(outcome, state) AS end FROM job ORDER BY id")
    return [row["end"] for row in rows]


def starts(place: Place) -> list[str]:
    """Returns the numbers of the jobs in the order of their starts, according to their traces."""
    trace = place.folder / "trace"
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [line[0] for line in lines if line[1] == "start"]


def insert_with_code_file(place: Place) -> tuple[int, Path]:
    """Inserts a job whose exit code is in a file, which contains 7. Returns its id and the file."""
    code = place.folder / "code"
    code.write_text("7")
    return place.insert(f"echo 9 start 1 1 >> {place.folder}/trace; exit $(cat {code})"), code


@pytest.mark.parametrize(
    "step",
    ["performed AttemptChanged ended", "performed SettleDependencies", "performed AttemptChanged released"],
)
def test_children_are_skipped_or_run_as_before_if_a_crash_follows_the_end_of_their_parent(
    place: Place, step: str
) -> None:
    failing, completing = place.add(7), place.add(0)
    skipped = place.add(0, after=[failing, completing])
    place.add(0, after=[skipped])
    place.add(0, after=[completing])
    assert place.run(step) == -signal.SIGKILL
    place.run()
    assert outcomes(place) == ["failed", "completed", "skipped", "skipped", "completed"]
    ran = {0: 7, 1: 0, 4: 0}
    assert judge(place.folder / "trace", ran, place.recorded(), killed=False).clean
    assert sorted(starts(place)) == ["0", "1", "4"]


@pytest.mark.parametrize("step", ["performed JobChanged queued", "performed SettleDependencies"])
def test_skipped_jobs_run_after_a_retry_of_their_parent_if_a_crash_follows_the_retry(
    place: Place, step: str
) -> None:
    parent, code = insert_with_code_file(place)
    child = place.add(0, after=[parent])
    place.add(0, after=[child])
    place.run()
    assert outcomes(place) == ["failed", "skipped", "skipped"]
    code.write_text("0")
    add_request(place.store, "retry", str(parent))
    assert place.run(step) == -signal.SIGKILL
    assert place.run() == 0
    assert outcomes(place) == ["completed"] * 3
    assert starts(place) == ["9", "9", "0", "1"]


@pytest.mark.parametrize("step", ["planned", "recorded", "performed SetDependencies"])
def test_a_change_of_parents_takes_effect_once_if_the_scheduler_crashes(place: Place, step: str) -> None:
    first, last = place.add(7), place.add(0)
    child = place.add(0, after=[first])
    add_request(place.store, "set", str(child), name="after", value=[str(last)], parents=[[last, str(last)]])
    assert place.run(step) == -signal.SIGKILL
    place.run()
    assert outcomes(place) == ["failed", "completed", "completed"]
    assert {one.parent_id for one in dependencies_of(place.store, [child])[child]} == {last}
    assert starts(place).index("2") > starts(place).index("1")
    assert open_requests(place.store) == []


@pytest.mark.parametrize(
    "step", ["recorded", "performed AttemptChanged ended", "performed JobChanged queued"]
)
def test_an_interrupted_parent_is_recovered_once_and_before_its_child_if_the_scheduler_crashes(
    place: Place, step: str
) -> None:
    go = place.folder / "go"
    parent = place.insert(f"echo 9 start 1 1 >> {place.folder}/trace; until [ -e {go} ]; do sleep 0.02; done")
    place.add(0, after=[parent])
    assert place.run("performed AttemptChanged running") == -signal.SIGKILL
    wait_for(lambda: starts(place) == ["9"], "the start of the parent")
    [attempt] = place.store.attempts(parent)
    kill_attempts({attempt.token: place.store.data_dir.attempt_folder(attempt)})
    go.touch()
    add_request(place.store, "recover")
    assert place.run(step) == -signal.SIGKILL
    assert place.run() == 0
    assert outcomes(place) == ["completed", "completed"]
    assert starts(place) == ["9", "9", "0"]
    assert open_requests(place.store) == []


@pytest.mark.parametrize("target", ["", "1"])
@pytest.mark.parametrize("step", ["planned", "recorded"])
def test_finished_jobs_are_cleared_if_the_scheduler_crashes(place: Place, target: str, step: str) -> None:
    job = place.add(0)
    assert place.run() == 0
    add_request(place.store, "clear", target)
    assert place.run(step) == -signal.SIGKILL
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row.cleared_at is not None
    assert open_requests(place.store) == []
    assert starts(place) == ["0"]


def test_a_submit_that_is_killed_has_submitted_the_whole_job_or_none(place: Place) -> None:
    parent = place.add(0)
    words = ["submit", "--state-file", "state.json", "--after", str(parent), "--", "true"]
    submitted = []
    code, step = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        step += 1
        before = job_count(place.store)
        code = subprocess.run(
            [sys.executable, "-m", "tests.stress.dying_scheduler", *words],
            cwd=place.folder, env={**environment(), DIES_AT: str(step)}, check=False,
        ).returncode  # fmt: skip
        submitted.append(job_count(place.store) - before)
    assert code == 0
    assert step > 2
    assert submitted == sorted(submitted)
    assert (submitted[0], submitted[-1]) == (0, 1)
    new = range(parent + 1, parent + 1 + sum(submitted))
    edges = dependencies_of(place.store, new)
    assert [{one.parent_id for one in edges[job]} for job in new] == [{parent}] * len(new)
    assert all(
        (launch_context(place.store, job).environment or {}).get("PATH") == os.environ["PATH"] for job in new
    )
