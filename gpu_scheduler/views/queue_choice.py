"""Says which queue a command uses, or how to name the one that it should use."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpu_scheduler.app.location import Location, Verdict
from gpu_scheduler.core.text.formatting import pid_text

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
    if verdict is Verdict.FOUND:
        return f"queue of {running[0][0]}, {pid_text(running[0][2])}"
    queues = [(option_text(path, folder), pid_text(pid)) for path, folder, pid in running]
    lines = [f"  {before}{option}{behind}  ({label})" for option, label in queues]
    if verdict is Verdict.IDLE_REFUSED:
        lines.insert(0, f"  {option_text(Location().state_file, None)}  (this folder)")
    return "\n".join([_TEXTS[verdict], *lines])
