"""One thing has one type, with a name of its own: no class repeats six or more fields of another."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import combinations
from pathlib import Path

import gpu_scheduler

ROOT = Path(gpu_scheduler.__file__).parent
LIMIT = 6
#: Pairs of classes that repeat fields on purpose.
ALLOWED = {
    # Two things that have a state, an end and times each.
    ("Attempt", "Job"),
    # A folder or an event keeps what it says, whatever becomes of the row.
    ("Attempt", "Origin"),
    ("Attempt", "AttemptEnded"),
    ("AttemptStarted", "Start"),
    # The file `result` is the evidence, the reason is what follows from it.
    ("AttemptResult", "StateReason"),
    # What is left on a GPU, without what only its own row is about.
    ("Gpu", "Ledger"),
    # The attributes on which it depends where a job fits, as the key of its group.
    ("JobSpec", "ResourceSpec"),
}


def fields_of(node: ast.ClassDef) -> set[str]:
    """Returns the names of the annotated attributes of a class, except private ones."""
    return {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and not one.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(one.annotation)
    }


def classes() -> list[ast.ClassDef]:
    """Returns all classes of the package."""
    return [
        node
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def repetitions() -> dict[tuple[str, str], set[str]]:
    """Returns the pairs of classes that share too many field names, with these names."""
    fields = {node.name: fields_of(node) for node in classes()}
    found = {}
    for first, second in combinations(sorted(fields), 2):
        shared = fields[first] & fields[second]
        if len(shared) >= LIMIT:
            found[first, second] = shared
    return found


def test_no_class_repeats_six_fields_of_another() -> None:
    found = repetitions()
    assert {pair: names for pair, names in found.items() if pair not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an exception is not needed any more"


def test_no_two_classes_share_a_name() -> None:
    counted = Counter(node.name for node in classes())
    # The client is for programs of users, to whom its Job is the only one.
    assert [name for name, count in counted.items() if count > 1] == ["Job"]
