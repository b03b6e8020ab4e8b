"""Findings of `why` about the queue order, formatted from values."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.finding import Check
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.scheduling.facts import QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.forecast import AwaitedEnd, EndBasis, QueueOutlook
from gpu_scheduler.core.scheduling.history import Estimate, Prediction
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.show import why_text as queue_findings
from tests.core.gpu_world import ledger

NOW = 1_800_000_000.0
OVERTAKEN = QueueOutlook(9, 8, 7200.0, 36_000.0, True, None, None, (), (), Estimate())


def messages(outlook: QueueOutlook) -> list[tuple[Check, str]]:
    """Returns the findings about a job, with an idle budget of 10 %."""
    found = queue_findings.queue_findings(outlook, [], NOW, 0.10, "on the job's line")
    return [(one.check, one.message) for one in found]


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"overtakes": 1}, "overtaken once; after 8, GPUs may be reserved for it"),
        (
            {"budget_left_s": 5400.0, "may_begin": False},
            "overtaken 9 times; no GPUs are reserved for it yet, because they would be idle for about"
            " 2.0 GPU hours: more than the 1.5 GPU hours that are left for that (--idle-budget), and more"
            " than 10 % of the GPU time for which it has waited",
        ),
        (
            {"first_job": 4, "may_begin": False},
            "overtaken 9 times; job 4, which is before it in the queue, has the reserved GPUs",
        ),
        (
            {"cost_s": None, "budget_left_s": -1.0, "may_begin": False},
            "overtaken 9 times; no GPUs are reserved for it, because it is not known when enough of them will"
            " be free for it",
        ),
        (
            {"budget_left_s": -1.0, "may_begin": False},
            "overtaken 9 times; no GPUs are reserved for it, because reserved GPUs were idle for more than"
            " 10 % of the GPU time that jobs got in the last 7 days (--idle-budget)",
        ),
        ({}, "overtaken 9 times; GPUs are reserved for it next"),
    ],
)
def test_an_overtaken_job_without_a_reservation_is_told_what_it_waits_for(
    changes: dict[str, object], then: str
) -> None:
    assert messages(replace(OVERTAKEN, **changes)) == [("overtaken", then)]


def test_a_job_that_was_never_overtaken_has_no_finding() -> None:
    assert messages(replace(OVERTAKEN, overtakes=0)) == []


LONG = Prediction(7200.0, 10, is_of_identity=True)
ONCE = Prediction(7200.0, 1, is_of_identity=True)


@pytest.mark.parametrize(
    ("awaited", "message"),
    [
        (
            AwaitedEnd(3, (1,), 5.0, 60.0, EndBasis.ENDING, LONG, None),
            "GPU 1: job 3 is ending",
        ),
        (
            AwaitedEnd(3, (0, 1), 1800.0, 3600.0, EndBasis.PROGRESS, LONG, None),
            "GPUs 0,1: job 3 is expected to end in 30 min (by its progress; it has run for 1 h)",
        ),
        (
            AwaitedEnd(3, (1,), 3600.0, 3600.0, EndBasis.RUN_TIMES, LONG, None),
            "GPU 1: job 3 is expected to end in 1 h"
            " (it has run for 1 h; the median of 10 earlier runs is 2 h)",
        ),
        (
            AwaitedEnd(3, (1,), 3600.0, 3600.0, EndBasis.RUN_TIMES, ONCE, None),
            "GPU 1: job 3 is expected to end in 1 h (it has run for 1 h; one earlier run took 2 h)",
        ),
        (
            AwaitedEnd(3, (1,), 3600.0, 10800.0, EndBasis.RUN_TIMES, LONG, None),
            "GPU 1: job 3 is expected to end in 1 h"
            " (it has run for 3 h, longer than the median of 10 earlier runs, 2 h)",
        ),
        (
            AwaitedEnd(3, (1,), 3600.0, 3600.0, EndBasis.GUESS, None, None),
            "GPU 1: job 3 is expected to end in 1 h"
            " (a guess: it has run for 1 h, and too few earlier runs are known)",
        ),
        (
            AwaitedEnd(3, (1,), 3600.0, 3600.0, EndBasis.GUESS, None, 86400.0),
            "GPU 1: job 3 is expected to end in 1 h"
            " (a guess: it has run for 1 h, its time limit is 1 d, and too few earlier runs are known)",
        ),
    ],
)
def test_the_end_of_a_job_that_must_leave_is_shown_with_its_source(awaited: AwaitedEnd, message: str) -> None:
    own = QueueReservation(QueuedJob(7, 200, 7), ResourceSpec(), ("GPU-1",), NOW + 3600, 9)
    outlook = replace(OVERTAKEN, reservation=own, gpus=(1,), awaited=(awaited,))
    [(check, first), second] = messages(outlook)
    assert check == "reserved"
    assert first.startswith("GPU 1 is reserved for it from about ")
    assert first.endswith(", because it has been overtaken 9 times")
    assert second == ("reserved", message)


@pytest.mark.parametrize(
    ("starts_in_s", "advice"),
    [([59.0], ""), ([60.0], "timeout=1m"), ([119.0], "timeout=1m"), ([600.0, 150.0], "timeout=2m")],
)
def test_the_advised_time_limit_ends_before_the_first_reservation(
    starts_in_s: list[float], advice: str
) -> None:
    """A job with this limit may use the reserved GPU, so the limit is never longer than the time left."""
    kept = [
        GpuObstacle(n, ObstacleKind.RESERVED, 7, reserved_from=NOW + one) for n, one in enumerate(starts_in_s)
    ]
    judged = [ledger(one.gpu, 1000, closed=one) for one in kept]
    own = replace(OVERTAKEN, overtakes=0)
    [found] = queue_findings.queue_findings(own, judged, NOW, 0.10, "on the job's line")
    assert (found.check, found.remedy.endswith(advice), bool(found.remedy)) == (
        "reserved", True, bool(advice),
    )  # fmt: skip
    known = replace(own, estimate=Estimate(timeout_s=100.0))
    [found] = queue_findings.queue_findings(known, judged, NOW, 0.10, "on the job's line")
    assert found.remedy == ""
