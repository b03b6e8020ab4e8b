"""Placement of jobs, and the reasons why they wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.wait_reason import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.scheduling.placement import (
    GpuAvailability,
    foreign_use,
    obstacle,
    obstacle_kind,
    place,
)
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.views.gpu_text import obstacle_text
from gpu_scheduler.views.wait_text import wait_text

LIMITS = Limits()
PAUSED = GpuObstacle(0, ObstacleKind.PAUSED)


def available(index: int, **values: object) -> GpuAvailability:
    return GpuAvailability(f"U{index}", index, 24576, **values)  # type: ignore[arg-type]


def wait_words(answer: tuple[str, ...] | WaitReason) -> str:
    assert isinstance(answer, WaitReason)
    return wait_text(answer)


def obstacle_words(view: GpuAvailability, need: Need, limits: Limits) -> str | None:
    found = obstacle(view, need, limits)
    return None if found is None else obstacle_text(found)


@pytest.mark.parametrize(
    ("gpus", "need", "chosen"),
    [
        ([available(0), available(1)], Need(1, 1000), ("U0",)),
        ([available(0, allocated_share=500), available(1)], Need(1, 500), ("U0",)),
        ([available(0), available(1, allocated_share=500)], Need(1, 500), ("U1",)),
        ([available(0, allocated_share=500), available(1)], Need(1, 1000), ("U1",)),
        ([available(0, mean_load=50.0), available(1, mean_load=5.0)], Need(1, 1000), ("U1",)),
        (
            [available(0, allocated_share=250), available(1, allocated_share=500), available(2)],
            Need(2, 500),
            ("U0", "U1"),
        ),
        ([available(0), available(1), available(2, allocated_share=1000)], Need(2, 1000), ("U0", "U1")),
        (
            [available(0, foreign_mib=60), available(1, allocated_share=1, occupied=True)],
            Need(1, 1000, alone=True),
            ("U0",),
        ),
    ],
)
def test_prefers_the_gpu_with_the_best_fit_then_the_least_load_then_the_lowest_index(
    gpus: list[GpuAvailability], need: Need, chosen: tuple[str, ...]
) -> None:
    assert place(need, None, gpus, LIMITS) == chosen


@pytest.mark.parametrize(
    ("view", "need", "words"),
    [
        (available(0, unavailable=PAUSED), Need(1, 500), "GPU 0: paused"),
        (available(0, allocated_share=1000), Need(1, 500), "needs 0.5 of a GPU, 0 free"),
        (available(0, allocated_share=700), Need(1, 500), "GPU 0: share 0.3 free"),
        (
            available(0, foreign_mib=22_000, foreign_pid=8123),
            Need(1, 500),
            "foreign process 8123 uses 21.5 GiB",
        ),
        (
            available(0, foreign_mib=500, foreign_pid=8, mean_foreign_load=97.0),
            Need(1, 500),
            "process 8, load 97 %",
        ),
        (
            available(0, foreign_mib=300, foreign_pid=8),
            Need(1, 1000, alone=True),
            "process 8 uses 300 MiB",
        ),
        (available(0, foreign_mib=None), Need(1, 500), "memory unknown"),
        (available(0, occupied=True), Need(1, 999, alone=True), "needs 1 idle GPU, 0 free"),
        (
            available(0, claims=(GpuClaim(None, 8, "ann"),), claimable_mib=0),
            Need(1, 500),
            "GPU 0: claimed by run, pid 8, user ann",
        ),
        (
            available(0, claims=(GpuClaim(9000, 8, "ann", by_scheduler=True),), claimable_mib=15_576),
            Need(1, 1000),
            "GPU 0: 9000 MiB claimed by a scheduler's job, pid 8, user ann",
        ),
        (
            available(0, claims_problem="/locks/U0 is a symbolic link; remove it"),
            Need(1, 500),
            "GPU 0: cannot be claimed, because /locks/U0 is a symbolic link; remove it",
        ),
    ],
)
def test_the_wait_reason_names_why_each_gpu_cannot_be_used(
    view: GpuAvailability, need: Need, words: str
) -> None:
    assert words in wait_words(place(need, None, [view], LIMITS))


@pytest.mark.parametrize(
    ("need", "values", "kind"),
    [
        (Need(1, vram=8000), {}, None),
        (Need(1, vram=8001), {}, ObstacleKind.CLAIMED),
        (Need(1, 325), {}, None),
        (Need(1, 326), {}, ObstacleKind.CLAIMED),
        (Need(1, 1000), {}, ObstacleKind.CLAIMED),
        (Need(1, 1000, alone=True), {}, ObstacleKind.CLAIMED),
        (Need(1, vram=100, exclusive=True), {}, ObstacleKind.CLAIMED),
        # The obstacles of the scheduler's own jobs are named first, and memory last.
        (Need(1, 1000), {"unavailable": PAUSED}, ObstacleKind.PAUSED),
        (Need(1, 1000), {"allocated_share": 500}, ObstacleKind.BUSY),
        (Need(1, 600), {"allocated_share": 500}, ObstacleKind.SHARE),
        (Need(1, 1000, alone=True), {"occupied": True}, ObstacleKind.BUSY),
        (Need(1, vram=9000), {"foreign_mib": 20_000}, ObstacleKind.CLAIMED),
        # Room for the claim does not suffice if the memory is in use.
        (Need(1, vram=8000), {"committed_mib": 20_000}, ObstacleKind.MEMORY),
        (Need(1, vram=8000), {"claims_problem": "unreadable"}, ObstacleKind.CLAIMS_UNKNOWN),
    ],
)
def test_a_job_needs_as_much_unclaimed_memory_as_it_claims(
    need: Need, values: dict[str, object], kind: ObstacleKind | None
) -> None:
    view = available(0, claims=(GpuClaim(16_576, 8),), claimable_mib=8000, **values)
    assert obstacle_kind(view, need, LIMITS) is kind


def test_the_load_of_our_own_jobs_does_not_block_placement() -> None:
    beside = available(
        0,
        allocated_share=500,
        mean_load=97.0,
        foreign_mib=5,
        foreign_pid=8,
        mean_foreign_load=0.0,
    )
    for need in (Need(1, 500), Need(1, vram=9000), Need(1, 500, vram=9000)):
        assert place(need, None, [beside], LIMITS) == ("U0",)


def test_paused_gpus_do_not_make_a_need_infeasible() -> None:
    two = [available(0, unavailable=PAUSED), available(1, allocated_share=1000)]
    answer = place(Need(3, 1000), None, two, LIMITS)
    assert answer == WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(3, 1000), gpus=2, managed=2)
    assert wait_words(answer) == "infeasible: needs 3 free GPUs, but only 2 are managed"
    answer = place(Need(2, 1000), None, two, LIMITS)
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible
    answer = place(Need(1, 1000), (5,), two, LIMITS)
    assert isinstance(answer, WaitReason)
    assert answer.is_infeasible
    assert "none of its allowed GPUs is managed" in wait_text(answer)


VIEWS = st.lists(
    st.builds(
        lambda booked, foreign, load, closed: (booked, foreign, load, closed),
        st.integers(0, 1000),
        st.one_of(st.none(), st.integers(0, 24576)),
        st.one_of(st.none(), st.floats(0, 100)),
        st.one_of(st.none(), st.just(PAUSED)),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(
    VIEWS,
    st.integers(1, 4),
    st.integers(1, 1000),
    st.booleans(),
    st.one_of(st.none(), st.sets(st.integers(0, 9), min_size=1)),
)
def test_placement_never_overallocates_or_uses_an_unavailable_gpu(
    rows: list[tuple[int, int | None, float | None, GpuObstacle | None]],
    count: int,
    share: int,
    alone: bool,
    allowed: set[int] | None,
) -> None:
    gpus = [
        GpuAvailability(
            f"U{i}",
            i,
            24576,
            booked,
            foreign,
            bool(booked),
            foreign,
            1 if foreign else None,
            load,
            closed,
        )
        for i, (booked, foreign, load, closed) in enumerate(rows)
    ]
    need = Need(count, 1000 if alone else share, alone)
    limited = None if allowed is None else tuple(sorted(allowed))
    answer = place(need, limited, gpus, LIMITS)
    if isinstance(answer, WaitReason):
        candidates = [g for g in gpus if limited is None or g.index in limited]
        assert answer.is_infeasible == (len(candidates) < count)
        return
    chosen = [g for g in gpus if g.uuid in answer]
    assert len(chosen) == len(set(answer)) == count
    for view in chosen:
        assert view.allocated_share + need.share <= 1000
        assert not (alone and view.occupied)
        assert view.unavailable is None
        assert limited is None or view.index in limited
        assert view.foreign_mib is not None
        assert view.foreign_mib < 0.8 * 24576


def test_foreign_use_equal_to_a_threshold_blocks_a_gpu() -> None:
    full = GpuAvailability("U0", 0, 1000, foreign_mib=800, foreign_pid=8)
    assert "uses 800 MiB" in wait_words(place(Need(1, 500), None, [full], LIMITS))
    assert place(
        Need(1, 500),
        None,
        [GpuAvailability("U0", 0, 1000, foreign_mib=799, foreign_pid=8)],
        LIMITS,
    ) == ("U0",)
    busy = available(0, foreign_mib=201, foreign_pid=8, mean_foreign_load=80.0)
    assert "load 80 %" in wait_words(place(Need(1, 500), None, [busy], LIMITS))
    less = available(0, foreign_mib=201, foreign_pid=8, mean_foreign_load=79.9)
    assert place(Need(1, 500), None, [less], LIMITS) == ("U0",)


def test_a_gpu_with_unknown_load_is_chosen_last() -> None:
    assert place(
        Need(1, 1000), None, [available(0, mean_load=None), available(1, mean_load=99.0)], LIMITS
    ) == ("U1",)
    unknown = available(0, mean_load=None, foreign_mib=900, foreign_pid=8, mean_foreign_load=None)
    assert place(Need(1, 1000), None, [unknown], LIMITS) == ("U0",)


def test_the_lowest_index_decides_between_equal_gpus() -> None:
    assert place(Need(1, 1000), None, [available(2), available(1), available(0)], LIMITS) == ("U0",)


def test_the_wait_reason_reports_foreign_memory_without_a_process_id() -> None:
    held = available(0, foreign_mib=24_000, foreign_pid=None)
    assert "23.4 GiB in use by unknown processes or the driver" in wait_words(
        place(Need(1, 500), None, [held], LIMITS)
    )


def test_the_wait_reason_lists_four_unavailable_gpus_and_counts_the_rest() -> None:
    text = wait_words(
        place(
            Need(1, 500),
            None,
            [available(i, unavailable=GpuObstacle(i, ObstacleKind.PAUSED)) for i in range(7)],
            LIMITS,
        )
    )
    assert text.endswith("GPU 3: paused; and 3 more)")


def test_placement_by_share_ignores_used_memory() -> None:
    full = available(0, allocated_share=500, committed_mib=24_576, occupied=True)
    assert place(Need(1, 500), None, [full], LIMITS) == ("U0",)
    assert place(Need(1, 500), None, [available(0, committed_mib=None)], LIMITS) == ("U0",)
    assert (
        wait_words(place(Need(1, 501), None, [full], LIMITS))
        == "needs 0.501 of a GPU, 0 free (GPU 0: share 0.5 free)"
    )


def test_placement_by_memory_ignores_shares() -> None:
    booked = available(0, allocated_share=1000, committed_mib=10_000, occupied=True)
    assert place(Need(1, vram=14_064), None, [booked], LIMITS) == ("U0",)
    assert wait_words(place(Need(1, vram=14_065), None, [booked], LIMITS)) == (
        "needs 13.7 GiB of a GPU, 0 free (GPU 0: room for 13.7 GiB)"
    )
    assert place(Need(1, vram=14_065), None, [booked], Limits(margin_mib=511)) == ("U0",)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (available(0, allocated_share=800, committed_mib=0), "share 0.2 free"),
        (available(0, allocated_share=0, committed_mib=20_000), "room for 4.0 GiB"),
        (available(0, allocated_share=800, committed_mib=20_000), "share 0.2 free"),
        (available(0, allocated_share=500, committed_mib=15_000), None),
    ],
)
def test_a_job_that_declares_a_share_and_memory_gets_a_gpu_where_both_fit(
    view: GpuAvailability, words: str | None
) -> None:
    assert obstacle_words(view, Need(1, 500, vram=9000), LIMITS) == words


@pytest.mark.parametrize(
    "need",
    [Need(1, 1000, alone=True), Need(1, 1, exclusive=True), Need(1, vram=1, exclusive=True)],
    ids=["alone", "exclusive share", "exclusive memory"],
)
def test_an_exclusive_job_waits_for_all_other_jobs_to_end(need: Need) -> None:
    assert obstacle_words(available(0, occupied=True), need, LIMITS) == "busy"
    assert obstacle(available(0), need, LIMITS) is None


@pytest.mark.parametrize(
    "need", [Need(1, 1), Need(1, vram=1), Need(1, 1, vram=1), Need(1, 1, exclusive=True)]
)
def test_no_job_is_placed_beside_an_exclusive_job(need: Need) -> None:
    held = available(0, allocated_share=1000, committed_mib=24_576, occupied=True)
    assert obstacle(held, need, LIMITS) is not None


def test_foreign_processes_block_a_job_that_must_run_alone_but_not_an_exclusive_job() -> None:
    beside = available(0, committed_mib=5500, foreign_mib=5000, foreign_pid=8)
    assert obstacle(beside, Need(1, vram=9000, exclusive=True), LIMITS) is None
    assert obstacle(beside, Need(1, 1000, exclusive=True), LIMITS) is None
    assert obstacle_words(beside, Need(1, 1000, alone=True), LIMITS) == "foreign process 8 uses 4.9 GiB"


@pytest.mark.parametrize(("mib", "idle"), [(0, True), (60, True), (200, True), (201, False)])
def test_a_gpu_counts_as_idle_up_to_the_idle_threshold(mib: int, idle: bool) -> None:
    view = available(0, foreign_mib=mib, foreign_pid=8)
    assert (obstacle(view, Need(1, 1000, alone=True), LIMITS) is None) == idle
    assert obstacle(view, Need(1, 1000, alone=True), Limits(idle_threshold_mib=201)) is None
    assert obstacle(view, Need(1, 1000), LIMITS) is None


SHARE, MEMORY, BOTH = Need(1, 1), Need(1, vram=1), Need(1, 1, vram=1)
ALONE, EXCLUSIVE = Need(1, 1000, alone=True), Need(1, 1, exclusive=True)


@pytest.mark.parametrize("load", [None, 0.0, 79.9, 80.0, 100.0])
@pytest.mark.parametrize("mib", [0, 5, 200, 201, 19_660, 19_661, 23_000])
@pytest.mark.parametrize("need", [SHARE, MEMORY, BOTH, ALONE, EXCLUSIVE], ids=str)
def test_whether_foreign_use_of_a_gpu_blocks_a_job_depends_on_the_jobs_need(
    need: Need, mib: int, load: float | None
) -> None:
    view = available(
        0,
        foreign_mib=mib,
        foreign_pid=8,
        mean_foreign_load=load,
        mean_load=100.0,
        committed_mib=mib,
    )
    expected = None
    if mib > 200:
        if need.alone:
            expected = ObstacleKind.FOREIGN_PROCESS
        elif mib >= 0.8 * 24_576 and need.vram is None:
            expected = ObstacleKind.FOREIGN_MEMORY
        elif load is not None and load >= 80:
            expected = ObstacleKind.FOREIGN_LOAD
    assert foreign_use(view, need, LIMITS) == expected
    told = obstacle_words(view, need, LIMITS)
    if expected is None:
        assert told is None
    elif expected is ObstacleKind.FOREIGN_LOAD:
        assert told == f"foreign process 8, load {load:.0f} %"
    else:
        assert (told or "").startswith("foreign process 8 uses ")


@pytest.mark.parametrize("need", [SHARE, MEMORY, ALONE], ids=str)
def test_foreign_use_below_the_idle_threshold_never_blocks_a_gpu(need: Need) -> None:
    limits = Limits(mem_threshold=0.001, load_threshold=0.01, idle_threshold_mib=5000)
    view = available(0, foreign_mib=5000, foreign_pid=8, mean_foreign_load=100.0, committed_mib=5500)
    assert obstacle(view, need, limits) is None
    over = available(0, foreign_mib=5001, foreign_pid=8, mean_foreign_load=100.0)
    assert "process 8" in (obstacle_words(over, need, limits) or "")


def test_the_wait_reason_of_a_full_gpu_omits_an_idle_foreign_process() -> None:
    view = available(0, foreign_mib=5, foreign_pid=8, committed_mib=20_000)
    assert obstacle_words(view, Need(1, vram=9000), LIMITS) == "room for 4.0 GiB"


def test_a_memory_shortfall_names_the_foreign_process() -> None:
    view = available(0, foreign_mib=11_000, foreign_pid=8123, committed_mib=12_100)
    assert obstacle_words(view, Need(1, vram=20_000), LIMITS) == (
        "room for 11.7 GiB, foreign process 8123 uses 10.7 GiB"
    )
    over = available(0, committed_mib=30_000, occupied=True)
    assert obstacle_words(over, Need(1, vram=1), LIMITS) == "full"


@pytest.mark.parametrize(
    "view",
    [
        GpuAvailability("U0", 0, None, committed_mib=None),
        available(0, committed_mib=None),
        GpuAvailability("U0", 0, None, committed_mib=0),
    ],
)
def test_does_not_place_a_job_with_declared_memory_on_a_gpu_with_unknown_memory(
    view: GpuAvailability,
) -> None:
    assert obstacle_words(view, Need(1, vram=1), LIMITS) == "memory unknown"
    answer = place(Need(1, vram=1), None, [view], LIMITS)
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible


def gpu_of_size(index: int, total: int, **values: object) -> GpuAvailability:
    return GpuAvailability(f"U{index}", index, total, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "need", "chosen"),
    [
        # The job gets the fuller GPU, which has less memory left, so that the empty one stays free for a
        # large job.
        ([available(0), available(1, committed_mib=9000)], Need(1, vram=9000), ("U1",)),
        ([available(0, committed_mib=9000), available(1, committed_mib=12_000)], Need(1, vram=9000), ("U1",)),
        ([available(0, committed_mib=9000), available(1, committed_mib=20_000)], Need(1, vram=9000), ("U0",)),
        # A small GPU is preferred to a large one that has more memory left, however full the large one is.
        ([gpu_of_size(0, 81_920), gpu_of_size(1, 24_576)], Need(1, vram=20_000), ("U1",)),
        (
            [gpu_of_size(0, 81_920, committed_mib=70_000), gpu_of_size(1, 24_576)],
            Need(1, vram=10_000),
            ("U0",),
        ),
        ([gpu_of_size(0, 81_920), gpu_of_size(1, 24_576)], Need(1, vram=30_000), ("U0",)),
        (
            [gpu_of_size(0, 81_920), gpu_of_size(1, 24_576), gpu_of_size(2, 49_152)],
            Need(2, vram=30_000),
            ("U0", "U2"),
        ),
        (
            [available(0), available(1, committed_mib=5000), available(2, committed_mib=9000)],
            Need(2, vram=9000),
            ("U1", "U2"),
        ),
        # If they have the same memory left, the larger allocated share decides, then the lower load, then the
        # lower index.
        ([available(0), available(1, allocated_share=100)], Need(1, vram=9000), ("U1",)),
        ([available(0, mean_load=9.0), available(1, mean_load=1.0)], Need(1, vram=9000), ("U1",)),
        ([available(1), available(0)], Need(1, vram=9000), ("U0",)),
        # For a job that declares a share, memory does not matter.
        ([available(0, committed_mib=0), available(1, committed_mib=20_000)], Need(1, 500), ("U0",)),
        (
            [available(0, allocated_share=1, committed_mib=0), available(1, committed_mib=20_000)],
            Need(1, 500, vram=4000),
            ("U1",),
        ),
    ],
)
def test_best_fit_preserves_the_largest_block_of_free_memory(
    gpus: list[GpuAvailability], need: Need, chosen: tuple[str, ...]
) -> None:
    assert place(need, None, gpus, LIMITS) == chosen


@pytest.mark.parametrize(
    ("need", "allowed", "text"),
    [
        (
            Need(1, vram=24_065),
            None,
            "infeasible: needs 23.5 GiB of a GPU, but the largest managed GPU has 24.0 GiB, of which 24064"
            " MiB can be allocated to jobs (margin 512 MiB)",
        ),
        (
            Need(2, vram=12_000),
            None,
            "infeasible: needs 11.7 GiB of each of 2 GPUs, but the smallest of the 2 largest managed GPUs has"
            " 8.0 GiB, of which 7.5 GiB can be allocated to jobs (margin 512 MiB)",
        ),
        (
            Need(1, vram=9000),
            (0,),
            "infeasible: needs 8.8 GiB of a GPU, but the largest allowed GPU has 8.0 GiB, of which 7.5 GiB"
            " can be allocated to jobs (margin 512 MiB)",
        ),
        (Need(3, vram=9000), None, "infeasible: needs 8.8 GiB of each of 3 GPUs, but only 2 are managed"),
        (Need(2, vram=90), (0,), "infeasible: needs 90 MiB of each of 2 GPUs, but only 1 is allowed"),
        (
            Need(2, vram=90),
            (0, 5),
            "infeasible: needs 90 MiB of each of 2 GPUs, but only 1 of its allowed GPUs is managed",
        ),
        (
            Need(3, vram=90),
            (0, 1, 5),
            "infeasible: needs 90 MiB of each of 3 GPUs, but only 2 of its allowed GPUs are managed",
        ),
    ],
)
def test_the_report_of_an_infeasible_need_names_the_largest_gpu(
    need: Need, allowed: tuple[int, ...] | None, text: str
) -> None:
    gpus = [
        gpu_of_size(0, 8192, unavailable=PAUSED, committed_mib=8192, occupied=True),
        gpu_of_size(1, 24_576),
    ]
    assert wait_words(place(need, allowed, gpus, LIMITS)) == text


def test_a_need_is_feasible_up_to_the_last_mib_of_an_empty_gpu() -> None:
    assert place(Need(1, vram=24_064), None, [available(0)], LIMITS) == ("U0",)
    waits = place(Need(1, vram=24_064), None, [available(0, committed_mib=1)], LIMITS)
    assert isinstance(waits, WaitReason)
    assert not waits.is_infeasible


def test_a_gpu_of_unknown_size_counts_as_large_enough() -> None:
    gpus = [gpu_of_size(0, 8192), GpuAvailability("U1", 1, None, committed_mib=None)]
    answer = place(Need(1, vram=9000), None, gpus, LIMITS)
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible
    both = place(Need(2, vram=9000), None, gpus, LIMITS)
    assert isinstance(both, WaitReason)
    assert both.is_infeasible
    assert "the smallest of the 2 largest managed GPUs has 8.0 GiB" in wait_text(both)


def test_the_reason_of_an_infeasible_need_groups_gpus_of_the_same_size() -> None:
    answer = place(
        Need(2, vram=30_720),
        None,
        [available(0), available(1), gpu_of_size(2, 8192)],
        Limits(margin_mib=1024),
    )
    assert wait_words(answer) == (
        "infeasible: needs 30.0 GiB of each of 2 GPUs, but the largest managed GPUs have 24.0 GiB, of which"
        " 23.0 GiB can be allocated to jobs (margin 1.0 GiB)"
    )


def test_a_job_with_only_declared_memory_ignores_allocated_shares() -> None:
    """Shares do not count for a job with declared memory, not even if their sum exceeds a whole GPU."""
    assert (
        obstacle(
            available(0, allocated_share=1037, committed_mib=600, occupied=True), Need(1, vram=300), LIMITS
        )
        is None
    )
