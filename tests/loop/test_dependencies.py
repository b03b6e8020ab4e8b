"""Tests that the jobs of a jobs file wait for the jobs that their lines name, after every kind of edit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import UNRESOLVED, Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.intake import jobs_file_watcher
from gpu_scheduler.store import jobs_files
from gpu_scheduler.store.requests import add_request
from tests import changes
from tests.changes import CheckedWriter
from tests.loop.rig import SETTINGS, Rig
from tests.loop.watched_file import WatchedFile


class Desk(WatchedFile):
    """A jobs file whose jobs the test starts and ends, instead of the scheduler."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Rig(folder))
        self.rig.loop.placing = False

    def restart(self) -> None:
        super().restart()
        self.rig.loop.placing = False

    def append(self, text: str) -> None:
        """Appends lines to the file, and reads it at once."""
        with self.path.open("a") as file:
            file.write(text)
        self.read()
        self.rig.tick()

    def finish(self, job_id: int, outcome: Outcome = Outcome.COMPLETED) -> None:
        """Ends a job, and runs the rounds that follow."""
        self.record(changes.finish(job_id, outcome))

    def retry(self, job_id: int) -> None:
        """Queues a finished job again, and runs the rounds that follow."""
        self.record(changes.queue(job_id))

    def record(self, action: act.Action) -> None:
        CheckedWriter(self.rig.store, SETTINGS).record([action], self.rig.clock.now())
        self.rig.tick()

    def add_job(self, *parents: int, name: str | None = None) -> int:
        """Inserts a job as the command line does."""
        spec = JobSpec("command", "true", "/", command="true", name=name)
        wanted = [Dependency(parent, DependencyKind.COMPLETED, str(parent)) for parent in parents]
        return self.rig.store.insert_job(spec, "test", dependencies=wanted)

    def parents(self) -> dict[int, str]:
        """Returns the parents of each job that has some, each with its reference, such as "1 a, 2 b"."""
        found: dict[int, list[str]] = {}
        sql = "SELECT job_id, parent_id, kind, reference FROM dependency ORDER BY job_id, parent_id, kind"
        for job_id, parent_id, kind, reference in self.rig.store.db.rows(sql):
            mark = "" if kind == "completed" else " any"
            found.setdefault(job_id, []).append(f"{parent_id} {reference}{mark}")
        return {job_id: ", ".join(parents) for job_id, parents in found.items()}

    def startable(self) -> list[int]:
        rows = self.rig.store.db.rows(
            "SELECT id FROM job WHERE state = 'queued' AND unmet_parents = 0 AND NOT source_missing"
        )
        return [row["id"] for row in rows]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_a_job_starts_after_the_jobs_that_its_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = WatchedFile(Rig(tmp_path))
    file.save(
        "[share=0.2 after=prep,b] echo c >> ran\n[share=0.2 name=b after-any=prep] echo b >> ran\n"
        "[share=0.2 name=prep] echo a1 >> ran\n[share=0.2 name=prep] echo a2 >> ran\n"
    )
    assert file.rig.tick_until_ended(1).outcome == "completed"
    ran = (tmp_path / "ran").read_text().split()
    assert (sorted(ran[:2]), ran[2:]) == (["a1", "a2"], ["b", "c"])


def test_an_appended_line_waits_for_earlier_lines_and_extends_a_name(desk: Desk) -> None:
    desk.save("[name=a] true 1\n")
    desk.append("[after=a] true 2\n")
    assert desk.parents() == {2: "1 a"}
    desk.append("[name=a] true 3\n[name=b after-any=a] true 4\n")
    assert desk.parents() == {2: "1 a, 3 a", 4: "1 a any, 3 a any"}
    desk.finish(1)
    assert desk.startable() == [3]
    desk.restart()
    desk.append("[name=a] true 5\n")
    assert desk.parents() == {2: "1 a, 3 a, 5 a", 4: "1 a any, 3 a any, 5 a any"}
    desk.append("[name=a after=2] true 6\n")  # job 2 now waits for job 6, which would wait for itself
    assert desk.parents() == {2: "1 a, 3 a, 5 a, 6 a", 4: "1 a any, 3 a any, 5 a any, 6 a any", 6: "0 2"}


def test_a_line_may_name_a_line_below_it(desk: Desk) -> None:
    desk.save("true 0\n")
    desk.append("[after=a] true 1\n[name=a] true 2\n")
    assert desk.parents() == {2: "3 a"}
    assert desk.startable() == [1, 3]


def test_a_line_with_an_unknown_name_is_malformed_until_the_name_is_added(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("[after=a] true 1\n[after=7] true 2\ntrue 3\n")
    assert desk.problems() == [
        (
            1,
            "after=a: no line of this file and no job has this name; correct it, or add a line with [name=a]",
        ),
        (2, "after=7: there is no job 7; `status --all` lists the jobs"),
    ]
    assert "accepted: after=JOBS with the ids of jobs" in errors(caplog)[0]
    assert desk.states() == {1: "queued"}
    desk.append("[name=a] true 4\n")
    desk.wait(2)
    assert [number for number, _ in desk.problems()] == [2]
    assert [desk.rig.job(job).text for job in desk.states()] == ["true 3", "true 1", "true 4"]
    assert desk.parents() == {2: "3 a"}


def test_a_name_without_a_line_means_the_newest_job(desk: Desk) -> None:
    first, second = desk.add_job(name="a"), desk.add_job(name="a")
    desk.save(f"[after=a] true 1\n[after-any={first}] true 2\n")
    assert desk.parents() == {3: f"{second} a", 4: f"{first} {first} any"}
    desk.add_job(name="a")
    desk.append("[after=a] true 3\n")
    assert desk.parents() == {3: "2 a", 4: "1 1 any", 6: "5 a"}
    desk.restart()
    desk.save("[after=a] true 1\n[after-any=1] true 2\n[after=a] true 3\n# a comment\n")
    assert desk.parents() == {3: "2 a", 4: "1 1 any", 6: "5 a"}
    desk.append("[name=a] true 4\n")
    assert desk.parents() == {3: "7 a", 4: "1 1 any", 6: "7 a"}


def test_a_file_that_is_read_in_batches_may_refer_to_any_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_file_watcher, "BATCH_LINES", 10)
    lines = ["true\n"] * 50 + ["[name=b after=z] true\n"] + ["[after=b] true\n"] * 400 + ["[name=z] true\n"]
    desk.lines = lines
    desk.save_lines()
    desk.read()
    assert desk.problems() == []
    assert desk.parents() == {51: "452 z", **dict.fromkeys(range(52, 452), "51 b")}


@pytest.mark.parametrize("crash", [False, True])
def test_an_edited_parent_is_replaced_before_its_old_job_is_cancelled(desk: Desk, crash: bool) -> None:
    desk.save("[name=a] true 1\n[after=a] true 2\n")
    desk.save("[name=a] true one\n[after=a] true 2\n", quiet_s=0)
    for later in (2, 9):
        desk.read(later)
        if crash:  # the scheduler dies between the transaction and the round
            desk.restart()
            desk.read()
        desk.rig.tick()
        assert desk.states()[2] == "queued"
    desk.wait(30)
    assert desk.states() == {1: "cancelled", 2: "queued", 3: "queued"}
    assert desk.parents() == {2: "3 a"}
    desk.finish(3)
    assert desk.startable() == [2]


def test_a_corrected_parent_queues_what_was_skipped_for_the_old_one(desk: Desk) -> None:
    desk.save("[name=a] true 1\n[after=a] true 2\n")
    desk.finish(1, Outcome.FAILED)
    assert desk.states() == {1: "failed", 2: "skipped"}
    desk.save("[name=a] true one\n[after=a] true 2\n")
    assert desk.states() == {1: "failed", 2: "queued", 3: "queued"}
    assert desk.parents() == {2: "3 a"}


def test_a_parent_that_gets_another_name_stays_a_parent(desk: Desk) -> None:
    desk.save("[name=a] true 1\n[after=a] true 2\n[name=b] true 3\n")
    desk.save("[name=b] true 1\n[after=a] true 2\n[name=b] true 3\n")
    assert desk.parents() == {2: "1 a"}
    desk.save("[name=b] true 1\n[after=b] true 2\n[name=b] true 3\n")
    assert desk.parents() == {2: "1 b, 3 b"}
    assert desk.states() == {1: "queued", 2: "queued", 3: "queued"}


def test_the_line_of_a_parent_is_removed(desk: Desk) -> None:
    desk.save("[name=a] true 1\n[name=a] true 2\n[after=a] true 3\n")
    desk.finish(1)
    desk.save("[name=a] true 2\n[after=a] true 3\n")
    assert desk.parents() == {3: "2 a"}
    desk.save("[after=a] true 3\n")
    assert desk.states() == {1: "completed", 2: "cancelled", 3: "skipped"}
    desk.save("[after=a] true 3\n[name=a] true 4\n")
    assert desk.parents() == {3: "4 a"}
    assert desk.states()[3] == "queued"
    desk.save("true 3\n[name=a] true 4\n")
    assert desk.parents() == {}
    assert desk.startable() == [3, 4]


def test_a_malformed_line_keeps_its_dependencies(desk: Desk) -> None:
    desk.save("[name=a] true 1\n[after=a] true 2\n")
    for mistake in ("after=prpe", "aftr=a"):
        desk.save(f"[name=a] true 1\n[{mistake}] true 2\n")
        assert desk.parents() == {2: "1 a"}
        assert desk.startable() == [1]
    desk.save("[name=a vram=x] true 1\n[after=a] true 2\n")
    assert desk.parents() == {2: "1 a"}
    assert desk.states() == {1: "queued", 2: "queued"}
    desk.save("[name=a] true 1\n[after=a] true 2\n")
    assert desk.startable() == [1]


def test_a_dependency_that_is_added_while_the_job_runs_counts_for_its_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = WatchedFile(Rig(tmp_path))
    run = "until [ -e go ]; do sleep 0.02; done; exit 3"
    file.save(f"{run}\n[hold name=a] true\n")
    file.rig.runner_pid(1)
    file.save(f"[after=a] {run}\n[hold name=a] true\n")
    assert file.states() == {1: "running", 2: "held"}
    (tmp_path / "go").touch()
    assert file.rig.tick_until_ended(1).outcome == "failed"
    add_request(file.rig.store, "retry", "1")
    file.wait(0)
    assert file.rig.job(1).unmet_parents == 1
    add_request(file.rig.store, "release", "2")
    assert file.rig.tick_until_ended(2).outcome == "completed"
    assert file.rig.tick_until_ended(1).outcome == "failed"
    assert len(file.rig.store.attempts(1)) == 2


def test_a_cycle_by_an_edit_blocks_the_edited_job_and_is_reported(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("true 1\ntrue 2\n")
    desk.save("true 1\n[after=1] true 2\n")
    other = desk.add_job(2)
    desk.save(f"[after=2,{other}] true 1\n[after=1] true 2\n")
    assert desk.parents() == {1: "0 2", 2: "1 1", other: "2 2"}
    assert errors(caplog) == [
        "jobs.txt, line 1: job 1 cannot start, because after=2 would make it wait for itself; correct the"
        " line"
    ]
    desk.restart()
    desk.save(f"[after=2,{other}] true 1\n[after=1] true 2\n# a comment\n")
    assert desk.parents()[1] == "0 2"
    assert errors(caplog) == [errors(caplog)[0]] * 2  # a new scheduler reports it again, but only once
    desk.save("[vram=1G] true 1\n[after=1] true 2\n")
    assert desk.parents() == {2: "1 1", other: "2 2"}
    desk.save(f"[after={other}] true 1\n[after=1] true 2\n")
    assert desk.parents()[1] == f"{UNRESOLVED} {other}"


def test_the_lines_of_a_cycle_are_malformed(desk: Desk) -> None:
    desk.save("[name=a after=b] true 1\n[name=b after=a] true 2\n[name=c] true 3\n")
    assert [number for number, _ in desk.problems()] == [1, 2]
    desk.save("[name=a] true 1\n[name=b after=a] true 2\n[name=c] true 3\n")
    assert desk.parents() == {3: "2 a"}
    desk.save("[name=a after=b] true 1\n[name=b after=a] true 2\n[name=c] true 3\n")
    assert [number for number, _ in desk.problems()] == [1]
    assert desk.parents() == {3: "2 a"}
    assert desk.startable() == [1]


def test_equal_csv_lines_have_the_dependencies_of_the_first(desk: Desk) -> None:
    (desk.path.parent / "s.py").touch()
    desk.save("[name=a] true\n[after=a] 0,s.py,,1\n0,s.py,,1\n")
    assert desk.parents() == {2: "1 a"}
    desk.finish(2, Outcome.FAILED)
    desk.save("[name=a] true\n[name=b] true b\n# s\n")
    desk.append("[after=b] 0,s.py,,1\n")
    assert desk.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert desk.parents() == {2: "3 b"}


def test_a_line_applies_to_the_job_of_another_front_end(desk: Desk) -> None:
    (desk.path.parent / "s.py").touch()
    parent = desk.add_job()
    desk.save("0,s.py,,1\n")
    desk.path = desk.path.with_name("other.txt")
    desk.restart()
    desk.save(f"[after={parent}] 0,s.py,,1\n")
    assert desk.parents() == {2: f"{parent} {parent}"}
    assert desk.startable() == [parent]


def test_a_failed_transaction_changes_no_dependency(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.save("[name=a] true 1\n[after=a] true 2\n")
    real = jobs_files.save_reading

    def failing(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise OSError("disk full")

    monkeypatch.setattr(jobs_files, "save_reading", failing)
    with pytest.raises(OSError, match="disk full"):
        desk.append("[name=a] true 3\n[name=b] true 4\n")
    monkeypatch.undo()
    assert desk.parents() == {2: "1 a"}
    desk.restart()
    desk.append("[after=b] true 5\n")
    assert desk.parents() == {2: "1 a, 3 a", 5: "4 b"}


def test_a_file_without_references_does_not_touch_the_dependencies(desk: Desk) -> None:
    other = desk.add_job(desk.add_job())
    desk.save("true 1\n")
    desk.append("[name=a] true 2\n")
    desk.save("true 1\n[name=a] true 3\n")
    assert desk.parents() == {other: "1 1"}
    assert not desk.rig.store.marks().has_unsettled_dependencies


def test_a_job_waits_for_a_name_on_a_last_line_without_a_line_ending(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.finish(desk.add_job(name="a"))
    desk.save("[after=a] true 1\n[name=a] true 2", quiet_s=0)
    assert desk.startable() == []
    desk.wait(4)
    assert (desk.startable(), errors(caplog)) == ([], [])
    desk.wait(2)
    assert desk.parents() == {2: "3 a"}


def test_a_name_on_a_repeated_csv_line_means_its_job(desk: Desk) -> None:
    (desk.path.parent / "s.py").touch()
    desk.finish(desk.add_job(name="y"))
    desk.save("[name=x] 0,s.py,,1\n[name=y] 0,s.py,,1\n[after=y] true\n")
    assert desk.parents() == {3: "2 y"}
    desk.append("[name=z] 0,s.py,,2\n[name=y] 0,s.py,,2\n")
    assert desk.parents() == {3: "2 y, 4 y"}


def test_a_malformed_reference_is_checked_again_after_a_job_is_submitted(desk: Desk) -> None:
    desk.save("true 1\n[after=x] true 2\n[after=2] true 3\n")
    assert [number for number, _ in desk.problems()] == [2, 3]
    desk.add_job(name="x")
    desk.wait(5)
    assert desk.problems() == []
    assert sorted(desk.parents().values()) == ["2 2", "2 x"]


def test_a_reference_is_resolved_again_when_the_cycle_is_undone(desk: Desk) -> None:
    other = desk.add_job()
    desk.save("true 1\n")
    of_other = Dependency(2, DependencyKind.COMPLETED, "2")
    desk.record(act.SetDependencies(other, DependencyKind.COMPLETED, (of_other,)))
    desk.save(f"[after={other}] true 1\n")
    assert desk.parents() == {1: "2 2", 2: "0 1"}
    desk.record(act.SetDependencies(other, DependencyKind.COMPLETED, ()))
    desk.restart()
    desk.wait(5)
    assert desk.parents() == {2: "1 1"}


def test_a_last_line_that_gets_another_name_is_reported_and_another_job_may_have_the_old_one(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("[after=a] true 1\n[name=a] true 2", quiet_s=2)
    assert errors(caplog) == []
    desk.save("[after=a] true 1\n[name=ab] true 2\n")
    assert errors(caplog) == [
        "jobs.txt, line 1: job 1 cannot start, because after=a names no job; correct the line"
    ]
    assert desk.parents() == {1: "0 a"}
    named = desk.add_job(name="a")
    desk.wait(1)
    assert desk.parents() == {1: f"{named} a"}


def test_a_reference_that_names_no_job_again_after_a_correction_is_reported_again(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    message = "jobs.txt, line 1: job 1 cannot start, because after=a names no job; correct the line"
    for messages in ([message], [message, message]):
        desk.save("[after=a] true 1\n[name=a] true 2", quiet_s=2)
        desk.save("[after=a] true 1\n[name=ab] true 2\n")
        assert (errors(caplog), desk.parents()) == (messages, {1: "0 a"})
        desk.save("[after=ab] true 1\n[name=ab] true 2\n")
        desk.wait(5)
        assert (errors(caplog), desk.parents()) == (messages, {1: "2 ab"})


def test_the_log_lists_only_the_first_of_many_malformed_lines(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("[name=a vram=x] true\n" + "[after=a] true\n" * 149)
    assert len(errors(caplog)) == 101
    assert errors(caplog)[-1] == f"{desk.path}: 50 more lines are malformed; `lint` lists them"


def test_a_reference_is_resolved_again_after_a_failed_commit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = desk.add_job()
    desk.save("true 1\n")
    of_other = Dependency(2, DependencyKind.COMPLETED, "2")
    desk.record(act.SetDependencies(other, DependencyKind.COMPLETED, (of_other,)))
    desk.save(f"[after={other}] true 1\n")
    desk.record(act.SetDependencies(other, DependencyKind.COMPLETED, ()))
    real = desk.rig.store.db.transaction

    @contextmanager
    def failing() -> Iterator[sqlite3.Connection]:
        with real() as db:
            yield db
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(desk.rig.store.db, "transaction", failing)
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        desk.watch.check(desk.now + 1)
    monkeypatch.undo()
    assert desk.parents() == {2: "0 1"}
    desk.wait(1)
    assert desk.parents() == {2: "1 1"}


def test_a_line_waits_for_all_lines_of_a_group_and_those_that_follow(desk: Desk) -> None:
    desk.save("[after=g] true 1\n[name=g/a] true 2\n[name=g/b] true 3\n[after-any='g/*'] true 4\n")
    assert desk.parents() == {1: "2 g, 3 g", 4: "2 g/* any, 3 g/* any"}
    desk.append("[name=g/c] true 5\n")
    assert desk.parents() == {1: "2 g, 3 g, 5 g", 4: "2 g/* any, 3 g/* any, 5 g/* any"}
    desk.append("[name=g] true 6\n")  # an exact name wins over a group
    assert desk.parents()[1] == "6 g"


def test_a_line_waits_for_the_other_lines_of_its_own_group(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("[name=g/a] true 1\n[name=g/last after=g] true 2\n")
    assert (desk.parents(), errors(caplog)) == ({2: "1 g"}, [])
    desk.append("[name=g/later after=g] true 3\n")
    assert errors(caplog)[0].startswith(
        "jobs.txt, line 3: job 3 cannot start, because after=g would make it wait"
    )
    assert desk.startable() == [1]


def test_a_line_waits_for_the_newest_job_of_each_name_of_a_group_without_lines(desk: Desk) -> None:
    for name in ("g/a", "g/a", "g/b", "h/a"):
        desk.add_job(name=name)
    desk.save("[after=g] true 1\n[after='?/a'] true 2\n")
    assert desk.parents() == {5: "2 g, 3 g", 6: "2 ?/a, 4 ?/a"}


def test_a_parent_that_another_reference_means_as_well_is_not_forgotten(desk: Desk) -> None:
    (desk.path.parent / "s.py").touch()
    for name in ("a", "g/old"):
        desk.add_job(name=name)
    for parents in ("", "[name=g/a] 0,s.py,,1\n", "[name=a] 0,s.py,,1\n"):
        desk.save(f"[after-any=a,g] true\n{parents}")
    assert desk.parents() == {3: "4 g any"}
    desk.restart()
    desk.append("true\n")
    assert desk.parents() == {3: "4 g any"}
