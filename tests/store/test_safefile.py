"""The reader of files that are not ours: it waits for nobody, and takes no more than it may."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler import safefile
from gpu_scheduler.safefile import Content, FileProblem, Kind, read

pytestmark = pytest.mark.timeout(20)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "link to a folder": lambda path: path.symlink_to(path.parent),
    "socket": _socket,
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_refuses_everything_but_regular_files(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    NOT_FILES[kind](path)
    found = read(path)
    assert isinstance(found, FileProblem)
    assert (found.kind, str(found)) == (Kind.NOT_REGULAR, "is not a regular file")


def test_tells_a_missing_file_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read(path) == FileProblem(Kind.MISSING)
    path.symlink_to(path)
    found = read(path)
    assert isinstance(found, FileProblem)
    assert str(found) == f"cannot be read: {os.strerror(errno.ELOOP)}"
    assert found.error(path).errno == errno.ELOOP
    assert isinstance(FileProblem(Kind.MISSING).error(path), FileNotFoundError)


@pytest.mark.parametrize(("size", "is_read"), [(0, True), (1000, True), (1001, False), (5_000_000, False)])
def test_reads_up_to_the_limit(tmp_path: Path, size: int, is_read: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    found = read(path, 1000)
    if is_read:
        assert isinstance(found, Content)
        assert (found.data, found.status.st_size) == (b"x" * size, size)
    else:
        assert isinstance(found, FileProblem)
        assert found.kind is Kind.TOO_LARGE


def test_names_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    assert str(read(path)) == "is larger than 16 MiB"


def test_a_file_that_grows_while_it_is_read_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    real = os.read

    def growing(fd: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"y" * 100_000)
        return real(fd, size)

    monkeypatch.setattr(os, "read", growing)
    found = read(path, 1_000_000)
    assert isinstance(found, FileProblem)
    assert found.kind is Kind.TOO_LARGE


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2000)
    before = os.listdir("/proc/self/fd")
    for most in (1000, 5000):
        read(path, most)
    read(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_a_pipe_is_read_to_its_end_or_to_the_limit() -> None:
    for most, whole in ((200_000, True), (100_000, False)):
        ours, theirs = os.pipe()
        writer = threading.Thread(target=_write_all, args=(theirs, b"x" * 150_000))
        writer.start()
        found = safefile.read_descriptor(ours, most)
        os.close(ours)
        writer.join()
        assert (len(found) if isinstance(found, bytes) else found.kind) == (
            150_000 if whole else Kind.TOO_LARGE
        )


def _write_all(fd: int, data: bytes) -> None:
    with open(fd, "wb", buffering=0) as file:
        try:
            while data:
                data = data[file.write(data) or 0 :]
        except BrokenPipeError:
            pass


def test_a_small_file_is_read_with_little_memory(tmp_path: Path) -> None:
    """One read must not ask for as much as the largest file may have."""
    path = tmp_path / "jobs.txt"
    path.write_text("echo hi\n")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from gpu_scheduler.intake.filelook import JobsFile\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "limit = now + 32 * 1024 * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "print(JobsFile(Path(sys.argv[1])).look().state)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=15, check=False
    )
    assert (done.stdout, done.stderr) == ("present\n", "")
