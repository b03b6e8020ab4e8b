"""Tests which words of `submit` are its own, and which belong to the script."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.cli.parser import parse
from gpu_scheduler.cli.submit_words import OWN_OPTIONS, SubmitWords, split_words
from gpu_scheduler.errors import UsageError

WITH_VALUE = ("--name", "--after", "--vram", "--env")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("t.py", SubmitWords([], "t.py")),
        ("t.py --env Cart --gpus 2", SubmitWords([], "t.py", {}, ("--env", "Cart", "--gpus", "2"))),
        ("--vram 2G --hold t.py x", SubmitWords(["--vram", "2G", "--hold"], "t.py", {}, ("x",))),
        ("--vram=2G t.py", SubmitWords(["--vram=2G"], "t.py")),
        ("--name t.py u.py", SubmitWords(["--name", "t.py"], "u.py")),
        ("t.py --after 1", SubmitWords([], "t.py", {"--after": "1"})),
        ("t.py -x --after=1,2 y", SubmitWords([], "t.py", {"--after": "1,2"}, ("-x", "y"))),
        ("t.py --name=a=b --after 1", SubmitWords([], "t.py", {"--name": "a=b", "--after": "1"})),
        ("t.py --after-any prep", SubmitWords([], "t.py", {"--after-any": "prep"})),
        ("t.py --names a --afterwards", SubmitWords([], "t.py", {}, ("--names", "a", "--afterwards"))),
        ("t.py -- --name x", SubmitWords([], "t.py", {}, ("--name", "x"))),
        ("t.py --after 1 -- --name x", SubmitWords([], "t.py", {"--after": "1"}, ("--name", "x"))),
        ("t.py a -- --name x", SubmitWords([], "t.py", {}, ("a", "--", "--name", "x"))),
        ("t.py -- -- x", SubmitWords([], "t.py", {}, ("--", "x"))),
        ("t.py --wait --json -h", SubmitWords([], "t.py", {}, ("--wait", "--json", "-h"))),
        ("--vram 2G -- t.py --name x", SubmitWords(["--vram", "2G"], command=["t.py", "--name", "x"])),
        ("--", SubmitWords([], command=[])),
        ("", SubmitWords([])),
        ("--vram", SubmitWords(["--vram"])),
    ],
)  # fmt: skip
def test_splits_the_words(words: str, expected: SubmitWords) -> None:
    assert split_words(shlex.split(words), WITH_VALUE) == expected


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["t.py", "--name"], "--name after the script needs a value"),
        (["t.py", "--after="], "--after after the script needs a value"),
        (["t.py", "--after", "1", "--after=2"], "--after is given twice"),
    ],
)
def test_rejects_options_after_the_script_without_a_clear_value(words: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        split_words(words, WITH_VALUE)


@given(st.lists(st.text("-ab=", max_size=4) | st.sampled_from(["--vram", "--gpus", "--wait", "--env"])))
def test_the_script_gets_all_other_words_in_order(arguments: list[str]) -> None:
    assert not set(OWN_OPTIONS) & set(arguments)
    found = split_words(["t.py", *arguments], WITH_VALUE)
    separated = arguments[1:] if arguments[:1] == ["--"] else arguments
    assert (found.own, list(found.arguments)) == ({}, separated)
    assert split_words(["t.py", "--", *arguments], WITH_VALUE).arguments == tuple(arguments)


def test_options_of_the_command_line_count_before_the_script() -> None:
    options = parse(
        ["--state-file", "s.json", "submit", "--gpus", "2", "--dir", "/x", "t.py", "--gpus", "4", "--name=a"]
    )
    assert (options.state_file, options.attribute_gpus, options.attribute_cwd) == ("s.json", "2", "/x")
    assert (options.script, options.script_arguments, options.attribute_name) == (
        "t.py",
        ("--gpus", "4"),
        "a",
    )
    assert options.own_words == ["--name", "a"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "give a SCRIPT"),
        (["--"], "give a SCRIPT"),
        (["--lr", "3", "t.py"], "options of `submit` come before the script"),
        (["--name", "a", "t.py", "--name", "b"], "--name is given both before and after the script"),
        (["--name"], "expected one argument"),
    ],
)
def test_rejects_wrong_words_with_the_remedy(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse(["submit", *words])
