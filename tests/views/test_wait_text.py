"""Wait reasons and GPU obstacles: they are stored without loss, and each kind has a text and a remedy."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import LOST, UNLISTED, FaultKind, GpuFault
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.model.values import round_mib
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.text.formatting import format_memory
from gpu_scheduler.show.gpu_text import obstacle_remedy, obstacle_text
from gpu_scheduler.show.wait_text import held_text, job_reason_text, wait_text
from tests.core.gpu_world import ledger
from tests.reasons import worded
from tests.records import job_view

ONE, ALONE = Need(1, 500), Need(1, 1000, alone=True)
OBSTACLES = st.builds(
    GpuObstacle, st.integers(0, 9), st.sampled_from(ObstacleKind),
    job_id=st.none() | st.integers(1, 9), pids=st.lists(st.integers(1, 9), max_size=4).map(tuple),
    free=st.none() | st.integers(0, 9000), foreign_mib=st.none() | st.integers(0, 9000),
    fault=st.none() | st.sampled_from((LOST, GpuFault(FaultKind.RECOVERING, good_samples=2))),
    foreign_pid=st.none() | st.integers(1, 9), processes_listed=st.none() | st.booleans(),
)  # fmt: skip
REASONS = st.builds(
    WaitReason, st.sampled_from(WaitKind), cause=st.text(min_size=1, max_size=9),
    need=st.none() | st.builds(Need, st.integers(1, 4), st.integers(0, 1000), vram=st.none() | st.just(9)),
    gpus=st.integers(0, 9), obstacles=st.lists(OBSTACLES, max_size=6).map(tuple),
    allowed=st.none() | st.integers(0, 9), size_mib=st.integers(0, 90_000),
    line_number=st.none() | st.integers(1, 9), due_at=st.none() | st.floats(0, 1e6),
    victims=st.lists(st.integers(1, 9), max_size=3).map(tuple),
)  # fmt: skip


@given(REASONS)
def test_a_wait_reason_survives_being_stored(reason: WaitReason) -> None:
    assert WaitReason.from_json(reason.to_json()) == reason


@given(REASONS)
def test_every_wait_reason_has_a_text(reason: WaitReason) -> None:
    assert job_reason_text(job_view(1, "queued", reason=worded("why"), wait=reason))
    assert wait_text(reason).startswith("infeasible: ") or not reason.is_infeasible
    for one in reason.obstacles:
        assert isinstance(obstacle_text(one), str)


def test_does_not_store_the_unused_fields_of_a_wait_reason() -> None:
    assert (
        WaitReason(WaitKind.LINE_REMOVED, due_at=0.0).to_json() == '{"kind": "line removed", "due_at": 0.0}'
    )


@given(st.integers(0, 1 << 30))
def test_rounding_memory_for_storage_does_not_change_its_text(mib: int) -> None:
    assert format_memory(round_mib(mib)) == format_memory(mib)
    assert round_mib(round_mib(mib)) == round_mib(mib)


@pytest.mark.parametrize(
    ("wait", "reason", "words"),
    [
        (WaitReason(WaitKind.HELD), None, "held"),
        (WaitReason(WaitKind.HELD, "user"), "held by the user", "held by the user"),
        (WaitReason(WaitKind.HELD, "interrupted"), "its runner died", "held: its runner died"),
        (WaitReason(WaitKind.REQUEST, "release"), "x", "held: release requested; waiting for the scheduler"),
        (None, "its runner was killed", "held: its runner was killed"),
    ],
)  # fmt: skip
def test_the_text_of_a_held_job_contains_the_word_held_only_once(
    wait: WaitReason | None, reason: str | None, words: str
) -> None:
    assert held_text(job_view(1, "held", reason=worded(reason) if reason else None, wait=wait)) == words


def closed(kind: ObstacleKind, **values: object) -> Ledger:
    found = GpuObstacle(3, kind, **values)  # type: ignore[arg-type]
    return ledger(3, 1000, closed=found)


@pytest.mark.parametrize(
    ("gpu", "need", "part"),
    [
        (closed(ObstacleKind.PAUSED), ONE, "`resume 3`"),
        (closed(ObstacleKind.FAULT, fault=UNLISTED), ONE, "`nvidia-smi -i 3`"),
        (closed(ObstacleKind.NOT_SAMPLED), ONE, "`doctor`"),
        (closed(ObstacleKind.QUARANTINED, job_id=1, pids=(7,)), ONE, "kill -9"),
        (closed(ObstacleKind.AWAITING_MEMORY), ONE, "in a few seconds"),
        (ledger(3, 1000, foreign_mib=None), ONE, "`nvidia-smi -q -i 3`"),
        (ledger(3, 1000, foreign_mib=900, foreign_pid=7), ONE, "--mem-threshold"),
        (
            ledger(3, 1000, foreign_mib=300, foreign_pid=7, mean_foreign_load=90.0),
            ONE,
            "--load-thre",
        ),
        (ledger(3, 1000, foreign_mib=300, foreign_pid=7), ALONE, "[share=0.5]"),
        (ledger(3, 1000, foreign_mib=900, foreign_pid=7), ALONE, "[share=0.5]"),
        (
            ledger(3, 1000, foreign_mib=300, foreign_pid=7, mean_foreign_load=90.0),
            ALONE,
            "[share=0.5]",
        ),
        (ledger(3, 1000, allocated_share=800), ONE, ""),
    ],
)
def test_gives_a_remedy_for_a_gpu_that_accepts_no_jobs(gpu: Ledger, need: Need, part: str) -> None:
    why = gpu.obstacle(need)
    assert why is not None
    text = obstacle_remedy(why)
    assert part in text
    assert bool(text) is bool(part)


LEDGERS = st.builds(
    ledger, st.just(3), st.sampled_from((None, 1000, 24_576)),
    allocated_share=st.sampled_from((0, 300, 1000)), foreign_kept_mib=st.none() | st.integers(0, 26_000),
    foreign_mib=st.none() | st.integers(0, 26_000),
    foreign_pid=st.none() | st.just(7), foreign_peak_mib=st.just(0) | st.integers(0, 26_000),
    mean_foreign_load=st.none() | st.floats(0, 100), processes_listed=st.booleans(),
)  # fmt: skip
NEEDS = st.sampled_from(
    (ONE, ALONE, Need(1, 1000), Need(1, vram=8000), Need(1, 500, vram=8000, exclusive=True))
)


LOADED = ledger(3, None, foreign_mib=201, mean_foreign_load=80.0)


@settings(max_examples=500, deadline=None)
@given(LEDGERS, LEDGERS, NEEDS)
@example(LOADED, replace(LOADED, processes_listed=False), ONE)
def test_two_obstacles_are_equal_exactly_if_their_texts_are_equal(
    one: Ledger, other: Ledger, need: Need
) -> None:
    found = [view.obstacle(need) for view in (one, other)]
    words = [why and obstacle_text(why) for why in found]
    assert (found[0] == found[1]) is (words[0] == words[1])


@pytest.mark.parametrize(("count", "end"), [(3, "GPU 2: paused)"), (4, "GPU 3: paused)"), (5, "and 1 more)")])
def test_at_most_four_gpus_are_listed_and_the_rest_is_counted(count: int, end: str) -> None:
    paused = tuple(GpuObstacle(n, ObstacleKind.PAUSED) for n in range(count))
    text = wait_text(WaitReason(WaitKind.NO_FREE_GPU, need=ONE, obstacles=paused))
    assert text.endswith(end)
    assert text.count("paused") == min(count, 4)


@pytest.mark.parametrize(
    ("due_in_s", "when"),
    [(None, "cancelled unless"), (-1.0, "cancelled unless"), (0.0, "cancelled unless"),
     (0.1, "cancelled in 1 s unless"), (5.0, "cancelled in 5 s unless")],
)  # fmt: skip
def test_the_job_of_a_removed_line_is_never_cancelled_in_0_s(due_in_s: float | None, when: str) -> None:
    wait = WaitReason(WaitKind.LINE_REMOVED, due_at=0.0)
    text = job_reason_text(job_view(1, "queued", wait=wait, due_in_s=due_in_s))
    assert text == f"line removed from its jobs file; the job is {when} the line is restored"
