"""Results that are computed once for the same objects."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.facts import Remembered


class Counter:
    """Counts how often it computes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


def test_a_result_is_kept_for_the_same_objects_and_only_for_these() -> None:
    remembered, compute = Remembered(), Counter()
    first, second, equal_to_first = [1], [2], [1]
    assert remembered.get(("a",), (first, second), compute) == 1
    assert remembered.get(("a",), (first, second), compute) == 1
    assert remembered.get(("a",), (equal_to_first, second), compute) == 2
    assert remembered.get(("a",), (first, second), compute) == 3, "only the newest is kept"
    assert remembered.get(("a",), (first,), compute) == 4
    assert remembered.get(("a",), (first, second, second), compute) == 5


def test_computations_of_different_names_are_kept_apart() -> None:
    remembered, compute = Remembered(), Counter()
    values = ([1],)
    assert remembered.get(("a",), values, compute) == 1
    assert remembered.get(("b",), values, compute) == 2
    assert remembered.get(("a",), values, compute) == 1


def test_a_result_of_none_is_kept() -> None:
    remembered, calls = Remembered(), []
    for _ in range(2):
        assert remembered.get(("a",), (calls,), lambda: calls.append(1)) is None
    assert calls == [1]
