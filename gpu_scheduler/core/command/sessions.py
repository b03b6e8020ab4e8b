"""Names the Screen session of a job, and parses the output of `screen -ls`.

The parsed list is for display only, because `screen -ls` can omit new sessions and show dead ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gpu_scheduler.core.model.gpu import format_gpu_list

#: Maximum length of a session name. Screen silently fails to bind the socket of a longer one.
MAX_LENGTH = 40


def session_name(gpus: Sequence[int], mode: str, job_id: int) -> str:
    """Returns `gpujob_<gpu_ids>_<mode>_<job_id>`: letters, digits and `_ - , .`, at most 40 characters.

    The mode is truncated to fit, but the GPU ids never are. If the ids of many GPUs are too long, they are
    written as ranges ("0-7"); if the ranges are too long as well, only the first id and the number of GPUs
    are written ("0.x16"). Without GPUs, they are "cpu".
    """
    word = re.sub(r"[^A-Za-z0-9_.,-]", "-", mode) or "job"
    room = MAX_LENGTH - len(f"gpujob___{job_id}")
    if not gpus:
        return f"gpujob_cpu_{word[: room - 3]}_{job_id}"
    texts = (",".join(map(str, gpus)), format_gpu_list(gpus), f"{min(gpus)}.x{len(gpus)}")
    ids = next((text for text in texts if len(text) < room), texts[-1])
    return f"gpujob_{ids}_{word[: max(0, room - len(ids))]}_{job_id}"


_SESSION = re.compile(r"^[ \t]+(?P<name>[0-9]+\.\S+)[ \t].*\((?P<state>[^()]*)\)[ \t]*$", re.MULTILINE)
_FOLDER = re.compile(r"(?:[Ss]ockets? (?:found )?in) (/.*?)\.?\s*$")


class SessionList(Struct, frozen=True):
    """The sessions in the output of `screen -ls`, without those that Screen itself marks as dead.

    folder: the socket folder; None if the output does not name it. attached: for each session, by its
    `pid.name`, whether a terminal is attached to it.
    """

    folder: str | None = None
    attached: Mapping[str, bool] = field(default_factory=dict)


def parse_session_list(text: str) -> SessionList:
    """Parses the output of `screen -ls`."""
    folder = _FOLDER.search(text.strip())
    states = {found["name"]: found["state"].lower() for found in _SESSION.finditer(text)}
    return SessionList(
        folder[1] if folder else None,
        {
            name: "attached" in state
            for name, state in states.items()
            if state.endswith(("attached", "detached", "private"))
        },
    )
