"""Tests how a `queue.json` is parsed and how the parents of its jobs are found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.control.import_queue import Entry, Parents, find_parents, parse_queue


def parsed(*jobs: object) -> tuple[list[Entry], list[str]]:
    return parse_queue(json.dumps({"jobs": jobs}).encode())


def parents_of(*jobs: dict[str, Any]) -> Parents:
    entries, problems = parsed(*({"script": "a.py", **job} for job in jobs))
    assert problems == []
    return find_parents(entries)


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (5, "job 2 is not an object"),
        ({}, "job 2: script is missing"),
        ({"name": "eval"}, "job 2 (eval): script is missing"),
        ({"script": 1}, "job 2: script must be a path, not 1"),
        ({"script": "a.py", "scrpt": 1}, 'job 2: key "scrpt" is unknown; known: id, name, script, args'),
        ({"script": "a.py", "args": [1]}, "job 2: args must be a list of texts"),
        ({"script": "a.py", "args": "'"}, 'or one text with balanced quotes, not "\'"'),
        ({"script": "a.py", "env": {"A": 1}}, "job 2: env must be an object whose values are texts"),
        ({"script": "a.py", "after": [None]}, "job 2: after must be an id, a name, a list of these, or null"),
        ({"script": "a.py", "after": 0}, "job 2: after must be"),
        ({"script": "a.py", "after": True}, "job 2: after must be"),
        ({"script": "a.py", "retries": -1}, "job 2: retries must be a whole number from 0 to 1000, not -1"),
        ({"script": "a.py", "retries": 1.5}, "job 2: retries must be"),
        ({"script": "a.py", "status": 3}, "job 2: status must be a text, not 3"),
        ({"script": "a.py", "id": "x"}, "job 2: id must be a whole number above 0"),
        ({"status": "done", "id": 0}, "job 2: id must be a whole number above 0, not 0"),
        ({"script": "a.py", "id": 1}, "job 2 has the id 1 of job 1"),
    ],
)
def test_a_problem_names_the_job_and_the_value(job: object, problem: str) -> None:
    _, problems = parsed({"script": "a.py"}, job)
    assert len(problems) == 1
    assert problem in problems[0]


def test_all_problems_are_listed() -> None:
    _, problems = parsed({"cwd": 1}, {"script": "a.py"}, {"script": "", "args": 2})
    assert problems == [
        "job 1: cwd must be a path, not 1; script is missing",
        "job 3: args must be a list of texts, or one text with balanced quotes, not 2; script is missing",
    ]


def test_only_what_is_used_of_other_jobs_is_checked() -> None:
    [entry], problems = parsed({"status": "Done", "name": "old", "args": 5, "unknown": 1})
    assert (entry.id, entry.name, entry.status, problems) == (1, "old", "done", [])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": {}}', '{"jobs": [], "jobs": []}', '{"jobs": '])
def test_rejects_a_text_that_is_no_queue(text: str) -> None:
    with pytest.raises(ValueError, match=r"jobs|JSON"):
        parse_queue(text.encode())


def test_a_parent_is_an_id_or_a_name() -> None:
    found = parents_of(
        {"id": 5, "name": "a"}, {"id": 6, "name": "b", "after": 5}, {"id": 9, "after": ["a", "6"]}
    )
    assert found == Parents({1: [], 2: [1], 3: [1, 2]}, {}, [])


def test_without_ids_a_parent_is_a_position() -> None:
    assert parents_of({}, {"after": 1}).waits_for == {1: [], 2: [1]}


def test_a_parent_that_is_named_twice_counts_once() -> None:
    jobs = [{"id": 5, "name": "x"}, {"id": 6, "name": "y", "status": "failed"}]
    found = parents_of(*jobs, {"id": 7, "after": ["x", 5, "5", "y", 6]})
    assert found.waits_for[3] == [1]
    assert [entry.id for entry in found.missing[3]] == [6]


def test_a_text_of_digits_is_the_id_of_a_parent_before_its_name() -> None:
    jobs = [{"id": 5, "name": "8"}, {"id": 8, "name": "x"}, {"id": 9, "name": "12"}]
    assert parents_of(*jobs, {"id": 10, "after": ["8", "12"]}).waits_for[4] == [2, 3]


def test_a_completed_parent_is_not_waited_for() -> None:
    assert parents_of({"status": "done"}, {"after": 1}) == Parents({2: []}, {}, [])


@pytest.mark.parametrize("status", ["failed", "cancelled", "running", "interrupted", "preempted", "other"])
def test_a_parent_that_is_neither_completed_nor_pending_is_missing(status: str) -> None:
    found = parents_of({"status": status, "name": "a"}, {"after": "a"})
    assert (found.waits_for, found.problems) == ({2: []}, [])
    assert [(one.label, one.status) for one in found.missing[2]] == [("job 1 (a)", status)]


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ([{"after": 7}], "job 1: after 7: the file has no such job"),
        ([{"name": "a"}, {"name": "a"}, {"after": "a"}], "job 3: after a: the jobs 1, 2 have this name"),
        ([{"after": 1}], "`after` makes these jobs wait for themselves: 1"),
        ([{"after": 2}, {"after": 1}], "`after` makes these jobs wait for themselves: 1, 2"),
    ],
)
def test_rejects_unknown_and_ambiguous_parents_and_cycles(jobs: list[dict[str, Any]], problem: str) -> None:
    [found] = parents_of(*jobs).problems
    assert problem in found


@given(st.lists(st.lists(st.integers(1, 12), max_size=3), max_size=12))
def test_parents_come_first_or_a_cycle_is_reported(graph: list[list[int]]) -> None:
    edges = [[parent for parent in after if parent <= len(graph)] for after in graph]
    found = parents_of(*({"after": after} for after in edges))
    if found.problems:
        assert not found.waits_for
        return
    seen: set[int] = set()
    for number, waits_for in found.waits_for.items():
        assert set(waits_for) == set(edges[number - 1]) <= seen
        seen.add(number)
    assert seen == set(range(1, len(graph) + 1))


def test_jobs_keep_the_order_of_the_file_where_parents_allow_it() -> None:
    assert list(parents_of({}, {"after": 4}, {}, {}).waits_for) == [1, 3, 4, 2]


def test_a_chain_of_ten_thousand_jobs_in_reverse_order() -> None:
    last = 10_000
    found = parents_of(*({"after": number + 1} for number in range(1, last)), {})
    assert list(found.waits_for) == list(range(last, 0, -1))
