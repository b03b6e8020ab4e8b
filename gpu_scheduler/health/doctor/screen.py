"""Checks GNU Screen, which only `--screen` needs, and looks for jobs of the older scheduler in it."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator

from gpu_scheduler.core.command.sessions import parse_session_list
from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.executors.screen import screen_problem
from gpu_scheduler.health.old_sessions import REFUSAL, REMEDY, old_sessions
from gpu_scheduler.intake.state_file_edits import imports_old_state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.run_program import run_program

#: If one of these versions is set-uid root, a local user can become root (CVE-2017-5618, CVE-2025-23395).
_VULNERABLE_VERSIONS = ((4, 5, 0), (5, 0, 0))


def screen(problem: Callable[[], str | None] = screen_problem) -> Iterator[Finding]:
    """Yields findings about Screen's version and whether Screen can create sessions.

    problem: tests Screen as `start` does, and returns why Screen cannot create sessions, or None.
    """
    program = shutil.which("screen")
    if program is None:
        remedy = "install it if jobs should run in sessions: sudo apt-get install screen"
        yield warn(Check.SCREEN, "not installed; `start --screen` is refused", remedy)
        return
    yield _version(program)
    why = problem()
    if why is not None:
        message, _, remedy = why.partition("\n")
        yield bad(Check.SCREEN_SOCKETS, message, remedy or "repair Screen, or leave out --screen")
    else:
        yield sockets(
            parse_session_list(run_program([program, "-ls"]).output).folder or os.environ.get("SCREENDIR")
        )


def _version(program: str) -> Finding:
    result = run_program([program, "-v"])
    found = re.search(r"Screen version (\d+)\.(\d+)(?:\.(\d+))?", result.output)
    if found is None:
        return bad(
            Check.SCREEN,
            f"{program} -v: {result.failure_reason()}",
            "reinstall it: sudo apt-get install --reinstall screen",
        )
    number = tuple(int(part or 0) for part in found.groups())
    text = f"{'.'.join(map(str, number))}, {program}"
    is_set_uid = bool(os.stat(program).st_mode & stat.S_ISUID)
    if number in _VULNERABLE_VERSIONS and is_set_uid:
        remedy = f"any user can become root through it; run `sudo chmod u-s {program}` and update Screen"
        return bad(Check.SCREEN, f"{text}, which is set-uid and has a known vulnerability", remedy)
    if is_set_uid:
        return warn(
            Check.SCREEN,
            f"{text}, which is set-uid",
            f"sudo chmod u-s {program}; a single user does not need the set-uid bit",
        )
    if number in _VULNERABLE_VERSIONS:
        return warn(Check.SCREEN, f"{text}, which has a known vulnerability", "update Screen")
    return ok(Check.SCREEN, text)


def sockets(folder: str | None) -> Finding:
    """Returns the finding about Screen's socket folder. folder: None means the default folder."""
    if folder is None:
        return ok(Check.SCREEN_SOCKETS, "in the default folder")
    try:
        status = os.stat(folder)
    except OSError as error:
        return bad(Check.SCREEN_SOCKETS, f"{folder}: {error.strerror}", f"mkdir -m 700 {folder}")
    if status.st_uid != os.geteuid():
        remedy = "set SCREENDIR to a folder that you own, or unset it"
        return bad(Check.SCREEN_SOCKETS, f"{folder} belongs to uid {status.st_uid}", remedy)
    if stat.S_IMODE(status.st_mode) != 0o700:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        return bad(Check.SCREEN_SOCKETS, f"{folder} has mode {mode}", f"chmod 700 {folder}")
    return ok(Check.SCREEN_SOCKETS, folder)


def older_sessions(data_dir: DataDir, now: float) -> Finding:
    """Returns the finding about live sessions of the older scheduler; bad if `start` would be refused.

    now: seconds since 1970.
    """
    found = old_sessions()
    if not found:
        return ok(Check.OLDER_SESSIONS, "none: no job of the older scheduler runs in Screen")
    named = "; ".join(session.describe(now) for session in found)
    if imports_old_state_file(data_dir):
        return bad(Check.OLDER_SESSIONS, f"{REFUSAL}: {named}", REMEDY)
    remedy = "these jobs of the older scheduler use GPUs but are not in the store"
    return warn(Check.OLDER_SESSIONS, named, remedy)
