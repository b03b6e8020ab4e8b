"""Tests of forked runners, their tokens and descriptors, and the helper process that forks them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts import executors
from gpu_scheduler.attempts.executors import DirectExecutor, Executor, ForkingExecutor, LaunchError
from gpu_scheduler.runner import process_scan
from gpu_scheduler.runner.folder import START
from gpu_scheduler.runner.fork_server import NO_TOKEN
from tests.processes import sweep
from tests.runner.attempt import PreparedAttempt, wait_for
from tests.runner.conftest import Make
from tests.runner.fork_helper import helper_pid
from tests.stress.harness import environment
from tests.stress.harness import scheduler as scheduling


@pytest.fixture
def inheritable(tmp_path: Path) -> Iterator[Path]:
    """Opens an inheritable file. Every started process would inherit it unless it is closed."""
    path = tmp_path / "inheritable"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.set_inheritable(fd, True)
    yield path
    os.close(fd)


@pytest.fixture
def executor(inheritable: Path) -> Iterator[ForkingExecutor]:
    """Makes an executor whose helper is ready."""
    made = ForkingExecutor()
    wait_for(lambda: helper_pid(made), "the helper")
    yield made
    made.close()


def files_of(pid: int) -> dict[int, str]:
    """Returns what each descriptor of a process points to, by number."""
    folder = Path(f"/proc/{pid}/fd")
    return {int(fd.name): os.readlink(fd) for fd in folder.iterdir()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_forked(attempt: PreparedAttempt, executor: ForkingExecutor) -> bool:
    pid = attempt.until_live().pid
    assert pid is not None
    return parent_of(pid) == helper_pid(executor)


def test_the_helper_has_only_two_pipes_open_and_no_token(executor: ForkingExecutor) -> None:
    pid = helper_pid(executor)
    assert pid is not None
    files = files_of(pid)
    assert set(files) == {0, 1, 2}
    assert files[2] == "/dev/null"
    assert process_scan.token_in(Path(f"/proc/{pid}/environ").read_bytes()) == NO_TOKEN.encode()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_a_forked_runner_has_the_same_process_state_as_a_directly_started_one(
    make: Make, executor: ForkingExecutor, inheritable: Path
) -> None:
    script = "umask; grep -E 'Sig(Blk|Ign)' /proc/self/status; set -- /proc/$$/fd/*; echo $#; exec sleep 300"
    attempts = [make(script).launch(one) for one in (executor, DirectExecutor())]
    for attempt in attempts:
        wait_for(lambda a=attempt: len(a.output().splitlines()) == 4, "four lines")  # type: ignore[misc]
    forked, started = attempts
    assert is_forked(forked, executor)
    assert forked.output() == started.output()
    pids = [attempt.status().pid or 0 for attempt in attempts]
    assert [os.getsid(pid) for pid in pids] == pids
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    names = [os.fsencode(attempt.folder) for attempt in attempts]
    assert commands[0].replace(b" ", b"\0").replace(names[0], b"") == commands[1].replace(names[1], b"")
    held = [sorted(name.partition(":")[0] for name in files_of(pid).values()) for pid in pids]
    kinds = [[name.replace(a.token, "").replace(str(a.folder), "") for name in h]
             for h, a in zip(held, attempts, strict=True)]  # fmt: skip
    assert [k.replace(str(pids[0]), "") for k in kinds[0]] == [k.replace(str(pids[1]), "") for k in kinds[1]]
    assert str(inheritable) not in held[0]
    for attempt in attempts:
        attempt.stop()
        assert attempt.result().cause == "cancelled"


def test_each_forked_runner_has_its_own_token(make: Make, executor: ForkingExecutor) -> None:
    attempts = [make("echo up; exec sleep 300").launch(executor) for _ in range(5)]
    for attempt in attempts:
        attempt.until_logged("up")
        assert len(attempt.pids()) == 2
        assert attempt.status().pid in attempt.pids()
    first, *others = attempts
    assert sweep(first.folder, first.token, term_s=0.0) == ()
    assert first.status().claim == "dead"
    for attempt in others:
        assert len(attempt.pids()) == 2
        attempt.stop()
        attempt.result()


def test_runners_survive_the_death_of_the_helper_and_new_ones_start_without_it(
    make: Make, executor: ForkingExecutor, tmp_path: Path
) -> None:
    pid = helper_pid(executor)
    assert pid is not None
    before = make(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5").launch(executor)
    before.until_logged("up")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process_scan.ticks_of(pid) is None, "the helper's end")
    after = make("exit 6").launch(executor)
    assert after.result().exit_code == 6
    (tmp_path / "go").touch()
    assert before.result().exit_code == 5


def test_the_executor_replaces_a_dead_helper(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_START_EVERY_S", 0.0)
    executor = ForkingExecutor()
    old = wait_for(lambda: helper_pid(executor), "the helper")
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: process_scan.ticks_of(old) is None, "the helper's end")
    for code in (1, 2):
        assert make(f"exit {code}").launch(executor).result().exit_code == code
    assert wait_for(lambda: helper_pid(executor), "another helper") != old
    attempt = make("exec sleep 300").launch(executor)
    assert is_forked(attempt, executor)
    attempt.stop()
    attempt.result()
    executor.close()


def test_the_second_launch_of_an_attempt_bypasses_the_helper_and_ends_it(
    make: Make, executor: ForkingExecutor
) -> None:
    helper = wait_for(lambda: helper_pid(executor), "the helper")
    hard = resource.prlimit(helper, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(helper, resource.RLIMIT_NOFILE, (3, hard))
    attempt = make("exit 3").launch(executor)
    wait_for(lambda: not process_scan.descendants(helper), "the end of its runner")
    assert attempt.status().claim == "none"
    executor.launch(attempt.ref)
    wait_for(lambda: process_scan.ticks_of(helper) is None, "the end of the helper with the low limit")
    assert attempt.result().exit_code == 3


def test_an_unresponsive_helper_is_killed_and_bypassed(
    make: Make, executor: ForkingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_ANSWER_S", 0.1)
    pid = helper_pid(executor)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    attempt = make("echo start; exit 7").launch(executor)
    assert attempt.result().exit_code == 7
    wait_for(lambda: process_scan.ticks_of(pid) is None, "the helper's end")
    assert attempt.body() == "start\n"


def test_the_helper_collects_its_ended_runners_and_ends_with_the_scheduler(
    make: Make, executor: ForkingExecutor
) -> None:
    pid = helper_pid(executor)
    for _ in range(3):
        make("exit 0").launch(executor).result()

    def children() -> str:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()

    wait_for(lambda: not children(), "the end and collection of every child")
    program = (
        "from gpu_scheduler.attempts.executors import ForkingExecutor; import os, time\n"
        "from tests.runner.fork_helper import helper_pid\n"
        "executor = ForkingExecutor()\n"
        "while not helper_pid(executor): time.sleep(0.001)\n"
        "print(helper_pid(executor), flush=True); os.kill(os.getpid(), 9)"
    )
    started = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert started.returncode == -signal.SIGKILL
    orphan = int(started.stdout)
    wait_for(lambda: process_scan.ticks_of(orphan) is None, "the helper's end")


def test_a_runner_ends_an_orphan_that_has_no_token(
    make: Make, executor: ForkingExecutor, tmp_path: Path
) -> None:
    executors: list[Executor] = [executor, DirectExecutor()]
    for number, one in enumerate(executors):
        orphan = tmp_path / f"orphan{number}"
        attempt = make(
            f"(setsid env -i sh -c 'echo $$ > {orphan}.tmp; mv {orphan}.tmp {orphan}; exec sleep 300' &)\n"
            f"until [ -e {orphan} ]; do sleep 0.01; done; exit 3"
        )
        result = attempt.launch(one).result()
        assert (result.exit_code, result.survivors) == (3, ())
        assert process_scan.ticks_of(int(orphan.read_text())) is None


def test_the_executor_does_not_start_a_second_helper_if_the_first_one_fails(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_START_EVERY_S", 0.0)
    start = tmp_path / "start.py"
    start.write_text(
        "import sys\n"
        f"if sys.argv[1] == '--forks': open({str(tmp_path / 'tried')!r}, 'a').write('x'); sys.exit(1)\n"
        f"__file__ = {START!r}\nexec(open({START!r}).read())\n"
    )
    executor = ForkingExecutor(sys.executable, str(start))

    def is_collected() -> bool:
        executor.reap()
        return executor._children.running == 0

    for code in (1, 2, 3):
        wait_for((tmp_path / "tried").exists, "the first helper")
        wait_for(is_collected, "the end of the helper")
        assert make(f"exit {code}").launch(executor).result().exit_code == code
    assert (tmp_path / "tried").read_text() == "x"


def test_a_runner_is_started_directly_if_the_helper_cannot_fork(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_ANSWER_S", 60.0)
    start = tmp_path / "start.py"
    start.write_text(
        "import os, sys\n"
        "def refused(): raise OSError(38, 'not here')\n"
        "if sys.argv[1] == '--forks': os.fork = refused\n"
        f"__file__ = {START!r}\nexec(open({START!r}).read())\n"
    )
    executor = ForkingExecutor(sys.executable, str(start))
    pid = wait_for(lambda: helper_pid(executor), "the helper")
    for code in (1, 2):
        assert make(f"exit {code}").launch(executor).result().exit_code == code
    assert helper_pid(executor) == pid
    executor.close()


def test_a_launch_fails_with_the_errno_of_the_shortage_that_prevents_the_fork(
    make: Make, tmp_path: Path
) -> None:
    start = tmp_path / "start.py"
    start.write_text(
        "import os, sys\n"
        "def refused(): raise BlockingIOError(11, 'no process')\n"
        "if sys.argv[1] == '--forks': os.fork = refused\n"
        f"__file__ = {START!r}\nexec(open({START!r}).read())\n"
    )
    executor = ForkingExecutor(sys.executable, str(start))
    pid = wait_for(lambda: helper_pid(executor), "the helper")
    attempt = make("exit 1")
    attempt.prepare()
    with pytest.raises(LaunchError) as refused:
        executor.launch(attempt.ref)
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EAGAIN
    # The helper is still the only child, because the executor tried no other way to start the runner.
    assert (helper_pid(executor), executor.running) == (pid, 1)
    executor.close()


def test_the_helper_has_neither_the_lock_nor_the_store_of_the_scheduler_open(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        scheduler = subprocess.Popen(
            scheduling(tmp_path),
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )

    def helper() -> int | None:
        for pid in Path(f"/proc/{scheduler.pid}/task/{scheduler.pid}/children").read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b" --forks\0"):
                return int(pid)
        return None

    try:
        wait_for(lambda: b"scheduler up" in (tmp_path / "out").read_bytes(), "the scheduler")
        pid = wait_for(helper, "a helper with its final command line")
        assert {name.partition(":")[0] for name in files_of(pid).values()} == {"pipe", "/dev/null"}
    finally:
        scheduler.kill()
        scheduler.wait()
    wait_for(lambda: process_scan.ticks_of(pid) is None, "the helper's end")


def test_an_attempt_with_a_token_of_unusual_length_is_launched_without_the_helper(
    make: Make, executor: ForkingExecutor
) -> None:
    attempt = make("exec sleep 300", token="f" * 31)
    attempt.token = "f" * 31
    attempt.launch(executor)
    assert not is_forked(attempt, executor)
    attempt.stop()
    attempt.result()
