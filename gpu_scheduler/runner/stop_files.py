"""Reads and withdraws the requests to stop in an attempt folder.

The newest request is the file `stop`. A request that is withdrawn is renamed to `withdrawn`, and one that may
have been withdrawn before is renamed to `ignored` first. Files are renamed instead of removed, so that a
request that has just replaced the one in question can still be read.
"""

from __future__ import annotations

import os

from .folder import try_load
from .spec import OLDER_STOP, STOP_FIELDS, invalid_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .termination import Termination


class StopFiles:
    """The requests to stop in one attempt folder. folder: its descriptor; termination: of its command."""

    def __init__(self, folder: int, token: str, termination: Termination) -> None:
        self._folder, self._token, self._termination = folder, token, termination

    def read(self) -> dict[str, Any] | None:
        """Returns the request to obey; None if there is none. Discards one that was already withdrawn."""
        stop = self._load("stop")
        return self._discard_stale() if stop is not None and self._is_stale(stop) else stop

    def withdraw(self) -> dict[str, Any] | None:
        """Withdraws the newest request and returns it; returns None if there is none."""
        try:
            self._rename("stop", "withdrawn")
        except OSError:
            pass
        return self._load("withdrawn")

    def _is_stale(self, stop: dict[str, Any]) -> bool:
        """Returns whether a request has been withdrawn, so that its writer could not know of that."""
        return stop["follow"] == "withdraw" and self._termination.has_withdrawn(stop["id"])

    def _discard_stale(self) -> dict[str, Any] | None:
        """Discards a withdrawn request that was written again; returns one that has just replaced it."""
        try:
            self._rename("stop", "ignored")
        except OSError:
            return None
        taken = self._load("ignored")
        try:
            if taken is None or self._is_stale(taken):
                self._rename("ignored", "withdrawn")
                return None
            os.link("ignored", "stop", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            pass  # an even newer request is in its place, and its writer signals this runner
        return taken

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _load(self, name: str) -> dict[str, Any] | None:
        stop = try_load(self._folder, name)
        if not isinstance(stop, dict) or stop.get("token") != self._token:
            return None
        stop = {**OLDER_STOP, **stop}
        return None if invalid_field(stop, STOP_FIELDS) else stop
