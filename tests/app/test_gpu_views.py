from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.control.requests import set_paused
from gpu_scheduler.core.model.gpu import LOST, GpuClaim, GpuProcess
from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.show.gpu_views import gpu_views
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.status import StatusQuery, status
from gpu_scheduler.show.status_json import gpu_object
from gpu_scheduler.show.status_text import to_text
from gpu_scheduler.system.gpu_claims import ForeignClaims
from tests.cli.desk import Desk
from tests.records import attempt_record, gpu_record


def held(share: int, job_id: int = 3, **values: Any) -> Attempt:
    return attempt_record(["A"], share=share, job_id=job_id, **values)


@pytest.mark.parametrize(
    ("row", "holders", "paused", "state", "share"),
    [
        ({}, [], False, "available", 0),
        ({}, [held(500)], False, "available", 500),
        ({}, [held(500), held(500, 4)], False, "busy", 1000),
        ({}, [held(1000, released_boot=7.0)], False, "available", 0),
        ({}, [held(1000)], True, "paused", 1000),
        ({"fault": LOST}, [], True, "lost", 0),
        ({"used_mib": 800}, [], False, "busy", 0),
        ({"used_mib": 800}, [held(500)], False, "available", 500),
        ({"used_mib": 500, "foreign_loads": (80.0, None, 96.0)}, [], False, "busy", 0),
        ({"used_mib": 10, "foreign_loads": (90.0,)}, [], False, "available", 0),
        ({"used_mib": 500, "foreign_loads": (20.0,), "load_percent": 99.0}, [], False, "available", 0),
        ({"used_mib": None, "load_percent": None, "total_mib": None}, [], False, "available", 0),
        ({"exclusive": True}, [], False, "available", 0),
        ({"exclusive": True}, [held(100)], False, "busy", 100),
        ({"unified": True, "used_mib": 800, "processes": ()}, [], False, "available", 0),
        ({"unified": True, "used_mib": 800, "processes": (GpuProcess(7, 800),)}, [], False, "busy", 0),
        ({"unified": True, "used_mib": 800, "processes": None}, [], False, "busy", 0),
        # Up to 512 MiB that no process uses belong to the driver, as for the placement of jobs.
        ({"used_mib": 500, "processes": (), "foreign_loads": (99.0,)}, [], False, "available", 0),
        # A display does not count; the memory of listed processes counts if the total use is unknown.
        ({"used_mib": 900, "processes": (GpuProcess(7, 900, True),)}, [], False, "available", 0),
        ({"used_mib": None, "processes": (GpuProcess(7, 900),)}, [], False, "busy", 0),
        (
            {"used_mib": 500, "processes": (GpuProcess(7, 300),), "foreign_loads": (99.0,)},
            [],
            False,
            "busy",
            0,
        ),
    ],
)
def test_a_gpu_view_contains_the_state_the_allocated_share_and_the_jobs(
    row: dict[str, Any], holders: list[Attempt], paused: bool, state: str, share: int
) -> None:
    (view,) = gpu_views([gpu_record(**row)], holders, {"A": paused})
    assert (view.state, view.share) == (state, share)
    assert view.jobs == tuple(sorted(h.job_id for h in holders if h.released_boot is None))


@pytest.mark.parametrize(
    ("holders", "paused", "state"),
    [
        ([], False, "claimed"),
        ([held(1000, released_boot=7.0)], False, "claimed"),
        ([held(500)], False, "available"),
        ([held(1000)], False, "busy"),
        ([], True, "paused"),
    ],
)
@pytest.mark.parametrize("row", [{}, {"used_mib": 800}])
@pytest.mark.parametrize(
    "foreign", [ForeignClaims({"A": (GpuClaim(100, 8),)}), ForeignClaims(problems={"A": "unreadable"})]
)
def test_a_gpu_without_our_jobs_is_claimed_if_another_program_claims_it_or_may_claim_it(
    row: dict[str, Any],
    holders: list[Attempt],
    paused: bool,
    state: str,
    foreign: ForeignClaims,
) -> None:
    (view,) = gpu_views([gpu_record(**row)], holders, {"A": paused}, foreign=foreign)
    assert view.state == state
    assert view.claims == foreign.claims.get("A", ())
    assert view.claims_problem == foreign.problems.get("A")


@pytest.mark.parametrize(
    ("row", "holders", "allocated", "by_memory", "share"),
    [
        ({}, [], 0, False, 0),
        ({}, [held(500)], 500, False, 500),
        ({}, [held(500, peaks={"A": 600, "B": 990})], 660, False, 500),
        ({}, [held(0, vram=200), held(0, 4, vram=300, peaks={"A": 400})], 640, True, 640),
        ({}, [held(0, vram=200, whole=True)], 1000, True, 1000),
        ({}, [held(0)], 1000, False, 1000),
        ({}, [held(0, vram=200, released_boot=7.0)], 0, False, 0),
        ({"total_mib": None}, [held(0, vram=200)], None, True, 1000),
    ],
)
def test_a_gpu_view_sums_the_memory_allocated_to_its_jobs(
    row: dict[str, Any], holders: list[Attempt], allocated: int | None, by_memory: bool, share: int
) -> None:
    (view,) = gpu_views([gpu_record(**row)], holders, {})
    assert (view.allocated_mib, view.has_declared_memory, view.share) == (allocated, by_memory, share)


def test_a_gpu_view_applies_the_given_limits() -> None:
    strict = Limits(mem_threshold=0.5, spike_buffer=0.0)
    peak = held(500, peaks={"A": 600})
    assert [view.allocated_mib for view in gpu_views([gpu_record()], [peak], {}, strict)] == [600]
    assert [view.state for view in gpu_views([gpu_record(used_mib=600)], [], {}, strict)] == ["busy"]


def test_a_paused_gpu_says_why_until_it_is_resumed(desk: Desk, location: Location) -> None:
    def reasons() -> list[str | None]:
        return [gpu_object(one)["pause_reason"] for one in status(location, StatusQuery()).gpus]

    first, second = desk.store.gpus()
    desk.record(
        act.GpuChanged(first, replace(first, paused=True), "state_file_removed"),
        act.GpuChanged(second, replace(second, paused=True), "state_file_edited"),
    )
    assert reasons() == ["because the state file was removed", "by an edit to the state file"]
    assert "paused by an edit to the state file\n" in to_text(status(location, StatusQuery()))
    set_paused(location, [0], paused=False)
    assert reasons() == [None, "by an edit to the state file"]
    set_paused(location, [0], paused=True)  # a command needs no reason
    set_paused(desk.server, [1], paused=False)  # not carried out yet
    assert reasons() == [None, None]
