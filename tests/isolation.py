"""The machine that tests see: the same everywhere, whatever shell, user and software they run under.

A developer's machine has conda, PyTorch (a `torchrun` on PATH), an NVIDIA driver, an active environment,
settings of Screen and a TMPDIR. None of them may change what a test sees; a test about one makes a fake.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpu_scheduler.core.environment import find_conda_sh

#: A conda in /opt or /usr/local, which every scheduler finds and nothing can hide; None: there is none.
SYSTEM_CONDA = find_conda_sh({}, os.path.exists)
#: Why a test is skipped on such a machine.
HAS_CONDA = f"a job without an environment gets the base of {SYSTEM_CONDA}"

#: Programs that the scheduler or its jobs look for, and that not every machine has; tests bring fakes.
HIDDEN = frozenset(
    ["accelerate", "conda", "deepspeed", "gpu-scheduler", "mamba", "micromamba", "nvidia-smi", "torchrun"]
)
#: Where programs lie besides the folders of the caller's PATH; an ordinary user's has no sbin.
_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: Variables that reach the tests. Everything else is somebody's setting.
_KEPT = ("CI", "LOGNAME", "STRESS_SEED", "UPDATE_GOLDEN", "USER", "WRITE_GOLDEN")
_KEPT_PREFIXES = ("COVERAGE", "HYPOTHESIS_", "PYTEST")


def isolate() -> None:
    """Give this process, and so all that it starts, the environment and umask of the tests."""
    base = Path(tempfile.mkdtemp(prefix="gs-tests-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(base, ignore_errors=True) if os.getpid() == owner else None)
    env = isolated(os.environ, base)
    os.environ.clear()
    os.environ.update(env)
    os.umask(0o022)
    tempfile.tempdir = None  # it was the caller's TMPDIR


def isolated(caller: Mapping[str, str], base: Path) -> dict[str, str]:
    """The environment of the tests, with the folders it names made in `base`."""
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
    """Link every program that is found on `path`, or in the system's folders, but those in HIDDEN.

    `python` and `python3` are the interpreter of the tests.
    """
    for name in ("python", "python3"):
        (into / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (into / name).chmod(0o755)
    seen = {"python", "python3", *HIDDEN}
    for folder in (*path.split(":"), *_SYSTEM):
        # A shim (pyenv's, asdf's) asks settings of the caller what it stands for.
        if not os.path.isabs(folder) or os.path.basename(folder) == "shims":
            continue
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.name not in seen and os.access(entry.path, os.X_OK):
                seen.add(entry.name)
                (into / entry.name).symlink_to(entry.path)


@contextmanager
def log_put_back() -> Iterator[None]:
    """Undoes what `begin_logging` does for good: handlers, level and propagation of the package's log."""
    yield
    log = logging.getLogger("gpu_scheduler")
    for handler in list(log.handlers):
        if type(handler).__module__.startswith("gpu_scheduler."):  # pytest removes its own
            log.removeHandler(handler)
            handler.close()
    log.propagate = True
    log.setLevel(logging.NOTSET)
