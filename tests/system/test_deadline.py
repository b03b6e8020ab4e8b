"""Waiting for files for a limited time."""

from __future__ import annotations

import os
import threading

import pytest

from gpu_scheduler.system.deadline import within


def test_a_look_that_takes_too_long_is_not_waited_for() -> None:
    go = threading.Event()
    assert within(0.01, go.wait, False) is False
    go.set()
    assert within(60.0, go.wait, False) is True


def test_an_error_of_the_look_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        within(60.0, lambda: os.stat("/nowhere/at/all"), None)
