"""No answer of NVML or nvidia-smi about one GPU affects the other GPUs or ends a command."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpus.hostile import CHECKS, GOOD_UUIDS, Chain


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(Path(tmp_path_factory.mktemp("store")))
    yield chain
    chain.store.close()


@pytest.mark.parametrize("kind", CHECKS)
@given(dice=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_no_answer_about_one_gpu_affects_the_others(kind: str, chain: Chain, dice: random.Random) -> None:
    found = CHECKS[kind](chain, dice)  # also checks the values, and that every command can use them
    assert {gpu.uuid for gpu in found} >= GOOD_UUIDS


@pytest.mark.parametrize("kind", CHECKS)
def test_generated_answers_about_one_gpu_do_not_affect_the_others(kind: str, chain: Chain) -> None:
    odd = 0
    for number in range(150):
        gpus = CHECKS[kind](chain, random.Random(number))
        odd += len(gpus) < 3 or any(
            gpu.fault or gpu.load_percent is None or not gpu.total_mib for gpu in gpus
        )
    assert odd > 50  # the answers are unexpected
