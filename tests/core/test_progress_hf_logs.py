"""Replays the recorded logs of real trainers (tests/data/logs), as a scheduler reads them while they grow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.explain.log_progress import LogWindow, progress_of_log
from gpu_scheduler.core.explain.progress import RunOptions, remaining_s
from gpu_scheduler.core.model.job import Progress, ProgressUnit
from gpu_scheduler.core.model.job_spec import JobSpec

LOGS = Path(__file__).parents[1] / "data" / "logs"
NAMES = sorted(path.stem for path in LOGS.glob("*.json"))

#: The logs with a bar that counts all steps, the number of steps, and the step from which the run resumed.
WITH_A_BAR = {
    "hf-bar-only": (150, 0),
    "hf-epochs-evaluated": (135, 0),
    "hf-killed-by-sigterm": (150, 0),
    "hf-resumed": (150, 50),
    "hf-saved-on-sigterm": (150, 0),
    "hf-steps": (150, 0),
    "hf-steps-200-columns": (70, 0),
    "hf-steps-40-columns": (150, 0),
    "hf-steps-80-columns": (150, 0),
}
#: The logs with 3 epochs, of which the command tells the number.
WITH_EPOCHS = ("hf-no-bar-epochs", "lightning-bar", "lightning-resumed", "lightning-rich-100-columns")
#: The logs that do not show how much of the run is done, at least not before its end.
WITHOUT_EVIDENCE = ("hf-no-bar", "hf-no-bar-buffered", "lightning-rich", "lightning-saved-on-sigusr1")
#: The logs of runs that a signal ended.
CUT_SHORT = ("hf-killed-by-sigterm", "hf-saved-on-sigterm", "lightning-saved-on-sigusr1")


@dataclass(frozen=True)
class Moment:
    """A moment of a run: seconds since its start, seconds until its end, its log and its progress."""

    at: float
    left: float
    log: bytes
    progress: Progress | None


@cache
def recording(name: str) -> tuple[bytes, dict[str, Any]]:
    return (LOGS / f"{name}.log").read_bytes(), json.loads((LOGS / f"{name}.json").read_text())


def replay(name: str) -> Iterator[Moment]:
    log, facts = recording(name)
    spec = JobSpec(kind="command", text="", cwd="/home/me", command=facts["command"])
    options, window, done = RunOptions.of(spec), LogWindow(), 0
    end = facts["growth"][-1][0]
    for at, size in facts["growth"]:
        window.feed(log[done:size])
        done = size
        yield Moment(at, end - at, log[:size], progress_of_log(window.marks(), options))


def steps_in_bar(log: bytes, total: int) -> int:
    """Returns the step that the last bar of the run shows; 0 if there is none."""
    steps = re.findall(rf"\b(\d+)/{total} \[".encode(), log)
    return int(steps[-1]) if steps else 0


def test_each_recording_belongs_to_one_group() -> None:
    assert sorted([*WITH_A_BAR, *WITH_EPOCHS, *WITHOUT_EVIDENCE]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_small_and_contain_no_folder_of_the_machine(name: str) -> None:
    log, facts = recording(name)
    assert len(log) == facts["growth"][-1][1] < 40 * 1024
    assert re.search(rb"/(?:home|root|tmp|usr)/", log) is None


@pytest.mark.parametrize("name", WITH_A_BAR)
def test_the_bar_of_the_run_counts_at_every_moment(name: str) -> None:
    total, _ = WITH_A_BAR[name]
    moments = list(replay(name))
    for moment in moments:
        step = steps_in_bar(moment.log, total)
        if step:
            assert moment.progress is not None
            assert (moment.progress.current, moment.progress.total) == (step, total), moment.at
            assert moment.progress.unit is ProgressUnit.STEP
    last = moments[-1].progress
    assert last is not None
    assert last.is_complete == (name not in CUT_SHORT)


@pytest.mark.parametrize("name", [name for name in WITH_A_BAR if name not in CUT_SHORT])
def test_eta_at_half_way_is_within_20_percent(name: str) -> None:
    total, resumed_at = WITH_A_BAR[name]
    half = resumed_at + (total - resumed_at) / 2
    moment = next(m for m in replay(name) if m.progress is not None and m.progress.current >= half)
    assert moment.progress is not None
    assert moment.progress.fraction == pytest.approx(half / total, abs=0.05)
    first = replace(moment.progress, current=float(resumed_at), at=None)
    eta = remaining_s(moment.progress, first, started_at=0.0, now=moment.at)
    # Two of the three evaluations are still to come at half-way; no evidence shows that.
    assert eta == pytest.approx(moment.left, rel=0.25 if name == "hf-epochs-evaluated" else 0.2)


@pytest.mark.parametrize("name", WITH_EPOCHS)
def test_epochs_grow_to_the_number_in_the_command(name: str) -> None:
    seen = [m.progress for m in replay(name) if m.progress is not None]
    assert {(p.total, p.unit) for p in seen} == {(3.0, ProgressUnit.EPOCH)}
    assert [p.current for p in seen] == sorted(p.current for p in seen)
    assert seen[-1].is_complete


@pytest.mark.parametrize("name", ["hf-no-bar-epochs"])
def test_eta_of_epochs_at_half_way_is_within_20_percent(name: str) -> None:
    moment = next(m for m in replay(name) if m.progress is not None and m.progress.current >= 1.5)
    assert moment.progress is not None
    eta = remaining_s(moment.progress, started_at=0.0, now=moment.at)
    assert eta == pytest.approx(moment.left, rel=0.2)


@pytest.mark.parametrize("name", WITHOUT_EVIDENCE)
def test_nothing_is_shown_without_evidence(name: str) -> None:
    assert {m.progress for m in replay(name)} == {None}
