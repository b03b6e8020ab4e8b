"""Tests that a shortage of processes, memory or open files is not blamed on a job, a line or a GPU."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts import executors
from gpu_scheduler.attempts.executors import DirectExecutor, LaunchError
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.attempts.job_logs import LogFolder, read_tail
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.daemon import log_output as job_output
from gpu_scheduler.daemon.log_output import Console
from gpu_scheduler.daemon.main_loop import Daemon, Wakeups
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.gpus.probes import probe_process
from gpu_scheduler.health import storage_monitor
from gpu_scheduler.health.storage import find_issues, unusable_file_issue
from gpu_scheduler.health.storage_monitor import StorageMonitor
from gpu_scheduler.intake import jobs_file_text
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.runner import folder
from gpu_scheduler.runner.folder import read_spec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.jobs_files import jobs_files, malformed_lines
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.system import procfs, shortages
from gpu_scheduler.system.shortages import describe_shortage
from tests.loop.rig import SETTINGS, Rig
from tests.reasons import words
from tests.runner.attempt import patched
from tests.runner.fork_helper import helper_pid
from tests.waiting import wait_for


def refuse(number: int) -> Callable[..., Any]:
    def call(*words: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


class Refusing(DirectExecutor):
    """An executor that launches attempts only if `number` is None. `tried` counts the launches."""

    def __init__(self, number: int | None) -> None:
        super().__init__()
        self.number = number
        self.tried = 0

    def launch(self, attempt: AttemptRef) -> None:
        """Raises LaunchError with errno `number`. If it is 0, fails without an error, as Screen may."""
        self.tried += 1
        if self.number:
            error = OSError(self.number, os.strerror(self.number))
            raise LaunchError(f"the runner cannot be started: {error}") from error
        if self.number is None:
            super().launch(attempt)


def rig_with(tmp_path: Path, executor: DirectExecutor, settings: Settings = SETTINGS) -> Rig:
    rig = Rig(tmp_path, gpus=1, executor=executor, settings=settings)
    logs = LogFolder.from_option(str(tmp_path / "logs"))
    rig.loop.storage = StorageMonitor(rig.store.data_dir, logs, Clock())
    return rig


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE])
def test_a_launch_that_fails_because_of_a_shortage_does_not_count_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage_monitor, "BACKOFF_S", 0.001)
    executor = Refusing(number)
    rig = rig_with(tmp_path, executor)
    job, other = rig.add_job("exit 7", share=1000), rig.add_job("exit 0", share=1000)
    # If these launches counted as failed, the limits on launches and attempts would be exceeded.
    rig.tick_until(lambda: executor.tried > 5, "six launches")
    [reason] = wait_reasons(rig.store).values()
    assert reason.cause == describe_shortage(number)
    assert caplog.text.count(describe_shortage(number)) == 1
    executor.number = None
    row = rig.tick_until_ended(job)
    assert (row.exit_code, row.launch_failures, len(rig.store.attempts(job))) == (7, 0, 1)
    assert rig.tick_until_ended(other).exit_code == 0


def test_an_unclaimed_attempt_stays_open_while_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The monitor forgets the shortage before it next checks the storage.
    monkeypatch.setattr(storage_monitor, "BACKOFF_S", 0.0)
    executor = Refusing(0)
    settings = Settings(launch_deadline_s=0.01, assign_retry_wait_s=0.01, grace_s=1.0)
    rig = rig_with(tmp_path, executor, settings)
    trials: list[tuple[int, int, int]] = []

    def start_error(count: int) -> int | None:
        trials.append((executor.tried, rig.job(job).launch_failures, len(rig.store.attempts(job))))
        return errno.EAGAIN if len(trials) < 3 else None

    monkeypatch.setattr(storage_monitor, "start_error", start_error)
    job = rig.add_job("exit 7")
    # Once processes can be started again, the attempt fails, because this executor never launches it.
    rig.tick_until(lambda: rig.job(job).launch_failures, "a failed launch")
    assert trials[:3] == [(3, 0, 1), (6, 0, 1), (9, 0, 1)]


def test_a_command_that_cannot_start_because_of_a_shortage_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_monitor, "BACKOFF_S", 0.01)
    spawn = (
        "real = os.posix_spawn\n"
        "def spawn(*words, **more):\n"
        f"    if not os.path.exists({str(tmp_path / 'room')!r}):\n"
        "        raise OSError(11, os.strerror(11))\n"
        "    return real(*words, **more)\n"
        "os.posix_spawn = spawn"
    )
    settings = replace(SETTINGS, max_assign_attempts=2)
    rig = rig_with(tmp_path, patched(tmp_path, spawn), settings)
    job = rig.add_job("exit 7")
    rig.tick_until(lambda: len(rig.store.attempts(job)) > settings.max_assign_attempts, "attempts")
    assert rig.job(job).launch_failures == 0
    messages = [
        words(event.reason)
        for event in events_of_job(rig.store, job)
        if event.kind == "queued" and isinstance(event.reason, StateReason)
    ]
    assert "the command could not be started: bash: Resource temporarily unavailable" in messages[-1]
    (tmp_path / "room").touch()
    row = rig.tick_until_ended(job)
    assert (row.exit_code, row.outcome, row.launch_failures) == (7, "failed", 0)


def test_a_file_is_not_reported_as_missing_if_descriptors_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    monkeypatch.setattr(os, "open", refuse(errno.EMFILE))
    monkeypatch.setattr(procfs, "open", refuse(errno.EMFILE), raising=False)
    for look in (
        lambda: read_tail(str(path)),
        lambda: jobs_file_text.is_open_for_writing(path),
        lambda: jobs_file_text.JobsFile(path).read(),
        lambda: procfs.Proc().process(os.getpid()),
        lambda: read_spec(tmp_path),
        lambda: folder.load(0, "spec.json"),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            look()
    home = DataDir.of(str(tmp_path / "state.json"))
    issue = unusable_file_issue("main log", path, trust=False)
    assert [issue, *find_issues(home, None)] == [None]
    missing = tmp_path / "missing"
    monkeypatch.setattr(os, "open", refuse(errno.ENOENT))
    assert (read_tail(str(missing)), jobs_file_text.is_open_for_writing(missing)) == ("", False)


@pytest.mark.parametrize("loads", [False, True])
def test_lines_that_bash_cannot_check_now_are_neither_malformed_nor_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loads: bool
) -> None:
    rig = Rig(tmp_path)
    path = tmp_path / "jobs.txt"
    path.write_text("echo one > o; echo two\necho $(true)\nfor i in 1; do\n")
    watch = JobsFileWatcher(rig.store, str(path), None)
    failed = subprocess.CompletedProcess([], 127, b"", b"bash: error while loading shared libraries")
    with monkeypatch.context() as short:
        answer = (lambda *words, **more: failed) if loads else refuse(errno.EAGAIN)
        short.setattr(subprocess, "run", answer)
        for now in (10.0, 20.0):
            watch.check(now)
            assert watch.recheck_at == now + 1.0
    number = errno.ENOMEM if loads else errno.EAGAIN
    assert (state_counts(rig.store), malformed_lines(rig.store)) == ({}, [])
    [file] = jobs_files(rig.store)
    assert file.problem == f"cannot be checked now: {describe_shortage(number)}"
    assert caplog.text.count("cannot be checked now") == 1
    watch.check(30.0)
    watch.check(40.0)
    assert state_counts(rig.store) == {"queued": 2}
    assert [row.number for row in malformed_lines(rig.store)] == [3]


def test_the_console_starts_no_threads_after_its_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, console = Rig(tmp_path), Console()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr("_thread.start_new_thread", no_thread)
    console.on_terminal = True
    job = rig.add_job("echo out")
    rig.tick_until_ended(job)
    shown: list[str] = []
    monkeypatch.setattr(console, "put", shown.append)
    for _ in range(2):
        console.follow_attempt(rig.store.attempts(job)[0])
        wait_for(lambda: not console._has_tails.is_set() or "[job 1] out" in shown, "the job's output")
        console.finish_attempt(job, 1)
        wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    assert shown.count("[job 1] out") == 2
    with pytest.raises(SchedulerError, match="cannot start a thread: process limit reached"):
        Console()


def test_the_console_stops_following_logs_during_a_shortage_and_then_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, console = Rig(tmp_path), Console()
    shown: list[str] = []
    monkeypatch.setattr(console, "put", shown.append)
    job = rig.add_job("echo out")
    rig.tick_until_ended(job)
    with monkeypatch.context() as short:
        short.setattr(job_output, "open", refuse(errno.EMFILE), raising=False)
        console.follow_attempt(rig.store.attempts(job)[0])
        wait_for(lambda: shown, "output on the console")
        console.finish_attempt(job, 1)
    wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    assert shown[:3] == [
        "cannot show job output: Too many open files; see the job logs",
        "job output is shown again",
        "[job 1] out",
    ]


def test_a_runner_is_watched_again_after_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups = Wakeups()
    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", refuse(errno.EMFILE))
        assert wakeups.watch_attempts({tmp_path: os.getpid()})
        assert not wakeups.watch_attempts({tmp_path: os.getpid()})
    with monkeypatch.context() as short:
        short.setattr(wakeups._selector, "register", refuse(errno.ENOMEM))
        before = len(os.listdir("/proc/self/fd"))
        assert not wakeups.watch_attempts({tmp_path: os.getpid()})
        assert len(os.listdir("/proc/self/fd")) == before
    child = subprocess.Popen(["sleep", "60"])
    assert not wakeups.watch_attempts({tmp_path: child.pid})
    child.kill()
    assert wakeups.wait(60) == {"runner"}
    child.wait()
    gone = subprocess.Popen(["true"])
    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", refuse(errno.EMFILE))
        assert wakeups.watch_attempts({tmp_path: gone.pid})
    gone.wait()
    # It has ended in the meantime, so the attempt must be observed again.
    assert wakeups.watch_attempts({tmp_path: gone.pid})
    assert not wakeups.watch_attempts({tmp_path: gone.pid})
    wakeups.close()


def test_a_failed_start_of_the_helper_leaks_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    real, left = fcntl.fcntl, 0

    def call(*words: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        answer: int = real(*words)
        return answer

    monkeypatch.setattr(fcntl, "fcntl", call)
    for calls in range(4):
        left = calls
        executor = executors.ForkingExecutor()
        assert helper_pid(executor) is None
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_probe_process_counts_as_running_while_proc_is_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as short:
        short.setattr(os, "listdir", refuse(errno.EMFILE))
        assert probe_process._group_lives(os.getpgrp())


def test_a_round_that_fails_because_of_a_shortage_is_retried_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = [
        *(OSError(errno.EMFILE, "Too many open files", f"/proc/{pid}/stat") for pid in (3, 4)),
        MemoryError(),
    ]
    caplog.set_level("INFO")

    def turn() -> int | None:
        if errors:
            raise errors.pop(0)
        return None if not caplog.text.count("shortage is over") else 7

    daemon: Any = Daemon.__new__(Daemon)
    daemon._signal, daemon._wake_keys, daemon._loop = None, set(), SimpleNamespace(stop_requested=False)
    daemon._storage = SimpleNamespace(issue=lambda: None)
    daemon._store = SimpleNamespace(db=SimpleNamespace(shrink=lambda: None))
    daemon._wakeups = SimpleNamespace(wait=lambda timeout_s: set())
    monkeypatch.setattr(daemon, "_set_up", lambda: None)
    monkeypatch.setattr(daemon, "_cycle", turn)
    assert daemon.serve() == 7
    for number in (errno.EMFILE, errno.ENOMEM):
        messages = f"{describe_shortage(number)}; retrying every second; running jobs continue"
        assert caplog.text.count(messages) == 1


def test_the_message_about_a_shortage_names_the_limit_that_was_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"/proc/self/cgroup": "8:pids:/box\n0::/\n", "/proc/loadavg": "0.1 0.1 0.1 1/90 7"}
    monkeypatch.setattr(shortages, "_read_text", lambda path: texts.get(path, ""))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shortages, "_count_tasks", lambda user: 50)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4000, 4000))
    ending = "end processes, or raise the limit"
    assert describe_shortage(errno.EAGAIN) == f"process limit reached (ulimit -u / TasksMax): {ending}"
    texts["/proc/sys/kernel/threads-max"] = "92\n"
    assert describe_shortage(errno.EAGAIN) == f"process limit reached (kernel.threads-max is 92): {ending}"
    monkeypatch.setattr(shortages, "_count_tasks", lambda user: 3998)
    assert describe_shortage(errno.EAGAIN) == f"process limit reached (ulimit -u is 4000): {ending}"
    group = "/sys/fs/cgroup/pids/box"
    texts |= {f"{group}/pids.max": "12\n", f"{group}/pids.current": "12\n"}
    assert describe_shortage(errno.EAGAIN) == (
        f"process limit reached ({group}/pids.max is 12; TasksMax of a systemd unit): {ending}"
    )
    assert describe_shortage(errno.ENOMEM) == (
        "memory limit reached (ulimit -v is 3): free memory, or raise the limit"
    )


@pytest.mark.parametrize(
    ("soft", "hard", "remedy"),
    [
        (1024, 1048576, "prlimit --pid {} --nofile=65536:"),
        (1024, resource.RLIM_INFINITY, "prlimit --pid {} --nofile=65536:"),
        (1024, 4096, "prlimit --pid {} --nofile=4096:"),
        (4096, 4096, "sudo prlimit --pid {} --nofile=65536"),
        (65536, 1048576, "sudo prlimit --pid {} --nofile=131072"),
    ],
)
def test_the_remedy_for_the_limit_of_open_files_depends_on_the_hard_limit(
    soft: int, hard: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    assert describe_shortage(errno.EMFILE) == (
        f"limit on open files reached (ulimit -n is {soft}): raise it (`{remedy.format(os.getpid())}`)"
    )
