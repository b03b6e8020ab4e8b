"""The expansion of a sweep: its combinations, placeholders and names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.compose import MAX_JOBS, combinations, filled, job_names
from gpu_scheduler.core.model.job_spec import MAX_NAME_LENGTH, is_name


@pytest.mark.parametrize(
    ("items", "values"),
    [
        (["lr=0.1,0.01"], [{"lr": "0.1"}, {"lr": "0.01"}]),
        (["a=1,2", "b=x,y"], [{"a": n, "b": t} for n in "12" for t in "xy"]),
        (["n=1..3"], [{"n": "1"}, {"n": "2"}, {"n": "3"}]),
        (["n=1..-1,7"], [{"n": "1"}, {"n": "0"}, {"n": "-1"}, {"n": "7"}]),
        (["""x="a,b",'c "d"',"",1..x"""], [{"x": "a,b"}, {"x": 'c "d"'}, {"x": ""}, {"x": "1..x"}]),
        (['x="1..3"'], [{"x": "1..3"}]),
        (["path=runs/a=b"], [{"path": "runs/a=b"}]),
    ],
)
def test_a_grid_gives_every_combination(items: list[str], values: list[dict[str, str]]) -> None:
    assert combinations(items) == values


def test_zip_combines_the_nth_values() -> None:
    assert combinations(["a=1,2", "b=x,y"], is_zip=True) == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    with pytest.raises(ValueError, match=r"--zip needs the same number of values .* a has 2, b has 3"):
        combinations(["a=1,2", "b=1..3"], is_zip=True)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (["lr"], "'lr' is not KEY=VALUES, such as lr=0.1,0.01"),
        (["lr="], "'lr=' is not KEY=VALUES"),
        (["1=a"], "'1=a' is not KEY=VALUES"),
        (["lr=1,,2"], "is not KEY=VALUES"),
        (['lr="1'], "is not KEY=VALUES"),
        (["lr=1", "lr=2"], "lr=2: lr is given twice"),
        (["lr=1,2,1"], "lr=1,2,1: a value is given twice"),
        (["n=1..3,2"], "a value is given twice"),
        (["n=1..999999999"], f"1..999999999 has more than {MAX_JOBS:,} values"),
        (["n=0.1..0.5"], "0.1..0.5 is not a range such as 1..3; list the values, as in 0.1,0.5 or 0,2,4"),
        (["n=0..10:2"], "0..10:2 is not a range"),
        (["n=1...3"], "1...3 is not a range"),
        (["n=1..5000", "m=1,2,3"], "there are 15,000 combinations; at most 10,000 are possible"),
    ],
)
def test_a_wrong_grid_is_refused_with_its_mistake(items: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        combinations(items)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--lr {lr} --out run-{lr}/{lr}", "--lr 0.1 --out run-0.1/0.1"),
        ("{lr} {} ${HOME} ${lr} {a,b} {1}", "0.1 {} ${HOME} ${lr} {a,b} {1}"),
        ('{"lr": {lr}, "x": {"lr": 1}}', '{"lr": 0.1, "x": {"lr": 1}}'),
        ("{lr} {{lr}} awk '{{print}}' {{}}", "0.1 {lr} awk '{print}' {{}}"),
        ('\\{lr} "{lr}"', '\\0.1 "0.1"'),
    ],
)
def test_placeholders_are_replaced_and_other_braces_stay(text: str, shown: str) -> None:
    work: dict[str, Any] = {"command": ["x", text], "attributes": {"cwd": text, "hold": True}, "script": None}
    assert filled(work, [{"lr": "0.1"}]) == [
        {"command": ["x", shown], "attributes": {"cwd": shown, "hold": True}, "script": None}
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{lr} {sed}",
            "{sed} is none of the keys lr, seed; give its values with --grid, or write {{sed}} for",
        ),
        ("{lr}", "seed is not used; write {seed} where its values belong"),
        ("{lr} ${seed}", "seed is not used"),
    ],
)
def test_an_unknown_placeholder_and_an_unused_key_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        filled({"command": [text]}, [{"lr": "1", "seed": "2"}])
    assert problem in str(caught.value)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_a_value_is_inserted_as_it_is(before: str, value: str) -> None:
    before = before.replace("{", "").replace("$", "")
    assert filled({"command": [f"{before}{{k}}"]}, [{"k": value}]) == [{"command": [before + value]}]


@pytest.mark.parametrize(
    ("grid", "names"),
    [
        ([{"lr": "0.1", "seed": "2"}], ["train/lr=0.1/seed=2"]),
        ([{"out": "a/b c"}, {"out": "d"}], ["train/out=a-b-c", "train/out=d"]),
        ([{"out": "a b"}, {"out": "a/b"}], ["train/1", "train/2"]),
        ([{"out": "x" * MAX_NAME_LENGTH}, {"out": "d"}], ["train/1", "train/2"]),
        ([{"out": ""}], ["train/out="]),
    ],
)
def test_a_job_is_named_after_its_values(grid: list[dict[str, str]], names: list[str]) -> None:
    assert job_names("train", grid) == names
    assert all(map(is_name, names))
