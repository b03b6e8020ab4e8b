"""Queries called as functions: status, sessions, logs, events, lint and calibrate."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.control.jobs_file import add, compose, lint
from gpu_scheduler.control.new_line import NewJob
from gpu_scheduler.control.stop import stop
from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError, UsageError
from gpu_scheduler.show.calibrate import calibrate
from gpu_scheduler.show.events import open_events
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.logs import LogProgress, attach_target, open_log, screens
from gpu_scheduler.show.status import StatusQuery, empty_status, status
from gpu_scheduler.show.wait_text import need_text
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for


def test_status_reports_only_the_requested_jobs(desk: Desk, location: Location) -> None:
    jobs = [desk.job(f"echo {number}") for number in range(3)]
    desk.record(changes.finish(jobs[0], Outcome.FAILED))
    report = status(location, StatusQuery())
    assert [job.record.id for job in report.jobs] == [jobs[1], jobs[2], jobs[0]]
    assert (report.pid, len(report.gpus), report.counts) == (None, 2, {"queued": 2, "finished": 1})
    limited = status(location, StatusQuery(max_queued=1, max_finished=0))
    assert [job.record.id for job in limited.jobs] == [jobs[1]]
    assert [job.record.id for job in status(location, StatusQuery(only_failed=True)).jobs] == [jobs[0]]


def test_status_reads_the_last_log_lines_only_on_request(desk: Desk, location: Location) -> None:
    job = desk.run_job("echo up; while :; do sleep 0.02; done")
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    assert [one.last_line for one in status(location, StatusQuery()).jobs] == [None]
    assert [one.last_line for one in status(location, StatusQuery(last_lines=True)).jobs] == ["up"]


def test_queries_without_a_store_raise_an_error_and_create_no_files(desk: Desk, tmp_path: Path) -> None:
    location = Location(str(tmp_path / "none.json"))
    for query in (lambda: status(location, StatusQuery()), lambda: screens(location)):
        with pytest.raises(StoreNotFoundError):
            query()
    assert empty_status(location).data_dir == str(tmp_path / "none.d")
    assert list(tmp_path.iterdir()) == []


def test_screens_omits_jobs_without_a_session(desk: Desk, location: Location) -> None:
    desk.run_job("while :; do sleep 0.02; done")
    sessions = screens(location)
    assert (sessions.sessions, sessions.without_session) == ((), 1)


def test_the_event_reader_returns_each_event_once(desk: Desk, location: Location) -> None:
    job = desk.job()
    desk.record(changes.finish(job, Outcome.CANCELLED))
    with open_events(location, None) as reader:
        assert [event.kind for event in reader.new_events()] == [EventKind.QUEUED, EventKind.FINISHED]
        assert list(reader.new_events()) == []
        desk.job("echo b")
        assert [event.kind for event in reader.new_events()] == [EventKind.QUEUED]
    with open_events(location, 1) as reader:
        assert [event.command for event in reader.new_events()] == ["echo b"]


def test_following_a_log_ends_with_its_job(desk: Desk, location: Location) -> None:
    job = desk.run_job("echo up; while [ ! -e go ]; do sleep 0.02; done")
    with open_log(location, job, None) as log:
        assert log.advance() is LogProgress.RUNNING
        (desk.path / "go").touch()
        wait_for(lambda: log.advance() is LogProgress.LEFT_OPEN, "the end of the job")
        assert "up" in Path(log.path).read_text()
    with (
        pytest.raises(SchedulerError, match=f"job {job} has no attempt 2"),
        open_log(location, job, 2),
    ):
        pass


def test_only_a_job_with_a_session_can_be_attached_to(desk: Desk, location: Location) -> None:
    queued = desk.job()
    with pytest.raises(SchedulerError, match=f"job {queued} is not running but queued"):
        attach_target(location, queued)
    running = desk.run_job("while :; do sleep 0.02; done")
    with pytest.raises(SchedulerError, match=f"job {running} has no Screen session"):
        attach_target(location, running)


def test_lint_previews_valid_lines_and_lists_malformed_lines(desk: Desk, location: Location) -> None:
    view = lint(location, "jobs.txt", b"[share=0.5] echo a\n[share=x] echo b\n")
    assert [(line.number, need_text(line.need)) for line in view.lines] == [(1, "0.5 of a GPU")]
    assert [line.number for line in view.malformed] == [2]
    assert view.cwd == str(desk.path)


def test_add_builds_a_line_then_checks_it_and_appends_it_to_the_jobs_file(
    desk: Desk, location: Location
) -> None:
    new = NewJob(command=["echo", "a b"], attributes={"share": "0.5", "hold": True, "env": ["A=1"]})
    [composed] = compose(location, [new])
    assert not (desk.path / "jobs.txt").exists()
    assert add(location, [new], "jobs.txt") == [composed]
    assert (desk.path / "jobs.txt").read_text() == f"{composed.line}\n"
    view = lint(location, "jobs.txt", composed.line.encode())
    spec = view.lines[0].spec
    assert (spec.words(), spec.share, spec.hold, spec.env) == (("echo", "a b"), 500, True, (("A", "1"),))
    with pytest.raises(UsageError, match="nothing was added"):
        add(location, [new, NewJob(script="none.py")], "jobs.txt")
    with pytest.raises(UsageError, match="nothing was added"):
        add(location, [NewJob(command=["true"], attributes={"allowed": "7"})], "jobs.txt")
    assert (desk.path / "jobs.txt").read_text() == f"{composed.line}\n"


def test_calibrate_without_measurements_suggests_nothing(desk: Desk, location: Location) -> None:
    view = calibrate(location, None)
    assert (view.suggestions, view.entries) == ([], {})


def test_stop_reports_the_jobs_that_continue_to_run(desk: Desk, location: Location) -> None:
    job = desk.run_job("while :; do sleep 0.02; done")
    with desk.scheduler() as pid:
        report = stop(location, end_jobs=False, grace_s=1.0)
        assert (report.scheduler_pid, report.running, report.ended) == (pid, (job,), {})
    report = stop(location, end_jobs=True, grace_s=5.0)
    assert (report.scheduler_pid, list(report.ended), report.has_failed) == (None, [job], False)
    assert desk.state(job) == JobState.FINISHED
