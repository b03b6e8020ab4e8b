"""Which GPUs `run` and `wait` choose, and which requests can never be met."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import LOST, ClaimedGpu, GpuClaim, GpuCriteria, GpuSample
from gpu_scheduler.core.scheduling.gpu_choice import ImpossibilityKind, choose, impossibility, in_line

TOTAL = 24000
WHOLE = GpuClaim(None, 7, "ann")


def gpu(
    index: int, free: int | None = TOTAL, load: float | None = 0.0, *claims: GpuClaim, **values: Any
) -> ClaimedGpu:
    used = None if free is None else TOTAL - free
    sample = GpuSample(f"GPU-{index}", index, "Fake", TOTAL, used, load, fault=values.pop("fault", None))
    return ClaimedGpu(sample, claims, **values)


def part(mib: int, pid: int = 7) -> GpuClaim:
    return GpuClaim(mib, pid, "ann")


def indices(gpus: list[ClaimedGpu], **criteria: Any) -> list[int]:
    return [one.sample.index for one in choose(gpus, GpuCriteria(**criteria)).eligible]


def reasons(gpus: list[ClaimedGpu], **criteria: Any) -> dict[int, str]:
    found = choose(gpus, GpuCriteria(**criteria)).ineligible
    return {reason.gpu: reason.kind.value for reason in found}


@pytest.mark.parametrize(
    ("gpus", "criteria", "order"),
    [
        # The most free memory comes first, then the least utilization, then the lowest index.
        ([gpu(0, 8000), gpu(1, 9000), gpu(2, 7000)], {}, [1, 0, 2]),
        ([gpu(0, 8000, 50.0), gpu(1, 8000, 10.0), gpu(2, 8000, 30.0)], {}, [1, 2, 0]),
        ([gpu(2), gpu(0), gpu(1)], {}, [0, 1, 2]),
        ([gpu(0, 8000, 0.0), gpu(1, 8001, 99.0)], {}, [1, 0]),
        # Unknown values come last.
        ([gpu(0, None), gpu(1, 0, 100.0)], {}, [1, 0]),
        ([gpu(0, 8000, None), gpu(1, 8000, 100.0)], {}, [1, 0]),
        # Without conditions, every GPU that nobody claims is eligible.
        ([gpu(0, 0, 100.0), gpu(1, None, None)], {}, [0, 1]),
        # Free memory.
        ([gpu(0, 7999), gpu(1, 8000), gpu(2, None)], {"min_free_mib": 8000}, [1]),
        # Utilization.
        ([gpu(0, TOTAL, 10.0), gpu(1, TOTAL, 10.1), gpu(2, TOTAL, None)], {"max_load_percent": 10}, [0]),
        ([gpu(0, TOTAL, 0.0), gpu(1, TOTAL, 1.0)], {"max_load_percent": 0}, [0]),
        # Lists of GPUs.
        ([gpu(0), gpu(1), gpu(2)], {"only": (1, 2)}, [1, 2]),
        ([gpu(0), gpu(1), gpu(2)], {"excluded": (1, 2)}, [0]),
        ([gpu(0), gpu(1), gpu(2)], {"only": (0, 1), "excluded": (1,)}, [0]),
        # Faults.
        ([gpu(0, fault=LOST), gpu(1)], {}, [1]),
        # A whole GPU must have no claims; an amount must be left by the claims and by the processes.
        ([gpu(0, TOTAL, 0.0, WHOLE), gpu(1, TOTAL, 0.0, part(1)), gpu(2, 1)], {}, [2]),
        ([gpu(0, TOTAL, 0.0, WHOLE), gpu(1, TOTAL, 0.0, part(1))], {"claim_mib": 8000}, [1]),
        ([gpu(0, TOTAL, 0.0, part(16000))], {"claim_mib": 8000}, [0]),
        ([gpu(0, TOTAL, 0.0, part(10000, 1), part(6001, 2))], {"claim_mib": 8000}, []),
        ([gpu(0, 7999), gpu(1, None)], {"claim_mib": 8000}, []),
        ([gpu(0, 9000, 0.0, part(100))], {"claim_mib": 8000, "min_free_mib": 9001}, []),
        # Claimed memory does not count as free, even if nobody uses it yet.
        ([gpu(0, TOTAL, 0.0, part(9000)), gpu(1, 20000)], {"claim_mib": 1000}, [1, 0]),
        ([gpu(0, TOTAL, 0.0, part(19000)), gpu(1, 5001)], {"claim_mib": 1, "min_free_mib": 5001}, [1]),
        ([gpu(0, claims_problem="is a link"), gpu(1)], {}, [1]),
    ],
)
def test_eligible_gpus_and_their_order(
    gpus: list[ClaimedGpu], criteria: dict[str, Any], order: list[int]
) -> None:
    assert indices(gpus, **criteria) == order


def test_each_gpu_that_is_not_eligible_has_a_reason() -> None:
    gpus = [
        gpu(0, fault=LOST),
        gpu(1, TOTAL, 0.0, WHOLE),
        gpu(2, claims_problem="is a link"),
        gpu(3, 812),
        gpu(4, None),
        gpu(5, TOTAL, 97.0),
        gpu(6, TOTAL, None),
        gpu(7),
        gpu(8, fault=LOST),
    ]
    assert reasons(gpus, min_free_mib=8000, max_load_percent=50, excluded=(8,)) == {
        0: "fault",
        1: "claimed",
        2: "claims unknown",
        3: "memory",
        4: "memory unknown",
        5: "foreign load",
        6: "load unknown",
    }


@pytest.mark.parametrize(
    ("criteria", "kind"),
    [
        ({}, None),
        ({"count": 3}, None),
        ({"count": 4}, ImpossibilityKind.TOO_FEW_GPUS),
        ({"only": (0, 3)}, ImpossibilityKind.NO_SUCH_GPU),
        ({"excluded": (3,)}, None),
        ({"count": 2, "only": (0,)}, ImpossibilityKind.TOO_FEW_GPUS),
        ({"excluded": (0, 1, 2)}, ImpossibilityKind.TOO_FEW_GPUS),
        ({"min_free_mib": TOTAL}, None),
        ({"min_free_mib": TOTAL + 1, "excluded": (2,)}, ImpossibilityKind.TOO_LITTLE_MEMORY),
        ({"claim_mib": TOTAL + 1, "excluded": (2,)}, ImpossibilityKind.TOO_LITTLE_MEMORY),
        # The memory of GPU 2 is unknown.
        ({"min_free_mib": TOTAL + 1}, None),
        ({"min_free_mib": TOTAL + 1, "count": 2}, ImpossibilityKind.TOO_LITTLE_MEMORY),
    ],
)
def test_requests_that_can_never_be_met(criteria: dict[str, Any], kind: ImpossibilityKind | None) -> None:
    samples = [
        gpu(0, 0, 100.0).sample,
        gpu(1, TOTAL, 0.0, fault=LOST).sample,
        GpuSample("GPU-2", 2, "Fake"),
    ]
    found = impossibility(samples, GpuCriteria(**criteria))
    assert (None if found is None else found.kind) is kind


claims = st.builds(GpuClaim, st.none() | st.integers(1, 99), st.integers(1, 9))
samples = st.builds(
    lambda total, used, load, fault: (total, used, load, fault),
    st.none() | st.just(100),
    st.none() | st.integers(0, 100),
    st.none() | st.floats(0, 100),
    st.none() | st.just(LOST),
)
machines = st.lists(st.tuples(samples, st.lists(claims, max_size=3)), max_size=5).map(
    lambda found: [
        ClaimedGpu(GpuSample(f"GPU-{i}", i, "Fake", total, used, load, fault=fault), tuple(held))
        for i, ((total, used, load, fault), held) in enumerate(found)
    ]
)
wishes = st.builds(
    GpuCriteria,
    st.integers(1, 4),
    st.none() | st.integers(1, 120),
    st.integers(0, 120),
    st.none() | st.floats(0, 100),
    st.none() | st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)


@given(machines, wishes)
def test_every_allowed_gpu_is_either_eligible_or_has_one_reason(
    gpus: list[ClaimedGpu], criteria: GpuCriteria
) -> None:
    choice = choose(gpus, criteria)
    eligible = [one.sample.index for one in choice.eligible]
    ineligible = [reason.gpu for reason in choice.ineligible]
    assert sorted(eligible + ineligible) == [g.sample.index for g in gpus if criteria.allows(g.sample.index)]


@given(machines, wishes, st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_the_gpus(
    gpus: list[ClaimedGpu], criteria: GpuCriteria, random: Any
) -> None:
    shuffled = list(gpus)
    random.shuffle(shuffled)
    assert choose(shuffled, criteria) == choose(gpus, criteria)


@given(machines, wishes)
def test_a_request_that_can_never_be_met_is_not_met_now(
    gpus: list[ClaimedGpu], criteria: GpuCriteria
) -> None:
    if impossibility([one.sample for one in gpus], criteria) is not None:
        allowed = set(criteria.only or range(6))
        assert len(choose(gpus, criteria).eligible) < criteria.count or allowed - set(range(len(gpus)))


@pytest.mark.parametrize(
    ("gpus", "criteria", "line"),
    [
        # A command waits for what it could take now, and for GPUs of which the whole is claimed.
        ([gpu(0), gpu(1, 0, 100.0, WHOLE), gpu(2, TOTAL, 0.0, part(8000))], {}, {0, 1}),
        ([gpu(0, 100), gpu(1, 0, 100.0, WHOLE)], {"min_free_mib": 8000, "max_load_percent": 10}, {1}),
        ([gpu(0, 0, 0.0, WHOLE), gpu(1, 0, 0.0, WHOLE, fault=LOST)], {"min_free_mib": TOTAL + 1}, set()),
        ([gpu(0), gpu(1, 0, 0.0, WHOLE, fault=LOST)], {"excluded": (0,)}, set()),
        ([gpu(0, 0, 0.0, part(8000), WHOLE)], {}, set()),
        # With two GPUs to take, it waits only while both are free.
        ([gpu(0), gpu(1, 0, 0.0, WHOLE)], {"count": 2}, set()),
        ([gpu(0), gpu(1), gpu(2, 0, 0.0, WHOLE)], {"count": 2}, {0, 1}),
    ],
)
def test_a_command_waits_in_line_where_it_keeps_no_gpu_idle(
    gpus: list[ClaimedGpu], criteria: dict[str, Any], line: set[int]
) -> None:
    assert {one.sample.index for one in in_line(gpus, GpuCriteria(**criteria))} == line
