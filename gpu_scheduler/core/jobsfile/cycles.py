"""Finds the nodes of a graph that wait for themselves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def find_cycles(parents: Mapping[_Node, Iterable[_Node]]) -> set[_Node]:
    """Returns the nodes that lie on a cycle, or on a path from one cycle to another.

    parents: the nodes that each node waits for. Takes time in proportion to the number of edges.
    """
    above = {node: {parent for parent in of if parent in parents} for node, of in parents.items()}
    below: dict[_Node, set[_Node]] = {node: set() for node in above}
    for node, of in above.items():
        for parent in of:
            below[parent].add(node)
    _trim(above, below)
    _trim(below, above)
    return set(above)


def _trim(ahead: dict[_Node, set[_Node]], behind: dict[_Node, set[_Node]]) -> None:
    """Removes every node without nodes ahead, then those that this leaves without nodes ahead, and so on."""
    loose = [node for node, of in ahead.items() if not of]
    while loose:
        node = loose.pop()
        for other in behind.pop(node):
            ahead[other].discard(node)
            if not ahead[other]:
                loose.append(other)
        del ahead[node]
