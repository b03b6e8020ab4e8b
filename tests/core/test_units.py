"""Parsing and formatting of memory and time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.values import format_mib, format_seconds, parse_mib, parse_seconds
from gpu_scheduler.core.text.formatting import format_memory


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("18000", 18000),
        ("18000M", 18000),
        ("18000MB", 18000),
        ("18000MiB", 18000),
        ("18G", 18432),
        ("18GB", 18432),
        ("18GiB", 18432),
        ("18g", 18432),
        ("18gib", 18432),
        ("17.5G", 17920),
        ("1.5GiB", 1536),
        ("0.1G", 103),
        ("0.0001", 1),
        ("1", 1),
        (" 18G ", 18432),
        ("007", 7),
        ("1048576G", 1 << 30),
        ("1073741824", 1 << 30),
    ],
)
def test_parses_memory_in_binary_units_and_rounds_up_to_mib(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    ["", "0", "0G", "0.0", "-1", "+1", "1e3", "18 G", "18T", "18TiB", "18K", "18i", "18B", "G", ".5G", "5.G",
     "1,5G", "1_000", "18Gx", "nan", "inf", "\u0661\u0668G", "1048577G", "1073741825", "1.0000001G"],
)  # fmt: skip
def test_rejects_invalid_memory(text: str) -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_mib(text)


def test_a_memory_error_shows_the_accepted_form() -> None:
    with pytest.raises(
        ValueError, match=r"'18T' is not valid; write a number of MiB such as 18000, or 18G or 17\.5GiB"
    ):
        parse_mib("18T")
    with pytest.raises(ValueError, match="'0' is not between 1 MiB and 1048576 GiB"):
        parse_mib("0")


@settings(deadline=None)
@given(st.integers(1, 1 << 30) | st.integers(1, 1 << 20).map(lambda gib: gib * 1024))
def test_formatted_memory_parses_to_the_same_value(mib: int) -> None:
    assert parse_mib(format_mib(mib)) == mib


@pytest.mark.parametrize(
    ("mib", "written", "shown"),
    [
        (0, "0", "0 MiB"),
        (1, "1", "1 MiB"),
        (1023, "1023", "1023 MiB"),
        (1024, "1G", "1.0 GiB"),
        (18432, "18G", "18.0 GiB"),
        (18000, "18000", "17.6 GiB"),
    ],
)
def test_formats_memory(mib: int, written: str, shown: str) -> None:
    assert (format_mib(mib), format_memory(mib)) == (written, shown)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1.5h", 5400.0),
        ("0.5s", 0.5),
        (" 2h ", 7200.0),
        ("366d", 366 * 86400.0),
    ],
)
def test_parses_a_time_with_its_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "90", "90.0", "s", "0s", "0.0h", "-1s", "1e3s", "15 m", "2H", "1w", "2hours", "1h30m", "367d", ".5h",
     "\u0661s"],
)  # fmt: skip
def test_rejects_invalid_times(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_seconds(text)


def test_rejects_a_time_without_a_unit_and_names_the_remedy() -> None:
    with pytest.raises(ValueError, match="'90' is not valid; write a time such as 90s, 15m, 2h or 1d"):
        parse_seconds("90")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (90.0, "90s"),
        (60.0, "1m"),
        (7200.0, "2h"),
        (172_800.0, "2d"),
        (0.5, "0.5s"),
        (1_234_567.0, "1234567s"),
        (100.0, "100s"),
        (59.25, "59.25s"),
    ],
)
def test_formats_a_time(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@settings(deadline=None)
@given(st.integers(1, 9999).flatmap(lambda n: st.sampled_from([f"{n}s", f"{n}.25s", f"{n / 1000:.3f}h"])))
def test_a_formatted_time_parses_to_the_same_value(text: str) -> None:
    seconds = parse_seconds(text)
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 366 * 86400))
def test_formatted_whole_seconds_parse_to_exactly_the_same_value(seconds: int) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds
