"""Each store has at most one scheduler, even if its lock file is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.daemon import service
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import scheduler_lock as instance
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import InstanceLock, locking_pids, scheduler_pid

_HOLDER = (
    "import sys, pathlib\nfrom gpu_scheduler.store.scheduler_lock import InstanceLock\n"
    "lock = InstanceLock(pathlib.Path(sys.argv[1]))\n"
    "print(lock.acquire(), flush=True)\nsys.stdin.read()\n"
)


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs another process that holds the lock at this path."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("other", [None, "not the lock"])
def test_removing_the_lock_file_does_not_allow_a_second_scheduler(tmp_path: Path, other: str | None) -> None:
    path = tmp_path / "lock"
    with held(path) as child:
        path.unlink()
        if other is not None:
            path.write_text(other)
        assert scheduler_pid(path) == child.pid
        second = InstanceLock(path)
        assert not second.acquire()
        assert second.holder_pid() == child.pid
        second.release()
    assert scheduler_pid(path) is None
    third = InstanceLock(path)
    assert third.acquire()
    third.release()


def test_waits_for_a_lock_that_a_child_of_a_dead_scheduler_still_has(tmp_path: Path) -> None:
    # A scheduler starts a child and is killed. Between fork and exec, the child still has the lock.
    path = tmp_path / "lock"
    fork = _HOLDER.replace(
        "print(lock.acquire(), flush=True)",
        "import os\ntaken = lock.acquire()\nif os.fork() == 0: print(taken, flush=True)",
    )
    child = subprocess.Popen(
        [sys.executable, "-c", fork, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    child.kill()
    child.wait()
    assert scheduler_pid(path) is None
    next_one = InstanceLock(path)
    timer = threading.Timer(0.1, child.stdin.close)
    timer.start()
    assert next_one.acquire()
    next_one.release()
    timer.join()
    child.stdout.close()


def test_finding_the_holder_of_the_lock_does_not_acquire_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path) as child:
        path.unlink()
        assert scheduler_pid(path) == child.pid, "by /proc/locks, without the file"
        assert not path.exists()
    assert scheduler_pid(path) is None


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_program_that_locks_the_folder_is_not_mistaken_for_a_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: int
) -> None:
    monkeypatch.setattr(instance, "_OTHER_HOLDER_WAIT_S", 0.0)
    path = tmp_path / "lock"
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, how | fcntl.LOCK_NB)
    assert scheduler_pid(path) is None
    assert locking_pids(tmp_path) == [os.getpid()]
    lock = InstanceLock(path)
    assert not lock.acquire()
    os.close(fd)
    assert locking_pids(tmp_path) == []
    assert lock.acquire()
    lock.release()


def test_distinguishes_a_scheduler_in_another_pid_namespace_from_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "lock_holder", lambda fd: 0)  # F_GETLK returns 0 if the pid is not visible
    lock = InstanceLock(tmp_path / "lock")
    assert lock.holder_pid() == 0
    lock.release()
    assert scheduler_pid(tmp_path / "lock") == 0


def test_the_holder_of_the_lock_recreates_the_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = InstanceLock(path)
    assert lock.acquire()
    assert lock.restore_lock_file()
    path.unlink()
    assert lock.restore_lock_file()
    assert "lock" in os.listdir(tmp_path)
    path.unlink()
    old = (  # an older version locks only the file
        "import fcntl, sys\nfile = open(sys.argv[1], 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('True', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", old, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert not lock.restore_lock_file()
    child.kill()
    child.communicate()
    lock.release()


def test_a_lock_file_that_cannot_be_locked_counts_as_locked_and_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int, *range_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    lock = InstanceLock(tmp_path / "lock")
    assert lock.acquire()
    (tmp_path / "lock").unlink()
    monkeypatch.setattr(fcntl, "lockf", refuse)
    before = os.listdir("/proc/self/fd")
    assert not lock.restore_lock_file()
    assert not lock.acquire()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    lock.release()


def test_a_folder_that_replaced_the_locked_folder_is_not_locked(tmp_path: Path) -> None:
    folder = tmp_path / "X.d"
    folder.mkdir()
    lock = InstanceLock(folder / "lock")
    assert lock.acquire()
    assert lock.locks_folder(folder)
    folder.rename(tmp_path / "Y.d")
    assert not lock.locks_folder(folder)
    folder.mkdir()
    assert not lock.locks_folder(folder)
    second = InstanceLock(folder / "lock")
    assert second.acquire()
    second.release()
    lock.release()


def test_uses_only_the_lock_file_where_folders_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.EBADF, "a folder cannot be locked")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = InstanceLock(tmp_path / "lock")
    assert lock.acquire()
    lock.release()


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert scheduler_pid(path) is None
    with held(path) as child:
        assert scheduler_pid(path) == child.pid
        second = InstanceLock(path)
        assert not second.acquire()
        assert second.holder_pid() == child.pid
    assert scheduler_pid(path) is None
    assert second.acquire()
    second.release()
    assert os.path.exists(path)


def test_a_start_names_the_program_that_locks_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "_OTHER_HOLDER_WAIT_S", 0.0)
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    data_dir.create()
    fd = os.open(data_dir.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    pid = os.getpid()
    message = f"{data_dir.folder} is locked by another program \\(pid {pid}\\), which is not a scheduler"
    with pytest.raises(SchedulerError, match=message):
        service._acquire_lock(data_dir, take_over=False)
    with monkeypatch.context() as hidden:  # another format that /proc/locks may have
        hidden.setattr(instance, "_is_alive", lambda pid: False)
        with pytest.raises(SchedulerError, match="a program that is not visible from here"):
            service._acquire_lock(data_dir, take_over=False)
    os.close(fd)
    service._acquire_lock(data_dir, take_over=False).release()


def test_a_scheduler_waits_for_a_command_that_creates_the_store(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with instance.no_scheduler_starts(tmp_path) as is_locked:
        assert is_locked
        assert scheduler_pid(path) is None
        lock = InstanceLock(path)
        acquired: list[bool] = []
        waiting = threading.Thread(target=lambda: acquired.append(lock.acquire()))
        waiting.start()
        with instance.no_scheduler_starts(tmp_path) as is_locked_again:
            assert not is_locked_again
        assert acquired == []
    waiting.join()
    assert acquired == [True]
    with instance.no_scheduler_starts(tmp_path) as is_locked:
        assert not is_locked
    lock.release()
