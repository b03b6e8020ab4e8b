"""The JSON parser with limits. Every error is a ValueError with a readable message."""

from __future__ import annotations

import re

import pytest

from gpu_scheduler.core.text.parsing import decode_text, parse_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested more than 100 levels deep"),
        ("[" * 101 + "]" * 101, "nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 levels deep"),
        ("[" * 60, "line 1, column 61: not JSON"),
        ('{\n"a": 1,}', "line 2, column "),
        ("", "line 1, column 1: not JSON"),
        ("9" * 10_000, "a number has 10,000 digits; at most 1,000 are allowed"),
        ("-" + "9" * 1_000_000, "a number has 1,000,001 digits"),
        ("1." + "9" * 10_000, "a number has 10,002 digits"),
        ('{"a": -1e999}', "the number -1e999 is too large"),
        ('{"a": 1, "b": {"x": 1, "x": 2}}', 'the name "x" occurs twice in one object'),
        ('{"\\ud800": 1, "\\ud800": 2}', r'the name "\ud800" occurs twice'),
    ],
    ids=lambda value: value[:20],
)
def test_rejects_invalid_json_with_a_readable_message(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_json(text)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 100 + "]" * 100, 100),
        ("9" * 1000, int("9" * 1000)),
        ('{"a": {"x": 1}, "b": {"x": 1}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('"\\ud800"', "\ud800"),
        ("1.5", 1.5),
        ("null", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_parses_json_within_the_limits(text: str, value: object) -> None:
    found = parse_json(text)
    if isinstance(found, list):
        depth = 0
        while found is not None:
            depth, found = depth + 1, found[0] if found else None
        found = depth
    assert found == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"中": 1}'.encode("gbk"), "line 1, column 3: byte 0xd6 is not UTF-8"),
        ('{\n "é": 1}'.encode("latin-1"), "line 2, column 3: byte 0xe9 is not UTF-8"),
        (b'\xef\xbb\xbf{\n"\xc3\xa9\xff"', "line 2, column 3: byte 0xff is not UTF-8"),
        (b"ab\xc3", "line 1, column 3: byte 0xc3 is not UTF-8"),
    ],
)
def test_the_error_names_the_first_byte_that_is_not_utf8(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_text(data)


def test_ignores_a_byte_order_mark_at_the_start() -> None:
    assert decode_text(b"\xef\xbb\xbf{}") == "{}"
