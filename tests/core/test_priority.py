"""Words and numbers are accepted wherever a priority is given."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.model.job_spec import PRIORITY_WORDS, parse_priority


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("CRITICAL", 0),
        ("HIGH", 100),
        ("NORMAL", 200),
        ("LOW", 300),
        ("-5", -5),
        ("+7", 7),
        ("999999999", 999999999),
    ],
)
def test_reads_words_and_whole_numbers(text: str, number: int) -> None:
    assert parse_priority(text) == number


@pytest.mark.parametrize(
    "text", ["", "1.5", "1000000000", "MEDIUM", "HIGH LOW", "\u0661", "1e3", "HIGHER", " HIGH"]
)
def test_refuses_anything_else(text: str) -> None:
    with pytest.raises(ValueError, match="priority '"):
        parse_priority(text)


@pytest.mark.parametrize("word", PRIORITY_WORDS)
def test_the_words_are_accepted_in_any_case(word: str) -> None:
    assert parse_priority(word.title()) == parse_priority(word.lower()) == PRIORITY_WORDS[word]


@pytest.mark.parametrize("word", PRIORITY_WORDS)
def test_each_kind_of_line_accepts_the_words(word: str) -> None:
    for text in (
        f"{word},a.py",
        f"{word.lower()},a.py",
        f"[priority={word.lower()}] a.py --x",
        f"{word},a.sh,,--x",
        f"[priority={word}] a.py --x",
        f"[priority={word}] ,a.py",
    ):
        line = parse_line(text, "/", "/")
        assert isinstance(line, ParsedJob)
        assert line.spec.priority == PRIORITY_WORDS[word]


@pytest.mark.parametrize("text", ["HIGH", "HIGH=3 python a.py", "LOW -x", "HIGHER,a"])
def test_a_word_without_a_comma_after_it_begins_a_command(text: str) -> None:
    line = parse_line(text, "/", "/")
    assert isinstance(line, ParsedJob)
    assert line.spec.kind == "command"
