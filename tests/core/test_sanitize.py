"""Filtering job output for a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_scheduler.core.text.job_output import Sanitizer, sanitized


@pytest.mark.parametrize(
    "passed",
    [b"", b"plain\n", "grün ▓ 日本\n".encode(), b" 10%|#\r 20%|##\b\b  \tx\n", b"\x1b[1;31mred\x1b[0m\x1b[m",
     b"\x1b[38:5:196mx\x1b[38;2;1;2;3my", b"\r\x1b[K\x1b[0K\x1b[2Kdone", b"latin \xe9\xff one"],
)  # fmt: skip
def test_keeps_text_with_colours_or_progress_bars(passed: bytes) -> None:
    assert sanitized(passed) == passed


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\x1b]0;title\x07b", b"ab"),
        (b"a\x1b]52;c;aGk=\x1b\\b", b"ab"),
        (b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", b"alinkb"),
        (b"a\x1bP1;2q~~\x1b\\b", b"ab"),
        (b"a\x1b_G=x\x1b\\b\x1b^pm\x1b\\c\x1bXsos\x1b\\d", b"abcd"),
        (b"a\x1b[2Jb\x1b[3Jc\x1b[Hd\x1b[5;5He\x1b[Af\x1b[2Bg\x1b[sh\x1b[6ni\x1b[1Sj", b"abcdefghij"),
        (b"a\x1b[?1049hb\x1b[?25lc\x1b[>4;2md\x1b[!pe\x1b[1 qf\x1b[?1;31mg", b"abcdefg"),
        (b"a\x1bcb\x1b7c\x1b(0d\x1b#8e\x1b=f\x1bMg", b"abcdefg"),
        (b"a\x07\x00\x0e\x0f\x0b\x0c\x7f\x05b", b"ab"),
        ("a\u009b2Jb\u009d0;x\u009cc\u0090q\u009cd\u0085e\u009b31mf".encode(), b"abcde\x1b[31mf"),
        (b"a\x9b2Jb\x9d0;x\x07c\x85d", b"abcd"),
        (b"a\x1b]0;no end\nb\x1bPno end", b"a\nb"),
        (b"a\x1b[3\nb\x1b[3\x1b[1mc\x1b\nd\x1b\x1b[0me", b"a\nb\x1b[1mc\nd\x1b[0me"),
        (b"a\x1b[" + b"1;" * 99 + b"mb", b"ab"),
        (b"a\x1b[3Kb\x1b[1;1Kc\x1b[", b"abc"),
        (b"a\x1b[31\xc3\xbcb", "aüb".encode()),
    ],
)  # fmt: skip
def test_drops_control_sequences_except_those_of_colours_and_progress_bars(
    written: bytes, shown: bytes
) -> None:
    assert sanitized(written) == shown


_PARTS = st.lists(
    st.sampled_from(
        [b"\x1b", b"[", b"]", b"P", b"m", b"K", b"A", b"J", b"3", b";", b"?", b"\x07", b"\\", b"\n", b"\r",
         b"\x9b", b"\xc2\x9b", b"\xc2", b"\xe2\x96", b"\x93", b"\xff", b"\x00", b"\x18", b" ", b"x"]
    )
    | st.binary(max_size=4)
).map(b"".join)  # fmt: skip


@given(_PARTS, st.lists(st.integers(min_value=1, max_value=5), min_size=1))
@example(b"\x1b[31m\xe2\x96\x93\x1b]0;x\x1b\\", [1])
def test_the_filtered_output_does_not_depend_on_the_size_of_the_input_pieces(
    written: bytes, sizes: list[int]
) -> None:
    sanitizer, shown, at, turn = Sanitizer(), b"", 0, 0
    while at < len(written):
        size = sizes[turn % len(sizes)]
        shown += sanitizer.feed(written[at : at + size])
        at, turn = at + size, turn + 1
    assert shown + sanitizer.flush() == sanitized(written)


@given(_PARTS)
def test_removes_every_control_character_that_is_not_allowed(written: bytes) -> None:
    shown = sanitized(written)
    text = re.sub(rb"\x1b\[(?:[0-9:;]*m|[0-2]?K)", b"", shown).decode("utf-8", "surrogateescape")
    assert re.search(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]", text) is None
