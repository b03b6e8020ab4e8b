"""A lost GPU gets no jobs. After three good samples in a row it is used again, even across a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import LOST, UNLISTED, FaultKind, GpuFault, GpuSample
from gpu_scheduler.core.scheduling.gpu_faults import (
    GpuChange,
    update_faults,
)

ONE, TWO = (GpuFault(FaultKind.RECOVERING, good_samples=count) for count in (1, 2))
ALL_UNREADABLE = GpuFault(FaultKind.UNREADABLE, "no answer")
FAILED = GpuFault(FaultKind.QUERY_FAILED, "Timeout")


def sample(index: int, uuid: str, fault: GpuFault | None = None) -> GpuSample:
    return GpuSample(uuid, index, "GPU", 24576, 0, 0.0, (), fault)


def known(index: int, uuid: str, fault: GpuFault | None = None) -> GpuSample:
    return GpuSample(uuid, index, "GPU", fault=fault)


@pytest.mark.parametrize(
    ("before", "now", "after", "back"),
    [
        (None, None, None, None),
        (None, LOST, LOST, False),
        (LOST, LOST, LOST, None),
        (LOST, FAILED, FAILED, None),
        (LOST, None, ONE, None),
        (ONE, None, TWO, None),
        (TWO, None, None, True),
        (TWO, LOST, LOST, None),
        (UNLISTED, None, ONE, None),
        # A sample in which no GPU is readable does not mark any GPU as lost.
        (ALL_UNREADABLE, None, None, None),
        (ALL_UNREADABLE, LOST, LOST, False),
    ],
)
def test_derives_the_new_fault_of_a_gpu_from_its_last_fault_and_the_sample(
    before: GpuFault | None, now: GpuFault | None, after: GpuFault | None, back: bool | None
) -> None:
    (gpu,), changes = update_faults([sample(0, "GPU-a", now)], [known(0, "GPU-a", before)])
    assert (gpu.fault, gpu.used_mib) == (after, 0)
    assert changes == (() if back is None else (GpuChange(gpu, back),))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (LOST, "lost"),
        (UNLISTED, "lost: the driver no longer lists it"),
        (FAILED, "query failed: Timeout"),
        (TWO, "recovering: 2 of 3 good samples"),
        (ALL_UNREADABLE, "the GPUs cannot be read: no answer"),
    ],
)
def test_a_gpu_fault_survives_being_stored_and_has_a_text(fault: GpuFault, words: str) -> None:
    assert GpuFault.from_json(fault.to_json()) == fault
    assert str(fault) == words


@given(st.lists(st.booleans(), max_size=20))
def test_a_lost_gpu_is_used_again_after_three_good_samples_in_a_row(good: list[bool]) -> None:
    fault: GpuFault | None = None
    lost, row = False, 0
    for answers in good:
        (gpu,), changes = update_faults(
            [sample(0, "GPU-a", None if answers else LOST)], [known(0, "GPU-a", fault)]
        )
        row = row + 1 if answers else 0
        before, lost = lost, not answers or (lost and row < 3)
        assert (gpu.fault is not None, len(changes)) == (lost, before != lost)
        fault = gpu.fault


def test_a_gpu_sampled_for_the_first_time_keeps_the_fault_that_its_sample_reports() -> None:
    shown, changes = update_faults([sample(0, "GPU-a", LOST), sample(1, "GPU-b")], [])
    assert ([gpu.fault for gpu in shown], changes) == ([LOST, None], ())


def test_a_gpu_missing_from_the_sample_is_lost_and_keeps_its_index_until_it_returns() -> None:
    shown, changes = update_faults(
        [sample(0, "GPU-a"), sample(2, "GPU-c")], [known(i, f"GPU-{c}") for i, c in enumerate("abc")]
    )
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", "GPU", None),
        (1, "GPU-b", "GPU", UNLISTED),
        (2, "GPU-c", "GPU", None),
    ]
    assert changes == (GpuChange(shown[1], recovered=False),)
    (back,), _ = update_faults([sample(1, "GPU-b")], [known(1, "GPU-b", UNLISTED)])
    assert back.fault == ONE


def test_a_missing_gpu_whose_index_is_taken_gets_the_last_index() -> None:
    before = [known(i, f"GPU-{c}") for i, c in enumerate("abcd")]
    shown, _ = update_faults([sample(0, "GPU-a"), sample(1, "GPU-d")], before)
    assert [(gpu.index, gpu.uuid, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", None),
        (1, "GPU-d", None),
        (2, "GPU-c", UNLISTED),
        (3, "GPU-b", UNLISTED),
    ]
    stored = [GpuSample(gpu.uuid, gpu.index, gpu.name, fault=gpu.fault) for gpu in shown]
    again, _ = update_faults([sample(0, "GPU-a"), sample(1, "GPU-d")], stored)
    assert again == shown


def test_gpus_are_recognized_by_uuid_if_their_order_changes() -> None:
    before = [known(0, "GPU-a"), known(1, "GPU-b", LOST), known(2, "GPU-c")]
    shown, changes = update_faults([sample(0, "GPU-b"), sample(1, "GPU-c"), sample(2, "GPU-a")], before)
    assert [(gpu.uuid, gpu.fault) for gpu in shown] == [("GPU-b", ONE), ("GPU-c", None), ("GPU-a", None)]
    assert changes == ()


def test_a_gpu_without_a_uuid_is_assumed_to_be_the_missing_gpu() -> None:
    before = [known(0, "GPU-a"), known(1, "GPU-b"), known(2, "GPU-c")]
    faulty = replace(sample(1, "unknown-1", LOST), name="unknown")
    shown, changes = update_faults([sample(0, "GPU-a"), faulty, sample(2, "GPU-c")], before)
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in shown][1] == (1, "GPU-b", "GPU")
    assert changes == (GpuChange(shown[1], recovered=False),)
    # The order has changed and the GPU has another index, but it is still the only candidate.
    moved = replace(faulty, index=0, uuid="unknown-0")
    shown, _ = update_faults([moved, sample(1, "GPU-a"), sample(2, "GPU-c")], before)
    assert [gpu.uuid for gpu in shown] == ["GPU-b", "GPU-a", "GPU-c"]
    # If two GPUs are missing, it is assumed to be the one that had this index.
    shown, _ = update_faults([sample(1, "unknown-1", LOST)], before[:2])
    assert [(gpu.index, gpu.uuid, gpu.fault) for gpu in shown] == [
        (0, "GPU-a", UNLISTED),
        (1, "GPU-b", LOST),
    ]
    # If no GPU is missing, it is a new GPU.
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
