"""The loop forecasts each job once, soon after it was submitted, and never twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.actions import JobTimes
from gpu_scheduler.store.forecasts import hindsight
from tests.loop.rig import Rig

GATED = "until [ -e go ]; do sleep 0.02; done"


class ShiftedClock(Clock):
    """A clock that the test sets forward."""

    ahead_s = 0.0

    def now(self) -> Now:
        now = super().now()
        return replace(now, wall=now.wall + self.ahead_s, boot=now.boot + self.ahead_s)


def set_forward(rig: Rig, seconds: float) -> None:
    assert isinstance(rig.clock, ShiftedClock)
    rig.clock.ahead_s += seconds


def forecasts(rig: Rig) -> dict[int, JobTimes]:
    rows = rig.store.db.rows("SELECT job_id, start_at, end_at FROM forecast")
    return {row["job_id"]: JobTimes(row["start_at"], row["end_at"]) for row in rows}


def learned_rig(folder: Path) -> Rig:
    """Returns a scheduler with one GPU that knows how long the gated command takes."""
    rig = Rig(folder, gpus=1, clock=ShiftedClock())
    (folder / "go").touch()
    rig.tick_until_ended(rig.add_job(GATED, share=1000))
    (folder / "go").unlink()
    return rig


def end(rig: Rig, *jobs: int) -> None:
    (rig.folder / "go").touch()
    for job in jobs:
        rig.tick_until_ended(job)


def test_a_waiting_job_has_one_forecast_which_is_judged_when_it_has_ended(tmp_path: Path) -> None:
    rig = learned_rig(tmp_path)
    first, second = rig.add_job(GATED, share=1000), rig.add_job(GATED, share=1000)
    rig.tick_until(lambda: rig.job(first).state == "running", "the first job running")
    made = forecasts(rig)
    # The first job started at once, so there was nothing to forecast.
    assert list(made) == [second]
    assert rig.job(second).created_at <= made[second].start_at < made[second].end_at
    set_forward(rig, 100)
    rig.tick()
    assert forecasts(rig) == made
    assert hindsight(rig.store).jobs == 0
    end(rig, first, second)
    found = hindsight(rig.store)
    assert found.jobs == 1
    assert found.start_error_s is not None
    assert forecasts(rig) == made


def test_forecasts_are_made_once_a_minute_at_most(tmp_path: Path) -> None:
    rig = learned_rig(tmp_path)
    first, second = rig.add_job(GATED, share=1000), rig.add_job(GATED, share=1000)
    rig.tick_until(lambda: rig.job(first).state == "running", "the first job running")
    third = rig.add_job(GATED, share=1000)
    rig.tick()
    assert list(forecasts(rig)) == [second]
    set_forward(rig, 61)
    rig.tick_until(lambda: list(forecasts(rig)) == [second, third], "the forecast of the third job")
    end(rig, first, second, third)


def test_a_job_about_which_nothing_is_known_has_no_forecast(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1, clock=ShiftedClock())
    first, second = rig.add_job(GATED, share=1000), rig.add_job(GATED, share=1000)
    rig.tick_until(lambda: rig.job(first).state == "running", "the first job running")
    rig.tick()
    assert forecasts(rig) == {}
    end(rig, first, second)


def test_a_restarted_scheduler_forecasts_no_job_again_and_none_that_is_old(tmp_path: Path) -> None:
    rig = learned_rig(tmp_path)
    first, second = rig.add_job(GATED, share=1000), rig.add_job(GATED, share=1000)
    rig.tick_until(lambda: rig.job(first).state == "running", "the first job running")
    made = forecasts(rig)
    third = rig.add_job(GATED, share=1000)
    set_forward(rig, 1000)
    again = Rig(tmp_path, gpus=1, clock=rig.clock)
    again.tick()
    assert forecasts(again) == made
    end(again, first, second, third)
