"""Splitting shell text into words, quotes and comments, compared with `shlex.split`."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.text.parsing import find_comment, mask_quoted, split_words

HARD = st.text(alphabet="ab ,'\"\\#$;\t", max_size=14)


@settings(deadline=None, max_examples=400)
@given(HARD)
def test_split_words_agrees_with_shlex(text: str) -> None:
    try:
        expected = tuple(shlex.split(text))
    except ValueError:
        with pytest.raises(ValueError, match=r"not closed|backslash"):
            split_words(text)
        return
    assert split_words(text) == expected


def test_split_words_does_not_expand_variables_globs_or_substitutions() -> None:
    assert split_words("$HOME ~/x *.py `ls` $(ls)") == ("$HOME", "~/x", "*.py", "`ls`", "$(ls)")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("# all", 0),
        ("a # b", 2),
        ("a\t# b", 2),
        ("a#b", None),
        ("a '# b' c", None),
        ('a "# b" # c', 8),
        (r"a \# b", None),
        (r"a\ # b", None),
        ("echo it's # not closed", None),
        (r"echo $'it\'s' # c", 14),
        ("echo ${x#y} $# # c", 15),
    ],
)
def test_finds_comments_in_shell_text(text: str, at: int | None) -> None:
    assert find_comment(text) == at


def test_masks_quoted_text_and_reports_unclosed_quotes() -> None:
    assert mask_quoted("a 'b' \"c\" \\'") == "a _ _ _"
    assert mask_quoted("it's") is None
