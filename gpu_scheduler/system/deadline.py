"""Limits the time for which a caller waits for files, because a network folder may not respond."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def within(timeout_s: float, look: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Returns what `look` returns, or `otherwise` if that takes longer. Raises the errors of `look`.

    A look that takes too long goes on in its own thread, which does not keep the program from ending.
    """
    found: list[_Found] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(look())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            errors.append(error)

    thread = threading.Thread(target=run, name="look", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return otherwise  # too many threads run
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    return found[0] if found else otherwise
