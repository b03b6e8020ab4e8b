"""Tests of the report, and of how words on the command line select parts."""

from __future__ import annotations

import pytest

from tests.stress.__main__ import jobs_of
from tests.stress.parts import PARTS
from tests.stress.report import BEGIN, DOCUMENT, END, insert, table


def part(**more: object) -> dict[str, object]:
    return {"promise": "P2", "name": "races", "is_control": False, "figures": {"races": 10000, "won": "5/5"},
            "faults": {}, "skipped": None, **more}  # fmt: skip


def rows(*parts: dict[str, object]) -> list[str]:
    text = table({"date": "2030-01-02", "seed": 7, "size": "full", "parts": list(parts)})
    assert text.startswith("Run on 2030-01-02, seed 7, size `full`.\n")
    lines = text.splitlines()
    return lines[lines.index("") + 3 :]


def test_row_of_a_part_without_faults_shows_the_bound_and_the_negative_control() -> None:
    control = part(is_control=True, faults={"run twice": 12, "lost": 1})
    assert rows(part(), control) == [
        "| P2 | races | races: 10,000, won: 5/5 | 0 | 0.03 % | run twice: 12, lost: 1 |"
    ]  # fmt: skip


def test_row_with_faults_shows_no_bound_and_row_of_a_skipped_part_gives_the_reason() -> None:
    assert rows(part(faults={"run twice": 1}), part(skipped="only root")) == [
        "| P2 | races | races: 10,000, won: 5/5 | run twice: 1 | - | - |",
        "| P2 | races | skipped: only root | - | - | - |",
    ]


def test_report_names_the_parts_that_were_skipped_before_the_table() -> None:
    skipped = part(name="power cut, XFS", skipped="mkfs.xfs not installed")
    parts = [part(), skipped, part(name="power cut, btrfs", skipped="mkfs.btrfs not installed")]
    lines = table({"date": "2030-01-02", "seed": 7, "size": "full", "parts": parts}).splitlines()
    assert lines[1:3] == [
        "Not run, so not tested by these figures: power cut, XFS (mkfs.xfs not installed);"
        " power cut, btrfs (mkfs.btrfs not installed).",
        "",
    ]
    assert table({"date": "2030-01-02", "seed": 7, "size": "full", "parts": [part()]}).splitlines()[1] == ""


def test_report_replaces_the_text_between_the_markers() -> None:
    text = insert(DOCUMENT.read_text(), "figures")
    assert f"{BEGIN}\nfigures\n{END}\n" in text
    assert insert(text, "@other@").replace("@other@", "figures") == text
    with pytest.raises(ValueError, match="there are no lines"):
        insert("nothing", "figures")


def test_parts_are_selected_by_promise_or_name() -> None:
    assert {str(PARTS[job.part]) for job in jobs_of(["P9"], "full", 1)} == {str(PARTS[0])}
    both = jobs_of(["power", "p7"], "0.5", 1)
    assert {PARTS[job.part].promise for job in both} == {"P1", "P7"}
    assert all(job.factor == 0.5 for job in both if not job.is_control)
    assert any(job.is_control for job in both)
    everything = {job.part for job in jobs_of([], "full", 1)}
    assert everything == set(range(len(PARTS)))
    assert {job.part for job in jobs_of([], "suite", 1) if not job.is_control} < everything
