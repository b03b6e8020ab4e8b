"""Parses the output of `screen -ls`, for display only: it misses new sessions and shows dead ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_SESSION = re.compile(r"^[ \t]+(?P<name>[0-9]+\.\S+)[ \t].*\((?P<state>[^()]*)\)[ \t]*$", re.MULTILINE)
_FOLDER = re.compile(r"(?:[Ss]ockets? (?:found )?in) (/.*?)\.?\s*$")


@dataclass(frozen=True)
class SessionList:
    """The live sessions of a listing, without those that Screen itself considers dead.

    folder: that of the sockets, None if not named; attached: `pid.name` -> whether a terminal is attached.
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
