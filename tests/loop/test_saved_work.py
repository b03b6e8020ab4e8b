"""Looking for the checkpoints of a job when its attempt has ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_scheduler.attempts import saved_work
from gpu_scheduler.core.model.states import Outcome
from tests.loop.rig import Rig


def test_a_folder_that_does_not_respond_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = threading.Event()
    monkeypatch.setattr(saved_work, "MAX_SEARCH_S", 0.01)
    monkeypatch.setattr(saved_work, "find_checkpoint", lambda *_: responds.wait())
    rig = Rig(tmp_path)
    job = rig.add_job("exit 3")
    assert rig.tick_until_ended(job).outcome is Outcome.FAILED
    responds.set()
