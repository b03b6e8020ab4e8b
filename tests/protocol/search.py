"""Searches all reachable states breadth first, so that a counterexample has the shortest possible trace."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tests.protocol import state as st
from tests.protocol.adopted import steps_of_process
from tests.protocol.faults import steps_of_faults
from tests.protocol.gpu import steps_of_gpu
from tests.protocol.invariants import PROGRESS, Progress, broken_invariant
from tests.protocol.loop import steps_of_loop
from tests.protocol.rules import Rules
from tests.protocol.runner import steps_of_runners
from tests.protocol.steps import FAULT, Step, Steps
from tests.protocol.users import steps_of_users


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    broken: the invariant that does not hold, or None if all hold; trace: the labels of the steps on a
    shortest path to the state that breaks it.
    """

    states: int
    edges: int
    broken: str | None = None
    trace: tuple[str, ...] = ()


def steps_from(state: bytes, rules: Rules) -> list[Step]:
    """Returns every step that is possible in this state."""
    steps = Steps(state, rules)
    steps_of_loop(steps)
    steps_of_runners(steps)
    if state[st.PROCESS]:
        steps_of_process(steps)
    steps_of_users(steps)
    steps_of_faults(steps)
    steps_of_gpu(steps)
    return steps.found


def explore(faults: Mapping[str, int], rules: Rules, wanted: str = "") -> SearchResult:
    """Visits every state of this scenario, or stops at the first broken invariant.

    wanted: prefix of the invariant to find; the search ignores all others.
    """
    return _Search(faults, rules, wanted).run()


class _Search:
    def __init__(self, faults: Mapping[str, int], rules: Rules, wanted: str) -> None:
        self._rules = rules
        self._wanted = wanted
        self._states = [st.initial(**faults)]
        self._parents = array("I", [0])
        # Where each edge that is not a fault begins and ends, and its kind.
        self._from, self._to, self._kinds = array("I"), array("I"), bytearray()
        self._edges = 0

    def run(self) -> SearchResult:
        """Checks the invariants in every state, and then in the resulting graph that progress is possible."""
        states, rules, wanted = self._states, self._rules, self._wanted
        number_of = {states[0]: 0}
        at = 0
        while at < len(states):
            for kind, label, after, wrong in steps_from(states[at], rules):
                self._edges += 1
                if wrong is not None and wrong.startswith(wanted):
                    return self._found(wrong, at, label)
                number = number_of.get(after)
                if number is None:
                    number = number_of[after] = len(states)
                    states.append(after)
                    self._parents.append(at)
                    wrong = broken_invariant(after, rules)
                    if wrong is not None and wrong.startswith(wanted):
                        return self._found(wrong, number)
                if kind != FAULT:
                    self._from.append(at)
                    self._to.append(number)
                    self._kinds.append(kind)
            at += 1
        del number_of
        return self._progress()

    def _progress(self) -> SearchResult:
        first = array("i", [-1]) * len(self._states)
        following = array("i", [-1]) * len(self._from)
        for edge, to in enumerate(self._to):
            following[edge] = first[to]
            first[to] = edge
        for progress in PROGRESS:
            if not progress.name.startswith(self._wanted):
                continue
            stuck = self._stuck(progress, first, following)
            if stuck is not None:
                return self._found(progress.name, stuck)
        return SearchResult(len(self._states), self._edges)

    def _stuck(self, progress: Progress, first: array[int], following: array[int]) -> int | None:
        """Searches backwards from the goals; returns the first state from which no goal can be reached."""
        states = self._states
        reached = bytearray(map(progress.goal, states))
        left = deque(number for number, good in enumerate(reached) if good)
        while left:
            edge = first[left.popleft()]
            while edge >= 0:
                before = self._from[edge]
                if not reached[before] and self._kinds[edge] in progress.kinds:
                    reached[before] = 1
                    left.append(before)
                edge = following[edge]
        return next((n for n, good in enumerate(reached) if not good and progress.must(states[n])), None)

    def _found(self, wrong: str, number: int, last: str | None = None) -> SearchResult:
        way = []
        while number:
            way.append(number)
            number = self._parents[number]
        labels, state = [], self._states[0]
        for number in reversed(way):
            after = self._states[number]
            labels.append(next(label for _, label, to, _ in steps_from(state, self._rules) if to == after))
            state = after
        return SearchResult(len(self._states), self._edges, wrong, (*labels, *([last] if last else [])))
