"""Tests, with real processes, which attempt each GPU process is attributed to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import ScreenExecutor
from gpu_scheduler.attempts.folder import recorded_command
from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.gpus.watch import GpuWatch, ProcessOwners, SampleOwners, is_alive
from gpu_scheduler.system.procfs import Proc
from tests.processes import exists, has_arguments, is_zombie, name_of, parent_of, started_at
from tests.runner.attempt import PreparedAttempt, socket_folder
from tests.waiting import wait_for

OURS, OTHER = 5, 6
Make = Callable[..., PreparedAttempt]
Sleeper = Callable[..., "subprocess.Popen[bytes]"]

#: A short stand-in for torch.distributed.run, with a parent and one worker process for each GPU.
TORCHRUN = """\
import pathlib, subprocess
workers = [subprocess.Popen(["sleep", "300"]) for rank in range(4)]
pathlib.Path("part").write_text(" ".join(str(worker.pid) for worker in workers))
pathlib.Path("part").rename("pids")
workers[0].wait()
"""


def gpu_sample(*pids: int, uuid: str = "SIM-0", graphics_only: bool = False) -> GpuSample:
    processes = tuple(GpuProcess(pid, 100, graphics_only) for pid in pids)
    return GpuSample(uuid, 0, "card", 24576, 0, 0.0, processes)


def owner_of(owners: ProcessOwners, tokens: dict[str, int], *pids: int, uuid: str = "SIM-0") -> SampleOwners:
    """Returns which attempts own these processes, according to a new sample of one GPU that lists them."""
    owners.begin_sample(set(pids))
    return owners.ownership_of(gpu_sample(*pids, uuid=uuid), tokens)


def pids_in(path: Path, count: int = 1) -> list[int]:
    """Waits until the file has `count` pids, and returns them."""

    def read() -> list[int]:
        numbers = path.read_text().split() if path.exists() else []
        return [int(number) for number in numbers] if len(numbers) == count else []

    return wait_for(read, f"{count} numbers in {path.name}")


def until_sleeps(pid: int) -> None:
    """Waits until the process has executed `sleep`. During the exec, its environment is not readable."""
    wait_for(lambda: name_of(pid) == "sleep" and has_arguments(pid), f"{pid} sleeps")


def until_gone(pid: int) -> None:
    wait_for(lambda: not exists(pid) or is_zombie(pid), f"end of {pid}")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes attempts whose processes are ended after the test, even if they hide their token."""
    made: list[PreparedAttempt] = []

    def one(script: str, **spec: object) -> PreparedAttempt:
        made.append(PreparedAttempt(tmp_path, script, name=f"{len(made) + 1}-abc", **spec))
        return made[-1]

    yield one
    for attempt in made:
        attempt.clean()
    for path in tmp_path.glob("pid*"):
        for number in path.read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if name_of(int(number)) == "sleep":
                    os.kill(int(number), signal.SIGKILL)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that do not belong to any attempt."""
    made: list[subprocess.Popen[bytes]] = []

    def one(**options: object) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "300"], **options))  # type: ignore[call-overload]
        until_sleeps(made[-1].pid)
        return made[-1]

    yield one
    for process in made:
        process.kill()
        process.wait()


def test_gpu_processes_of_torchrun_and_its_four_workers_belong_to_the_attempt(
    make: Make, sleeper: Sleeper, tmp_path: Path
) -> None:
    (tmp_path / "torchrun.py").write_text(TORCHRUN)
    attempt = make(f"exec {sys.executable} torchrun.py").launch()
    workers = pids_in(tmp_path / "pids", 4)
    parent = parent_of(workers[0])
    foreign = sleeper().pid
    seen = owner_of(ProcessOwners(), {"0" * 32: OTHER, attempt.token: OURS}, parent, *workers, foreign)
    assert seen.owners == {**dict.fromkeys((parent, *workers), OURS), foreign: None}
    assert not seen.unmatched
    for pid, start in seen.starts.items():
        assert start == pytest.approx(started_at(pid), abs=1.0)
    assert set(seen.starts) == set(seen.owners)


@pytest.mark.parametrize(
    "start",
    [
        "env -i sleep 300 &",
        "setsid sleep 300 &",
        "env -i setsid sleep 300 &",
        "env -i nohup setsid sleep 300 > /dev/null 2>&1 &",
    ],
)
def test_a_child_in_its_own_session_or_without_an_environment_belongs_to_the_attempt(
    make: Make, tmp_path: Path, start: str
) -> None:
    attempt = make(f"{start} echo $! > part; mv part pid; wait").launch()
    [pid] = pids_in(tmp_path / "pid")
    until_sleeps(pid)
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: OURS}


@pytest.mark.parametrize("start", ["nohup setsid sleep 300", "env -i setsid sleep 300"])
def test_an_orphaned_process_adopted_by_the_runner_belongs_to_the_attempt(
    make: Make, tmp_path: Path, start: str
) -> None:
    attempt = make(f"( ( {start} & echo $! > part; mv part pid ) & ); sleep 300").launch()
    [pid] = pids_in(tmp_path / "pid")
    runner = attempt.until_live().pid
    wait_for(lambda: parent_of(pid) == runner, "adopted by the runner")
    until_sleeps(pid)
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: OURS}
    assert owner_of(ProcessOwners(), {}, pid).owners == {pid: None}


@pytest.fixture
def lone(make: Make, tmp_path: Path) -> tuple[PreparedAttempt, int, int]:
    """Makes a process that has no environment and was adopted by its runner.

    Returns its attempt, its pid, and the pid of its session leader.
    """
    attempt = make("( env -i sleep 300 & echo $! > part; mv part pid ); exec sleep 300").launch()
    [pid] = pids_in(tmp_path / "pid")
    runner = attempt.until_live().pid
    assert runner is not None
    wait_for(lambda: parent_of(pid) == runner, "adopted by the runner")
    leader = os.getsid(pid)
    until_sleeps(pid)
    until_sleeps(leader)
    return attempt, pid, leader


def kill_runner_of(attempt: PreparedAttempt, pid: int) -> None:
    runner = attempt.status().pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: parent_of(pid) != runner, "a new parent of the orphan")


def test_a_process_is_attributed_by_the_leader_of_its_session(lone: tuple[PreparedAttempt, int, int]) -> None:
    attempt, pid, leader = lone
    kill_runner_of(attempt, pid)
    assert attempt.token not in Path(f"/proc/{pid}/environ").read_text()
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: OURS}
    os.kill(leader, signal.SIGKILL)
    until_gone(leader)
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: None}


def test_a_process_is_attributed_by_the_session_of_the_recorded_command(
    lone: tuple[PreparedAttempt, int, int],
) -> None:
    """This covers a scheduler that starts after the runner and the command have ended."""
    attempt, pid, leader = lone
    assert leader == os.getsid(pid)
    kill_runner_of(attempt, pid)
    os.kill(leader, signal.SIGKILL)
    until_gone(leader)
    owners = ProcessOwners()
    owners.begin_sample({pid})
    seen = owners.ownership_of(
        gpu_sample(pid), {attempt.token: OURS}, lambda token: recorded_command(attempt.folder, token)
    )
    assert seen.owners == {pid: OURS}


def test_the_owner_of_a_session_is_remembered_while_its_attempt_is_open(
    lone: tuple[PreparedAttempt, int, int],
) -> None:
    attempt, pid, leader = lone
    owners, tokens = ProcessOwners(), {attempt.token: OURS}
    assert owner_of(owners, tokens, leader).owners == {leader: OURS}
    kill_runner_of(attempt, pid)
    os.kill(leader, signal.SIGKILL)
    until_gone(leader)
    assert owner_of(owners, tokens, pid).owners == {pid: OURS}
    assert owner_of(owners, {}, pid).owners == {pid: None}
    assert owner_of(owners, tokens, pid).owners == {pid: None}


def test_a_process_is_attributed_by_a_member_of_its_session_that_has_the_token(
    make: Make, tmp_path: Path
) -> None:
    attempt = make(
        "( env -i sleep 300 & echo $! > part; mv part pid )\n"
        "( sleep 300 & echo $! > part; mv part pid_of_member )\n"
        "exec sleep 300"
    ).launch()
    [pid], [member] = pids_in(tmp_path / "pid"), pids_in(tmp_path / "pid_of_member")
    runner, leader = attempt.until_live().pid, os.getsid(pid)
    assert runner is not None
    assert os.getsid(member) == leader
    until_sleeps(pid)
    until_sleeps(member)
    for ended in (runner, leader):
        os.kill(ended, signal.SIGKILL)
        until_gone(ended)
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: OURS}


def test_a_process_of_a_job_in_screen_belongs_to_the_attempt(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("screen") is None:
        pytest.skip("GNU Screen is not installed")
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        script = "env -i sleep 300 & echo $! > part; mv part pid; exec sleep 300"
        attempt = make(script, terminal=True, session="gpujob_0_x_7").launch(ScreenExecutor())
        [pid] = pids_in(tmp_path / "pid")
        command = parent_of(pid)
        runner = attempt.until_live().pid
        assert runner is not None
        screen = parent_of(runner)
        seen = owner_of(ProcessOwners(), {attempt.token: OURS}, pid, command, runner, screen)
        assert seen.owners == {pid: OURS, command: OURS, runner: OURS, screen: None}
        attempt.clean()


def unused_number() -> int:
    """Returns a pid that no process has and that no new process will get soon."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return next(number for number in range(most - 100, 1, -1) if not exists(number))


def test_a_process_in_its_own_pid_namespace_belongs_to_the_attempt(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here")
    monkeypatch.setattr(Proc, "sees_all", True)
    number = unused_number()
    (tmp_path / "inside.sh").write_text(
        f"echo {number - 1} > /proc/sys/kernel/ns_last_pid || exit\n"
        "sleep 300 & echo $! > part; mv part inner; wait\n"
    )
    attempt = make("exec unshare -p -f --mount-proc bash inside.sh").launch()
    wait_for(
        lambda: (tmp_path / "inner").exists() or attempt.status().result, "the process inside the namespace"
    )
    if attempt.status().result:
        pytest.skip("the next pid of a namespace cannot be chosen here")
    assert pids_in(tmp_path / "inner") == [number]
    [outer] = [pid for pid in attempt.pids() if Proc().inner_pids(pid) == (number,)]
    owners, tokens = ProcessOwners(), {attempt.token: OURS}
    seen = owner_of(owners, tokens, outer, number)
    assert (seen.owners, seen.unmatched) == ({outer: OURS, number: OURS}, False)
    assert seen.starts[number] == seen.starts[outer]
    assert owner_of(ProcessOwners(), {"0" * 32: OURS}, number).owners == {}
    real = ProcessOwners()
    assert [owner_of(real, tokens, number, uuid="GPU-a").unmatched for _ in range(2)] == [False, True]
    os.kill(outer, signal.SIGKILL)
    wait_for(lambda: not exists(outer), "the end and collection of the process")
    assert owner_of(owners, tokens, number).owners == {number: OURS}
    seen = owner_of(owners, tokens, number)
    assert (seen.owners, seen.unmatched) == ({}, True)


def as_nobody(look: Callable[[], bool]) -> bool:
    """Calls a function in a child process without root rights, and returns its answer."""
    child = os.fork()
    if child == 0:
        answer = False
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            answer = look()
        finally:
            os._exit(0 if answer else 1)
    return os.waitpid(child, 0)[1] == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes processes of other users")


@needs_root
def test_a_child_process_owned_by_another_user_belongs_to_the_attempt(make: Make, tmp_path: Path) -> None:
    become = "import os; os.setuid(65534); os.execve('/bin/sleep', ['sleep', '300'], {})"
    attempt = make(f'{sys.executable} -c "{become}" & echo $! > part; mv part pid; wait').launch()
    [pid] = pids_in(tmp_path / "pid")
    until_sleeps(pid)
    assert os.stat(f"/proc/{pid}").st_uid == 65534
    assert owner_of(ProcessOwners(), {attempt.token: OURS}, pid).owners == {pid: OURS}


@needs_root
def test_a_process_with_an_unreadable_environment_is_foreign(sleeper: Sleeper) -> None:
    theirs = sleeper(env={"GPU_SCHEDULER_TOKEN": "abc"}, start_new_session=True).pid
    assert owner_of(ProcessOwners(), {"abc": OURS}, theirs).owners == {theirs: OURS}

    def look() -> bool:
        seen = owner_of(ProcessOwners(), {"abc": OURS}, theirs)
        return seen.owners == {theirs: None} and theirs in seen.starts and not seen.unmatched

    assert as_nobody(look)
    assert not as_nobody(lambda: Proc().uses_gpu(theirs))


@needs_root
def test_a_process_hidden_by_the_mount_option_hidepid_is_foreign(sleeper: Sleeper) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    theirs = sleeper().pid
    look = f"""
import os, subprocess, sys
from gpu_scheduler.gpus.watch import ProcessOwners, is_alive
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample
from gpu_scheduler.system.procfs import Proc
from gpu_scheduler.attempts.folder import recorded_command
if subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"]).returncode:
    sys.exit(3)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
assert not os.path.exists("/proc/{theirs}")
Proc.sees_all = True
owners, sample = ProcessOwners(), GpuSample("GPU-a", 0, "card", 1, 0, 0.0, (GpuProcess({theirs}, 1),))
for _ in range(3):
    owners.begin_sample({{{theirs}}})
    seen = owners.ownership_of(sample, {{"abc": 5}})
    assert (seen.owners, seen.starts, seen.unmatched) == ({{{theirs}: None}}, {{}}, False), seen
assert is_alive({theirs}, 0) and not is_alive({theirs}, 5.0) and not is_alive(4194305, 0)
"""
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", look], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("no /proc can be mounted here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("owned", [True, False])
def test_a_process_that_ended_after_the_sample_keeps_its_owner(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    monkeypatch.setattr(Proc, "sees_all", True)
    process = sleeper(env={"GPU_SCHEDULER_TOKEN": "abc"} if owned else {})
    pid, owner = process.pid, OURS if owned else None
    owners, tokens = ProcessOwners(), {"abc": OURS}
    before = owner_of(owners, tokens, pid)
    process.kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    zombie = owner_of(owners, tokens, pid)
    process.wait()
    after = owner_of(owners, tokens, pid)
    assert before == zombie == after == SampleOwners({pid: owner}, before.starts, False)
    assert owner_of(owners, tokens).unmatched is False
    assert owner_of(owners, tokens, pid) == SampleOwners()
    assert owner_of(owners, tokens, pid) == SampleOwners(unmatched=True)


def test_a_zombie_that_was_never_seen_alive_belongs_to_the_attempt_of_its_parent(
    make: Make, tmp_path: Path
) -> None:
    hold = "import os, time\nif not (pid := os.fork()): os._exit(0)\n"
    hold += "open('part', 'w').write(str(pid)); os.rename('part', 'pid'); time.sleep(300)\n"
    (tmp_path / "hold.py").write_text(hold)
    attempt = make(f"exec {sys.executable} hold.py").launch()
    [pid] = pids_in(tmp_path / "pid")
    wait_for(lambda: is_zombie(pid), "the end of the process")
    seen = owner_of(ProcessOwners(), {attempt.token: OURS}, pid)
    assert seen.owners == {pid: OURS}
    assert not is_alive(pid, seen.starts[pid])


def test_a_process_counts_as_alive_until_it_exits(sleeper: Sleeper) -> None:
    process = sleeper()
    pid = process.pid
    start = owner_of(ProcessOwners(), {}, pid).starts[pid]
    assert is_alive(pid, start)
    assert is_alive(pid, 0.0)
    assert not is_alive(pid, start - 3600.0)
    process.kill()
    process.wait()
    assert not is_alive(pid, start)
    assert not is_alive(pid, 0.0)


def test_gpu_watch_reports_process_start_times_and_unmatched_processes(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "sees_all", True)
    pid, number = sleeper(env={"GPU_SCHEDULER_TOKEN": "abc"}).pid, unused_number()
    watch = GpuWatch()
    first, second = gpu_sample(pid, uuid="SIM-0"), gpu_sample(pid, number, uuid="SIM-1")
    for expected in (False, True):
        watch.accept_sample(Snapshot(1.0, (first, second)))
        one, two = watch.gpus([Gpu("SIM-0", 0), Gpu("SIM-1", 1)], {"abc": OURS})
        assert (one.owners, two.owners) == ({pid: OURS}, {pid: OURS})
        assert one.process_starts == two.process_starts
        assert set(one.process_starts) == {pid}
        assert (one.has_unmatched_process, two.has_unmatched_process) == (False, expected)
