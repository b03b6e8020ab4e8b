"""Reading files of other users never blocks and never reads more than the limit."""

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

from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import Content, FileProblem, ProblemKind, read

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
def test_rejects_everything_except_regular_files(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    NOT_FILES[kind](path)
    found = read(path)
    assert isinstance(found, FileProblem)
    assert (found.kind, str(found)) == (ProblemKind.NOT_REGULAR, "is not a regular file")


def test_distinguishes_a_missing_file_from_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read(path) == FileProblem(ProblemKind.MISSING)
    path.symlink_to(path)
    found = read(path)
    assert isinstance(found, FileProblem)
    assert str(found) == f"cannot be read: {os.strerror(errno.ELOOP)}"
    assert found.as_error(path).errno == errno.ELOOP
    assert isinstance(FileProblem(ProblemKind.MISSING).as_error(path), FileNotFoundError)


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
        assert found.kind is ProblemKind.TOO_LARGE


def test_the_error_about_a_large_file_names_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    assert str(read(path)) == "is larger than 16 MiB"


def test_rejects_a_file_that_grows_past_the_limit_while_it_is_read(
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
    assert found.kind is ProblemKind.TOO_LARGE


def test_reading_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2000)
    before = os.listdir("/proc/self/fd")
    for most in (1000, 5000):
        read(path, most)
    read(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_reads_a_pipe_to_its_end_or_to_the_limit() -> None:
    for most, whole in ((200_000, True), (100_000, False)):
        ours, theirs = os.pipe()
        writer = threading.Thread(target=_write_all, args=(theirs, b"x" * 150_000))
        writer.start()
        found = safe_file.read_descriptor(ours, most)
        os.close(ours)
        writer.join()
        assert (len(found) if isinstance(found, bytes) else found.kind) == (
            150_000 if whole else ProblemKind.TOO_LARGE
        )


def _write_all(fd: int, data: bytes) -> None:
    with open(fd, "wb", buffering=0) as file:
        try:
            while data:
                data = data[file.write(data) or 0 :]
        except BrokenPipeError:
            pass


def test_reads_a_small_file_with_little_memory(tmp_path: Path) -> None:
    """A read call must not allocate as much memory as the size limit."""
    path = tmp_path / "jobs.txt"
    path.write_text("echo hi\n")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from gpu_scheduler.intake.jobs_file_watcher import JobsFile\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "limit = now + 32 * 1024 * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "print(JobsFile(Path(sys.argv[1])).read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("b'echo hi\\n'\n", "")


ME, ROOT, ANN, EVE = 1000, 0, 1001, 1002


def status_of(mode: int, uid: int, size: int = 0, gid: int = 100) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, size, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "uid", "says"),
    [
        (0o100644, ME, None),
        (0o100664, ME, None),
        (0o100644, ROOT, None),
        (0o100644, EVE, "belongs to another user (uid 1002)"),
        (0o100666, EVE, "belongs to another user (uid 1002)"),
        (0o100646, ME, "is writable by everyone"),
        (0o100777, ROOT, "is writable by everyone"),
        (0o120777, ME, "is a link"),
        (0o040700, ME, "is not a regular file"),
        (0o010600, ME, "is not a regular file"),
    ],
)
def test_checks_the_kind_owner_and_permissions_of_a_file(mode: int, uid: int, says: str | None) -> None:
    found = safe_file.check_status(status_of(mode, uid), None, (ME, ROOT))
    assert (None if found is None else found.description) == says
    trusted = safe_file.check_status(status_of(mode, uid), None)
    assert (trusted is None) == (mode & 0o170000 == 0o100000)
    if found is not None and trusted is None:
        assert "`start --trust-files`" in str(found.as_error(Path("x")))


@pytest.mark.parametrize(
    ("me", "folder_mode", "folder_owner", "expected"),
    [
        (ME, 0o40700, ANN, {ME, ROOT}),
        (ROOT, 0o40755, ANN, {ROOT, ANN}),
        (ROOT, 0o40775, ANN, {ROOT}),
        (ROOT, 0o40757, ANN, {ROOT}),
        (ROOT, 0o41777, ROOT, {ROOT}),
        (ROOT, 0o41777, EVE, {ROOT}),
    ],
)
def test_root_trusts_the_folders_owner_if_nobody_else_may_write_the_folder(
    monkeypatch: pytest.MonkeyPatch, me: int, folder_mode: int, folder_owner: int, expected: set[int]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: me)
    monkeypatch.setattr(os, "stat", lambda path: status_of(folder_mode, folder_owner))
    assert safe_file.trusted_owners("folder/file") == expected


@pytest.mark.parametrize("trust", [False, True])
def test_rejects_a_world_writable_file_unless_files_are_trusted(tmp_path: Path, trust: bool) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o666)
    read_it, looked = read(path, trust=trust), safe_file.inspect(path, None, trust=trust)
    assert isinstance(read_it, Content) == trust
    assert isinstance(looked, os.stat_result) == trust
    path.chmod(0o664)
    assert isinstance(read(path), Content)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert isinstance(read(link, trust=trust), Content)
    assert safe_file.inspect(link, None, trust=trust, follow_links=False) == FileProblem(ProblemKind.LINK)


def test_rejects_files_and_links_of_another_user(tmp_path: Path, other_uid: int) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for path in (ours, theirs):
        path.write_text("x")
    os.chown(theirs, other_uid, other_uid)
    assert read(theirs) == FileProblem(ProblemKind.OTHER_OWNER, str(other_uid))
    links = {name: tmp_path / name for name in ("our link to theirs", "their link to ours")}
    links["our link to theirs"].symlink_to(theirs)
    links["their link to ours"].symlink_to(ours)
    os.chown(links["their link to ours"], other_uid, other_uid, follow_symlinks=False)
    assert all(isinstance(read(path, trust=True), Content) for path in (theirs, *links.values()))
    links["their link to nothing"] = path = tmp_path / "nowhere"
    path.symlink_to(tmp_path / "new")
    os.chown(path, other_uid, other_uid, follow_symlinks=False)
    expected = {
        "our link to theirs": FileProblem(ProblemKind.OTHER_OWNER, str(other_uid)),
        "their link to ours": FileProblem(ProblemKind.OTHER_OWNER_LINK, str(other_uid)),
        "their link to nothing": FileProblem(ProblemKind.OTHER_OWNER_LINK, str(other_uid)),
    }
    assert {name: read(path) for name, path in links.items()} == expected
    assert {name: safe_file.inspect(path, None) for name, path in links.items()} == expected


def test_root_reads_files_owned_by_the_owner_of_their_folder(tmp_path: Path, other_uid: int) -> None:
    path, planted = tmp_path / "file", tmp_path / "planted"
    path.write_text("x")
    for owned in (tmp_path, path):
        os.chown(owned, other_uid, other_uid)
    tmp_path.chmod(0o755)
    assert isinstance(read(path), Content)
    other = tmp_path / "other"
    other.mkdir(mode=0o777)
    planted = other / "link"
    planted.symlink_to(path)  # a link in our folder to another user's file
    assert read(planted) == FileProblem(ProblemKind.OTHER_OWNER, str(other_uid))
    tmp_path.chmod(0o775)
    assert isinstance(read(path), Content), "the group is theirs alone"
    os.chown(tmp_path, other_uid, other_uid + 1)
    assert read(path) == FileProblem(ProblemKind.OTHER_OWNER, str(other_uid))


@pytest.mark.parametrize(("mode", "expected"), [(0o40775, {ROOT, ANN}), (0o40777, {ROOT})])
def test_the_private_group_of_a_folders_owner_counts_as_the_owner(
    monkeypatch: pytest.MonkeyPatch, mode: int, expected: set[int]
) -> None:
    # A umask of 002 creates such folders. It is usual if each user has a private group.
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)
    monkeypatch.setattr(os, "stat", lambda path: status_of(mode, ANN, gid=ANN))
    assert safe_file.trusted_owners("folder/file") == expected
