"""A file system of 1 MiB that a test can fill and empty."""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World

ROOT = Path(__file__).parents[2]


class SmallDisk:
    """A mounted small file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fills the file system to the last byte."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for size in (4096, 1):
                while _write(fd, bytes(size)):
                    pass
        finally:
            os.close(fd)

    def free(self, size: int | None = None) -> None:
        """Frees the space that `fill` used, or only `size` bytes of it."""
        if size is None:
            self._filler.unlink()
        else:
            os.truncate(self._filler, self._filler.stat().st_size - size)


def _write(fd: int, data: bytes) -> bool:
    try:
        os.write(fd, data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _may_mount() -> bool:
    return os.geteuid() == 0 and _succeeds("unshare", "-m", "true")


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def mounted(path: Path, world: World) -> Iterator[SmallDisk]:
    """Mounts a small file system on the new folder `path`.

    Ends all processes of `world` before unmounting it.
    """
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "small", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        world.close()
        subprocess.run(["umount", "-l", str(path)], check=True)


def needs_small_disk(test: Callable[..., None]) -> Callable[..., None]:
    """Decorates a test that mounts a small file system and takes the fixture `request`.

    If the user may not mount, the test runs in a user namespace.
    """

    @functools.wraps(test)
    def run(request: pytest.FixtureRequest, **fixtures: Any) -> None:
        if _may_mount():
            test(request=request, **fixtures)
            return
        if not _succeeds("unshare", "-Urm", "true"):
            pytest.skip("cannot mount a file system here, not even in a user namespace")
        again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            ["unshare", "-Urm", *again], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run
