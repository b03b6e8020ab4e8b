"""Tests a scheduler that cannot open files or start processes for a while."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.waiting import wait_for

#: Folders in which root can create a control group that limits processes (cgroup v1 or v2).
_GROUPS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


@contextmanager
def limited(pids: Iterable[int], which: int, most: int) -> Iterator[Callable[[], None]]:
    """Lowers a limit of running processes. Yields a function that raises it again."""
    before = {pid: resource.prlimit(pid, which) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, which, (most, hard))

    def allow() -> None:
        for pid, limits in before.items():
            resource.prlimit(pid, which, limits)

    yield allow


@contextmanager
def grouped(pids: Iterable[int]) -> Iterator[Callable[[], None]]:
    """Moves processes to a control group that allows no more processes.

    Yields a function that removes the limit.
    """
    group, home = _group(f"gpu_scheduler_test_{os.getpid()}")
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("0")

        def allow() -> None:
            (group / "pids.max").write_text("max")

        yield allow
    finally:
        for one in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(one)
        wait_for(lambda: _removed(group), "the control group removed")


def without_processes(pid: int) -> AbstractContextManager[Callable[[], None]]:
    """Prevents a process and its children from starting processes.

    Yields a function that removes the limit.
    """
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    # The limit counts all processes of the user, so it is exceeded at once. It does not apply to root.
    return grouped(pids) if os.geteuid() == 0 else limited(pids, resource.RLIMIT_NPROC, 1)


def _group(name: str) -> tuple[Path, Path]:
    """Creates a control group. Returns it and its parent."""
    for base in _GROUPS:
        group = Path(base, name)
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            return group, Path(base)
        group.rmdir()
    pytest.skip("process limits do not apply to root, and root cannot create a control group here")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_a_scheduler_at_its_process_and_file_limits_keeps_running_and_does_not_fail_any_job(
    world: World,
) -> None:
    world.start("--monitor-interval", "2", "--assign-retry-wait", "0.1")
    world.append("[share=1] echo 1")
    world.wait_finished(1)
    assert world.process is not None
    pid = world.process.pid
    with limited([pid], resource.RLIMIT_NOFILE, 3) as allow:
        world.append("[share=1] echo 2")
        wait_for(lambda: "limit on open files reached" in world.output(), "a message about open files")
        allow()
        world.wait_finished(2)
    with without_processes(pid) as allow:
        world.append(*(f"[share=1] echo {n}" for n in range(3, 9)))
        world.wait_until(
            lambda jobs: any("process limit reached" in (job["reason"] or "") for job in jobs.values()),
            "the reason",
        )
        allow()
        jobs = world.wait_finished(*range(1, 9))
    assert {(job["outcome"], job["attempts"]) for job in jobs.values()} == {("completed", 1)}
    with limited([pid], resource.RLIMIT_NOFILE, 3):
        world.append("[share=1] echo 9")
        wait_for(
            lambda: world.output().count("limit on open files reached") > 1, "a message about open files"
        )
        assert world.end_scheduler() == 0
    said = world.output()
    assert said.count("process limit reached") == 1
    assert "scheduler ends (SIGTERM)" in said
    assert "Traceback" not in said
