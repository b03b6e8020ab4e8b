"""Placement of jobs, and the reasons why they wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.scheduling.placement import Ledger, place
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.show.gpu_text import obstacle_text
from gpu_scheduler.show.wait_text import wait_text
from tests.attempts import replace
from tests.core.gpu_world import ledger

PAUSED = GpuObstacle(0, ObstacleKind.PAUSED)


def wait_words(answer: tuple[str, ...] | WaitReason) -> str:
    assert isinstance(answer, WaitReason)
    return wait_text(answer)


def obstacle_words(view: Ledger, need: Need) -> str | None:
    found = view.obstacle(need)
    return None if found is None else obstacle_text(found)


@pytest.mark.parametrize(
    ("gpus", "need", "chosen"),
    [
        ([ledger(0), ledger(1)], Need(1, 1000), ("U0",)),
        ([ledger(0, allocated_share=500), ledger(1)], Need(1, 500), ("U0",)),
        ([ledger(0), ledger(1, allocated_share=500)], Need(1, 500), ("U1",)),
        ([ledger(0, allocated_share=500), ledger(1)], Need(1, 1000), ("U1",)),
        ([ledger(0, mean_load=50.0), ledger(1, mean_load=5.0)], Need(1, 1000), ("U1",)),
        (
            [ledger(0, allocated_share=250), ledger(1, allocated_share=500), ledger(2)],
            Need(2, 500),
            ("U0", "U1"),
        ),
        ([ledger(0), ledger(1), ledger(2, allocated_share=1000)], Need(2, 1000), ("U0", "U1")),
        (
            [ledger(0, foreign_mib=60), ledger(1, allocated_share=1)],
            Need(1, 1000, alone=True),
            ("U0",),
        ),
    ],
)
def test_prefers_the_gpu_with_the_best_fit_then_the_least_load_then_the_lowest_index(
    gpus: list[Ledger], need: Need, chosen: tuple[str, ...]
) -> None:
    assert place(need, None, gpus) == chosen


@pytest.mark.parametrize(
    ("view", "need", "words"),
    [
        (ledger(0, closed=PAUSED), Need(1, 500), "GPU 0: paused"),
        (ledger(0, allocated_share=1000), Need(1, 500), "needs 0.5 of a GPU, 0 free"),
        (ledger(0, allocated_share=700), Need(1, 500), "GPU 0: share 0.3 free"),
        (
            ledger(0, foreign_mib=22_000, foreign_pid=8123),
            Need(1, 500),
            "foreign process 8123 uses 21.5 GiB",
        ),
        (
            ledger(0, foreign_mib=500, foreign_pid=8, mean_foreign_load=97.0),
            Need(1, 500),
            "process 8, load 97 %",
        ),
        (
            ledger(0, foreign_mib=300, foreign_pid=8),
            Need(1, 1000, alone=True),
            "process 8 uses 300 MiB",
        ),
        (ledger(0, foreign_mib=None), Need(1, 500), "memory unknown"),
        (ledger(0, allocated_share=1), Need(1, 999, alone=True), "needs 1 idle GPU, 0 free"),
        (
            ledger(0, claims=(GpuClaim(None, 8, "ann"),), claimable_mib=0),
            Need(1, 500),
            "GPU 0: claimed by run, pid 8, user ann",
        ),
        (
            ledger(0, claims=(GpuClaim(9000, 8, "ann", by_scheduler=True),), claimable_mib=15_576),
            Need(1, 1000),
            "GPU 0: 9000 MiB claimed by a scheduler's job, pid 8, user ann",
        ),
        (
            ledger(0, claims_problem="/locks/U0 is a symbolic link; remove it"),
            Need(1, 500),
            "GPU 0: cannot be claimed, because /locks/U0 is a symbolic link; remove it",
        ),
    ],
)
def test_the_wait_reason_names_why_each_gpu_cannot_be_used(view: Ledger, need: Need, words: str) -> None:
    assert words in wait_words(place(need, None, [view]))


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
        (Need(1, 1000), {"closed": PAUSED}, ObstacleKind.PAUSED),
        (Need(1, 1000), {"allocated_share": 500}, ObstacleKind.BUSY),
        (Need(1, 600), {"allocated_share": 500}, ObstacleKind.SHARE),
        (Need(1, 1000, alone=True), {"allocated_share": 1}, ObstacleKind.BUSY),
        (Need(1, vram=9000), {"foreign_mib": 20_000}, ObstacleKind.CLAIMED),
        # Room for the claim does not suffice if the memory is in use.
        (Need(1, vram=8000), {"foreign_kept_mib": 20_000}, ObstacleKind.MEMORY),
        (Need(1, vram=8000), {"claims_problem": "unreadable"}, ObstacleKind.CLAIMS_UNKNOWN),
    ],
)
def test_a_job_needs_as_much_unclaimed_memory_as_it_claims(
    need: Need, values: dict[str, object], kind: ObstacleKind | None
) -> None:
    claimed = ledger(0, claims=(GpuClaim(16_576, 8),), claimable_mib=8000)
    found = replace(claimed, **values).obstacle(need)
    assert (found and found.kind) is kind


def test_the_load_of_our_own_jobs_does_not_block_placement() -> None:
    beside = ledger(
        0,
        allocated_share=500,
        mean_load=97.0,
        foreign_mib=5,
        foreign_pid=8,
        mean_foreign_load=0.0,
    )
    for need in (Need(1, 500), Need(1, vram=9000), Need(1, 500, vram=9000)):
        assert place(need, None, [beside]) == ("U0",)


def test_paused_gpus_do_not_make_a_need_infeasible() -> None:
    two = [ledger(0, closed=PAUSED), ledger(1, allocated_share=1000)]
    answer = place(Need(3, 1000), None, two)
    assert answer == WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(3, 1000), gpus=2, managed=2)
    assert wait_words(answer) == "infeasible: needs 3 free GPUs, but only 2 are managed"
    answer = place(Need(2, 1000), None, two)
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible
    answer = place(Need(1, 1000), (5,), two)
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
        ledger(
            i,
            allocated_share=booked,
            foreign_kept_mib=foreign,
            foreign_mib=foreign,
            foreign_pid=1 if foreign else None,
            mean_load=load,
            closed=closed,
        )
        for i, (booked, foreign, load, closed) in enumerate(rows)
    ]
    need = Need(count, 1000 if alone else share, alone)
    limited = None if allowed is None else tuple(sorted(allowed))
    answer = place(need, limited, gpus)
    if isinstance(answer, WaitReason):
        candidates = [g for g in gpus if limited is None or g.index in limited]
        assert answer.is_infeasible == (len(candidates) < count)
        return
    chosen = [g for g in gpus if g.uuid in answer]
    assert len(chosen) == len(set(answer)) == count
    for view in chosen:
        assert view.allocated_share + need.share <= 1000
        assert not (alone and view.allocated_share)
        assert view.closed is None
        assert limited is None or view.index in limited
        assert view.foreign_mib is not None
        assert view.foreign_mib < 0.8 * 24576


def test_foreign_use_equal_to_a_threshold_blocks_a_gpu() -> None:
    full = ledger(0, 1000, foreign_mib=800, foreign_pid=8)
    assert "uses 800 MiB" in wait_words(place(Need(1, 500), None, [full]))
    assert place(
        Need(1, 500),
        None,
        [ledger(0, 1000, foreign_mib=799, foreign_pid=8)],
    ) == ("U0",)
    busy = ledger(0, foreign_mib=201, foreign_pid=8, mean_foreign_load=80.0)
    assert "load 80 %" in wait_words(place(Need(1, 500), None, [busy]))
    less = ledger(0, foreign_mib=201, foreign_pid=8, mean_foreign_load=79.9)
    assert place(Need(1, 500), None, [less]) == ("U0",)


def test_a_gpu_with_unknown_load_is_chosen_last() -> None:
    assert place(Need(1, 1000), None, [ledger(0, mean_load=None), ledger(1, mean_load=99.0)]) == ("U1",)
    unknown = ledger(0, mean_load=None, foreign_mib=900, foreign_pid=8, mean_foreign_load=None)
    assert place(Need(1, 1000), None, [unknown]) == ("U0",)


def test_the_lowest_index_decides_between_equal_gpus() -> None:
    assert place(Need(1, 1000), None, [ledger(2), ledger(1), ledger(0)]) == ("U0",)


def test_the_wait_reason_reports_foreign_memory_without_a_process_id() -> None:
    held = ledger(0, foreign_mib=24_000, foreign_pid=None)
    assert "23.4 GiB in use by unknown processes or the driver" in wait_words(
        place(Need(1, 500), None, [held])
    )


def test_the_wait_reason_lists_four_unavailable_gpus_and_counts_the_rest() -> None:
    text = wait_words(
        place(
            Need(1, 500),
            None,
            [ledger(i, closed=GpuObstacle(i, ObstacleKind.PAUSED)) for i in range(7)],
        )
    )
    assert text.endswith("GPU 3: paused; and 3 more)")


def test_placement_by_share_ignores_used_memory() -> None:
    full = ledger(0, allocated_share=500, foreign_kept_mib=24_576)
    assert place(Need(1, 500), None, [full]) == ("U0",)
    assert place(Need(1, 500), None, [ledger(0, foreign_kept_mib=None)]) == ("U0",)
    assert (
        wait_words(place(Need(1, 501), None, [full]))
        == "needs 0.501 of a GPU, 0 free (GPU 0: share 0.5 free)"
    )


def test_placement_by_memory_ignores_shares() -> None:
    booked = ledger(0, allocated_share=1000, foreign_kept_mib=10_000)
    assert place(Need(1, vram=14_064), None, [booked]) == ("U0",)
    assert wait_words(place(Need(1, vram=14_065), None, [booked])) == (
        "needs 13.7 GiB of a GPU, 0 free (GPU 0: room for 13.7 GiB)"
    )
    assert place(Need(1, vram=14_065), None, [replace(booked, limits=Limits(margin_mib=511))]) == ("U0",)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (ledger(0, allocated_share=800, foreign_kept_mib=0), "share 0.2 free"),
        (ledger(0, allocated_share=0, foreign_kept_mib=20_000), "room for 4.0 GiB"),
        (ledger(0, allocated_share=800, foreign_kept_mib=20_000), "share 0.2 free"),
        (ledger(0, allocated_share=500, foreign_kept_mib=15_000), None),
    ],
)
def test_a_job_that_declares_a_share_and_memory_gets_a_gpu_where_both_fit(
    view: Ledger, words: str | None
) -> None:
    assert obstacle_words(view, Need(1, 500, vram=9000)) == words


@pytest.mark.parametrize(
    "need",
    [Need(1, 1000, alone=True), Need(1, 1, exclusive=True), Need(1, vram=1, exclusive=True)],
    ids=["alone", "exclusive share", "exclusive memory"],
)
def test_an_exclusive_job_waits_for_all_other_jobs_to_end(need: Need) -> None:
    assert obstacle_words(ledger(0, allocated_share=1), need) == "busy"
    assert ledger(0).obstacle(need) is None


@pytest.mark.parametrize(
    "need", [Need(1, 1), Need(1, vram=1), Need(1, 1, vram=1), Need(1, 1, exclusive=True)]
)
def test_no_job_is_placed_beside_an_exclusive_job(need: Need) -> None:
    held = ledger(0, allocated_share=1000, foreign_kept_mib=24_576)
    assert held.obstacle(need) is not None


def test_foreign_processes_block_a_job_that_must_run_alone_but_not_an_exclusive_job() -> None:
    beside = ledger(0, foreign_kept_mib=5500, foreign_mib=5000, foreign_pid=8)
    assert beside.obstacle(Need(1, vram=9000, exclusive=True)) is None
    assert beside.obstacle(Need(1, 1000, exclusive=True)) is None
    assert obstacle_words(beside, Need(1, 1000, alone=True)) == "foreign process 8 uses 4.9 GiB"


@pytest.mark.parametrize(("mib", "idle"), [(0, True), (60, True), (200, True), (201, False)])
def test_a_gpu_counts_as_idle_up_to_the_idle_threshold(mib: int, idle: bool) -> None:
    view = ledger(0, foreign_mib=mib, foreign_pid=8)
    assert (view.obstacle(Need(1, 1000, alone=True)) is None) == idle
    assert replace(view, limits=Limits(idle_threshold_mib=201)).obstacle(Need(1, 1000, alone=True)) is None
    assert view.obstacle(Need(1, 1000)) is None


SHARE, MEMORY, BOTH = Need(1, 1), Need(1, vram=1), Need(1, 1, vram=1)
ALONE, EXCLUSIVE = Need(1, 1000, alone=True), Need(1, 1, exclusive=True)


@pytest.mark.parametrize("load", [None, 0.0, 79.9, 80.0, 100.0])
@pytest.mark.parametrize("mib", [0, 5, 200, 201, 19_660, 19_661, 23_000])
@pytest.mark.parametrize("need", [SHARE, MEMORY, BOTH, ALONE, EXCLUSIVE], ids=str)
def test_whether_foreign_use_of_a_gpu_blocks_a_job_depends_on_the_jobs_need(
    need: Need, mib: int, load: float | None
) -> None:
    view = ledger(
        0,
        foreign_mib=mib,
        foreign_pid=8,
        mean_foreign_load=load,
        mean_load=100.0,
        foreign_kept_mib=mib,
    )
    expected = None
    if mib > 200:
        if need.alone:
            expected = ObstacleKind.FOREIGN_PROCESS
        elif mib >= 0.8 * 24_576 and need.vram is None:
            expected = ObstacleKind.FOREIGN_MEMORY
        elif load is not None and load >= 80:
            expected = ObstacleKind.FOREIGN_LOAD
    assert view.foreign_use(need) == expected
    told = obstacle_words(view, need)
    if expected is None:
        assert told is None
    elif expected is ObstacleKind.FOREIGN_LOAD:
        assert told == f"foreign process 8, load {load:.0f} %"
    else:
        assert (told or "").startswith("foreign process 8 uses ")


@pytest.mark.parametrize("need", [SHARE, MEMORY, ALONE], ids=str)
def test_foreign_use_below_the_idle_threshold_never_blocks_a_gpu(need: Need) -> None:
    limits = Limits(mem_threshold=0.001, load_threshold=0.01, idle_threshold_mib=5000)
    view = ledger(
        0, limits=limits, foreign_mib=5000, foreign_pid=8, mean_foreign_load=100.0, foreign_kept_mib=5500
    )
    assert view.obstacle(need) is None
    over = ledger(0, limits=limits, foreign_mib=5001, foreign_pid=8, mean_foreign_load=100.0)
    assert "process 8" in (obstacle_words(over, need) or "")


def test_the_wait_reason_of_a_full_gpu_omits_an_idle_foreign_process() -> None:
    view = ledger(0, foreign_mib=5, foreign_pid=8, foreign_kept_mib=20_000)
    assert obstacle_words(view, Need(1, vram=9000)) == "room for 4.0 GiB"


def test_a_memory_shortfall_names_the_foreign_process() -> None:
    view = ledger(0, foreign_mib=11_000, foreign_pid=8123, foreign_kept_mib=12_100)
    assert obstacle_words(view, Need(1, vram=20_000)) == (
        "room for 11.7 GiB, foreign process 8123 uses 10.7 GiB"
    )
    over = ledger(0, foreign_kept_mib=30_000)
    assert obstacle_words(over, Need(1, vram=1)) == "full"


@pytest.mark.parametrize(
    "view",
    [
        ledger(0, None, foreign_kept_mib=None),
        ledger(0, foreign_kept_mib=None),
        ledger(0, None, foreign_kept_mib=0),
    ],
)
def test_does_not_place_a_job_with_declared_memory_on_a_gpu_with_unknown_memory(
    view: Ledger,
) -> None:
    assert obstacle_words(view, Need(1, vram=1)) == "memory unknown"
    answer = place(Need(1, vram=1), None, [view])
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible


@pytest.mark.parametrize(
    ("gpus", "need", "chosen"),
    [
        # The job gets the fuller GPU, which has less memory left, so that the empty one stays free for a
        # large job.
        ([ledger(0), ledger(1, foreign_kept_mib=9000)], Need(1, vram=9000), ("U1",)),
        ([ledger(0, foreign_kept_mib=9000), ledger(1, foreign_kept_mib=12_000)], Need(1, vram=9000), ("U1",)),
        ([ledger(0, foreign_kept_mib=9000), ledger(1, foreign_kept_mib=20_000)], Need(1, vram=9000), ("U0",)),
        # A small GPU is preferred to a large one that has more memory left, however full the large one is.
        ([ledger(0, 81_920), ledger(1, 24_576)], Need(1, vram=20_000), ("U1",)),
        (
            [ledger(0, 81_920, foreign_kept_mib=70_000), ledger(1, 24_576)],
            Need(1, vram=10_000),
            ("U0",),
        ),
        ([ledger(0, 81_920), ledger(1, 24_576)], Need(1, vram=30_000), ("U0",)),
        (
            [ledger(0, 81_920), ledger(1, 24_576), ledger(2, 49_152)],
            Need(2, vram=30_000),
            ("U0", "U2"),
        ),
        (
            [ledger(0), ledger(1, foreign_kept_mib=5000), ledger(2, foreign_kept_mib=9000)],
            Need(2, vram=9000),
            ("U1", "U2"),
        ),
        # If they have the same memory left, the larger allocated share decides, then the lower load, then the
        # lower index.
        ([ledger(0), ledger(1, allocated_share=100)], Need(1, vram=9000), ("U1",)),
        ([ledger(0, mean_load=9.0), ledger(1, mean_load=1.0)], Need(1, vram=9000), ("U1",)),
        ([ledger(1), ledger(0)], Need(1, vram=9000), ("U0",)),
        # For a job that declares a share, memory does not matter.
        ([ledger(0, foreign_kept_mib=0), ledger(1, foreign_kept_mib=20_000)], Need(1, 500), ("U0",)),
        (
            [ledger(0, allocated_share=1, foreign_kept_mib=0), ledger(1, foreign_kept_mib=20_000)],
            Need(1, 500, vram=4000),
            ("U1",),
        ),
    ],
)
def test_best_fit_preserves_the_largest_block_of_free_memory(
    gpus: list[Ledger], need: Need, chosen: tuple[str, ...]
) -> None:
    assert place(need, None, gpus) == chosen


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
        ledger(0, 8192, closed=PAUSED, foreign_kept_mib=8192),
        ledger(1, 24_576),
    ]
    assert wait_words(place(need, allowed, gpus)) == text


def test_a_need_is_feasible_up_to_the_last_mib_of_an_empty_gpu() -> None:
    assert place(Need(1, vram=24_064), None, [ledger(0)]) == ("U0",)
    waits = place(Need(1, vram=24_064), None, [ledger(0, foreign_kept_mib=1)])
    assert isinstance(waits, WaitReason)
    assert not waits.is_infeasible


def test_a_gpu_of_unknown_size_counts_as_large_enough() -> None:
    gpus = [ledger(0, 8192), ledger(1, None, foreign_kept_mib=None)]
    answer = place(Need(1, vram=9000), None, gpus)
    assert isinstance(answer, WaitReason)
    assert not answer.is_infeasible
    both = place(Need(2, vram=9000), None, gpus)
    assert isinstance(both, WaitReason)
    assert both.is_infeasible
    assert "the smallest of the 2 largest managed GPUs has 8.0 GiB" in wait_text(both)


def test_the_reason_of_an_infeasible_need_groups_gpus_of_the_same_size() -> None:
    answer = place(
        Need(2, vram=30_720),
        None,
        [replace(one, limits=Limits(margin_mib=1024)) for one in (ledger(0), ledger(1), ledger(2, 8192))],
    )
    assert wait_words(answer) == (
        "infeasible: needs 30.0 GiB of each of 2 GPUs, but the largest managed GPUs have 24.0 GiB, of which"
        " 23.0 GiB can be allocated to jobs (margin 1.0 GiB)"
    )


def test_a_job_with_only_declared_memory_ignores_allocated_shares() -> None:
    """Shares do not count for a job with declared memory, not even if their sum exceeds a whole GPU."""
    assert ledger(0, allocated_share=1037, foreign_kept_mib=600).obstacle(Need(1, vram=300)) is None
