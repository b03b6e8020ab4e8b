"""Parsing and formatting of GPU lists, and the errors for malformed ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import format_gpu_list, parse_gpu_list

EIGHT = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("4,5,6,7", (4, 5, 6, 7)),
        ("0-3", (0, 1, 2, 3)),
        ("0-3,5", (0, 1, 2, 3, 5)),
        (" 0 - 1 , 5 ", (0, 1, 5)),
        ("3,1", (1, 3)),
        ("2-2", (2,)),
        ("", None),
        ("  ", None),
        ("all", None),
    ],
)
def test_parses_gpu_lists(text: str, gpus: tuple[int, ...] | None) -> None:
    assert parse_gpu_list(text, EIGHT) == gpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3-0", "runs backward; write 0-3"),
        ("0,,1", "an item is empty"),
        ("0,", "an item is empty"),
        ("1,1", "GPU 1 is listed twice"),
        ("0-3,2", "GPU 2 is listed twice"),
        ("8", "there is no GPU 8; the GPUs are 0-7"),
        ("x", "'x' is not a number or range"),
        ("1 2", "'1 2' is not a number or range"),
        ("-1", "'-1' is not a number or range"),
        ("\u0661", "is not a number or range"),
        ("0-999999999", "GPU 999999999 is above the largest index, 1023"),
    ],
)
def test_rejects_malformed_gpu_lists(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="GPU list") as error:
        parse_gpu_list(text, EIGHT)
    assert says in str(error.value)


def test_accepts_any_gpu_index_if_the_existing_gpus_are_unknown() -> None:
    assert parse_gpu_list("17") == (17,)


@settings(deadline=None, max_examples=100)
@given(st.none() | st.frozensets(st.integers(0, 30), min_size=1))
def test_a_formatted_gpu_list_parses_to_the_same_gpus(gpus: frozenset[int] | None) -> None:
    expected = None if gpus is None else tuple(sorted(gpus))
    assert parse_gpu_list(format_gpu_list(gpus)) == expected
