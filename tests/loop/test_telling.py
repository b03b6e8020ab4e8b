"""What the scheduler says of the record: the log, the journal and the board, also over a restart."""

from __future__ import annotations

import json
import logging
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler import journal
from gpu_scheduler.core import actions as act
from gpu_scheduler.core.facts import Attempt, Facts, Gpu, Settings
from gpu_scheduler.core.gpu import GpuProcess, GpuSample
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import LlmConfig
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.recorder import Recorder
from gpu_scheduler.store.store import Store
from gpu_scheduler.telling import RETRY_S, Telling
from gpu_scheduler.views.events import iso
from tests.loop.hands import Hands


class Desk:
    """A record with two GPUs, and what tells of it; `new` is a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Hands()
        self.store = Store(Home.of(str(folder / "state.json")), create=True)
        self.recorder = Recorder(self.store, Settings())
        samples = [GpuSample(f"U{i}", i, "card", 24576, 0, 0.0, ()) for i in range(2)]
        self.recorder.note_gpus(samples, ["U0", "U1"], self.clock.now())
        self.gpus = [Gpu(one.uuid, one.index, sample=one, sampled_at=100.0) for one in samples]
        self.telling = self.new()

    def new(self, logs: LogFolder | None = None, *, verbose: bool = False) -> Telling:
        self.telling = Telling(self.store, self.clock, Settings(), logs, verbose=verbose)
        return self.telling

    def job(self, command: str = "true", **values: Any) -> int:
        spec = JobSpec("command", command, str(self.folder), command=command, **values)
        return self.store.insert_job(spec, "test", self.clock.now().wall)

    def record(self, *actions: act.Action) -> dict[int, int]:
        return self.recorder.record(actions, self.clock.now())

    def start(self, job: int, **values: Any) -> int:
        return self.record(act.Start(job, ("U0",), **{"share": 500, **values}))[job]

    def end(self, job: int, attempt: int, **values: Any) -> None:
        values = {"state": JobState.FINISHED, "job_outcome": Outcome.COMPLETED, **values}
        self.record(act.Close(job, attempt, Outcome.COMPLETED, **values))

    def turn(self) -> None:
        self.telling.turn(self.facts())

    def facts(self, *attempts: Attempt) -> Facts:
        return Facts(self.clock.now(), Settings(), LlmConfig(), tuple(self.gpus), attempts=attempts)

    @property
    def journal(self) -> Path:
        return self.store.home.folder / "journal.jsonl"

    @property
    def board(self) -> Path:
        return self.store.home.folder / "status.txt"

    def ids(self, path: Path | None = None) -> list[int]:
        """The ids in the journal, each a whole line of JSON."""
        text = (path or self.journal).read_text()
        assert text.endswith("\n")
        return [json.loads(line)["id"] for line in text.splitlines()]

    def events(self) -> list[int]:
        return [row["rowid"] for row in self.store.db.rows("SELECT rowid FROM history ORDER BY rowid")]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged at info and above since the last call."""
    caplog.set_level(logging.INFO)

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return told


def test_each_start_says_how_many_jobs_wait_no_more(desk: Desk, said: Callable[[], list[str]]) -> None:
    jobs = [desk.job(f"echo {n}") for n in range(3)]
    desk.record(act.Start(jobs[0], ("U0",), 0, vram=18432), act.Start(jobs[1], ("U1",), 500))
    desk.telling.told(act.WishDone(1, ""))
    assert said() == [
        "job 1 starts on gpu [0] (1/3 dispatched, declared 18432 MiB/gpu) — echo 0",
        "job 2 starts on gpu [1] (2/3 dispatched, share 0.5) — echo 1",
    ]
    desk.turn()
    assert said() == []


def test_the_count_of_dispatched_jobs_never_goes_down(desk: Desk, said: Callable[[], list[str]]) -> None:
    job, other = desk.job("echo a"), desk.job("echo b")
    attempt = desk.start(job)
    desk.turn()
    desk.end(job, attempt, state=JobState.QUEUED, job_outcome=None, reason="again")
    desk.start(other)
    desk.start(job)
    desk.turn()
    told = [line for line in said() if "dispatched" in line]
    assert ["1/2" in told[0], "2/2" in told[1], "2/2" in told[2]] == [True, True, True]


def test_jobs_that_ran_when_the_scheduler_came_up_stay_dispatched(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    running, other = desk.job("echo a"), desk.job("echo b")
    attempt = desk.start(running)
    desk.turn()
    desk.new()
    said()
    _again(desk, running, attempt)
    desk.start(other)
    desk.start(running)
    desk.turn()
    assert ["(2/2 dispatched" in line for line in said() if "dispatched" in line] == [True, True]


def test_a_launch_that_fails_is_not_called_started(desk: Desk, said: Callable[[], list[str]]) -> None:
    job = desk.job("echo a")
    attempt = desk.start(job)
    desk.record(act.Close(job, attempt, Outcome.NOT_STARTED, JobState.QUEUED, None, reason="no script"))
    desk.turn()
    assert [line.partition(" (")[0] for line in said()] == [
        "job 1 starts on gpu [0]",
        "job 1 not started, queued again — no script",
    ]


def test_the_end_of_an_attempt_is_announced_before_it_is_told(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    ended: list[tuple[int, int, list[str]]] = []
    desk.telling = Telling(
        desk.store, desk.clock, Settings(), None,
        ended=lambda job, number: ended.append((job, number, said())),
    )  # fmt: skip
    job = desk.job("echo a")
    desk.end(job, desk.start(job))
    desk.turn()
    [(ended_job, number, told_before)] = ended
    assert (ended_job, number, len(told_before)) == (job, 1, 1)
    assert "finished [OK]" in said()[0]


def _again(desk: Desk, job: int, attempt: int) -> None:
    """It waits once more."""
    desk.end(job, attempt, state=JobState.QUEUED, job_outcome=None, reason="again")


def _finished(desk: Desk, job: int, attempt: int) -> None:
    """One that never started is cancelled."""
    desk.record(act.Finish(desk.job("echo other"), Outcome.CANCELLED, "why not"))


def _retried(desk: Desk, job: int, attempt: int) -> None:
    """It has finished in this run, and runs once more."""
    desk.end(job, attempt)
    desk.record(act.Requeue(job, "asked for"))


@pytest.mark.parametrize(
    ("then", "told"), [(_again, ["1/2", "2/2"]), (_finished, ["1/3", "3/3"]), (_retried, ["1/2", "2/2"])]
)
def test_of_several_events_that_are_told_together_each_has_the_count_of_its_moment(
    desk: Desk, said: Callable[[], list[str]], then: Callable[[Desk, int, int], None], told: list[str]
) -> None:
    job, last = desk.job("echo a"), desk.job("echo last")
    then(desk, job, desk.start(job))
    desk.start(last)
    desk.turn()
    lines = [line for line in said() if "dispatched" in line]
    assert [line.partition("(")[2].partition(" ")[0] for line in lines] == told


def test_jobs_that_were_finished_when_it_came_up_are_none_of_this_run(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    old, kept = desk.job("echo old"), desk.job("echo kept")
    for job in (old, kept):
        desk.end(job, desk.start(job))
    desk.turn()
    desk.new()
    said()
    new = desk.job("echo new")
    desk.start(new)
    desk.turn()
    assert "(1/1 dispatched" in said()[0]
    # One of them runs again: now it is.
    desk.record(act.Requeue(old, "asked for"))
    desk.turn()
    desk.end(new, 3)
    desk.start(old)
    desk.turn()
    told = said()
    assert told[0] == "job 1 queued: asked for"
    assert "(2/2 dispatched" in told[-1]
    # And one of this run, once more.
    desk.record(act.Requeue(new, "asked for"))
    desk.start(new)
    desk.turn()
    assert "(2/2 dispatched" in said()[-1]


def test_a_job_that_runs_again_is_counted_once_however_often_it_is_held(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    old = desk.job("echo old")
    desk.end(old, desk.start(old))
    desk.turn()
    desk.new()
    for _ in range(2):
        desk.record(act.Requeue(old, "asked for"))
        desk.record(act.Hold(old, "user", "held by the user"))
    desk.record(act.Requeue(old, "asked for"))
    desk.start(old)
    desk.turn()
    assert "(1/1 dispatched" in said()[-1]


def test_what_a_killed_scheduler_recorded_and_did_not_say_is_said_by_the_next(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    job = desk.job("echo a")
    desk.start(job)
    desk.turn()
    said()
    desk.record(act.Hold(desk.job("echo b"), "user", "held by the user"))
    desk.new()
    desk.turn()
    desk.turn()
    assert said() == ["job 2 held: held by the user"]
    assert desk.ids() == desk.events()


def test_a_record_that_was_never_told_of_is_not_told_from_its_beginning(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    desk.start(desk.job())
    desk.new()
    desk.turn()
    assert said() == []
    assert not desk.journal.exists()


def test_what_is_told_only_where_it_is_asked_for(desk: Desk, said: Callable[[], list[str]]) -> None:
    job = desk.job()
    attempt = desk.start(job, vram=9000)
    desk.new(verbose=True)
    for mib in (0, 3000, 2000, 3001):
        use = act.NoteUse(job, attempt, float(mib), (("U0", mib, 50.0), ("U1", None, None)))
        desk.record(use)
        desk.telling.told(use)
    assert said() == [
        "job 1 gpu0 3000 MiB (peak so far; declared 9000)",
        "job 1 gpu0 3001 MiB (peak so far; declared 9000)",
    ]
    share = desk.job()
    use = act.NoteUse(share, desk.start(share, share=250), 9.0, (("U0", 5000, 50.0),))
    desk.record(use)
    desk.telling.told(use)
    assert said()[-1] == "job 2 gpu0 5000 MiB (peak so far; declared 6144 by share 0.25)"
    # Nor is it told again by the next one.
    desk.new(verbose=True).told(use)
    desk.new().told(act.NoteUse(job, attempt, 9.0, (("U0", 9000, 50.0),)))
    assert said() == []


def test_the_journal_has_every_event_once(desk: Desk) -> None:
    job = desk.job()
    desk.turn()
    attempt = desk.start(job)
    desk.turn()
    desk.new()
    desk.end(job, attempt)
    desk.turn()
    assert desk.ids() == desk.events() == [1, 2, 3]
    lines = [json.loads(line) for line in desk.journal.read_text().splitlines()]
    assert [(one["event"], one["job"]) for one in lines] == [("queued", 1), ("starting", 1), ("finished", 1)]
    assert lines[2]["outcome"] == "completed"
    assert os.stat(desk.journal).st_mode & 0o777 == 0o600


def _behind(desk: Desk) -> None:
    """It died after the lines were appended, and before that was remembered."""
    desk.store.db.set_meta("told", "[3, 1]")


def _torn(desk: Desk) -> None:
    """It died while it wrote."""
    with desk.journal.open("ab") as file:
        file.write(b'{"id": 4, "at": "2026-')


def _torn_at_once(desk: Desk) -> None:
    """It died while it wrote the first line."""
    desk.journal.write_bytes(b'{"id": 1, "at": "2026-')
    desk.store.db.set_meta("told", "[0, 0]")


def _lost(desk: Desk) -> None:
    """A power cut took the last lines of the file."""
    lines = desk.journal.read_bytes().splitlines(keepends=True)
    desk.journal.write_bytes(b"".join(lines[:1]))


@pytest.mark.parametrize("happened", [_behind, _torn, _torn_at_once, _lost])
def test_the_seam_of_two_runs(desk: Desk, happened: Callable[[Desk], None]) -> None:
    for _ in range(3):
        desk.job()
    desk.turn()
    happened(desk)
    desk.new()
    desk.job()
    desk.turn()
    assert desk.ids() == desk.events() == [1, 2, 3, 4]


def test_a_journal_that_was_removed_or_is_of_another_record_goes_on(desk: Desk) -> None:
    for _ in range(3):
        desk.job()
    desk.turn()
    desk.journal.unlink()
    desk.new()
    desk.job()
    desk.turn()
    assert desk.ids() == [4]
    foreign = '{"id": 2, "at": "2020-01-01T00:00:00.000+00:00", "event": "queued", "job": 2}\nno JSON\n'
    for text in (foreign, foreign[:-8], "[]\n"):
        desk.journal.write_text(text)
        desk.new()
        desk.job()
        desk.turn()
        assert desk.journal.read_text().startswith(text)
        assert json.loads(desk.journal.read_text().splitlines()[-1])["id"] == desk.events()[-1]
        assert len(desk.journal.read_text().splitlines()) == len(text.splitlines()) + 1


@pytest.mark.parametrize("other", [{"at": 1.0}, {"job": 2}, {"event": "held"}, {"id": 2}])
def test_a_last_line_goes_for_one_of_this_record_only_if_all_of_it_is(
    desk: Desk, other: dict[str, Any]
) -> None:
    desk.job()
    desk.job()
    desk.clock.boot += 60
    desk.job()
    desk.turn()
    line = json.loads(desk.journal.read_text().splitlines()[0])
    if "at" in other:
        other = {"at": iso(desk.clock.now().wall - 60 + other["at"])}
    desk.journal.write_text(f"{json.dumps({**line, **other})}\n")
    desk.new()
    desk.job()
    desk.turn()
    assert desk.ids()[1:] == [4]


def test_what_was_remembered_and_lost_with_the_power_is_told_anew(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    job = desk.job()
    desk.turn()
    desk.store.db.set_meta("told", "[100, 100]")
    desk.new()
    desk.record(act.Hold(job, "user", "held by the user"))
    desk.turn()
    assert desk.ids() == [1, 2]
    assert said() == ["job 1 held: held by the user"]


def test_what_cannot_be_read_from_the_record_is_said_with_the_next_action(
    desk: Desk, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    job = desk.job()
    desk.record(act.Hold(job, "user", "held by the user"))
    with monkeypatch.context() as patch:
        patch.setattr("gpu_scheduler.telling.events.newest", fail)
        desk.telling.told(act.WishDone(1, ""))
    assert said() == []
    desk.telling.told(act.WishDone(1, ""))
    assert said() == ["job 1 held: held by the user"]


@contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    """As on a full disk, a write that goes beyond this size is cut there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_whole_lines_and_the_rest_comes_later(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    desk.turn()
    for _ in range(20):
        desk.job()
    desk.turn()
    full = desk.journal.stat().st_size
    for _ in range(2000):
        desk.job()
    line = (full // 20) * 500 + 17
    kept = journal.Journal(desk.store, lambda: desk.store.home.folder, 20)
    with _no_file_above(full + line), pytest.raises(OSError, match="No space"):
        kept.write()
    some = desk.ids()
    assert 20 < len(some) < 2020
    assert (kept.at, kept.behind) == (some[-1], False)
    kept.write()
    assert desk.ids() == desk.events()
    assert len(desk.events()) == 2020


def test_what_cannot_be_written_is_told_once_and_tried_again(
    desk: Desk, said: Callable[[], list[str]]
) -> None:
    desk.journal.mkdir()
    desk.job()
    desk.turn()
    desk.turn()
    [told] = said()
    assert told.startswith("journal.jsonl cannot be written: ")
    assert told.endswith("; jobs continue, retrying")
    assert desk.telling.again_at == desk.clock.boot + RETRY_S
    assert "1 queued" in desk.board.read_text()
    desk.clock.boot += RETRY_S
    desk.turn()
    assert said() == []
    assert desk.telling.again_at == desk.clock.boot + RETRY_S
    # Another fault is told too.
    desk.journal.rmdir()
    desk.journal.symlink_to("nowhere")
    desk.clock.boot += RETRY_S
    desk.turn()
    [told] = said()
    assert "Too many levels of symbolic links" in told
    desk.journal.unlink()
    desk.turn()
    assert not desk.journal.exists()
    desk.clock.boot += RETRY_S
    desk.turn()
    assert said() == ["journal.jsonl can be written again"]
    assert desk.ids() == [1]
    assert desk.telling.again_at is None


def test_what_is_no_file_is_not_written(desk: Desk, said: Callable[[], list[str]]) -> None:
    os.mkfifo(desk.journal)
    desk.job()
    desk.turn()
    assert said() == ["journal.jsonl cannot be written: not a file; jobs continue, retrying"]


def test_the_last_words_are_tried_whatever_failed_before(desk: Desk) -> None:
    desk.journal.mkdir()
    desk.job()
    desk.turn()
    desk.journal.rmdir()
    desk.telling.close()
    assert desk.ids() == [1]


@pytest.mark.parametrize("name", ["journal.jsonl", "status.txt"])
def test_a_link_is_not_written_through(desk: Desk, name: str) -> None:
    target = desk.folder / "precious"
    target.write_text("mine\n")
    (desk.store.home.folder / name).symlink_to(target)
    desk.job()
    desk.turn()
    desk.telling.close()
    assert target.read_text() == "mine\n"


def test_a_large_journal_is_put_aside(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 500)
    for _ in range(20):
        desk.job()
        desk.turn()
    aside = desk.ids(desk.journal.with_name("journal.jsonl.1"))
    assert aside + desk.ids() == list(range(aside[0], 21))
    assert 500 <= desk.journal.with_name("journal.jsonl.1").stat().st_size < 1000
    assert desk.journal.stat().st_size < 1000


def test_a_full_disk_after_a_journal_was_put_aside_leaves_whole_lines(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        desk.job()
    desk.turn()
    monkeypatch.setattr(journal, "MOST_BYTES", 1000)
    line = desk.journal.stat().st_size // 20
    for _ in range(20):
        desk.job()
    with _no_file_above(5 * line):
        desk.turn()
    assert desk.ids()[0] == 21
    assert len(desk.ids()) < 20
    desk.clock.boot += RETRY_S
    desk.turn()
    assert desk.ids() == list(range(21, 41))


def test_many_events_are_appended_a_part_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "AT_A_TIME", 10)
    for _ in range(25):
        desk.job()
    desk.turn()
    assert desk.ids() == list(range(1, 11))
    assert desk.telling.again_at == desk.clock.boot
    desk.turn()
    desk.turn()
    assert desk.ids() == desk.events()
    assert desk.telling.again_at is None
    for _ in range(25):
        desk.job()
    desk.telling.close()
    assert desk.ids() == desk.events()


def test_both_lie_in_the_folder_of_the_job_logs_where_one_is_named(desk: Desk, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    desk.new(LogFolder.of(str(logs)))
    desk.job()
    desk.turn()
    assert sorted(os.listdir(logs)) == ["journal.jsonl", "status.txt"]
    for name in os.listdir(logs):
        (logs / name).unlink()
    logs.rmdir()
    desk.clock.boot += 1
    desk.job()
    desk.turn()
    assert sorted(os.listdir(logs)) == ["journal.jsonl", "status.txt"]
    assert not desk.journal.exists()


def test_the_board_follows_events_and_samples(desk: Desk) -> None:
    desk.turn()
    first = os.stat(desk.board)
    assert f"scheduler pid {os.getpid()}  0 running, 0 queued" in desk.board.read_text()
    desk.clock.boot += 1
    desk.turn()
    assert os.stat(desk.board).st_ino == first.st_ino
    job = desk.job("python train.py")
    attempt = desk.start(job, vram=9000)
    desk.record(act.Move(job, attempt, JobState.RUNNING))
    use = act.NoteUse(job, attempt, 101.0, (("U0", 8000, 50.0),))
    desk.record(use)
    sample = GpuSample("U0", 0, "card", 24576, 7000, 50.0, (GpuProcess(77, 7000),))
    desk.gpus[0] = Gpu("U0", 0, sample=sample, sampled_at=102.0, owners={77: attempt})
    fact = Attempt(
        attempt, job, "token", "boot", JobState.RUNNING, gpus=("U0",), vram=9000, budgets={"U0": 9000},
        peaks={"U0": 8000},
    )  # fmt: skip
    desk.clock.boot += 7
    desk.telling.turn(desk.facts(fact))
    text = desk.board.read_text()
    assert "▶ job 1  gpu [0]  7.0s  gpu0:7000/8000 MiB now/peak, declared 9000 — python train.py\n" in text
    assert "allocated 0.5, 9000 MiB" in text


@pytest.mark.parametrize(
    ("share", "vram", "is_declared", "told"),
    [
        (250, None, True, "share 0.25"),
        (1000, None, True, "share 1"),
        (250, 9000, True, "share 0.25, declared 9000"),
        (1000, None, False, "no declaration"),
        (250, None, False, "no declaration"),
        (0, 9000, False, "no declaration"),
    ],
)
def test_the_board_tells_what_a_job_declared(
    desk: Desk, share: int, vram: int | None, is_declared: bool, told: str
) -> None:
    job = desk.job("python train.py")
    attempt = desk.start(job, share=share, vram=vram)
    desk.record(act.Move(job, attempt, JobState.RUNNING))
    budgets = {"U0": 6144} if is_declared else {}
    fact = Attempt(attempt, job, "token", "boot", JobState.RUNNING, ("U0",), share, vram, budgets=budgets)
    desk.telling.turn(desk.facts(fact))
    assert f"n/a MiB now/peak, {told} — python train.py\n" in desk.board.read_text()


def test_the_board_is_written_twice_a_second_at_most(desk: Desk) -> None:
    desk.turn()
    desk.job("echo soon")
    desk.clock.boot += 0.2
    desk.turn()
    assert "soon" not in desk.board.read_text()
    assert desk.telling.again_at == pytest.approx(100.5)
    desk.clock.boot += 0.3
    desk.turn()
    assert "echo soon" in desk.board.read_text()
    assert desk.telling.again_at is None


def test_a_board_that_a_crash_left_half_written_is_in_nobodys_way(desk: Desk) -> None:
    desk.board.with_name(".status.txt.new").write_text("half")
    desk.turn()
    assert "0 running" in desk.board.read_text()
    assert not desk.board.with_name(".status.txt.new").exists()


def test_the_board_goes_by_the_limits_of_the_scheduler(desk: Desk) -> None:
    attempt = desk.start(job := desk.job())
    desk.record(act.NoteUse(job, attempt, 101.0, (("U0", 20000, 50.0),)))
    Telling(desk.store, desk.clock, Settings(limits=Limits(spike=0.5)), None).turn(desk.facts())
    assert "allocated 0.5, 30000 MiB" in desk.board.read_text()


def test_the_end_of_the_scheduler_is_on_the_board(desk: Desk) -> None:
    desk.job("echo left")
    desk.turn()
    desk.telling.close()
    assert "scheduler stopped" in desk.board.read_text()
    assert "· job 1  not tried yet — echo left" in desk.board.read_text()


def test_a_board_of_many_jobs_shows_the_first_and_the_newest(desk: Desk) -> None:
    for n in range(70):
        desk.job(f"echo waits {n};")
    for job in range(41, 71):
        desk.record(act.Hold(job, "user", "held by the user"))
    for _ in range(30):
        job = desk.job("echo done")
        desk.record(act.Finish(job, Outcome.CANCELLED, "why not"))
    desk.turn()
    lines = desk.board.read_text().splitlines()
    waits = [line for line in lines if line.startswith("·")]
    done = [line for line in lines if line.startswith("✗")]
    assert (len(waits), len(done)) == (50, 20)
    assert "waits 0;" in waits[0]
    assert "waits 39;" in waits[39]
    assert "held by the user — echo waits 49;" in waits[49]
    assert "job 100 " in done[0]
    assert [line for line in lines if line.startswith("…")] == ["… and 20 more", "… and 10 more"]


def test_a_retry_for_memory_has_its_mark(desk: Desk) -> None:
    job = desk.job("python big.py")
    attempt = desk.start(job)
    desk.end(
        job, attempt, state=JobState.QUEUED, job_outcome=None, reason="OOM retry 1 of 3", oom_used=1,
        raised_mib=5000,
    )  # fmt: skip
    desk.turn()
    assert "↻ job 1  OOM retry 1 of 3 — python big.py\n" in desk.board.read_text()
