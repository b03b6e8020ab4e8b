"""Finds the queue on which a use case works: its state file and data directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from gpu_scheduler import config
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.store.data_dir import DataDir

#: How a command uses a queue. FIXED: it starts a scheduler or needs no queue, so it never searches for one.
#: PART: it shows something, or changes what the user names. WHOLE: it changes everything in the queue.
QueueUse = Enum("QueueUse", ["FIXED", "PART", "ADD_JOBS", "WHOLE"])
#: The queue of a command: the named or this folder's (CLEAR), the only one with a scheduler (FOUND),
#: or that of this folder although only others have one (IDLE). For the other verdicts, the user must name it.
Verdict = Enum("Verdict", ["CLEAR", "FOUND", "IDLE", "IDLE_REFUSED", "SEVERAL", "WHOLE_REFUSED"])
_CHOSEN = (Verdict.CLEAR, Verdict.FOUND, Verdict.IDLE)


class Location(Struct, frozen=True):
    """A scheduler's state file and data directory.

    data_dir: None means beside the state file. runs_rounds: whether a change may run rounds in this process
    while no scheduler is running, as a command does; a server records it for the next `start`.
    """

    state_file: str = config.STATE_FILE
    data_dir: str | None = None
    runs_rounds: bool = False

    def resolve(self) -> DataDir:
        """Returns the data directory with the paths of its files. Creates nothing."""
        return DataDir.of(self.state_file, self.data_dir)


def judge(use: QueueUse, *, has_store: bool, running: int) -> Verdict:
    """Decides which queue a command uses if nothing names one.

    has_store: whether this folder has a queue. running: the number of the user's queues that have a scheduler
    on this machine; 0 if that of this folder has one.
    """
    if not running or use is QueueUse.FIXED:
        return Verdict.CLEAR
    if has_store:
        return Verdict.IDLE_REFUSED if use is QueueUse.ADD_JOBS else Verdict.IDLE
    if running > 1:
        return Verdict.SEVERAL
    return Verdict.WHOLE_REFUSED if use is QueueUse.WHOLE else Verdict.FOUND


def find_queue(
    use: QueueUse, state_file: str | None, data_dir: str | None, env: Mapping[str, str] = os.environ
) -> tuple[Verdict, Location | None, list[tuple[str, str | None, int]]]:
    """Returns the queue for a command (None if the user must name it), and the running ones if they matter.

    state_file, data_dir: the values of the command's options.
    """
    # The variable of a job names the queue of that job. A scheduler that a job starts has another one.
    if not state_file and not data_dir and not (use is QueueUse.FIXED and TOKEN in env):
        state_file, data_dir = env.get(config.STATE_FILE_VARIABLE), env.get(config.DATA_DIR_VARIABLE)
    location = Location(state_file or config.STATE_FILE, data_dir or None)
    if state_file or data_dir or use is QueueUse.FIXED:
        return Verdict.CLEAR, location, []
    # `run` and `gpus` never search and start faster without these modules.
    from gpu_scheduler.store.scheduler_lock import running_schedulers, scheduler_pid

    home = location.resolve()
    # A folder on a network disk has a host file if its store is on a local disk of another host.
    has_store = os.path.lexists(home.folder) or os.path.lexists(home.host_file)
    running = [] if has_store and scheduler_pid(home.lock) is not None else running_schedulers()
    folders = {os.path.realpath(Location(*one[:2]).resolve().folder) for one in running}
    if os.path.realpath(home.folder) in folders:  # its scheduler has started just now
        running = []
    verdict = judge(use, has_store=has_store, running=len(running))
    if verdict is Verdict.FOUND:
        location = Location(*running[0][:2])
    return verdict, location if verdict in _CHOSEN else None, running


_IDLE = "the queue of this folder has no scheduler, but another queue of yours has"
_TEXTS = {
    Verdict.IDLE: f"{_IDLE}:",
    Verdict.IDLE_REFUSED: f"{_IDLE}; nothing was queued; name the queue:",
    Verdict.SEVERAL: "this folder has no queue, and several queues of yours have a scheduler; name one:",
    Verdict.WHOLE_REFUSED: "this folder has no queue, and this would change all of another queue; to do so:",
}


def option_text(state_file: str, data_dir: str | None) -> str:
    """Returns the options that name a queue, as one types them into a shell."""
    behind = "" if data_dir is None else f" --data-dir {shlex.quote(data_dir)}"
    return f"--state-file {shlex.quote(state_file)}{behind}"


def choice_text(
    verdict: Verdict, running: Sequence[tuple[str, str | None, int]], before: str, behind: str
) -> str:
    """Returns the message about a choice. before, behind: the words around the options that name a queue."""
    from gpu_scheduler.core.text.formatting import pid_text

    if verdict is Verdict.FOUND:
        return f"queue of {running[0][0]}, {pid_text(running[0][2])}"
    queues = [(option_text(path, folder), pid_text(pid)) for path, folder, pid in running]
    lines = [f"  {before}{option}{behind}  ({label})" for option, label in queues]
    if verdict is Verdict.IDLE_REFUSED:
        lines.insert(0, f"  {option_text(Location().state_file, None)}  (this folder)")
    return "\n".join([_TEXTS[verdict], *lines])
