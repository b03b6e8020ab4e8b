"""Waiting for files for a limited time."""

from __future__ import annotations

import os
import threading

import pytest

from gpu_scheduler.system.own_process import start_thread, within


def test_a_look_that_takes_too_long_is_not_waited_for() -> None:
    go = threading.Event()
    assert within(0.01, go.wait, False) is False
    go.set()
    assert within(60.0, go.wait, False) is True


def test_an_error_of_the_look_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        within(60.0, lambda: os.stat("/nowhere/at/all"), None)


def test_a_thread_that_ends_before_it_runs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # As with too little memory: the system starts the thread, which ends at once.
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: 0)
    assert within(0.01, lambda: True, None) is None
    assert start_thread(lambda: None)


def test_a_thread_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    assert not start_thread(lambda: None)
    assert within(60.0, lambda: True, None) is None
