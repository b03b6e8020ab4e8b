"""Tests which references in a jobs file are wrong: unknown jobs, and jobs that would wait for themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.job_line import parse_line
from gpu_scheduler.core.jobsfile.reading import Line, find_wrong_references, line_from_result, references_of


def lines_of(text: str, first: int = 1) -> list[Line]:
    """Returns the lines of a text that are jobs or malformed."""
    parsed = [(n, raw, parse_line(raw, "/w", "/h")) for n, raw in enumerate(text.splitlines(True), first)]
    return [line_from_result(n, raw, result) for n, raw, result in parsed if result is not None]


def problems(text: str, *existing: str) -> list[str]:
    """Returns each wrong line's number and problem, without the remedy."""
    lines = lines_of(text)
    found = find_wrong_references(lines, existing.__contains__)
    return [f"{lines[index].number} {found[index].partition(';')[0]}" for index in sorted(found)]


@pytest.mark.parametrize(
    ("text", "existing", "expected"),
    [
        ("true\n[name=a] true\n", (), []),
        ("[after=a] b\n[name=a] a\n", (), []),
        ("[after=a,7 after-any=old] b\n[name=a] a\n", ("7", "old"), []),
        ("[after=prpe] b\n", (), ["1 after=prpe: no line of this file and no job has this name"]),
        ("[after-any=7] b\n", (), ["1 after-any=7: there is no job 7"]),
        ("[after=7] b\n[name=7] a\n", (), ["1 after=7: there is no job 7"]),
        ("[name=a after=a] b\n", (), ["1 after=a: the job would wait for itself"]),
        ("[name=a after=a] b\n", ("a",), ["1 after=a: the job would wait for itself"]),
        ("[name=7 after=7] b\n", ("7",), []),
        (
            "[name=a after=c] a\n[name=b after=a] b\n[name=c after-any=b] c\n[after=x] d\n",
            ("x",),
            [
                "1 after=c: the job would wait for itself, through line 3",
                "2 after=a: the job would wait for itself, through line 1",
                "3 after-any=b: the job would wait for itself, through line 2",
            ],
        ),
        (
            "[name=a vram=x] a\n[name=b after=a] b\n[after=b] c\ntrue\n",
            ("a", "b"),
            [
                "2 after=a: line 1, which has this name, is malformed",
                "3 after=b: line 2, which has this name, is malformed",
            ],
        ),
        (
            "[name=a] a\n[gpus=x name=a] a\n[after=a] c\n",
            (),
            ["3 after=a: line 2, which has this name, is malformed"],
        ),
    ],
)
def test_finds_the_lines_with_wrong_references(
    text: str, existing: tuple[str, ...], expected: list[str]
) -> None:
    assert problems(text, *existing) == expected


def test_does_not_check_accepted_lines_again() -> None:
    before, after = lines_of("[after=gone] b\n"), lines_of("[after=gone] b\n[after=gone] c\n")
    assert set(find_wrong_references(after, lambda _: False, tuple(before))) == {1}


def test_only_a_new_line_is_wrong_if_it_completes_a_cycle() -> None:
    old = lines_of("[name=a] a\n[name=b after=a] b\n")
    edited = lines_of("[name=a after=b] a\n[name=b after=a] b\n")
    assert set(find_wrong_references(edited, lambda _: False, tuple(old))) == {0}
    more = lines_of("[name=a after=b] c\n", 3)
    assert find_wrong_references([*old, *more], lambda _: False, tuple(old)) == {
        2: "after=b: the job would wait for itself, through line 2; remove one of the references between"
        " these lines"
    }


def test_refuses_to_let_very_many_lines_wait_for_very_many_lines() -> None:
    text = "[name=a] true\n" * 1000 + "[after=a] true\n" * 1001
    found = problems(text)
    assert len(found) == 1001
    assert found[0] == "1001 after=a: 1,001 lines wait for 1,000 lines with this name, which is too many"
    assert problems(text + "[name=b after=c] true\n")[-1].startswith("2002 after=c: no line")
    assert problems(text.replace("[after=a]", "[after=b]") + "[name=b after=a] true\n") == []


def test_checks_1000_lines_that_wait_for_1000_others() -> None:
    text = "".join(f"[name=a] echo {n}\n" for n in range(1000))
    text += "".join(f"[name=b after=a] echo {n}\n" for n in range(1000))
    assert problems(text) == []
    assert len(problems(text.replace("[name=a] echo 0", "[name=a after=b] echo 0"))) == 1001


NAMES = st.sampled_from(["a", "b", "c", "d", "7", "old"])
LINES = st.tuples(st.none() | NAMES, st.lists(NAMES | st.just("gone"), max_size=2), st.sampled_from("++++-"))
TEXTS = st.lists(LINES, max_size=8)
EXISTING = {"7", "old"}


def text_of(lines: list[tuple[str | None, list[str], str]]) -> str:
    def block(name: str | None, after: list[str], kind: str) -> str:
        items = ([f"name={name}"] if name else []) + ([f"after={','.join(after)}"] if after else [])
        return " ".join([*items, *(["gpus=x"] if kind == "-" else [])])

    return "".join(f"[{block(*line)}] echo\n" for line in lines)


def waits_for_itself(lines: list[Line], start: Line) -> bool:
    def parents(line: Line) -> list[Line]:
        wanted = [one for one in references_of(line) if one != "7"]
        return [one for one in lines if one.attributes.get("name") in wanted]

    found: list[Line] = []
    todo = parents(start)
    while todo:
        line = todo.pop()
        if line is start:
            return True
        if all(line is not one for one in found):
            found.append(line)
            todo += parents(line)
    return False


@given(TEXTS)
def test_the_other_lines_wait_only_for_jobs_and_for_each_other(
    text: list[tuple[str | None, list[str], str]],
) -> None:
    lines = lines_of(text_of(text))
    wrong = find_wrong_references(lines, EXISTING.__contains__)
    good = [line for n, line in enumerate(lines) if n not in wrong and not line.malformed]
    names = {line.attributes.get("name") for line in good}
    lost = {name for name, _, kind in text if kind == "-"}
    lost |= {lines[n].attributes.get("name") for n in wrong}
    for n, line in enumerate(lines):
        others = [one for one in references_of(line) if one != "7"]
        is_right = all((one in names or one in EXISTING) and one not in lost for one in others)
        if n not in wrong:
            assert is_right
            assert not waits_for_itself(good, line)
        else:  # every wrong line has a reason
            assert not is_right or waits_for_itself(lines, line)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("train", None),
        ("'train/*=1'", None),
        ("train/lr=1", None),
        ("eval", "after=eval: line 4, which has this name, is malformed; correct line 4 first"),
        ("other", "no line of this file and no job has this name; correct it"),
        ("'x*'", "after=x*: no line of this file and no job has such a name; correct the pattern"),
        ("gone", "after=gone: line 5, which has this name, is malformed"),
    ],
)
def test_a_line_may_wait_for_a_group_and_for_a_pattern(reference: str, problem: str | None) -> None:
    text = (
        f"[{f'after={reference}' if chr(39) not in reference else chr(39) + 'after=' + reference[1:]}] true\n"
        "[name=train/lr=1] true\n[name=train/lr=2] true\n[name=eval/a gpus=x] true\n"
        "[name=gone/a after=nobody] true\n"
    )
    found = find_wrong_references(lines_of(text), lambda _: False).get(0)
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)
