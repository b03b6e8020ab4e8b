from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.text.formatting import (
    and_more,
    count_noun,
    format_age,
    format_duration,
    format_memory,
    limit_length,
    memory_text,
    safe_text,
    without_repetition,
)
from gpu_scheduler.show.job_text import outcome_text, reason_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py --llm x", "train.py --llm x"),
        ("a\x1b[31mred\x07", r"a\x1b[31mred\x07"),
        ("one\ntwo\tthree\r", r"one\ntwo\tthree\r"),
        ("\x9bcsi \x7f", r"\x9bcsi \x7f"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("bad \udcff byte", r"bad \udcff byte"),
        ("größer 模型 🙂", "größer 模型 🙂"),
    ],
)
def test_escapes_control_characters(text: str, shown: str) -> None:
    assert safe_text(text) == shown


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_escaped_text_contains_no_control_character(text: str) -> None:
    shown = safe_text(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    shown.encode()


def test_escaping_keeps_line_breaks_on_request() -> None:
    assert safe_text("a\x1b\nb", keep_line_breaks=True) == "a\\x1b\nb"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.4, "59 s"), (60, "1 min"), (125, "2 min 5 s"),
        (3599.6, "1 h"), (3780, "1 h 3 min"), (86400 * 2 + 3600 * 4, "2 d 4 h"),
    ],
)  # fmt: skip
def test_formats_durations(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (None, ""), (1000.0, "now"), (1200.0, "now"), (995.0, "5 s ago"), (880.0, "2 min ago"),
        (1000.0 - 3 * 3600, "3 h ago"), (1000.0 - 9 * 86400, "9 d ago"),
    ],
)  # fmt: skip
def test_formats_the_age_of_a_value(at: float | None, shown: str) -> None:
    assert format_age(at, 1000.0) == shown


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal", "shown"),
    [
        ("completed", 0, None, "completed"),
        ("failed", 7, None, "failed, exit code 7"),
        ("failed", None, 9, "failed, SIGKILL"),
        ("failed", None, 99, "failed, signal 99"),
        ("failed", None, None, "failed"),
        ("timed_out", None, 15, "timed out"),
        ("cancelled", None, 15, "cancelled"),
    ],
)
def test_formats_job_outcomes(outcome: str, exit_code: int | None, signal: int | None, shown: str) -> None:
    assert outcome_text(outcome, exit_code, signal) == shown


def test_formats_sizes_and_counts() -> None:
    assert [format_memory(None), format_memory(512), format_memory(24 * 1024), format_memory(1536)] == [
        "?",
        "512 MiB",
        "24.0 GiB",
        "1.5 GiB",
    ]
    assert [count_noun(1, "job"), count_noun(20000, "job")] == ["1 job", "20,000 jobs"]


def test_truncates_long_text() -> None:
    assert limit_length("x" * 1000) == "x" * 1000
    assert limit_length("x" * 60_000) == f"{'x' * 1000}… (60,000 characters)"


@pytest.mark.parametrize(
    ("peaks", "declared", "shown"),
    [
        ({}, None, ""),
        ({}, 900, "? of 900 MiB"),
        ({2: 700}, None, "700 MiB"),
        ({2: 700}, 900, "700 of 900 MiB"),
        ({2: 700, 0: 5}, 900, "GPU 0 5, GPU 2 700 of 900 MiB"),
    ],
)
def test_formats_peaks_together_with_the_declared_memory(
    peaks: dict[int, int], declared: int | None, shown: str
) -> None:
    assert memory_text(peaks, declared) == shown


LONG = "Error: " + " ".join(str(n) for n in range(100))


@pytest.mark.parametrize(
    ("text", "others", "shown"),
    [
        ("exit code 1: short", ["short", ""], "exit code 1: short"),
        (f"exit code 1: {LONG}", ["other", LONG], f"exit code 1: {LONG[:20]} …"),
        (f"1: {LONG}; retries used up", [LONG], f"1: {LONG[:20]} …; retries used up"),
        (f"1: {LONG[:200]}…; retries used up", [LONG], f"1: {LONG[:20]} …; retries used up"),
        (f"1: {LONG}", [LONG.replace(" ", "  ")], f"1: {LONG[:20]} …"),
        (LONG[:20], [LONG], LONG[:20]),
        ("x" * 30, ["x" * 40], f"{'x' * 20} …"),
        (LONG, [LONG[:20]], LONG),
    ],
)
def test_truncates_passages_repeated_from_another_text(text: str, others: list[str], shown: str) -> None:
    assert without_repetition(text, others, 20) == shown


@pytest.mark.parametrize(
    ("more", "shown"), [(-1, "3, 4"), (0, "3, 4"), (1, "3, 4 and 1 more"), (1200, "3, 4 and 1,200 more")]
)
def test_a_list_names_the_number_of_further_items_only_if_there_are_any(more: int, shown: str) -> None:
    assert and_more("3, 4", more) == shown


@pytest.mark.parametrize(
    ("count", "end"),
    [
        (1, "process 1 is still running"),
        (8, "processes 1, 2, 3, 4, 5, 6, 7, 8 are still running"),
        (9, "processes 1, 2, 3, 4, 5, 6, 7, 8 are still running"),
    ],
)
def test_a_reason_names_at_most_eight_surviving_processes(count: int, end: str) -> None:
    reason = StateReason(ReasonKind.RUNNER_DIED, survivors=tuple(range(1, count + 1)))
    assert reason_text(reason) == f"its runner was killed; {end}"
