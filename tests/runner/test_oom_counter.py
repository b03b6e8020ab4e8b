"""Tests of the counter of kills by the kernel's OOM killer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.runner import shortage
from gpu_scheduler.runner.shortage import OomCounter
from tests.runner.attempt import patched
from tests.runner.conftest import Make


@pytest.mark.parametrize(
    ("before", "after", "kills"),
    [
        ("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n", "oom 2\noom_kill 3\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable 0\noom_kill 0\n", 0),
        ("nr_free 7\noom_kill 5\n", "oom_kill 5\n", 0),
        ("oom_kill 5\n", "nothing here\n", None),
        ("nothing here\n", "oom_kill 1\n", None),
    ],
)
def test_counts_oom_kills_since_the_counter_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, kills: int | None
) -> None:
    file = tmp_path / "memory.events"
    monkeypatch.setattr(shortage, "_counter_paths", lambda: iter([str(tmp_path / "missing"), str(file)]))
    file.write_text(before)
    counter = OomCounter()
    file.write_text(after)
    assert counter.kills() == kills


def test_skips_a_cgroup_file_without_an_oom_kill_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "memory.oom_control", tmp_path / "vmstat"
    monkeypatch.setattr(shortage, "_counter_paths", lambda: iter([str(first), str(second)]))
    first.write_text("oom_kill_disable 0\nunder_oom 0\n")
    second.write_text("oom_kill 5\n")
    counter = OomCounter()
    second.write_text("oom_kill 7\n")
    assert counter.kills() == 2


def test_the_number_of_oom_kills_is_unknown_without_a_counter_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "_counter_paths", lambda: iter(()))
    assert OomCounter().kills() is None


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/user.slice/session-1.scope\n", "/sys/fs/cgroup/user.slice/session-1.scope/memory.events"),
        ("4:memory:/docker/abc\n1:cpu:/\n0::/\n", "/sys/fs/cgroup/memory/docker/abc/memory.oom_control"),
        ("", "/sys/fs/cgroup/memory.events"),
        ("nonsense\n", "/sys/fs/cgroup/memory.events"),
    ],
)
def test_prefers_the_oom_counter_of_its_own_cgroup(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, place: str
) -> None:
    monkeypatch.setattr(shortage, "read_proc", lambda pid, name: cgroup.encode())
    places = list(shortage._counter_paths())
    assert places[0] == place
    assert places[-1] == "/proc/vmstat"


def test_the_result_contains_the_number_of_oom_kills(make: Make, tmp_path: Path) -> None:
    """The command itself increments a counter file, as the kernel would."""
    counter = tmp_path / "counter"
    counter.write_text("oom_kill 4\n")
    no_cgroup = f"""
real = os.open
def without_cgroup(path, *a, **k):
    if str(path).startswith("/sys/fs/cgroup"):
        raise FileNotFoundError(2, "none", path)
    return real({str(counter)!r} if path == "/proc/vmstat" else path, *a, **k)
os.open = without_cgroup
"""
    killed = make(f"echo 'oom_kill 5' > {counter}; kill -9 $$").launch(patched(tmp_path, no_cgroup))
    assert (killed.result().signal, killed.result().oom_kills) == (9, 1)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Makes a memory cgroup with a limit of 48 MiB below the cgroup of the tests."""
    own = next(
        (Path(path).parent for path in shortage._counter_paths() if os.path.exists(path)), Path("/proc")
    )
    limit = "memory.max" if (own / "memory.max").exists() else "memory.limit_in_bytes"
    group = own / f"gpu_scheduler_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no memory cgroup can be made here")
    try:
        try:
            (group / limit).write_text(str(48 << 20))
        except OSError:
            pytest.skip("no memory limit can be set here")
        yield group
    finally:
        group.rmdir()


@pytest.mark.parametrize("through_a_shell", [False, True])
def test_counts_a_real_oom_kill_by_the_kernel(
    make: Make, tmp_path: Path, small_memory: Path, through_a_shell: bool
) -> None:
    join = f"open({str(small_memory / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    eat = "python3 -S -c 'x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1'"
    hungry = make(f"{eat}; exit $?" if through_a_shell else f"exec {eat}").launch(patched(tmp_path, join))
    result = hungry.result()
    hungry.until_gone()
    assert (result.exit_code, result.signal) == ((137, None) if through_a_shell else (None, 9))
    assert result.oom_kills == 1
