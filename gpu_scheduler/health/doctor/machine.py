"""Checks the clock, and kernel limits that a large number of jobs can reach."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gpu_scheduler.attempts.executors import screen_problem
from gpu_scheduler.config import VERSION, ProbeKind
from gpu_scheduler.core.command.build import parse_session_list
from gpu_scheduler.core.model.finding import Finding, bad, ok, warn
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_client import ProbeClient
from gpu_scheduler.gpus.selection import restrict_to_visible
from gpu_scheduler.health.doctor.job import list_environments, parse_environments
from gpu_scheduler.health.old_sessions import REFUSAL, REMEDY, old_sessions
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.state_file import imports_old_state_file
from gpu_scheduler.system.run_program import run_program

#: The number of inotify watches that a scheduler with a few hundred jobs uses.
_MIN_WATCHES = 1024
#: The number of ptys that should be free.
_MIN_FREE_PTYS = 64
#: 2024-01-01 in seconds since 1970. A clock that shows an earlier time was never set.
_EARLIEST_VALID_S = 1_704_067_200.0
#: A file's modification time may be later than the clock by at most this many seconds.
_MAX_AHEAD_S = 60.0


def inotify(limits: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Returns the finding about inotify: whether it is available, and how many watches are allowed."""
    from inotify_simple import INotify

    instances, watches = (_read_number(limits / f"max_user_{name}") for name in ("instances", "watches"))
    try:
        INotify().close()
    except OSError as error:
        message = f"no instance is available ({error.strerror}); the scheduler polls files every few seconds"
        remedy = f"sudo sysctl fs.inotify.max_user_instances={4 * (instances or 128)}"
        return warn("inotify", message, remedy)
    if watches is not None and watches < _MIN_WATCHES:
        message = f"limit: {watches} watches; with many jobs, the scheduler polls files every few seconds"
        return warn("inotify", message, "sudo sysctl fs.inotify.max_user_watches=65536")
    return ok("inotify", f"limits: {_or_unknown(instances)} instances, {_or_unknown(watches)} watches")


def ptys(limits: Path = Path("/proc/sys/kernel/pty")) -> Finding:
    """Returns the finding about the number of free ptys. Each job in Screen takes two."""
    most, used = _read_number(limits / "max"), _read_number(limits / "nr")
    if most is not None and used is not None and most - used < _MIN_FREE_PTYS:
        message = f"{most - used} of {most} are free; each job in Screen takes two"
        return warn("ptys", message, f"sudo sysctl kernel.pty.max={2 * most}")
    return ok("ptys", f"{_or_unknown(used)} of {_or_unknown(most)} in use")


def clock(now: float, files: Iterable[Path]) -> Finding:
    """Returns the finding about the clock. now: seconds since 1970; files: some files written before now."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _EARLIEST_VALID_S:
        return warn(
            "clock",
            f"{shown}: the clock was never set, so ages and times are wrong",
            "set the clock (timedatectl)",
        )
    ahead = [path for path in files if _modified_at(path) > now + _MAX_AHEAD_S]
    if ahead:
        message = f"{shown}, which is earlier than the time of the last change to {ahead[0]}"
        return warn("clock", message, "set the clock (timedatectl); this does not correct recorded times")
    return ok("clock", shown)


def _modified_at(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


# Checks the software that the scheduler needs (Python, packages, conda), and the user that it runs as.


#: The modules that the program imports, each with the package that provides it.
PACKAGES = {
    "GPUtil": "GPUtil",
    "pynvml": "nvidia-ml-py",
    "inotify_simple": "inotify_simple",
    "rich": "rich",
    "rich_argparse": "rich-argparse",
    "shtab": "shtab",
    "msgspec": "msgspec",
    **({"setuptools": "setuptools"} if sys.version_info >= (3, 12) else {}),
}
_MAX_ENVIRONMENTS = 12


def python() -> Finding:
    """Returns the finding about the interpreter, which runs the scheduler and its runners."""
    found = ".".join(map(str, sys.version_info[:3]))
    if not sys.executable:
        remedy = "run the program with a Python interpreter whose path can be determined"
        return bad("Python", f"{found}, but the path of the interpreter is unknown", remedy)
    return ok("Python", f"{found}, {sys.executable}")


def packages(wanted: Mapping[str, str] = PACKAGES) -> Finding:
    """Returns the finding about this package and its dependencies: their versions, or which are missing."""
    missing = [package for module, package in wanted.items() if find_spec(module) is None]
    if missing:
        return bad("packages", f"missing: {', '.join(missing)}", "run `make install` or `pip install .`")
    found = ", ".join(f"{package} {_package_version(package)}" for package in wanted.values())
    return ok("packages", f"gpu-scheduler {VERSION}; {found}")


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown)"


def user(uid: int) -> Finding:
    """Returns the finding about the user that jobs run as."""
    if uid == 0:
        message = "root: anyone who can write to the jobs file can run commands as root"
        return warn("user", message, "run the scheduler as a dedicated user")
    return ok("user", f"uid {uid}")


def conda(conda_sh: str | None, is_named: bool) -> Iterator[Finding]:
    """Yields findings about conda.

    conda_sh: the path of conda's script, None if it was not found; is_named: whether --conda-sh named it.
    """
    if conda_sh is None:
        yield ok("conda", "not found; jobs whose lines name no environment run without conda")
        return
    if not os.path.isfile(conda_sh):
        remedy = (
            "pass the installation's etc/profile.d/conda.sh to --conda-sh"
            if is_named
            else "install conda again"
        )
        yield bad("conda", f"{conda_sh} does not exist", remedy)
        return
    result = list_environments(conda_sh)
    if not result.succeeded:
        remedy = f"run `. {shlex.quote(conda_sh)}; conda env list`"
        yield bad("conda", f"{conda_sh}: `conda env list` failed: {result.failure_reason()}", remedy)
        return
    yield ok("conda", f"{conda_sh}; environments: {_listed(parse_environments(result.output))}")


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MAX_ENVIRONMENTS} more" if len(every) > _MAX_ENVIRONMENTS else ""
    return ", ".join(every[:_MAX_ENVIRONMENTS]) + more if every else "none"


# Checks the NVIDIA driver, and each GPU with the probe that `start` would use.


#: Maximum number of seconds for the first sample.
PROBE_TIMEOUT_S = 5.0


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """Returns the finding about the kernel driver."""
    try:
        text = version.read_text("utf-8", "replace")
    except OSError:
        remedy = "install the driver, or use --simulate 4"
        return warn("driver", "the NVIDIA driver is not loaded", remedy)
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return ok("driver", f"NVIDIA {found[1] if found else text.strip().splitlines()[0]}")


def probe(
    kind: ProbeKind, simulate: str | None, visible: str | None, simulation: str | None = None
) -> Iterator[Finding]:
    """Yields a finding for each GPU.

    visible: the value of CUDA_VISIBLE_DEVICES, None if it is not set. simulation: the folder in which
    simulated jobs write their usage.
    """
    with ProbeClient(kind, simulate, simulation) as asked:
        try:
            snapshot = asked.sample(PROBE_TIMEOUT_S)
        except GpuStateError as error:
            message, _, remedy = str(error).partition("\n")
            yield bad("probe", message, remedy or "check whether `nvidia-smi` answers")
            return
    managed, note = restrict_to_visible(snapshot.gpus, visible)
    if note is not None:
        judge = warn if managed else bad
        yield judge("CUDA_VISIBLE_DEVICES", note, "unset CUDA_VISIBLE_DEVICES to use all GPUs")
    if snapshot.note:
        yield warn("probe", snapshot.note, "install nvidia-ml-py and check the driver, to see the processes")
    for gpu in snapshot.gpus:
        yield _gpu(gpu)


def _gpu(gpu: GpuSample) -> Finding:
    if gpu.fault is not None:
        remedy = "check the GPU with `nvidia-smi`, and look at the kernel log"
        return bad("GPU", f"{gpu.name}: {gpu.fault}", remedy, gpu.index)
    unknown = [
        name for name, value in (("memory", gpu.used_mib), ("load", gpu.load_percent)) if value is None
    ]
    if unknown:
        message = f"{gpu.name}: {' and '.join(unknown)} cannot be read"
        return warn("GPU", message, f"check the GPU with `nvidia-smi -q -i {gpu.index}`", gpu.index)
    memory = f"{gpu.used_mib} of {gpu.total_mib} MiB in use"
    return ok("GPU", f"{gpu.name}, {memory}, load {gpu.load_percent:.0f} %", gpu.index)


# Checks GNU Screen, which only `--screen` needs, and looks for jobs of the older scheduler in it.


#: If one of these versions is set-uid root, a local user can become root (CVE-2017-5618, CVE-2025-23395).
_VULNERABLE_VERSIONS = ((4, 5, 0), (5, 0, 0))


def screen(problem: Callable[[], str | None] = screen_problem) -> Iterator[Finding]:
    """Yields findings about Screen's version and whether Screen can create sessions.

    problem: tests Screen as `start` does, and returns why Screen cannot create sessions, or None.
    """
    program = shutil.which("screen")
    if program is None:
        remedy = "install it if jobs should run in sessions: sudo apt-get install screen"
        yield warn("Screen", "not installed; `start --screen` is refused", remedy)
        return
    yield _version(program)
    why = problem()
    if why is not None:
        message, _, remedy = why.partition("\n")
        yield bad("Screen's sockets", message, remedy or "repair Screen, or leave out --screen")
    else:
        yield sockets(
            parse_session_list(run_program([program, "-ls"]).output).folder or os.environ.get("SCREENDIR")
        )


def _version(program: str) -> Finding:
    result = run_program([program, "-v"])
    found = re.search(r"Screen version (\d+)\.(\d+)(?:\.(\d+))?", result.output)
    if found is None:
        return bad(
            "Screen",
            f"{program} -v: {result.failure_reason()}",
            "reinstall it: sudo apt-get install --reinstall screen",
        )
    number = tuple(int(part or 0) for part in found.groups())
    text = f"{'.'.join(map(str, number))}, {program}"
    is_set_uid = bool(os.stat(program).st_mode & stat.S_ISUID)
    if number in _VULNERABLE_VERSIONS and is_set_uid:
        remedy = f"any user can become root through it; run `sudo chmod u-s {program}` and update Screen"
        return bad("Screen", f"{text}, which is set-uid and has a known vulnerability", remedy)
    if is_set_uid:
        return warn(
            "Screen",
            f"{text}, which is set-uid",
            f"sudo chmod u-s {program}; a single user does not need the set-uid bit",
        )
    if number in _VULNERABLE_VERSIONS:
        return warn("Screen", f"{text}, which has a known vulnerability", "update Screen")
    return ok("Screen", text)


def sockets(folder: str | None) -> Finding:
    """Returns the finding about Screen's socket folder. folder: None means the default folder."""
    if folder is None:
        return ok("Screen's sockets", "in the default folder")
    try:
        status = os.stat(folder)
    except OSError as error:
        return bad("Screen's sockets", f"{folder}: {error.strerror}", f"mkdir -m 700 {folder}")
    if status.st_uid != os.geteuid():
        remedy = "set SCREENDIR to a folder that you own, or unset it"
        return bad("Screen's sockets", f"{folder} belongs to uid {status.st_uid}", remedy)
    if stat.S_IMODE(status.st_mode) != 0o700:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        return bad("Screen's sockets", f"{folder} has mode {mode}", f"chmod 700 {folder}")
    return ok("Screen's sockets", folder)


def older_sessions(data_dir: DataDir, now: float) -> Finding:
    """Returns the finding about live sessions of the older scheduler; bad if `start` would be refused.

    now: seconds since 1970.
    """
    found = old_sessions()
    if not found:
        return ok("older sessions", "none: no job of the older scheduler runs in Screen")
    named = "; ".join(session.describe(now) for session in found)
    if imports_old_state_file(data_dir):
        return bad("older sessions", f"{REFUSAL}: {named}", REMEDY)
    remedy = "these jobs of the older scheduler use GPUs but are not in the store"
    return warn("older sessions", named, remedy)
