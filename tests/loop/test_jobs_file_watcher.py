"""Tests the jobs file, the store and the rounds together, with a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.request import wrong_state
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.scheduling.needs import ResourceSpec, parse_llm_config
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.store.jobs_files import jobs_files
from gpu_scheduler.store.requests import add_request, request_answer
from tests.loop.rig import Rig
from tests.loop.watched_file import WatchedFile
from tests.reasons import words


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedFile]:
    monkeypatch.chdir(tmp_path)
    yield WatchedFile(Rig(tmp_path))
    (tmp_path / "go").touch()  # This ends the waiting jobs even if the test failed.


WAIT = "[gpus=2 hold] "


def test_every_line_runs_once_regardless_of_its_line_ending(desk: WatchedFile) -> None:
    desk.save(
        b"\xef\xbb\xbf[share=0.2] echo a >> ran\r\n\r\n# c\r\n"
        b"[share=0.2] echo b >> ran # d\r\n[share=0.2] echo c >> ran"
    )
    for job in (1, 2, 3):
        assert desk.rig.tick_until_ended(job).outcome == "completed"
    desk.restart()
    desk.wait(30)
    assert sorted((desk.rig.folder / "ran").read_text().split()) == ["a", "b", "c"]
    assert desk.states() == {1: "completed", 2: "completed", 3: "completed"}


def test_reports_a_malformed_line_and_runs_the_other_lines(desk: WatchedFile) -> None:
    desk.save(
        "[share=0.2] echo a >> ran\n[shar=1] echo b >> ran\ntrain.py &\n"
        "[ -f x ] && train.py\n[share=0.2] echo c >> ran\n"
    )
    assert [number for number, _ in desk.problems()] == [2, 3, 4]
    assert desk.rig.tick_until_ended(1).outcome == desk.rig.tick_until_ended(2).outcome == "completed"
    assert sorted((desk.rig.folder / "ran").read_text().split()) == ["a", "c"]
    desk.save("[share=0.2] echo a >> ran\n[share=0.2] echo c >> ran\n")
    assert desk.problems() == []


def test_the_messages_about_malformed_lines_show_each_accepted_form_only_once(
    desk: WatchedFile, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save("[gpu=1] echo\n1.5,a.py,env\n1.5,b.py,env\n0,a.py,,--x a,b,\n[gpu=2] echo\n")
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [text.splitlines()[0].split(":")[1] for text in messages] == ["1", "2", "3", "4", "5"]
    forms = [text.partition("\n  accepted: ")[2] for text in messages]
    assert [bool(form) for form in forms] == [True, True, False, True, False]
    assert forms[3] == '0,a.py,,"--x a,b",'


def test_deleting_the_line_of_a_queued_job_cancels_the_job_after_ten_seconds(
    desk: WatchedFile,
) -> None:
    desk.save("[gpus=2] while [ ! -e go ]; do sleep 0.02; done\n[gpus=2] echo b\n[gpus=2] echo c\n")
    desk.rig.runner_pid(1)
    desk.save("[gpus=2] echo c\n", quiet_s=0)
    desk.wait(9)
    assert desk.states() == {1: "running", 2: "queued", 3: "queued"}
    assert [
        row["source_missing"] for row in desk.rig.store.db.rows("SELECT source_missing FROM job ORDER BY id")
    ] == [0, 1, 0]
    desk.wait(2)
    assert desk.states() == {1: "running", 2: "cancelled", 3: "queued"}
    assert words(desk.rig.job(2).reason) == "line removed"
    (desk.rig.folder / "go").touch()
    assert desk.rig.tick_until_ended(1).outcome == "completed"


def test_after_a_restart_a_line_with_a_typo_neither_starts_nor_ends_its_job(desk: WatchedFile) -> None:
    held = "[gpus=2] while [ ! -e go ]; do sleep 0.02; done\n"
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    desk.rig.runner_pid(1)
    for quiet_s in (1.0, 30.0):  # Restart once before and once after the store records the typo.
        desk.save(f"{held}[gpus=two] echo b >> ran\n", quiet_s=quiet_s)
        desk.restart()
        desk.wait(60)
        assert desk.states() == {1: "running", 2: "queued"}
        row = desk.rig.job(2)
        assert row.line_wait == WaitReason(WaitKind.LINE_MALFORMED, line_number=2)
    (desk.rig.folder / "go").touch()
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    desk.wait(60)
    assert desk.states() == {1: "completed", 2: "queued"}
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    assert desk.rig.tick_until_ended(2).outcome == "completed"
    assert (desk.rig.folder / "ran").read_text() == "b\n"


def test_the_job_of_a_malformed_line_does_not_start_while_an_editor_replaces_the_file(
    desk: WatchedFile,
) -> None:
    held = "[gpus=2] while [ ! -e go ]; do sleep 0.02; done\n"
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    desk.rig.runner_pid(1)
    desk.save(f"{held}[gpus=two] echo b >> ran\n")
    (desk.rig.folder / "go").touch()
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    desk.path.unlink()
    desk.wait(60)
    assert desk.states() == {1: "completed", 2: "queued"}
    desk.restart()
    desk.wait(60)
    assert desk.states() == {1: "completed", 2: "queued"}
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    assert desk.rig.tick_until_ended(2).outcome == "completed"


def test_the_job_of_a_removed_line_does_not_start_while_an_editor_replaces_the_file(
    desk: WatchedFile,
) -> None:
    held = "[gpus=2] while [ ! -e go ]; do sleep 0.02; done\n"
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    desk.rig.runner_pid(1)
    (desk.rig.folder / "go").touch()
    desk.save(held, quiet_s=1)
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    desk.path.unlink()
    desk.wait(0)
    assert desk.states() == {1: "completed", 2: "queued"}
    assert desk.watch.recheck_at is not None
    assert desk.watch.recheck_at == desk.now + 9
    desk.save(held)
    assert desk.states() == {1: "completed", 2: "cancelled"}


def test_jobs_are_not_cancelled_while_the_jobs_file_is_missing(desk: WatchedFile) -> None:
    held = "[gpus=2] while [ ! -e go ]; do sleep 0.02; done\n"
    desk.save(f"{held}[gpus=2] echo b >> ran\n")
    desk.rig.runner_pid(1)
    desk.save(held, quiet_s=1)
    desk.path.unlink()
    desk.wait(0)
    (desk.rig.folder / "go").touch()
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    assert desk.states() == {1: "completed", 2: "queued"}
    desk.wait(9)
    assert desk.watch.recheck_at is None
    assert desk.rig.tick_until_ended(2).outcome == "completed"


def test_a_retry_does_not_start_a_job_whose_line_became_malformed(desk: WatchedFile) -> None:
    desk.save("[gpus=2] test -e good\n")
    assert desk.rig.tick_until_ended(1).exit_code == 1
    desk.save("[gpus=two] test -e good\n")
    add_request(desk.rig.store, "retry", "1")
    desk.wait(30)
    assert desk.states() == {1: "queued"}
    (desk.rig.folder / "good").touch()
    desk.save("[gpus=2] test -e good\n")
    assert desk.rig.tick_until_ended(1).outcome == "completed"


def test_jobs_are_kept_if_the_jobs_file_is_emptied_or_removed_and_then_rewritten(desk: WatchedFile) -> None:
    text = f"{WAIT}echo a\n{WAIT}echo b\n"
    desk.save(text)
    before = desk.states()
    desk.save("", quiet_s=5)
    desk.save(text, quiet_s=30)
    assert desk.states() == before
    desk.path.unlink()
    desk.wait(60)
    assert desk.states() == before
    desk.save(text)
    assert desk.states() == before


def test_a_repeated_csv_line_reruns_a_failed_job_but_not_a_completed_one(desk: WatchedFile) -> None:
    (desk.rig.folder / "s.py").write_text(
        "import sys; open('ran', 'a').write(sys.argv[1] + '\\n'); sys.exit(int(sys.argv[2]))"
    )
    text = "0,s.py,,good 0 --llm x,\n0,s.py,,bad 7 --llm x,\n"
    desk.save(text)
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    assert desk.rig.tick_until_ended(2).exit_code == 7
    desk.restart()
    desk.wait(60)
    assert desk.states() == {1: "completed", 2: "failed"}  # the unchanged file starts no job again
    desk.save("# nothing\n", quiet_s=60)
    desk.save(text)
    assert desk.rig.tick_until_ended(2).exit_code == 7
    assert sorted((desk.rig.folder / "ran").read_text().split()) == ["bad", "bad", "good"]
    assert len(desk.rig.store.attempts(2)) == 2


def test_reordering_the_lines_does_not_move_other_jobs_in_the_queue(desk: WatchedFile) -> None:
    # This job has all GPUs, so that the jobs of the file wait.
    blocker = desk.rig.add_job("while [ ! -e go ]; do sleep 0.02; done", gpus=2)
    desk.rig.runner_pid(blocker)
    desk.save("[gpus=2] echo a\n[gpus=2] echo b\n[gpus=2] echo c\n", quiet_s=0)
    desk.rig.add_job("echo other", gpus=2)
    assert desk.queued() == ["echo a", "echo b", "echo c", "echo other"]
    desk.save("[gpus=2] echo c\n[gpus=2] echo a\n[gpus=2] echo b\n")
    assert desk.queued() == ["echo c", "echo a", "echo b", "echo other"]
    desk.save("[gpus=2] echo c\n[gpus=2 priority=1] echo a\n[gpus=2] echo b\n")
    assert desk.queued() == ["echo a", "echo c", "echo b", "echo other"]
    add_request(desk.rig.store, "cancel", str(blocker), grace_s=0.1)
    desk.rig.tick_until_ended(blocker)


def test_the_job_of_another_file_takes_the_place_of_its_line_in_this_one(desk: WatchedFile) -> None:
    def read(name: str, text: str) -> None:
        Path(name).write_text(text)
        for now in (0.0, 20.0, 40.0):
            watchers[name].check(now)

    watchers = {
        name: JobsFileWatcher(desk.rig.store, name, frozenset({0, 1}), lambda: parse_llm_config("{}"))
        for name in ("one.txt", "two.txt")
    }
    read("one.txt", "0,/p/b.py,,,0\n")
    read("two.txt", "0,/p/c.py,,,0\n")
    read("two.txt", "0,/p/c.py,,,0\n0,/p/b.py,,,0\n")
    rows = desk.rig.store.db.rows("SELECT args FROM request WHERE verb = 'places'")
    assert [row["args"] for row in rows] == ['{"places": [[2, 1], [1, 2]]}']


def test_changing_one_attribute_of_a_line_does_not_change_the_others(desk: WatchedFile) -> None:
    desk.save("[gpus=2 hold] echo a >> ran\n[hold name=x] echo b >> ran\n")
    assert desk.states() == {1: "held", 2: "held"}
    desk.save("[gpus=2] echo a >> ran\n[hold name=y] echo b >> ran\n")
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    assert desk.rig.job(2).name == "y"
    add_request(desk.rig.store, "release", "2")
    assert desk.rig.tick_until_ended(2).outcome == "completed"
    desk.wait(60)
    assert desk.states() == {1: "completed", 2: "completed"}


def test_the_remedy_in_the_reason_of_a_failed_job_works(
    desk: WatchedFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Follows the remedy literally: puts the attribute before the line and then runs `retry`."""
    (desk.rig.folder / "s.py").write_text(
        "import sys\nopen('ran', 'a').write(sys.argv[-1] + '\\n')\n"
        "if sys.argv[-1] != '0': raise RuntimeError('CUDA error: invalid device ordinal')"
    )
    desk.save("0,s.py,,,1\n")
    assert desk.rig.tick_until_ended(1).exit_code == 1
    assert "put [cuda-ids=visible] before its line" in words(desk.rig.job(1).reason)
    with caplog.at_level("INFO"):
        desk.save("[cuda-ids=visible] 0,s.py,,,1\n")
    assert (
        "jobs.txt, line 1: cuda-ids=visible for job 1, which is finished; `retry 1` runs it with this change"
    ) in caplog.text
    desk.restart()
    assert desk.rig.job(1).outcome == "failed"
    add_request(desk.rig.store, "retry", "1")
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    assert (desk.rig.folder / "ran").read_text().split() == ["1", "0"]
    desk.save("[cuda-ids=visible share=0.5 hold] 0,s.py,,,1\n")
    assert desk.rig.job(1).state == "finished"
    assert desk.rig.job(1).spec_key == ResourceSpec(share=500, allowed=(1,)).key()


def test_a_retry_right_after_a_save_uses_the_saved_line(desk: WatchedFile) -> None:
    (desk.rig.folder / "s.py").write_text("import sys; sys.exit(int(sys.argv[-1]))")
    desk.save("0,s.py,,,1\n")
    assert desk.rig.tick_until_ended(1).exit_code == 1
    desk.save("[cuda-ids=visible] 0,s.py,,,1\n", quiet_s=0.5)
    add_request(desk.rig.store, "retry", "1")
    desk.wait(0.5)
    assert desk.states() == {1: "queued"}
    desk.wait(1.5)
    assert desk.rig.tick_until_ended(1).outcome == "completed"
    assert len(desk.rig.store.attempts(1)) == 2


def test_a_priority_can_be_set_only_for_waiting_jobs(desk: WatchedFile) -> None:
    desk.save("[share=0.1] true\n")
    desk.rig.tick_until_ended(1)
    wish = add_request(desk.rig.store, "set", "1", name="priority", value=3)
    desk.rig.tick()
    assert request_answer(desk.rig.store, wish) == wrong_state("set", JobState.FINISHED)


def test_adding_the_cancel_attribute_ends_a_running_job(desk: WatchedFile) -> None:
    desk.save("[gpus=2] sleep 60\n")
    desk.rig.runner_pid(1)
    desk.save("[gpus=2 cancel] sleep 60\n")
    assert desk.rig.tick_until_ended(1).outcome == "cancelled"


def test_a_job_requeued_by_a_line_with_the_hold_attribute_is_held(desk: WatchedFile) -> None:
    (desk.rig.folder / "s.py").write_text("raise SystemExit(3)")
    desk.save("0,s.py,,--llm x,\n")
    assert desk.rig.tick_until_ended(1).exit_code == 3
    desk.save("# x\n", quiet_s=60)
    desk.save("[hold] 0,s.py,,--llm x,\n")
    assert desk.states() == {1: "held"}
    assert desk.rig.job(1).held_by == "line"
    assert len(desk.rig.store.attempts(1)) == 1


def test_jobs_run_in_the_folder_in_which_the_jobs_file_was_first_read(
    desk: WatchedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("[share=0.2] pwd >> ran\n")
    desk.rig.tick_until_ended(1)
    elsewhere = desk.rig.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    desk.restart()
    desk.save("[share=0.2] pwd >> ran\n[share=0.2] pwd >> ran\n")
    desk.rig.tick_until_ended(2)
    assert (desk.rig.folder / "ran").read_text().split() == [str(desk.rig.folder)] * 2


def test_changes_read_from_the_jobs_file_are_recorded_completely_or_not_at_all(
    desk: WatchedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save(f"{WAIT}echo a\n")
    real = type(desk.rig.store).insert_job
    calls = []

    def failing(*args: object, **values: object) -> int:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("disk full")
        return real(*args, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(type(desk.rig.store), "insert_job", failing)
    with pytest.raises(OSError, match="disk full"):
        desk.save(f"{WAIT}echo a\n{WAIT}echo b\n{WAIT}echo c\n")
    monkeypatch.undo()
    desk.restart()
    desk.wait(30)
    assert desk.states() == {1: "held", 2: "held", 3: "held"}


def test_warns_once_about_lines_that_will_not_work_as_intended(
    desk: WatchedFile, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_llm_config('{"models": {"big": {"gpus": 2}}}')
    desk.watch = JobsFileWatcher(desk.rig.store, str(desk.path), None, lambda: config)
    with caplog.at_level("WARNING"):
        desk.save(
            "# a comment\npyhton t.py\necho --device cuda:1 --llm big\necho --device cuda:1\n"
            "[on=slurm] only-on-the-nodes\n"
        )
        desk.wait(30)
    assert caplog.messages == [
        "jobs.txt, line 2: `pyhton` is not a program on PATH, so bash will report `command not found`",
        "jobs.txt, line 4: --device cuda:1: the job sees one GPU, always as cuda:0; write"
        " cuda:0, and [allowed=1] for GPU 1",
    ]
    assert len(desk.states()) == 4


def test_reports_a_missing_jobs_file_once(desk: WatchedFile, caplog: pytest.LogCaptureFixture) -> None:
    desk.save("true\n")
    desk.path.unlink()
    with caplog.at_level("WARNING"):
        desk.wait(0)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{desk.path} does not exist; its jobs continue"]
    [file] = jobs_files(desk.rig.store)
    assert (file.path, file.problem) == (str(desk.path), "does not exist")
