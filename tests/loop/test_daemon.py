"""Unit tests of the daemon, which runs rounds and waits between them. Integration tests are in tests/e2e."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

from gpu_scheduler.daemon.main_loop import Daemon


def test_a_signal_ends_the_daemon_even_if_every_round_has_more_work() -> None:
    rounds = 0

    def tick() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            daemon._on_signal(signal.SIGTERM, None)
        assert rounds < 10

    daemon: Any = Daemon.__new__(Daemon)
    daemon._signal = None
    daemon._loop = SimpleNamespace(tick=tick, sample_wanted=False)
    daemon._sampler = SimpleNamespace(query=lambda at_once: False)
    assert daemon._run_rounds() is None
    assert rounds == 3
