"""Tests of the parts around the loop: log files, console output, wake-ups and managed GPUs."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from inotify_simple import INotify

from gpu_scheduler.attempts import job_logs
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.daemon.log_output import Console, configure_logging
from gpu_scheduler.daemon.main_loop import Wakeups
from gpu_scheduler.daemon.service import check_paths
from gpu_scheduler.errors import UsageError
from gpu_scheduler.gpus.probes.probe_process import count_note, select_gpus
from gpu_scheduler.gpus.watch import GpuWatch
from gpu_scheduler.runner.folder import read_spec
from tests.loop.rig import Rig
from tests.waiting import wait_for

CARDS = [GpuSample(f"U{i}", i, "card", 24576, 0, 0.0) for i in range(4)]


@pytest.mark.parametrize(
    ("option", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [0, 1]),
        ("4", [0, 1, 2, 3]),
        ("3,", [3]),
        ("0,2-3", [0, 2, 3]),
        ("all", [0, 1, 2, 3]),
    ],
)
def test_the_gpus_option_is_a_count_or_a_list(option: str | None, chosen: list[int]) -> None:
    assert [gpu.index for gpu in select_gpus(CARDS, option)] == chosen


@pytest.mark.parametrize(
    ("cards", "option", "note"),
    [
        (CARDS, "1", "--gpus 1 is a count: GPU 0; for GPU 1 alone write --gpus 1,"),
        (CARDS, "3", "--gpus 3 is a count: GPUs 0, 1, 2; for GPU 3 alone write --gpus 3,"),
        (CARDS, "4", None),
        (CARDS, "1,", None),
        (CARDS, "all", None),
        (CARDS, None, None),
        # With CUDA_VISIBLE_DEVICES=2,3, the scheduler has no GPU 1.
        (CARDS[2:], "1", "--gpus 1 is a count: GPU 2"),
    ],
)
def test_start_names_the_selected_gpus_if_fewer_are_requested_than_exist(
    cards: list[GpuSample], option: str | None, note: str | None
) -> None:
    assert count_note(cards, option) == note


@pytest.mark.parametrize("option", ["0", "5", "7,", "1,1", "3-1", "x", "-1"])
def test_start_rejects_more_gpus_than_exist_and_names_the_number_found(option: str) -> None:
    with pytest.raises(UsageError, match="4 GPUs found"):
        select_gpus(CARDS, option)


def test_the_load_of_a_gpu_is_the_mean_of_the_last_three_samples() -> None:
    watch = GpuWatch()
    for load in (100.0, 10.0, 20.0, 60.0):
        watch.accept_sample(Snapshot(1.0, (GpuSample("U0", 0, "card", 24576, 0, load),)))
    [gpu] = watch.gpus([Gpu("U0", 0)], {})
    assert gpu.mean_load == 30.0


def test_after_a_failed_query_placement_has_no_gpu_sample() -> None:
    watch = GpuWatch()
    watch.accept_sample(Snapshot(1.0, (CARDS[0],)))
    watch.record_failure("hangs")
    [gpu] = watch.gpus([Gpu("U0", 0)], {})
    assert (gpu.sample, watch.snapshot) == (None, None)
    assert watch.failure == "hangs"


def test_a_gpu_process_belongs_to_the_attempt_whose_token_it_or_its_parent_has() -> None:
    env = {**os.environ, "GPU_SCHEDULER_TOKEN": "abc"}
    ours = subprocess.Popen(["sh", "-c", "env -i sleep 60 & wait"], env=env)
    theirs = subprocess.Popen(["sleep", "60"])

    def children() -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text().split()]

    [child] = wait_for(children, "the child without a token")
    pids = (ours.pid, child, theirs.pid)
    sample = GpuSample("U0", 0, "card", 24576, 0, 0.0, tuple(GpuProcess(pid, 1) for pid in pids))
    watch = GpuWatch()
    watch.accept_sample(Snapshot(1.0, (sample,)))
    [gpu] = watch.gpus([Gpu("U0", 0)], {"abc": 5})
    for pid in (child, ours.pid, theirs.pid):
        os.kill(pid, 9)
    ours.wait()
    theirs.wait()
    assert gpu.owners == {ours.pid: 5, child: 5, theirs.pid: None}


def test_the_default_log_folder_is_private_and_not_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "logs"
    monkeypatch.setattr(job_logs, "DEFAULT_FOLDER", default)
    monkeypatch.setenv("LOGNAME", "ada")
    assert job_logs.LogFolder.from_option(None).create() == default
    default.chmod(0o755)
    assert job_logs.LogFolder.from_option(None).create().stat().st_mode & 0o777 == 0o700
    default.rmdir()
    default.symlink_to(tmp_path)
    assert job_logs.LogFolder.from_option(None).create() == tmp_path / "logs_ada"
    (tmp_path / "logs_ada").rmdir()
    (tmp_path / "logs_ada").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="logs_ada"):
        job_logs.LogFolder.from_option(None).create()
    with pytest.raises(UsageError, match=r"logs_ada: is a link; name a folder that you own with --log-dir"):
        check_paths(StartOptions(state_file=str(tmp_path / "s.json"), jobs_file=""))


def test_a_log_is_always_a_new_private_file(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678)
    first = job_logs.create_log(tmp_path, 3, when)
    assert first.name == "job_3_20260102_030405_000678.log"
    assert first.stat().st_mode & 0o777 == 0o600
    victim = tmp_path / "victim"
    (tmp_path / f"{first.name}.1").symlink_to(victim)
    assert job_logs.create_log(tmp_path, 3, when).name == f"{first.name}.2"
    assert not victim.exists()


def test_the_output_of_a_job_without_screen_is_printed_with_its_job_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(tmp_path)
    console = Console()
    configure_logging(tmp_path / "main.log", console)
    job = rig.add_job("echo one; printf '\\033[32mtwo\\033[0m\\n'; exit 3")
    rig.tick()
    attempt = rig.store.attempts(job)[0]
    console.follow_attempt(attempt)
    rig.tick_until_ended(job)
    console.finish_attempt(job, 1)
    logging.getLogger("gpu_scheduler").info("a line of ours, about %s\n  and more", "\x1b]0;evil\x07")
    wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    out = capsys.readouterr().out
    theirs = "[job 1] one\n[job 1] \x1b[32mtwo\x1b[0m\n[job 1] --- failed: exit code 3"
    assert theirs in out  # The job's own output is not escaped.
    assert out.index(theirs) < out.index("a line of ours"), "a job's output comes before later messages"
    assert "# job" not in out
    ours = "a line of ours, about \\x1b]0;evil\\x07\n  and more\n"
    assert ours in out
    assert (tmp_path / "main.log").read_text().endswith(ours)


def test_only_changes_to_watched_files_wake_the_scheduler(tmp_path: Path) -> None:
    wakeups = Wakeups()
    assert wakeups.watch(tmp_path / "jobs.txt", "jobs")
    assert not wakeups.watch(tmp_path / "none" / "x", "x")
    (tmp_path / "other").write_text("x")
    assert wakeups.wait(0.05) == set()
    (tmp_path / "spare").write_text("x")
    os.replace(tmp_path / "spare", tmp_path / "jobs.txt")
    assert wakeups.wait(60) == {"jobs"}
    wakeups.close()


@pytest.mark.parametrize(("number", "limit"), [(errno.EMFILE, "instances"), (errno.ENOSPC, "watches")])
def test_ended_runners_and_signals_wake_the_scheduler_even_if_files_cannot_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, limit: str
) -> None:
    def refuse(*words: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(INotify, "__init__" if number == errno.EMFILE else "add_watch", refuse)
    wakeups = Wakeups()
    assert not wakeups.watch(tmp_path / "jobs.txt", "jobs")
    runner = subprocess.Popen(["sleep", "60"])
    assert not wakeups.watch_attempts({tmp_path: runner.pid})
    assert wakeups.wait(0.05) == set()
    runner.kill()
    assert wakeups.wait(60) == {"runner"}
    runner.wait()
    wakeups.watch_attempts({})
    wakeups.close()
    assert caplog.text.count(f"fs.inotify.max_user_{limit}=") == 1


def test_a_folder_that_is_watched_before_its_runner_starts_is_not_new(tmp_path: Path) -> None:
    wakeups = Wakeups()
    assert wakeups.watch_attempt(tmp_path)
    (tmp_path / "claim").write_text("x")
    assert not wakeups.watch_attempts({tmp_path: None})
    assert wakeups.wait(60) == {"attempt"}
    wakeups.close()


def test_watches_the_folder_and_the_runner_of_an_attempt_until_it_ends(tmp_path: Path) -> None:
    wakeups = Wakeups()
    folder = tmp_path / "run"
    folder.mkdir()
    runner = subprocess.Popen(["sleep", "60"])
    open_before = len(os.listdir("/proc/self/fd"))
    assert wakeups.watch_attempts({folder: runner.pid})
    assert not wakeups.watch_attempts({folder: runner.pid})
    (folder / ".result.1").write_text("x")
    assert wakeups.wait(0.05) == set()
    os.replace(folder / ".result.1", folder / "result")
    assert wakeups.wait(60) == {"attempt"}
    runner.kill()
    assert wakeups.wait(60) == {"runner"}
    assert wakeups.wait(0.05) == set()  # The end of a runner wakes the scheduler only once.
    runner.wait()
    wakeups.watch_attempts({})
    (folder / "claim").write_text("x")
    assert wakeups.wait(0.05) == set()
    assert len(os.listdir("/proc/self/fd")) == open_before
    wakeups.close()


@pytest.mark.parametrize(
    ("command", "values", "expected"),
    [
        ("true", {}, {"ignore_hangup": True, "background": None, "ends_in_pipe": False, "timeout_s": None}),
        ("true", {"preempt_signal": "HUP"}, {"ignore_hangup": False}),
        ("true", {"preempt_signal": "INT"}, {"ignore_hangup": True}),
        ("true | cat", {}, {"ends_in_pipe": True}),
        ("true | cat", {"pipefail": "off"}, {"ends_in_pipe": False}),
        ("true", {"background": "wait", "timeout_s": 9.0}, {"background": "wait", "timeout_s": 9.0}),
    ],
)
def test_a_runner_is_told_what_its_job_declares(
    tmp_path: Path, command: str, values: dict[str, object], expected: dict[str, object]
) -> None:
    rig = Rig(tmp_path)
    job = rig.add_job(command, **values)
    rig.tick_until_ended(job)
    found = read_spec(rig.attempt_folder(job))
    assert {name: found[name] for name in expected} == expected
