"""Where a job goes, and the words for why it waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.needs import Need
from gpu_scheduler.core.placement import GpuView, Limits, Reason, place

LIMITS = Limits()


def gpu(index: int, **values: object) -> GpuView:
    return GpuView(f"U{index}", index, 24576, **values)  # type: ignore[arg-type]


def why(answer: tuple[str, ...] | Reason) -> str:
    assert isinstance(answer, Reason)
    return answer.text


@pytest.mark.parametrize(
    ("gpus", "need", "chosen"),
    [
        ([gpu(0), gpu(1)], Need(1, 1000), ("U0",)),
        ([gpu(0, booked=500), gpu(1)], Need(1, 500), ("U0",)),
        ([gpu(0), gpu(1, booked=500)], Need(1, 500), ("U1",)),
        ([gpu(0, booked=500), gpu(1)], Need(1, 1000), ("U1",)),
        ([gpu(0, load=50.0), gpu(1, load=5.0)], Need(1, 1000), ("U1",)),
        ([gpu(0, booked=250), gpu(1, booked=500), gpu(2)], Need(2, 500), ("U0", "U1")),
        ([gpu(0), gpu(1), gpu(2, booked=1000)], Need(2, 1000), ("U0", "U1")),
        ([gpu(0, foreign_mib=60), gpu(1, booked=1)], Need(1, 1000, alone=True), ("U0",)),
    ],
)
def test_best_fit_then_least_load_then_lowest_index(
    gpus: list[GpuView], need: Need, chosen: tuple[str, ...]
) -> None:
    assert place(need, None, gpus, LIMITS) == chosen


@pytest.mark.parametrize(
    ("view", "need", "words"),
    [
        (gpu(0, closed="paused"), Need(1, 500), "GPU 0 paused"),
        (gpu(0, booked=1000), Need(1, 500), "needs 0.5 of a GPU, 0 free"),
        (gpu(0, booked=700), Need(1, 500), "GPU 0 0.3 free"),
        (
            gpu(0, foreign_mib=22_000, foreign="process 8123"),
            Need(1, 500),
            "foreign process 8123 holds 21.5 GiB",
        ),
        (gpu(0, foreign_mib=500, foreign="process 8", load=97.0), Need(1, 500), "process 8, load 97 %"),
        (gpu(0, foreign_mib=300, foreign="process 8"), Need(1, 1000, alone=True), "process 8 holds 300 MiB"),
        (gpu(0, foreign_mib=None), Need(1, 500), "memory unknown"),
        (gpu(0, booked=1), Need(1, 999, alone=True), "needs 1 idle GPU, 0 free"),
    ],
)
def test_a_gpu_that_takes_nothing_says_why(view: GpuView, need: Need, words: str) -> None:
    assert words in why(place(need, None, [view], LIMITS))


def test_the_load_of_our_own_jobs_keeps_nobody_out() -> None:
    assert place(Need(1, 500), None, [gpu(0, booked=500, load=97.0)], LIMITS) == ("U0",)


def test_what_could_never_fit_is_infeasible_and_pauses_are_not() -> None:
    two = [gpu(0, closed="paused"), gpu(1, booked=1000)]
    assert place(Need(3, 1000), None, two, LIMITS) == Reason(
        "infeasible: needs 3 free GPUs, 2 managed", infeasible=True
    )
    answer = place(Need(2, 1000), None, two, LIMITS)
    assert isinstance(answer, Reason)
    assert not answer.infeasible
    answer = place(Need(1, 1000), (5,), two, LIMITS)
    assert isinstance(answer, Reason)
    assert answer.infeasible
    assert "of its allowed GPUs 0 managed" in answer.text


VIEWS = st.lists(
    st.builds(
        lambda booked, foreign, load, closed: (booked, foreign, load, closed),
        st.integers(0, 1000),
        st.one_of(st.none(), st.integers(0, 24576)),
        st.one_of(st.none(), st.floats(0, 100)),
        st.one_of(st.none(), st.just("paused")),
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
def test_nothing_is_over_booked_and_nothing_closed_is_used(
    rows: list[tuple[int, int | None, float | None, str | None]],
    count: int,
    share: int,
    alone: bool,
    allowed: set[int] | None,
) -> None:
    gpus = [
        GpuView(f"U{i}", i, 24576, booked, foreign, "process 1" if foreign else None, load, closed)
        for i, (booked, foreign, load, closed) in enumerate(rows)
    ]
    need = Need(count, 1000 if alone else share, alone)
    limited = None if allowed is None else tuple(sorted(allowed))
    answer = place(need, limited, gpus, LIMITS)
    if isinstance(answer, Reason):
        candidates = [g for g in gpus if limited is None or g.index in limited]
        assert answer.infeasible == (len(candidates) < count)
        return
    chosen = [g for g in gpus if g.uuid in answer]
    assert len(chosen) == len(set(answer)) == count
    for view in chosen:
        assert view.booked + need.share <= 1000
        assert view.closed is None
        assert limited is None or view.index in limited
        assert view.foreign_mib is not None
        assert view.foreign_mib < 0.8 * 24576


def test_a_threshold_is_reached_at_equality() -> None:
    full = GpuView("U0", 0, 1000, foreign_mib=800, foreign="process 8")
    assert "holds 800 MiB" in why(place(Need(1, 500), None, [full], LIMITS))
    assert place(
        Need(1, 500), None, [GpuView("U0", 0, 1000, foreign_mib=799, foreign="process 8")], LIMITS
    ) == ("U0",)
    busy = gpu(0, foreign_mib=10, foreign="process 8", load=80.0)
    assert "load 80 %" in why(place(Need(1, 500), None, [busy], LIMITS))
    assert place(Need(1, 500), None, [gpu(0, foreign_mib=10, foreign="process 8", load=79.9)], LIMITS) == (
        "U0",
    )


def test_an_unknown_load_is_tried_last_and_keeps_nobody_out() -> None:
    assert place(Need(1, 1000), None, [gpu(0, load=None), gpu(1, load=99.0)], LIMITS) == ("U1",)
    assert place(Need(1, 1000), None, [gpu(0, load=None, foreign="process 8")], LIMITS) == ("U0",)


def test_equal_gpus_are_taken_from_the_lowest_index() -> None:
    assert place(Need(1, 1000), None, [gpu(2), gpu(1), gpu(0)], LIMITS) == ("U0",)


def test_memory_that_no_process_owns_is_named_so() -> None:
    held = gpu(0, foreign_mib=24_000, foreign=None)
    assert "memory not ours holds 23.4 GiB" in why(place(Need(1, 500), None, [held], LIMITS))


def test_many_closed_gpus_are_counted_not_all_named() -> None:
    text = why(place(Need(1, 500), None, [gpu(i, closed="paused") for i in range(7)], LIMITS))
    assert text.endswith("GPU 3 paused and 3 more")
