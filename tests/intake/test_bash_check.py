"""Tests of the syntax check by bash, which gives the same results for a batch as for single commands."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.job_line import Malformed
from gpu_scheduler.intake.jobs_file_text import find_continuations, find_refusals, is_complete

PIECES = [
    "echo", "x", "it's", '"', "'", "`", "$(", ")", "(", "${a", "${b}", "}", "{", ";", "&&", "|", "if", "then",
    "fi", "for i in 1", "do", "done", "case a in", "esac", "[[", "]]", "$((1", "))", "<<E", "E", "\\", "#",
    "((", "a)", ";;", "} )", "( {", "f()",
]  # fmt: skip
COMMAND = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(COMMAND, min_size=2, max_size=6, unique=True))
def test_batched_checks_match_single_checks(commands: list[str]) -> None:
    alone = {command for command in commands if find_refusals([command])}
    assert set(find_refusals(commands)) == alone


def test_one_mistake_in_a_batch_does_not_hide_another() -> None:
    for pair in (
        ["echo don't", "echo it's"],
        ["echo `a", "b` x"],
        ["x; }; { y", "echo ok > o"],
        ["a $((1", "2))"],
        ["a[1 x; echo", "echo ] > o"],
        ["$((1 $(", "; ; )) a)"],
        ["case a in (b", ") echo; esac"],
    ):
        together = set(find_refusals([*pair, "echo fine > o", "echo fine; echo b"]))
        assert together == {command for command in pair if find_refusals([command])}
        assert together


def test_rejects_a_command_that_closes_the_brackets_around_it() -> None:
    mirror = "true ) } ) } ; { ( { ( true"
    assert set(find_refusals([mirror, "echo fine > o", "(echo a) && { echo b; }"])) == {mirror}


@pytest.mark.parametrize("quiet", ["[[ ]]", "[[ ! ]]", "[[ a && ]]", "[[ a || ]]"])
def test_finds_a_mistake_near_a_mistake_that_the_check_misses(quiet: str) -> None:
    assert set(find_refusals([quiet, "do"])) == {"do"}


def test_distinguishes_unfinished_commands_from_invalid_commands() -> None:
    assert find_refusals(["for i in 1; do"])["for i in 1; do"].unfinished
    assert not find_refusals(["done"])["done"].unfinished
    assert not find_refusals(["echo it's"])["echo it's"].unfinished
    assert is_complete("for i in 1; do\necho\ndone")
    assert not is_complete("for i in 1; do\necho")


def test_line_continues_an_unfinished_command_but_not_an_attribute_block() -> None:
    open_one = Malformed("bash rejects the command", "one whole command", unfinished=True)
    alone = ["[share=0.5] py[thon one.py && echo done", "python two.py | tee two.log"]
    assert find_continuations(alone, [open_one, None]) == {}
    whole = ["[share=0.5] for i in 1 2; do", "echo $i; done"]
    assert list(find_continuations(whole, [open_one, None])) == [1]
