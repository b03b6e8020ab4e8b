from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpu_scheduler.show.layout import display_width, truncate_end, truncate_middle, wrap_text, wrap_words

TEXTS = st.text(st.sampled_from("ab -é…█│模型🙂e\u0301"), max_size=30)


@pytest.mark.parametrize(
    ("text", "columns", "at_end", "in_the_middle"),
    [
        ("train.py", 8, "train.py", "train.py"),
        ("train.py", 7, "train.…", "tra….py"),
        ("train.py --epochs 3", 11, "train.py -…", "train…chs 3"),
        ("模型训练", 8, "模型训练", "模型训练"),
        ("模型训练", 7, "模型训…", "模…练"),
        ("abc", 2, "a…", "a…"),
        ("abc", 1, "…", "…"),
        ("abc", 0, "", ""),
    ],
)
def test_truncates_text_to_a_display_width(text: str, columns: int, at_end: str, in_the_middle: str) -> None:
    assert truncate_end(text, columns) == at_end
    assert truncate_middle(text, columns) == in_the_middle


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.integers(0, 40))
def test_truncated_text_never_exceeds_the_display_width(text: str, columns: int) -> None:
    assert display_width(text) == cell_len(text)
    for shown in (truncate_end(text, columns), truncate_middle(text, columns)):
        assert display_width(shown) <= columns or shown == text
    if columns:
        assert all(display_width(line) <= max(columns, 2) for line in wrap_text(text, columns))


def test_wraps_text_at_spaces() -> None:
    assert wrap_text("free space there, then go on", 12) == ["free space", "there, then", "go on"]
    assert wrap_text("/a/path/without/blanks x", 10) == ["/a/path/wi", "thout/blan", "ks x"]
    assert wrap_text("short", 10) == ["short"]


@pytest.mark.parametrize(
    ("text", "columns", "found"),
    [
        ("free space there, then go on", 12, ["free space", "there, then", "go on"]),
        ("see /a/path/without/blanks now", 10, ["see", "/a/path/without/blanks", "now"]),
        ("  two  blanks kept", 12, ["  two ", "blanks kept"]),
        ("模型 训练 abc", 9, ["模型 训练", "abc"]),
        ("模型 训练 abc", 8, ["模型", "训练 abc"]),
        ("", 5, [""]),
    ],
)
def test_wraps_text_without_breaking_words(text: str, columns: int, found: list[str]) -> None:
    assert wrap_words(text, columns) == [row.rstrip() for row in found]
