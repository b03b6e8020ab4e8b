"""Suggesting memory from the peaks of finished jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.scheduling.needs import (
    Advice,
    CalibrationRules,
    LlmConfig,
    NoSuggestion,
    WorkloadClass,
    advise,
    parse_llm_config,
    suggested_entries,
)

RULES = CalibrationRules(spike_buffer=0.10, tolerance=0.10, margin_mib=512, totals_mib=(24576, 24576))
QWEN = WorkloadClass("/x/t.py", "qwen", 3, 8300, 8300, None, 1, 10.0)
PLAIN = WorkloadClass("train.py", None, 3, 8300, 8300, None, 1, 10.0)


def advice_for(family: WorkloadClass, now: Any = None, rules: CalibrationRules = RULES) -> Advice:
    models = {} if now is None else {"qwen": now}
    config = parse_llm_config(json.dumps({"models": models}))
    (advice,) = advise([family], models, config, rules)
    return advice


@pytest.mark.parametrize(
    ("now", "gpus", "entry"),
    [
        (None, 1, {"vram": 9152}),
        (0.5, 1, {"vram": 9152}),
        (2.0, 2, {"vram": 9152, "gpus": 2}),
        ("0.25", 1, {"vram": 9152}),
        ({"share": 0.5}, 1, {"share": 0.5, "vram": 9152}),
        ({"share": 2}, 2, {"vram": 9152, "gpus": 2}),
        ({"gpus": 2, "vram": "20G"}, 2, {"gpus": 2, "vram": 9152}),
        ({"gpus": 2}, 1, {"gpus": 2, "vram": 9152}),
        ({"vram": 8300}, 1, None),
        ({"vram": "9G"}, 1, None),
        ({"vram": 9221}, 1, None),
        ({"vram": 9223}, 1, {"vram": 9152}),
        ({"vram": "4G"}, 1, {"vram": 9152}),
    ],
)
def test_suggests_an_llm_config_entry_for_a_model(now: Any, gpus: int, entry: dict[str, Any] | None) -> None:
    advice = advice_for(replace(QWEN, gpus=gpus), now)
    assert (advice.suggested_entry, advice.current_entry, advice.line_vram_mib) == (entry, now, None)
    assert (advice.why_not is None) is (entry is not None)


@pytest.mark.parametrize(
    ("runs", "longest_s", "enough"),
    [(1, 3.0, False), (2, 599.9, False), (2, None, False), (3, 3.0, True), (3, None, True), (1, 600.0, True)],
)
def test_an_entry_is_suggested_only_after_three_runs_or_one_long_run(
    runs: int, longest_s: float | None, enough: bool
) -> None:
    advice = advice_for(replace(QWEN, runs=runs, longest_s=longest_s), 0.5)
    assert (advice.suggested_entry, advice.has_enough_runs) == ({"vram": 9152}, enough)
    assert suggested_entries([advice]) == ({"qwen": {"vram": 9152}} if enough else {})
    assert suggested_entries([advice], has_enough_runs=False) == ({} if enough else {"qwen": {"vram": 9152}})


def test_adds_up_the_runs_of_a_model_across_programs() -> None:
    few, other = replace(QWEN, runs=1), replace(QWEN, program="/x/other.py", runs=1)
    assert suggested_entries(advise([few, other], {}, LlmConfig(), RULES)) == {}
    assert suggested_entries(advise([few, replace(other, runs=2)], {}, LlmConfig(), RULES)) != {}
    assert suggested_entries(advise([few, replace(other, longest_s=700.0)], {}, LlmConfig(), RULES)) != {}
    assert suggested_entries(
        advise([few, replace(other, llm="b", runs=9)], {}, LlmConfig(), RULES)
    ).keys() == {"b"}


@pytest.mark.parametrize(
    ("p95", "most", "vram", "why"),
    [
        (8300, 8300, 9152, None),
        (8378, 9000, 9216, None),
        (1, 1, 64, None),
        (22000, 24000, 24064, None),
        (22000, 24100, None, NoSuggestion.NEEDS_WHOLE_GPU),
    ],
)
def test_suggests_a_vram_attribute_for_lines_without_a_model(
    p95: int, most: int, vram: int | None, why: NoSuggestion | None
) -> None:
    advice = advice_for(replace(PLAIN, p95_mib=p95, max_mib=most))
    assert (advice.suggested_entry, advice.line_vram_mib, advice.why_not) == (None, vram, why)


@pytest.mark.parametrize(
    ("declared", "is_within"),
    [(8300, True), (7546, True), (9222, True), (9210, True), (7500, False), (9230, False), (18432, False)],
)
def test_suggests_nothing_if_the_declaration_is_within_the_tolerance(declared: int, is_within: bool) -> None:
    why = NoSuggestion.WITHIN_TOLERANCE if is_within else None
    assert advice_for(replace(PLAIN, declared_mib=declared)).why_not == why
    assert advice_for(replace(QWEN, declared_mib=declared)).why_not == why


def test_does_not_repeat_an_applied_suggestion_even_with_a_large_spike_buffer() -> None:
    rules = replace(RULES, spike_buffer=0.5)
    assert advice_for(PLAIN, rules=rules).line_vram_mib == 12480
    assert advice_for(replace(PLAIN, declared_mib=12480), rules=rules).why_not == NoSuggestion.AS_SUGGESTED


def test_a_suggestion_must_fit_the_smallest_gpu_that_the_job_needs() -> None:
    rules = replace(RULES, totals_mib=(8000, 24576, 81920))
    assert advice_for(replace(PLAIN, gpus=2), rules=rules).line_vram_mib == 9152
    assert advice_for(replace(PLAIN, gpus=3), rules=rules).why_not == NoSuggestion.NEEDS_WHOLE_GPU
    assert advice_for(replace(PLAIN, gpus=4), rules=rules).line_vram_mib == 9152


def test_the_entry_of_a_model_covers_the_program_with_the_largest_need() -> None:
    small = replace(QWEN, program="/x/eval.py", p95_mib=2000, max_mib=2000, declared_mib=8300)
    advised = advise([small, QWEN, PLAIN], {}, LlmConfig(), RULES)
    assert [advice.suggested_entry for advice in advised] == [{"vram": 9152}, {"vram": 9152}, None]
    assert suggested_entries(advised) == {"qwen": {"vram": 9152}}


def test_compares_a_model_without_an_entry_with_the_default_requirement() -> None:
    config = parse_llm_config('{"default_requirement": {"vram": 9152}}')
    assert [advice.why_not for advice in advise([QWEN], {}, config, RULES)] == [NoSuggestion.WITHIN_TOLERANCE]


@settings(deadline=None)
@given(
    st.integers(1, 100_000), st.integers(0, 20_000), st.floats(0, 1), st.floats(0.05, 1),
    st.integers(0, 2000), st.lists(st.integers(4096, 200_000), max_size=3),
)  # fmt: skip
def test_a_suggestion_covers_the_peaks_and_fits_a_gpu_and_does_not_change_once_applied(
    p95: int, more: int, spike: float, tolerance: float, margin: int, totals: list[int]
) -> None:
    rules = CalibrationRules(spike, tolerance, margin, tuple(totals))
    family = replace(QWEN, p95_mib=p95, max_mib=p95 + more)
    entry = advice_for(family, rules=rules).suggested_entry
    if entry is None:
        assert p95 + more > max(totals) - margin
        return
    config = parse_llm_config(json.dumps({"models": {"qwen": entry}}))
    vram = config.of("qwen").vram
    assert vram is not None
    assert p95 <= vram < p95 * (1 + spike) + 66
    assert not totals or vram <= max(totals) - margin
    assert advice_for(family, entry, rules).suggested_entry is None


def test_suggests_one_gpu_for_a_model_that_ran_on_one_and_on_two() -> None:
    pair = replace(QWEN, program="/x/pair.py", gpus=2)
    for families in ([QWEN, pair], [pair, QWEN]):
        advised = advise(families, {}, LlmConfig(), RULES)
        assert suggested_entries(advised) == {"qwen": {"vram": 9152}}
