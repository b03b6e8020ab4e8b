"""Names, groups, and what a reference means."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model import job_spec

NAMES = ("train", "eval/a", "eval/b", "eval/b/c", "x=1")
KEYS = {key for name in NAMES for key in job_spec.keys_of(name)}


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("train/lr=0.1/seed=2", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("/a", False),
        ("a/", False),
        ("a//b", False),
        ("a b", False),
        ("a*", False),
        ("ü", False),
    ],
)
def test_a_name_consists_of_parts(text: str, is_name: bool) -> None:
    assert job_spec.is_name(text) == is_name


@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("train", ["train"]),
        ("eval", ["eval/"]),
        ("eval/b", ["eval/b"]),
        ("eval/*", ["eval/a", "eval/b", "eval/b/c"]),
        ("*=?", ["x=1"]),
        ("ev[ae]l/[!a]", ["eval/b"]),
        ("*", ["eval/a", "eval/b", "eval/b/c", "train", "x=1"]),
        ("tra", []),
        ("eval/", ["eval/"]),
    ],
)
def test_an_exact_name_wins_over_a_group_and_a_group_over_a_pattern(reference: str, meant: list[str]) -> None:
    assert sorted(job_spec.meant_by(reference, KEYS)) == meant
    patterns = [reference] if job_spec.is_pattern(reference) else []
    for key in meant if reference != "eval/" else ():
        assert reference in job_spec.references_to(key, patterns)


def test_an_exact_name_hides_the_group_of_the_same_name() -> None:
    assert job_spec.meant_by("eval", {*KEYS, "eval"}) == ["eval"]
