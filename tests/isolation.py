"""Gives all tests the same environment, whichever shell, user and installed software they run with.

A developer's machine may have conda, PyTorch (a `torchrun` on PATH), an NVIDIA driver, an active environment,
Screen settings and a TMPDIR. None of these may affect a test. A test that needs one of them makes a fake.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_scheduler.core.command.build import find_conda_sh

#: The variable that names the folder with the lock files of the GPUs.
LOCK_DIR = "GPU_SCHEDULER_LOCK_DIR"
#: The variable that names the folder in which the programs of a user keep their state.
STATE_HOME = "XDG_STATE_HOME"
#: Path of a conda in /opt or /usr/local, which every scheduler finds even in tests; None if there is none.
SYSTEM_CONDA = find_conda_sh({}, os.path.exists)
#: Reason for skipping a test on a machine with such a conda.
SYSTEM_CONDA_REASON = f"a job without an environment gets the base of {SYSTEM_CONDA}"

#: Programs that the scheduler or its jobs look for and that only some machines have. Tests use fakes.
HIDDEN = frozenset(
    ["accelerate", "conda", "deepspeed", "gpu-scheduler", "mamba", "micromamba", "nvidia-smi", "torchrun"]
)
#: Folders to search for programs after the caller's PATH, which has no sbin folders for ordinary users.
_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: Variables that the tests inherit. All others are the caller's settings.
_KEPT = (
    "CI", "GPU_SCHEDULER_NEED_SLURM", "LOGNAME", "NOTIFY_KILLS", "STRESS_SEED", "UPDATE_GOLDEN", "USER",
    "WRITE_GOLDEN",
)  # fmt: skip
_KEPT_PREFIXES = ("COVERAGE", "HYPOTHESIS_", "PYTEST", "SCHEMATHESIS_")

#: A file system in memory, in which the tests have their files if it has this many free bytes.
_MEMORY = "/dev/shm"
_LEAST_FREE = 2 * 2**30


def isolate() -> None:
    """Gives this process and its children the environment and umask that tests use."""
    # On a disk, tests would wait longer for the syncs of the store than for all else.
    memory = _MEMORY if _is_usable(_MEMORY) else None
    base = Path(tempfile.mkdtemp(prefix="gs-tests-", dir=memory))
    # GPU claims are refused in /tmp.
    locks = Path(tempfile.mkdtemp(prefix="gs-tests-", dir="/var/tmp"))
    locks.chmod(0o711)  # some tests have processes of other users
    owner = os.getpid()
    atexit.register(lambda: _remove([base, locks]) if os.getpid() == owner else None)
    env = {**isolated(os.environ, base), LOCK_DIR: str(locks), STATE_HOME: str(base / "state")}
    os.environ.clear()
    os.environ.update(env)
    os.umask(0o022)
    tempfile.tempdir = (
        memory  # or that of this environment, not the caller's TMPDIR, which tempfile has cached
    )


def _is_usable(folder: str) -> bool:
    """Returns whether programs can run in a folder with room for the files of all tests."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    is_mounted = os.path.ismount(folder) and not found.f_flag & os.ST_NOEXEC
    return is_mounted and os.access(folder, os.W_OK) and found.f_bavail * found.f_frsize >= _LEAST_FREE


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_folders(number: int) -> Iterator[None]:
    """Gives the programs that one test starts their own lock folder and list of running schedulers.

    number: the number of the test.
    """
    before = {name: os.environ[name] for name in (LOCK_DIR, STATE_HOME)}
    os.environ.update({name: os.path.join(folder, str(number)) for name, folder in before.items()})
    yield
    os.environ.update(before)


def isolated(caller: Mapping[str, str], base: Path) -> dict[str, str]:
    """Returns the environment for the tests, and makes in `base` the folders that it refers to."""
    kept = {name: caller[name] for name in caller if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    for name in ("home", "bin"):
        (base / name).mkdir()
    _link_programs(caller.get("PATH", ""), base / "bin")
    return {
        **kept,
        "HOME": str(base / "home"),
        "LANG": "C.UTF-8",
        "PATH": str(base / "bin"),
        "SHELL": "/bin/bash",
    }


def _link_programs(path: str, into: Path) -> None:
    """Links every program found on `path` or in the system folders, except those in HIDDEN.

    `python` and `python3` run the interpreter that runs the tests.
    """
    for name in ("python", "python3"):
        (into / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (into / name).chmod(0o755)
    linked = {"python", "python3", *HIDDEN}
    for folder in (*path.split(":"), *_SYSTEM):
        # A shim (pyenv, asdf) depends on the caller's settings.
        if not os.path.isabs(folder) or os.path.basename(folder) == "shims":
            continue
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.name not in linked and os.access(entry.path, os.X_OK):
                linked.add(entry.name)
                (into / entry.name).symlink_to(entry.path)


@contextmanager
def logging_restored() -> Iterator[None]:
    """Restores the package's logger (handlers, level, propagation) after `configure_logging` changed it."""
    yield
    log = logging.getLogger("gpu_scheduler")
    for handler in list(log.handlers):
        if type(handler).__module__.startswith("gpu_scheduler."):  # pytest removes its handlers itself
            log.removeHandler(handler)
            handler.close()
    log.propagate = True
    log.setLevel(logging.NOTSET)
