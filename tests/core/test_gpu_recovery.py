"""A lost GPU gets no jobs and comes back after three good samples in a row, also across a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.scheduling.gpu_recovery import (
    UNLISTED_FAULT,
    UNREADABLE_PREFIX,
    GpuChange,
    KnownGpu,
    update_faults,
)

ONE, TWO = "recovering: 1 of 3 good samples", "recovering: 2 of 3 good samples"
ALL_UNREADABLE = f"{UNREADABLE_PREFIX}no answer"


def sample(index: int, uuid: str, fault: str | None = None) -> GpuSample:
    return GpuSample(uuid, index, "GPU", 24576, 0, 0.0, (), fault)


def known(index: int, uuid: str, fault: str | None = None) -> KnownGpu:
    return KnownGpu(uuid, index, "GPU", fault)


@pytest.mark.parametrize(
    ("before", "now", "after", "back"),
    [
        (None, None, None, None),
        (None, "lost", "lost", False),
        ("lost", "lost", "lost", None),
        ("lost", "query failed: Timeout", "query failed: Timeout", None),
        ("lost", None, ONE, None),
        (ONE, None, TWO, None),
        (TWO, None, None, True),
        (TWO, "lost", "lost", None),
        (UNLISTED_FAULT, None, ONE, None),
        # A sample without any readable GPU loses none of them.
        (ALL_UNREADABLE, None, None, None),
        (ALL_UNREADABLE, "lost", "lost", False),
        # Text of another program that resembles ours.
        ("recovering: soon", None, ONE, None),
    ],
)
def test_the_next_fault_follows_from_the_last_and_the_sample(
    before: str | None, now: str | None, after: str | None, back: bool | None
) -> None:
    (gpu,), changes = update_faults([sample(0, "GPU-a", now)], [known(0, "GPU-a", before)])
    assert (gpu.fault, gpu.used_mib) == (after, 0)
    assert changes == (() if back is None else (GpuChange(gpu, back),))


@given(st.lists(st.booleans(), max_size=20))
def test_a_lost_gpu_is_used_again_after_three_good_samples_in_a_row(good: list[bool]) -> None:
    fault: str | None = None
    lost, row = False, 0
    for answers in good:
        (gpu,), changes = update_faults(
            [sample(0, "GPU-a", None if answers else "lost")], [known(0, "GPU-a", fault)]
        )
        row = row + 1 if answers else 0
        before, lost = lost, not answers or (lost and row < 3)
        assert (gpu.fault is not None, len(changes)) == (lost, before != lost)
        fault = gpu.fault


def test_an_unknown_gpu_is_returned_unchanged() -> None:
    shown, changes = update_faults([sample(0, "GPU-a", "lost"), sample(1, "GPU-b")], [])
    assert ([gpu.fault for gpu in shown], changes) == (["lost", None], ())


def test_an_unlisted_gpu_is_lost_at_its_index_and_comes_back() -> None:
    shown, changes = update_faults(
        [sample(0, "GPU-a"), sample(2, "GPU-c")], [known(i, f"GPU-{c}") for i, c in enumerate("abc")]
    )
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", "GPU", None),
        (1, "GPU-b", "GPU", UNLISTED_FAULT),
        (2, "GPU-c", "GPU", None),
    ]
    assert changes == (GpuChange(shown[1], recovered=False),)
    (back,), _ = update_faults([sample(1, "GPU-b")], [known(1, "GPU-b", UNLISTED_FAULT)])
    assert back.fault == ONE


def test_a_missing_gpu_gets_the_last_index_if_its_own_is_taken() -> None:
    before = [known(i, f"GPU-{c}") for i, c in enumerate("abcd")]
    shown, _ = update_faults([sample(0, "GPU-a"), sample(1, "GPU-d")], before)
    assert [(gpu.index, gpu.uuid, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", None),
        (1, "GPU-d", None),
        (2, "GPU-c", UNLISTED_FAULT),
        (3, "GPU-b", UNLISTED_FAULT),
    ]
    again, _ = update_faults(
        [sample(0, "GPU-a"), sample(1, "GPU-d")], [KnownGpu(g.uuid, g.index, g.name, g.fault) for g in shown]
    )
    assert again == shown


def test_a_new_order_of_gpus_keeps_their_identities() -> None:
    before = [known(0, "GPU-a"), known(1, "GPU-b", "lost"), known(2, "GPU-c")]
    shown, changes = update_faults([sample(0, "GPU-b"), sample(1, "GPU-c"), sample(2, "GPU-a")], before)
    assert [(gpu.uuid, gpu.fault) for gpu in shown] == [("GPU-b", ONE), ("GPU-c", None), ("GPU-a", None)]
    assert changes == ()


def test_a_gpu_without_a_uuid_is_identified_as_the_missing_one() -> None:
    before = [known(0, "GPU-a"), known(1, "GPU-b"), known(2, "GPU-c")]
    faulty = replace(sample(1, "unknown-1", "lost"), name="unknown")
    shown, changes = update_faults([sample(0, "GPU-a"), faulty, sample(2, "GPU-c")], before)
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in shown][1] == (1, "GPU-b", "GPU")
    assert changes == (GpuChange(shown[1], recovered=False),)
    # At another index, since the order changed: still the only candidate.
    moved = replace(faulty, index=0, uuid="unknown-0")
    shown, _ = update_faults([moved, sample(1, "GPU-a"), sample(2, "GPU-c")], before)
    assert [gpu.uuid for gpu in shown] == ["GPU-b", "GPU-a", "GPU-c"]
    # If two are missing, the one that had this index.
    shown, _ = update_faults([sample(1, "unknown-1", "lost")], before[:2])
    assert [(gpu.index, gpu.uuid, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", UNLISTED_FAULT),
        (1, "GPU-b", "lost"),
    ]
    # None is missing: the GPU was never stored.
    shown, _ = update_faults([sample(0, "GPU-a"), faulty], [known(0, "GPU-a")])
    assert [gpu.uuid for gpu in shown] == ["GPU-a", "unknown-1"]


@given(st.permutations(["GPU-a", "GPU-b", "GPU-c", "GPU-d"]), st.sets(st.sampled_from("abcd")))
def test_every_known_gpu_appears_once_with_a_unique_index(order: list[str], gone: set[str]) -> None:
    before = [known(i, f"GPU-{c}") for i, c in enumerate("abcd")]
    left = [uuid for uuid in order if uuid[-1] not in gone]
    shown, _ = update_faults([sample(i, uuid) for i, uuid in enumerate(left)], before)
    assert sorted(gpu.uuid for gpu in shown) == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    assert len({gpu.index for gpu in shown}) == 4
    assert {gpu.uuid for gpu in shown if gpu.fault} == {f"GPU-{c}" for c in gone}
    assert [gpu.uuid for gpu in shown if not gpu.fault] == left
