"""Names of users, and the folders in which a user's programs keep their state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path


@lru_cache
def name_of_user(uid: int) -> str:
    """Returns the name of the user with this uid; the uid as text if the user has no name.

    Looks up each uid only once, because a look-up may ask a directory server.
    """
    import pwd  # imported here, because a global import would slow down the start of front ends

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_state_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Returns `$XDG_STATE_HOME` if it is an absolute path, or `~/.local/state`."""
    named = env.get("XDG_STATE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~"), ".local", "state")
