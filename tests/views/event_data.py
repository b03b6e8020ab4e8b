"""Functions that return the details of an attempt's events, with a default for every field."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.core.model.event import AttemptEnded, AttemptStarted


def start(**values: Any) -> dict[str, Any]:
    """Returns the data of a start on GPU 0 without declared share or memory."""
    defaults: dict[str, Any] = {"attempt": 1, "gpus": [0], "share": 0, "vram": None, "exclusive": False}
    return AttemptStarted(**defaults | values).data()


def end(**values: Any) -> dict[str, Any]:
    """Returns the data of an end after 30 minutes. By default 18432 MiB are declared.

    The declared memory applies to each GPU.
    """
    defaults: dict[str, Any] = {
        "attempt": 1, "outcome": "completed", "exit_code": 0, "signal": None, "seconds": 1774.2, "gpus": [0],
        "peaks": [17910], "declared": 18432, "share": 0, "load": 96.4, "log": "/logs/1.log", "survivors": [],
    }  # fmt: skip
    given = defaults | values
    budgets = None if given["declared"] is None else [given["declared"]] * len(given["gpus"])
    return AttemptEnded(**{"budgets": budgets} | given).data()
