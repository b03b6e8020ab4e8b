"""The progress of running attempts, as the loop and the status board read it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from gpu_scheduler.attempts import job_progress
from gpu_scheduler.attempts.job_logs import current_log
from gpu_scheduler.attempts.job_progress import MIN_INTERVAL_S, RunningProgress, with_remaining_times
from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.attempts import make_attempt, replace
from tests.loop.manual_clock import ManualClock
from tests.records import attempt_record
from tests.waiting import wait_for


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def progress(tmp_path: Path, clock: ManualClock) -> Iterator[RunningProgress]:
    """Provides the progress of the attempts of job 1."""
    store = Store(DataDir.of(str(tmp_path / "state.json")), create=True)
    found = RunningProgress(store, clock)
    yield found
    found.close()
    store.close()


def running(folder: Path, **values: Any) -> ActiveAttempt:
    """Returns a running attempt of job 1 with these values."""
    spec = JobSpec("command", "python t.py", str(folder), command="python t.py")
    return replace(
        make_attempt(11, 1, "t", "boot", AttemptState.RUNNING),
        created_at=940.0,
        spec_json=spec.to_json(),
        **values,
    )


@pytest.fixture
def attempt(tmp_path: Path, clock: ManualClock) -> ActiveAttempt:
    """Provides a running attempt that has done 25 of 100 steps in 50 s."""
    log = tmp_path / "job.log"
    log.write_text("Step 1/100\nStep 25/100\n")
    return running(tmp_path, log=str(log), started_at=log.stat().st_mtime - 50.0)


def percent(known: Mapping[int, JobProgress], attempt: ActiveAttempt) -> float | None:
    return known[attempt.id].percent if attempt.id in known else None


def test_the_first_reading_is_waited_for_and_later_ones_are_not(
    progress: RunningProgress, attempt: ActiveAttempt, clock: ManualClock
) -> None:
    assert percent(progress.read_now([attempt]), attempt) == 25.0
    assert attempt.log is not None
    Path(attempt.log).write_text("Step 1/100\nStep 25/100\nStep 30/100\n")
    assert percent(progress.read_now([attempt]), attempt) == 25.0  # not due yet

    def later() -> float | None:
        clock.boot += MIN_INTERVAL_S
        return percent(progress.read([attempt]), attempt)

    wait_for(lambda: later() == 30.0, "the next reading")


def test_an_attempt_that_has_not_started_is_not_read(tmp_path: Path, progress: RunningProgress) -> None:
    assert progress.read_now([running(tmp_path, started_at=None)]) == {}
    assert progress.read_now([]) == {}


def test_a_folder_that_does_not_respond_is_waited_for_only_once(
    progress: RunningProgress, attempt: ActiveAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, waits = threading.Event(), []
    monkeypatch.setattr(job_progress, "read_progress_file", lambda path: go_on.wait(60) and None)
    monkeypatch.setattr(job_progress, "FIRST_READING_S", 0.01)
    wait_for_change = threading.Condition.wait_for

    def count(self: threading.Condition, *args: object) -> bool:
        waits.append(args[-1])
        return wait_for_change(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(threading.Condition, "wait_for", count)
    try:
        assert [progress.read_now([attempt]) for _ in range(3)] == [{}, {}, {}]
        assert waits == [0.01]
    finally:
        go_on.set()


def test_a_reading_that_is_older_than_a_minute_does_not_count(
    progress: RunningProgress,
    attempt: ActiveAttempt,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert percent(progress.read_now([attempt]), attempt) == 25.0
    go_on = threading.Event()
    monkeypatch.setattr(job_progress, "read_progress_file", lambda path: go_on.wait(60) and None)
    try:
        clock.boot += 59.0
        assert percent(progress.read([attempt]), attempt) == 25.0
        clock.boot += 2.0
        assert progress.read([attempt]) == {}
    finally:
        go_on.set()


def test_a_thread_that_ends_for_lack_of_memory_is_not_waited_for_and_started_again(
    progress: RunningProgress, attempt: ActiveAttempt, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", lambda *_: 0)  # it has ended before it runs
        assert progress.read([attempt]) == {}
    with monkeypatch.context() as patch:
        began = threading.Event()

        def fail(*_: object, **__: object) -> None:
            began.set()
            raise MemoryError

        patch.setattr(job_progress.ProgressReader, "read", fail)
        patch.setattr("sys.unraisablehook", lambda error: None)
        clock.boot += MIN_INTERVAL_S
        assert progress.read([attempt]) == {}
        assert began.wait(60)
        wait_for(lambda: not progress._is_running, "the end of the thread")

    def later() -> float | None:
        clock.boot += MIN_INTERVAL_S
        return percent(progress.read([attempt]), attempt)

    wait_for(lambda: later() == 25.0, "a reading by another thread")


@pytest.mark.parametrize(("finish_at", "left"), [(1010.0, 10.0), (1000.0, None), (990.0, None), (None, None)])
def test_the_remaining_time_of_a_job_is_never_negative(finish_at: float | None, left: float | None) -> None:
    """A job that takes longer than its progress showed may end at any time."""
    known = {11: JobProgress(None, None, finish_at=finish_at)}
    attempt = make_attempt(11, 3, "t", "boot", AttemptState.RUNNING)
    now = Now(1000.0, 0.0, "boot")
    (found,) = with_remaining_times([attempt], known, now)
    assert found.observed.remaining_s == left
    (starting,) = with_remaining_times([replace(attempt, state=AttemptState.STARTING)], known, now)
    assert starting.observed.remaining_s is None


def test_the_log_of_an_adopted_process_is_not_that_of_a_later_process_with_its_pid(tmp_path: Path) -> None:
    old, new = tmp_path / "train.log", tmp_path / "train.log.1"
    with open(old, "w") as log, Popen(["sleep", "300"], stdout=log) as process:
        try:
            ticks = ticks_of(process.pid)
            assert ticks is not None
            old.rename(new)
            watched = attempt_record(log=str(old), watched_pid=process.pid, watched_ticks=ticks)
            assert current_log(watched) == str(new)
            assert current_log(replace(watched, watched_ticks=ticks + 1)) == str(old)
            assert current_log(replace(watched, watched_pid=None, watched_ticks=None)) == str(old)
        finally:
            process.kill()
    assert current_log(watched) == str(old)
