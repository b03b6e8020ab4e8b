"""Tests which words of `submit` are its own, and which belong to the script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.cli.parser import parse
from gpu_scheduler.errors import UsageError

OWN_OPTIONS = ("--after", "--after-any", "--name")


def split(words: list[str]) -> tuple[str | None, list[str], list[str], list[str] | None]:
    """Returns the script, the own options after it, its arguments, and the command after a `--`."""
    options = parse(["submit", *words])
    return options.script, options.own_words, list(options.script_arguments), options.command_words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("t.py", ("t.py", "", "", None)),
        ("t.py --env Cart --gpus 2", ("t.py", "", "--env Cart --gpus 2", None)),
        ("--vram 2G --hold t.py x", ("t.py", "", "x", None)),
        ("--vram=2G t.py", ("t.py", "", "", None)),
        ("--name t.py u.py", ("u.py", "", "", None)),
        ("t.py --after 1", ("t.py", "--after 1", "", None)),
        ("t.py -x --after=1,2 y", ("t.py", "--after 1,2", "-x y", None)),
        ("t.py --name=a=b --after 1", ("t.py", "--name a=b --after 1", "", None)),
        ("t.py --after-any prep", ("t.py", "--after-any prep", "", None)),
        ("t.py --names a --afterwards", ("t.py", "", "--names a --afterwards", None)),
        ("t.py -- --name x", ("t.py", "", "--name x", None)),
        ("t.py --after 1 -- --name x", ("t.py", "--after 1", "--name x", None)),
        ("t.py a -- --name x", ("t.py", "", "a -- --name x", None)),
        ("t.py -- -- x", ("t.py", "", "-- x", None)),
        ("t.py --wait --json -h", ("t.py", "", "--wait --json -h", None)),
        ("--vram 2G -- t.py --name x", (None, "", "", "t.py --name x")),
    ],
)
def test_splits_the_words(words: str, expected: tuple[str | None, str, str, str | None]) -> None:
    script, own, arguments, command = expected
    found = script, own.split(), arguments.split(), None if command is None else command.split()
    assert split(words.split()) == found


@given(st.lists(st.text("-ab=", max_size=4) | st.sampled_from(["--vram", "--gpus", "--wait", "--env"])))
def test_the_script_gets_all_other_words_in_order(arguments: list[str]) -> None:
    assert not set(OWN_OPTIONS) & set(arguments)
    separated = arguments[1:] if arguments[:1] == ["--"] else arguments
    assert split(["t.py", *arguments]) == ("t.py", [], separated, None)
    assert split(["t.py", "--", *arguments]) == ("t.py", [], arguments, None)


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
        (["--vram"], "expected one argument"),
        (["t.py", "--name"], "--name after the script needs a value"),
        (["t.py", "--after="], "--after after the script needs a value"),
        (["t.py", "--after", "1", "--after=2"], "--after is given twice"),
    ],
)
def test_rejects_wrong_words_with_the_remedy(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse(["submit", *words])
