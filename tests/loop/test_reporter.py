"""Tests that log, journal and status board report every event of the store, even after a restart."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts import job_progress as progress
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.attempts.job_progress import MIN_INTERVAL_S, RunningProgress
from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, StopRequest
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.daemon import reporter as journal
from gpu_scheduler.daemon.reporter import MAX_LINES, RETRY_S, EventReporter
from gpu_scheduler.show.events import iso_time
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests import changes
from tests.attempts import make_attempt, replace
from tests.changes import CheckedWriter
from tests.loop.manual_clock import ManualClock
from tests.reasons import worded
from tests.waiting import wait_for


class ReporterHarness:
    """A store with two GPUs, and its event reporter, which `restart` replaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.store = Store(DataDir.of(str(folder / "state.json")), create=True)
        self.recorder = CheckedWriter(self.store, Settings())
        samples = [GpuSample(f"U{i}", i, "card", 24576, 0, 0.0, ()) for i in range(2)]
        self.recorder.record_gpus(samples, ["U0", "U1"], self.clock.now())
        self.gpus = [Gpu(one.uuid, one.index, sample=one, sampled_boot=100.0) for one in samples]
        self.progress = RunningProgress(self.store, self.clock)
        self.reporter = self.restart()

    def restart(self, logs: LogFolder | None = None, *, verbose: bool = False) -> EventReporter:
        self.reporter = EventReporter(
            self.store, self.clock, Settings(), logs, self.progress, verbose=verbose
        )
        return self.reporter

    def job(self, command: str = "true", **values: Any) -> int:
        spec = JobSpec("command", command, str(self.folder), command=command, **values)
        return self.store.insert_job(spec, "test", self.clock.now().wall)

    def record(self, *actions: act.Action) -> dict[int, int]:
        return self.recorder.record(actions, self.clock.now())

    def report(self, action: act.Action) -> None:
        """Records an action or a change, and reports it."""
        made = action.make(self.store, self.clock.now()) if isinstance(action, changes.Change) else [action]
        self.record(*made)
        self.reporter.actions_recorded(made)

    def start(self, job: int, **values: Any) -> int:
        return self.record(act.Start(job, ("U0",), **{"share": 500, **values}))[job]

    def end(self, attempt: int) -> None:
        self.record(changes.end(attempt, Outcome.COMPLETED))

    def update(self) -> None:
        self.reporter.update(self.facts())

    def facts(self, *attempts: ActiveAttempt) -> Facts:
        return Facts(self.clock.now(), Settings(), LlmConfig(), tuple(self.gpus), attempts=attempts)

    @property
    def journal(self) -> Path:
        return self.store.data_dir.folder / "journal.jsonl"

    @property
    def board(self) -> Path:
        return self.store.data_dir.folder / "status.txt"

    def ids(self, path: Path | None = None) -> list[int]:
        """Returns the event ids in the journal. Fails unless every line is complete JSON."""
        text = (path or self.journal).read_text()
        assert text.endswith("\n")
        return [json.loads(line)["id"] for line in text.splitlines()]

    def events(self) -> list[int]:
        return [row["id"] for row in self.store.db.rows("SELECT id FROM event ORDER BY id")]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ReporterHarness]:
    made = ReporterHarness(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns a function that returns what was logged, at level info or above, since its last call."""
    caplog.set_level(logging.INFO)

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_each_start_message_contains_the_number_of_dispatched_jobs(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    jobs = [harness.job(f"echo {n}") for n in range(3)]
    harness.record(act.Start(jobs[0], ("U0",), 0, vram=18432), act.Start(jobs[1], ("U1",), 500))
    harness.reporter.actions_recorded([act.AnswerRequest(1, RequestAnswer(AnswerCode.HELD))])
    assert logged() == [
        "job 1 starts on gpu [0] (1/3 dispatched, declared 18432 MiB/gpu) — echo 0",
        "job 2 starts on gpu [1] (2/3 dispatched, share 0.5) — echo 1",
    ]
    harness.update()
    assert logged() == []


def test_the_log_names_only_the_first_of_many_jobs_that_are_skipped_or_queued_again(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    first = harness.job("echo a")
    parent = [Dependency(first, DependencyKind.COMPLETED, str(first))]
    for _ in range(MAX_LINES + 5):
        spec = JobSpec("command", "true", "/", command="true")
        last = harness.store.insert_job(spec, "test", dependencies=parent)
    harness.record(changes.finish(first, Outcome.FAILED), act.SettleDependencies())
    harness.update()
    lines = logged()
    assert lines[1] == f"job {first + 1} skipped: job {first} failed"
    assert lines[MAX_LINES:] == [
        f"job {first + MAX_LINES} skipped: job {first} failed",
        "and 5 more jobs were skipped; `status --all` lists them",
    ]
    assert len(harness.journal.read_text().splitlines()) == 2 * (MAX_LINES + 6)
    assert re.search(rf"skipped .*job {first} failed", harness.board.read_text())
    harness.record(changes.queue(first), act.SettleDependencies())
    harness.update()
    lines = logged()
    assert lines[1] == f"job {first + 1} queued: it no longer waits for a failed job"
    assert lines[-1] == "and 5 more jobs were queued again; `status --all` lists them"
    assert f"job {last}" not in str(lines)


def test_the_number_of_dispatched_jobs_never_decreases(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    job, other = harness.job("echo a"), harness.job("echo b")
    attempt = harness.start(job)
    harness.update()
    harness.record(changes.fail(attempt))
    harness.start(other)
    harness.start(job)
    harness.update()
    lines = [line for line in logged() if "dispatched" in line]
    assert ["1/2" in lines[0], "2/2" in lines[1], "2/2" in lines[2]] == [True, True, True]


def test_jobs_that_are_running_at_startup_count_as_dispatched(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    running, other = harness.job("echo a"), harness.job("echo b")
    attempt = harness.start(running)
    harness.update()
    harness.restart()
    logged()
    _again(harness, running, attempt)
    harness.start(other)
    harness.start(running)
    harness.update()
    assert ["(2/2 dispatched" in line for line in logged() if "dispatched" in line] == [True, True]


def test_a_failed_launch_is_logged_as_not_started(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    job = harness.job("echo a")
    attempt = harness.start(job)
    harness.record(changes.end(attempt, Outcome.NOT_STARTED, worded("no script")))
    harness.update()
    assert [line.partition(" (")[0] for line in logged()] == [
        "job 1 starts on gpu [0]",
        "job 1 not started, queued again — no script; try 2 of 5 in 5 s",
    ]


def test_the_reporter_calls_on_attempt_end_before_it_logs_the_end(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    ended: list[tuple[int, int, list[str]]] = []
    harness.reporter = EventReporter(
        harness.store, harness.clock, Settings(), None, harness.progress,
        on_attempt_end=lambda job, number: ended.append((job, number, logged())),
    )  # fmt: skip
    job = harness.job("echo a")
    harness.end(harness.start(job))
    harness.update()
    [(ended_job, number, told_before)] = ended
    assert (ended_job, number, len(told_before)) == (job, 1, 1)
    assert "finished [OK]" in logged()[0]


def _again(harness: ReporterHarness, job: int, attempt: int) -> None:
    """The job is queued again."""
    harness.record(changes.fail(attempt))


def _finished(harness: ReporterHarness, job: int, attempt: int) -> None:
    """Another job is cancelled before it starts."""
    harness.record(changes.finish(harness.job("echo other"), Outcome.CANCELLED, worded("why not")))


def _retried(harness: ReporterHarness, job: int, attempt: int) -> None:
    """The job finishes during this run of the scheduler and is then retried."""
    harness.end(attempt)
    harness.record(changes.queue(job, worded("asked for")))


@pytest.mark.parametrize(
    ("then", "expected"), [(_again, ["1/2", "2/2"]), (_finished, ["1/3", "3/3"]), (_retried, ["1/2", "2/2"])]
)
def test_events_logged_together_each_show_the_job_count_at_their_time(
    harness: ReporterHarness,
    logged: Callable[[], list[str]],
    then: Callable[[ReporterHarness, int, int], None],
    expected: list[str],
) -> None:
    job, last = harness.job("echo a"), harness.job("echo last")
    then(harness, job, harness.start(job))
    harness.start(last)
    harness.update()
    lines = [line for line in logged() if "dispatched" in line]
    assert [line.partition("(")[2].partition(" ")[0] for line in lines] == expected


def test_the_job_count_omits_jobs_that_finished_before_startup(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    old, kept = harness.job("echo old"), harness.job("echo kept")
    for job in (old, kept):
        harness.end(harness.start(job))
    harness.update()
    harness.restart()
    logged()
    new = harness.job("echo new")
    harness.start(new)
    harness.update()
    assert "(1/1 dispatched" in logged()[0]
    # A finished job counts once it is retried.
    harness.record(changes.queue(old, worded("asked for")))
    harness.update()
    harness.end(3)
    harness.start(old)
    harness.update()
    lines = logged()
    assert lines[0] == "job 1 queued: asked for"
    assert "(2/2 dispatched" in lines[-1]
    # A job that finished during this run still counts once when it is retried.
    harness.record(changes.queue(new, worded("asked for")))
    harness.start(new)
    harness.update()
    assert "(2/2 dispatched" in logged()[-1]


def test_a_retried_job_counts_once_even_if_it_is_held_and_retried_again(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    old = harness.job("echo old")
    harness.end(harness.start(old))
    harness.update()
    harness.restart()
    for _ in range(2):
        harness.record(changes.queue(old, worded("asked for")))
        harness.record(changes.hold(old, worded("held by the user")))
    harness.record(changes.queue(old, worded("asked for")))
    harness.start(old)
    harness.update()
    assert "(1/1 dispatched" in logged()[-1]


def test_a_restart_logs_the_events_that_a_killed_scheduler_did_not_log(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    job = harness.job("echo a")
    harness.start(job)
    harness.update()
    logged()
    harness.record(changes.hold(harness.job("echo b"), worded("held by the user")))
    harness.restart()
    harness.update()
    harness.update()
    assert logged() == ["job 2 held: held by the user"]
    assert harness.ids() == harness.events()


def test_a_reporter_with_a_new_journal_does_not_log_earlier_events(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    harness.start(harness.job())
    harness.restart()
    harness.update()
    assert logged() == []
    assert not harness.journal.exists()


def test_logs_growing_memory_peaks_only_if_verbose(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    job = harness.job()
    attempt = harness.start(job, vram=9000)
    harness.restart(verbose=True)
    harness.record(changes.run(attempt))
    for number, mib in enumerate((0, 3000, 2000, 3001)):
        harness.report(changes.measure(attempt, 5.0 + number, ("U0", mib, 50.0), ("U1", None, None)))
    assert logged() == [
        "job 1 gpu0 3000 MiB (peak so far; declared 9000)",
        "job 1 gpu0 3001 MiB (peak so far; declared 9000)",
    ]
    share = harness.job()
    second = harness.start(share, share=250)
    harness.record(changes.run(second))
    harness.report(changes.measure(second, 9.0, ("U0", 5000, 50.0)))
    assert logged()[-1] == "job 2 gpu0 5000 MiB (peak so far; declared 6144 by share 0.25)"
    # The next reporter does not log the same peak a second time.
    harness.restart(verbose=True)
    harness.report(changes.measure(second, 10.0, ("U0", 5000, 50.0)))
    harness.restart()
    harness.report(changes.measure(attempt, 10.0, ("U0", 9000, 50.0)))
    assert logged() == []


def test_the_journal_contains_every_event_once(harness: ReporterHarness) -> None:
    job = harness.job()
    harness.update()
    attempt = harness.start(job)
    harness.update()
    harness.restart()
    harness.end(attempt)
    harness.update()
    assert harness.ids() == harness.events() == [1, 2, 3]
    lines = [json.loads(line) for line in harness.journal.read_text().splitlines()]
    assert [(one["event"], one["job"]) for one in lines] == [("queued", 1), ("starting", 1), ("finished", 1)]
    assert lines[2]["outcome"] == "completed"
    assert os.stat(harness.journal).st_mode & 0o777 == 0o600


def _behind(harness: ReporterHarness) -> None:
    """The scheduler was killed after it appended the lines but before it saved its position."""
    harness.store.db.set_meta("reported_events", "[3, 1]")


def _torn(harness: ReporterHarness) -> None:
    """The scheduler was killed while it wrote a line."""
    with harness.journal.open("ab") as file:
        file.write(b'{"id": 4, "at": "2026-')


def _torn_at_once(harness: ReporterHarness) -> None:
    """The scheduler was killed while it wrote the very first line."""
    harness.journal.write_bytes(b'{"id": 1, "at": "2026-')
    harness.store.db.set_meta("reported_events", "[0, 0]")


def _lost(harness: ReporterHarness) -> None:
    """A power cut lost the last lines of the file."""
    lines = harness.journal.read_bytes().splitlines(keepends=True)
    harness.journal.write_bytes(b"".join(lines[:1]))


@pytest.mark.parametrize("happened", [_behind, _torn, _torn_at_once, _lost])
def test_the_journal_is_complete_after_a_crash(
    harness: ReporterHarness, happened: Callable[[ReporterHarness], None]
) -> None:
    for _ in range(3):
        harness.job()
    harness.update()
    happened(harness)
    harness.restart()
    harness.job()
    harness.update()
    assert harness.ids() == harness.events() == [1, 2, 3, 4]


def test_a_journal_that_was_removed_or_replaced_continues_with_new_events(
    harness: ReporterHarness,
) -> None:
    for _ in range(3):
        harness.job()
    harness.update()
    harness.journal.unlink()
    harness.restart()
    harness.job()
    harness.update()
    assert harness.ids() == [4]
    foreign = '{"id": 2, "at": "2020-01-01T00:00:00.000+00:00", "event": "queued", "job": 2}\nno JSON\n'
    for text in (foreign, foreign[:-8], "[]\n"):
        harness.journal.write_text(text)
        harness.restart()
        harness.job()
        harness.update()
        assert harness.journal.read_text().startswith(text)
        assert json.loads(harness.journal.read_text().splitlines()[-1])["id"] == harness.events()[-1]
        assert len(harness.journal.read_text().splitlines()) == len(text.splitlines()) + 1


@pytest.mark.parametrize("other", [{"at": 1.0}, {"job": 2}, {"event": "held"}, {"id": 2}])
def test_a_journal_is_continued_only_if_its_last_line_matches_the_store(
    harness: ReporterHarness, other: dict[str, Any]
) -> None:
    harness.job()
    harness.job()
    harness.clock.boot += 60
    harness.job()
    harness.update()
    line = json.loads(harness.journal.read_text().splitlines()[0])
    if "at" in other:
        other = {"at": iso_time(harness.clock.now().wall - 60 + other["at"])}
    harness.journal.write_text(f"{json.dumps({**line, **other})}\n")
    harness.restart()
    harness.job()
    harness.update()
    assert harness.ids()[1:] == [4]


def test_reports_new_events_that_reuse_the_ids_of_events_lost_in_a_power_cut(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    job = harness.job()
    harness.update()
    harness.store.db.set_meta("reported_events", "[100, 100]")
    harness.restart()
    harness.record(changes.hold(job, worded("held by the user")))
    harness.update()
    assert harness.ids() == [1, 2]
    assert logged() == ["job 1 held: held by the user"]


def test_events_missed_because_of_a_failed_read_are_logged_with_the_next_actions(
    harness: ReporterHarness, logged: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    job = harness.job()
    harness.record(changes.hold(job, worded("held by the user")))
    with monkeypatch.context() as patch:
        patch.setattr("gpu_scheduler.daemon.reporter.events.notable_events", fail)
        harness.reporter.actions_recorded([act.AnswerRequest(1, RequestAnswer(AnswerCode.HELD))])
    assert logged() == []
    harness.reporter.actions_recorded([act.AnswerRequest(1, RequestAnswer(AnswerCode.HELD))])
    assert logged() == ["job 1 held: held by the user"]


@contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    """Cuts off writes beyond this file size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_complete_journal_lines_and_later_writes_add_the_rest(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    harness.update()
    for _ in range(20):
        harness.job()
    harness.update()
    full = harness.journal.stat().st_size
    for _ in range(2000):
        harness.job()
    line = (full // 20) * 500 + 17
    kept = journal.Journal(harness.store, lambda: harness.store.data_dir.folder, 20)
    with _no_file_above(full + line), pytest.raises(OSError, match="No space"):
        kept.write()
    some = harness.ids()
    assert 20 < len(some) < 2020
    assert (kept.last_id, kept.has_more) == (some[-1], False)
    kept.write()
    assert harness.ids() == harness.events()
    assert len(harness.events()) == 2020


def test_logs_a_write_error_of_the_journal_once_and_retries_the_write(
    harness: ReporterHarness, logged: Callable[[], list[str]]
) -> None:
    harness.journal.mkdir()
    harness.job()
    harness.update()
    harness.update()
    [line] = logged()
    assert line.startswith("journal.jsonl cannot be written: ")
    assert line.endswith("; jobs continue; retrying")
    assert harness.reporter.next_write_at == harness.clock.boot + RETRY_S
    assert "1 queued" in harness.board.read_text()
    harness.clock.boot += RETRY_S
    harness.update()
    assert logged() == []
    assert harness.reporter.next_write_at == harness.clock.boot + RETRY_S
    # A different error is logged as well.
    harness.journal.rmdir()
    harness.journal.symlink_to("nowhere")
    harness.clock.boot += RETRY_S
    harness.update()
    [line] = logged()
    assert "Too many levels of symbolic links" in line
    harness.journal.unlink()
    harness.update()
    assert not harness.journal.exists()
    harness.clock.boot += RETRY_S
    harness.update()
    assert logged() == ["journal.jsonl can be written again"]
    assert harness.ids() == [1]
    assert harness.reporter.next_write_at is None


def test_rejects_a_journal_that_is_a_fifo(harness: ReporterHarness, logged: Callable[[], list[str]]) -> None:
    os.mkfifo(harness.journal)
    harness.job()
    harness.update()
    assert logged() == ["journal.jsonl cannot be written: not a file; jobs continue; retrying"]


def test_closing_the_reporter_writes_the_journal_despite_earlier_errors(harness: ReporterHarness) -> None:
    harness.journal.mkdir()
    harness.job()
    harness.update()
    harness.journal.rmdir()
    harness.reporter.close()
    assert harness.ids() == [1]


@pytest.mark.parametrize("name", ["journal.jsonl", "status.txt"])
def test_the_reporter_does_not_write_through_a_symbolic_link(harness: ReporterHarness, name: str) -> None:
    target = harness.folder / "precious"
    target.write_text("mine\n")
    (harness.store.data_dir.folder / name).symlink_to(target)
    harness.job()
    harness.update()
    harness.reporter.close()
    assert target.read_text() == "mine\n"


def test_rotates_a_large_journal(harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 500)
    for _ in range(20):
        harness.job()
        harness.update()
    aside = harness.ids(harness.journal.with_name("journal.jsonl.1"))
    assert aside + harness.ids() == list(range(aside[0], 21))
    assert 500 <= harness.journal.with_name("journal.jsonl.1").stat().st_size < 1000
    assert harness.journal.stat().st_size < 1000


def test_a_full_disk_after_a_rotation_leaves_complete_journal_lines(
    harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        harness.job()
    harness.update()
    monkeypatch.setattr(journal, "MAX_BYTES", 1000)
    line = harness.journal.stat().st_size // 20
    for _ in range(20):
        harness.job()
    with _no_file_above(5 * line):
        harness.update()
    assert harness.ids()[0] == 21
    assert len(harness.ids()) < 20
    harness.clock.boot += RETRY_S
    harness.update()
    assert harness.ids() == list(range(21, 41))


def test_appends_many_events_to_the_journal_in_batches(
    harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BATCH_SIZE", 10)
    for _ in range(25):
        harness.job()
    harness.update()
    assert harness.ids() == list(range(1, 11))
    assert harness.reporter.next_write_at == harness.clock.boot
    harness.update()
    harness.update()
    assert harness.ids() == harness.events()
    assert harness.reporter.next_write_at is None
    for _ in range(25):
        harness.job()
    harness.reporter.close()
    assert harness.ids() == harness.events()


def test_writes_the_journal_and_the_status_board_to_the_log_folder_if_one_is_given(
    harness: ReporterHarness, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    harness.restart(LogFolder.from_option(str(logs)))
    harness.job()
    harness.update()
    assert sorted(os.listdir(logs)) == ["journal.jsonl", "status.txt"]
    for name in os.listdir(logs):
        (logs / name).unlink()
    logs.rmdir()
    harness.clock.boot += 1
    harness.job()
    harness.update()
    assert sorted(os.listdir(logs)) == ["journal.jsonl", "status.txt"]
    assert not harness.journal.exists()


def test_the_status_board_is_updated_by_events_and_samples(harness: ReporterHarness) -> None:
    harness.update()
    first = os.stat(harness.board)
    assert f"scheduler pid {os.getpid()}  0 running, 0 queued" in harness.board.read_text()
    harness.clock.boot += 1
    harness.update()
    assert os.stat(harness.board).st_ino == first.st_ino
    job = harness.job("python train.py")
    attempt = harness.start(job, vram=9000)
    harness.record(changes.run(attempt))
    use = changes.measure(attempt, 101.0, ("U0", 8000, 50.0))
    harness.record(use)
    sample = GpuSample("U0", 0, "card", 24576, 7000, 50.0, (GpuProcess(77, 7000),))
    harness.gpus[0] = Gpu("U0", 0, sample=sample, sampled_boot=102.0, owners={77: attempt})
    fact = make_attempt(
        attempt, job, "token", "boot", AttemptState.RUNNING, gpus=("U0",), vram=9000, budgets={"U0": 9000},
        peaks={"U0": 8000},
    )  # fmt: skip
    harness.clock.boot += 7
    harness.reporter.update(harness.facts(fact))
    text = harness.board.read_text()
    assert (
        "▶    1  running  0     0:07  python train.py  GPU 0: 7000/8000 MiB; declared share 0.5, 9000 MiB\n"
        in text
    )
    assert "  0  busy " not in text
    assert re.search(r"^  0  available +0\.5 +8\.8 GiB ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("share", "vram", "is_declared", "expected"),
    [
        (250, None, True, "declared share 0.25"),
        (1000, None, True, "declared share 1"),
        (250, 9000, True, "declared share 0.25, 9000 MiB"),
        (1000, None, False, "no declaration"),
        (250, None, False, "no declaration"),
        (0, 9000, False, "no declaration"),
    ],
)
def test_the_status_board_shows_what_a_job_declared(
    harness: ReporterHarness, share: int, vram: int | None, is_declared: bool, expected: str
) -> None:
    job = harness.job("python train.py")
    attempt = harness.start(job, share=share, vram=vram, assumed=not is_declared)
    harness.record(changes.run(attempt))
    harness.reporter.update(harness.facts())
    assert f"python train.py  GPU 0: ?/? MiB; {expected}\n" in harness.board.read_text()


def test_the_status_board_shows_the_progress_of_running_jobs(harness: ReporterHarness) -> None:
    job = harness.job("python train.py")
    attempt = harness.start(job)
    log = harness.folder / "job.log"
    log.write_text("Step 53/100\n")
    harness.recorder.record_log(attempt, str(log), None)
    harness.record(changes.run(attempt))

    def text() -> str:
        harness.clock.boot += MIN_INTERVAL_S
        harness.gpus[0] = replace(harness.gpus[0], sampled_boot=harness.clock.now().boot)
        harness.reporter.actions_recorded([])
        harness.update()
        return harness.board.read_text()

    wait_for(lambda: "python train.py  53%" in text(), "the progress on the board")
    with log.open("a") as file:
        file.write("Step 60/100\n")
    wait_for(lambda: "python train.py  60%" in text(), "the new progress on the board")
    harness.end(attempt)
    assert "60%" not in text()
    harness.progress.close()


def test_a_folder_that_does_not_respond_does_not_delay_the_status_board(
    harness: ReporterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, go_on = threading.Event(), threading.Event()

    def hang(path: str | None) -> None:
        is_reading.set()
        go_on.wait(60)

    monkeypatch.setattr(progress, "read_progress_file", hang)
    job = harness.job("python train.py")
    attempt = harness.start(job)
    harness.record(changes.run(attempt))
    harness.update()
    assert is_reading.wait(60)
    harness.end(attempt)
    harness.clock.boot += 10.0
    harness.update()
    assert "1 finished" in harness.board.read_text()
    harness.progress.close()
    go_on.set()


def test_the_status_board_is_not_rewritten_at_once_if_a_sample_changes_only_times(
    harness: ReporterHarness,
) -> None:
    def inode_after(delay_s: float, load_percent: float) -> int:
        harness.clock.boot += delay_s
        sample = GpuSample("U0", 0, "card", 24576, 7000, load_percent)
        harness.gpus[0] = Gpu("U0", 0, sample=sample, sampled_boot=harness.clock.boot)
        harness.update()
        assert harness.reporter.next_write_at is None
        return os.stat(harness.board).st_ino

    first = inode_after(1.0, 50.0)
    assert inode_after(1.0, 50.0) == first
    changed = inode_after(1.0, 60.0)
    assert changed != first
    assert inode_after(3.9, 60.0) == changed
    assert inode_after(0.2, 60.0) != changed


def test_the_status_board_shows_new_wait_reasons_and_released_gpus_without_a_new_sample(
    harness: ReporterHarness,
) -> None:
    job = harness.job("echo soon")
    attempt = harness.start(job)
    stop = StopRequest("preempted", 5.0, next_state=JobState.QUEUED)
    harness.record(changes.ask_to_stop(job, stop), changes.end(attempt, Outcome.PREEMPTED))
    harness.update()
    assert "waiting for processes of its last attempt" in harness.board.read_text()
    row = harness.store.db.row("SELECT spec_key FROM job")
    assert row is not None
    reason = act.SetWaitReason(row["spec_key"], WaitReason(WaitKind.STORAGE, "the disk is full"))
    for action, shown in ((changes.release(attempt), "not examined yet"), (reason, "the disk is full")):
        harness.clock.boot += 1.0
        harness.report(action)
        harness.update()
        assert shown in harness.board.read_text()


def test_the_status_board_is_not_rewritten_if_a_change_is_undone_in_time(harness: ReporterHarness) -> None:
    for load_percent, due in ((50.0, False), (60.0, True), (50.0, False)):
        sample = GpuSample("U0", 0, "card", 24576, 7000, load_percent)
        harness.gpus[0] = Gpu("U0", 0, sample=sample, sampled_boot=harness.clock.boot)
        harness.clock.boot += 0.1
        harness.update()
        assert (harness.reporter.next_write_at is not None) == due


def test_the_status_board_is_written_at_most_twice_a_second(harness: ReporterHarness) -> None:
    harness.update()
    harness.job("echo soon")
    harness.clock.boot += 0.2
    harness.update()
    assert "soon" not in harness.board.read_text()
    assert harness.reporter.next_write_at == pytest.approx(100.5)
    harness.clock.boot += 0.3
    harness.update()
    assert "echo soon" in harness.board.read_text()
    assert harness.reporter.next_write_at is None


def test_the_status_board_uses_the_spike_buffer_of_the_scheduler(harness: ReporterHarness) -> None:
    attempt = harness.start(harness.job())
    harness.record(changes.run(attempt), changes.measure(attempt, 101.0, ("U0", 20000, 50.0)))
    settings = Settings(spike_buffer=0.5)
    EventReporter(harness.store, harness.clock, settings, None, harness.progress).update(harness.facts())
    assert re.search(r"^  0  available +0\.5 +29\.3 GiB ", harness.board.read_text(), re.MULTILINE)


def test_the_status_board_shows_that_the_scheduler_stopped(harness: ReporterHarness) -> None:
    harness.job("echo left")
    harness.update()
    harness.reporter.close()
    assert "scheduler stopped" in harness.board.read_text()
    assert "·    1  queued              echo left  not examined yet" in harness.board.read_text()


def test_the_status_board_shows_the_first_waiting_and_the_newest_finished_jobs(
    harness: ReporterHarness,
) -> None:
    for n in range(70):
        harness.job(f"echo waits {n};")
    for job in range(41, 71):
        harness.record(changes.hold(job, worded("held by the user")))
    for _ in range(30):
        job = harness.job("echo done")
        harness.record(changes.finish(job, Outcome.CANCELLED, worded("why not")))
    harness.update()
    lines = harness.board.read_text().splitlines()
    waits = [line for line in lines if line.startswith("·")]
    done = [line for line in lines if line.startswith("✗")]
    assert (len(waits), len(done)) == (50, 20)
    assert "waits 0;" in waits[0]
    assert "waits 39;" in waits[39]
    assert "echo waits 49;  held by the user" in waits[49]
    assert "✗  100  cancelled " in done[0]
    assert [line.strip() for line in lines if "…" in line] == [
        "… and 20 more held (status --all)",
        "… and 10 more finished (status --all)",
    ]


def test_the_status_board_marks_an_oom_retry(harness: ReporterHarness) -> None:
    job = harness.job("python big.py")
    attempt = harness.start(job)
    harness.record(changes.fail(attempt, changes.OUT_OF_MEMORY))
    harness.update()
    shown = "python big.py  waiting for processes of its last attempt to end\n"
    assert f"↻    1  queued  0           {shown}" in harness.board.read_text()


@pytest.mark.parametrize("kind", ["queued", "infeasible", "dreamt"])
def test_logs_an_event_whose_reason_this_version_cannot_read(
    harness: ReporterHarness, logged: Callable[[], list[str]], kind: str
) -> None:
    job = harness.job()
    with harness.store.db.transaction() as db:
        values = (job, 1.0, kind, '{"kind": "sheep"}', "{}")
        db.execute("INSERT INTO event (job_id, at, kind, reason, data) VALUES (?, ?, ?, ?, ?)", values)
    harness.update()
    [line] = logged()
    assert f"job {job} " in line
    assert '{"kind": "sheep"}' in line
