"""Claims of several users who share a lock folder, with real processes of these users. Needs root."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.runner.locks import LockFileError, Refusal, Wanted, claim_gpus
from gpu_scheduler.system.gpu_claims import claims_of, read_gpu_locks, read_locks_of
from gpu_scheduler.system.lock_folder import LockFolderError, prepare_lock_folder
from tests.isolation import LOCK_DIR
from tests.users import User

GPU, TOTAL_MIB = "GPU-1", 24576


@pytest.fixture
def shared() -> Path:
    """Makes a lock folder for all users, as `install -d -m 1777` does."""
    folder = Path(os.environ[LOCK_DIR])
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def claim(folder: Path, mib: int | None, name: str = GPU) -> int | None:
    """Claims memory of a GPU. Returns None, or the pid of the process that prevents it."""
    answer = claim_gpus(str(folder), [Wanted(name, mib, TOTAL_MIB)])
    return answer.pid if isinstance(answer, Refusal) else None


def claims(folder: Path) -> tuple[GpuClaim, ...]:
    return claims_of(read_gpu_locks(folder, GPU), TOTAL_MIB)


def claim_error(folder: Path) -> str:
    """Returns the error of a claim that must fail because of the lock file."""
    with pytest.raises(LockFileError) as caught:
        claim(folder, None)
    assert caught.value.filename == f"{folder}/{GPU}"
    return caught.value.strerror or ""


def read_error(folder: Path) -> str:
    """Returns the error of reading a lock file that cannot be used."""
    with pytest.raises(LockFileError) as caught:
        read_gpu_locks(folder, GPU)
    return caught.value.strerror or ""


def folder_error(folder: Path) -> str:
    """Returns the error of a lock folder that cannot be used."""
    with pytest.raises(LockFolderError) as caught:
        prepare_lock_folder(folder)
    return str(caught.value)


def refuse_to_open_foreign_files_for_creation() -> None:
    """Makes `os.open` refuse what the kernel refuses in a sticky folder if fs.protected_regular is set."""
    real = os.open

    def open_as_the_kernel_does(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not flags & os.O_EXCL and os.stat(path).st_uid != os.geteuid():
            raise PermissionError(path)
        return real(path, flags, mode)

    os.open = open_as_the_kernel_does  # type: ignore[assignment]


def test_a_user_sees_the_claim_of_another_user_and_is_refused(shared: Path, ann: User, bob: User) -> None:
    assert ann.call(claim, shared, None) is None
    assert bob.call(claims, shared) == (GpuClaim(None, ann.pid, str(ann.uid)),)
    assert bob.call(claim, shared, None) == ann.pid
    assert bob.call(claim, shared, 1) == ann.pid
    assert claims(shared) == (GpuClaim(None, ann.pid, str(ann.uid)),)
    assert claim(shared, 1) == ann.pid


def test_two_users_claim_parts_of_one_gpu(shared: Path, ann: User, bob: User) -> None:
    assert ann.call(claim, shared, 16000) is None
    assert bob.call(claim, shared, 8000) is None
    assert claims(shared) == (GpuClaim(16000, ann.pid, str(ann.uid)), GpuClaim(8000, bob.pid, str(bob.uid)))
    assert claim(shared, 577) == ann.pid
    assert claim(shared, 576) is None


def test_the_claim_of_a_killed_user_process_is_free_at_once(shared: Path, ann: User, bob: User) -> None:
    assert ann.call(claim, shared, None) is None
    assert bob.call(claim, shared, None) == ann.pid
    ann.kill()
    assert bob.call(claims, shared) == ()
    assert bob.call(claim, shared, None) is None


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_a_lock_file_is_open_to_all_users_whoever_makes_it(shared: Path, other_uid: int, umask: int) -> None:
    makers = [User(uid, umask) for uid in (other_uid, other_uid + 1, 0)]
    for maker in makers:
        name = f"GPU-{maker.uid}"
        assert maker.call(claim, shared, 1, name) is None
        status = (shared / name).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o1666, maker.uid)
    for maker in makers:
        for other in makers:
            if other is not maker:
                assert other.call(claim, shared, 1, f"GPU-{maker.uid}") is None
    for maker in makers:
        maker.kill()


def test_a_claim_needs_no_file_creation_that_the_kernel_refuses_in_a_sticky_folder(
    shared: Path, ann: User, bob: User
) -> None:
    for user in (ann, bob):
        user.call(refuse_to_open_foreign_files_for_creation)
    assert ann.call(claim, shared, 100) is None
    assert bob.call(claim, shared, 100) is None
    assert bob.call(claims, shared) == (GpuClaim(100, ann.pid, str(ann.uid)),)


def test_a_user_cannot_remove_or_replace_the_lock_file_of_another_user(
    shared: Path, ann: User, bob: User
) -> None:
    assert ann.call(claim, shared, None) is None
    path = shared / GPU
    for function, arguments in ((os.unlink, (path,)), (os.rename, (path, shared / "GPU-2"))):
        with pytest.raises(AssertionError, match="PermissionError"):
            bob.call(function, *arguments)
    bob.call((shared / "planted").touch)
    with pytest.raises(AssertionError, match="PermissionError"):
        bob.call(os.rename, shared / "planted", path)
    assert bob.call(claim, shared, None) == ann.pid


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_lock_file_that_its_owner_closes_is_refused_with_the_remedy(
    shared: Path, ann: User, bob: User, mode: int
) -> None:
    assert ann.call(claim, shared, None) is None
    ann.call(os.chmod, shared / GPU, mode)
    remedy = "is not writable for this user; its owner must run chmod 1666 on it"
    assert bob.call(claim_error, shared) == remedy
    if mode == 0o600:
        assert bob.call(read_error, shared) == remedy
    else:
        assert bob.call(claims, shared) == (GpuClaim(None, ann.pid, str(ann.uid)),)
    ann.call(os.chmod, shared / GPU, 0o666)
    assert bob.call(claim, shared, None) == ann.pid


def readings(folder: Path) -> tuple[list[int], dict[str, str]]:
    """Returns the pids of the locks on the GPU, and why GPUs cannot be claimed."""
    found = read_locks_of(folder, [GPU, "GPU-2"])
    return [lock.pid for lock in found.locks.get(GPU, ())], dict(found.problems)


def test_a_gpu_whose_lock_file_can_only_be_read_has_a_problem_and_known_claims(
    shared: Path, ann: User, bob: User
) -> None:
    assert ann.call(claim, shared, None) is None
    assert bob.call(readings, shared) == ([ann.pid], {})
    ann.call(os.chmod, shared / GPU, 0o644)
    problem = f"{shared}/{GPU} is not writable for this user; its owner must run chmod 1666 on it"
    assert bob.call(readings, shared) == ([ann.pid], {GPU: problem})
    ann.kill()
    assert bob.call(readings, shared) == ([], {GPU: problem})


def test_a_lock_file_without_the_sticky_bit_is_accepted_and_only_its_owner_sets_the_bit(
    shared: Path, ann: User, bob: User
) -> None:
    (shared / GPU).touch()
    os.chown(shared / GPU, ann.uid, ann.uid)
    (shared / GPU).chmod(0o666)
    for user, mode in ((bob, 0o666), (ann, 0o1666)):
        assert user.call(claim, shared, 10) is None
        assert stat.S_IMODE((shared / GPU).stat().st_mode) == mode


def test_a_hard_link_that_another_user_adds_does_no_harm(shared: Path, ann: User, bob: User) -> None:
    assert ann.call(claim, shared, None) is None
    bob.call(os.link, shared / GPU, shared / "link")
    assert bob.call(claim, shared, None) == ann.pid
    ann.kill()
    assert bob.call(claim, shared, None) is None


def test_a_planted_link_in_place_of_a_lock_file_is_refused(
    shared: Path, tmp_path: Path, ann: User, bob: User
) -> None:
    target = tmp_path / "file of bob"
    target.touch()
    os.chown(target, bob.uid, bob.uid)
    ann.call(os.symlink, target, shared / GPU)
    remedy = "is a symbolic link; its owner or root must remove it while no program uses this GPU"
    assert bob.call(claim_error, shared) == remedy
    assert bob.call(read_error, shared) == remedy


def test_a_planted_fifo_in_place_of_a_lock_file_blocks_nobody(shared: Path, ann: User, bob: User) -> None:
    ann.call(os.mkfifo, shared / GPU)
    ann.call(os.chmod, shared / GPU, 0o666)
    remedy = "is not a regular file; its owner or root must remove it while no program uses this GPU"
    assert bob.call(claim_error, shared) == remedy
    assert bob.call(read_error, shared) == remedy


def test_a_planted_lock_folder_is_refused_with_the_remedy(shared: Path, ann: User, bob: User) -> None:
    folder = shared / "locks"
    ann.call(folder.mkdir, 0o777)
    ann.call(os.chmod, folder, 0o777)
    error = bob.call(folder_error, folder)
    assert f"{folder} belongs to {ann.uid} and does not have the sticky bit" in error
    assert f"\nask {ann.uid} to run `chmod 1777 {folder}`" in error
    assert f"run `chmod +t {folder}`" in ann.call(folder_error, folder)
    ann.call(os.chmod, folder, 0o1777)
    for user in (ann, bob):
        user.call(prepare_lock_folder, folder)
    ann.call(shutil.rmtree, folder)
    ann.call(os.symlink, "elsewhere", folder)
    assert f"{folder} is a symbolic link" in bob.call(folder_error, folder)


def test_a_private_lock_folder_is_refused_for_other_users(shared: Path, ann: User, bob: User) -> None:
    ann.call(prepare_lock_folder, shared / "a" / "locks")
    assert stat.S_IMODE((shared / "a").stat().st_mode) == 0o700
    error = bob.call(folder_error, shared / "a" / "locks")
    assert f"the lock folder {shared}/a/locks cannot be used: Permission denied" in error
    assert "set GPU_SCHEDULER_LOCK_DIR to a folder that you can write to" in error
