"""Searches every state of a model with hashable states, breadth first, for a shortest counterexample."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


def explore(
    first: State,
    steps: Callable[[State], Iterable[tuple[str, State, bool, str | None]]],
    is_over: Callable[[State], bool],
    stuck: str,
    wanted: str,
) -> tuple[int, str | None, tuple[str, ...]]:
    """Returns the number of states, the invariant that is broken, if any, and the labels on the way to it.

    steps: yields the label of each step, the state after it, whether it is a fault, and the invariant that
    it breaks. stuck: the last invariant, broken by a state from which no steps without faults lead to one for
    which `is_over` returns True. wanted: the beginning of the invariants that count.
    """
    parents: dict[State, tuple[State, str] | None] = {first: None}
    before: dict[State, list[State]] = {}
    left = deque([first])

    def way(state: State, *last: str) -> tuple[str, ...]:
        labels = list(last)
        found = parents[state]
        while found is not None:
            labels.insert(0, found[1])
            found = parents[found[0]]
        return tuple(labels)

    while left:
        state = left.popleft()
        for label, after, is_fault, wrong in steps(state):
            if wrong and wrong.startswith(wanted):
                return len(parents), wrong, way(state, label)
            if after not in parents:
                parents[after] = (state, label)
                left.append(after)
            if not is_fault:
                before.setdefault(after, []).append(state)
    good = deque(state for state in parents if is_over(state))
    reached = set(good)
    while good:
        for state in before.get(good.popleft(), ()):
            if state not in reached:
                reached.add(state)
                good.append(state)
    lost = next((state for state in parents if state not in reached), None)
    if lost is None or not stuck.startswith(wanted[:2]):
        return len(parents), None, ()
    return len(parents), stuck, way(lost)
