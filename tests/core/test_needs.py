"""Shares, the needs of lines, and llm_config.json."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import Ask, LlmConfig, Need, Requirement, parse_llm_config, resolve
from gpu_scheduler.core.share import format_share, parse_share

CONFIG = parse_llm_config(
    json.dumps(
        {
            "default_requirement": 1.0,
            "models": {"small": 0.5, "big": 2.5, "pair": {"share": 0.5, "gpus": 2}, "two": {"gpus": 2}},
        }
    )
)


@settings(deadline=None)
@given(st.integers(1, 64_000))
def test_a_share_reads_back_as_it_is_written(thousandths: int) -> None:
    assert parse_share(format_share(thousandths)) == thousandths


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "half", "65", "0.00001"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share"):
        parse_share(text)


def test_thirds_are_rounded_up_so_that_three_never_overfill_a_gpu() -> None:
    assert parse_share("0.3334") * 3 > 1000
    assert parse_share("0.333") * 3 <= 1000


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (Ask(llm="small"), Need(1, 500)),
        (Ask(llm="unknown"), Need(1, 1000)),
        (Ask(), Need(1, 1000)),
        (Ask(llm="big"), Need(3, 1000)),
        (Ask(llm="pair"), Need(2, 500)),
        (Ask(llm="two"), Need(2, 1000, alone=True)),
        (Ask(command=True), Need(1, 1000, alone=True)),
        (Ask(command=True, llm="small"), Need(1, 500)),
        (Ask(command=True, gpus=2), Need(2, 1000, alone=True)),
        (Ask(gpus=2, share=250, llm="small"), Need(2, 250)),
        (Ask(share=2000, llm="small"), Need(2, 1000)),
        (Ask(share=300), Need(1, 300)),
    ],
)
def test_the_first_that_applies_says_the_need(ask: Ask, need: Need) -> None:
    assert resolve(ask, CONFIG) == need


def test_torchrun_says_the_need_whatever_the_model() -> None:
    spec = JobSpec("csv", "x", "/", "a.py", ("--llm", "small"), torchrun=2, allowed=(0, 1))
    assert Ask.from_key(Ask.of(spec).key()) == Ask(share=1000, gpus=2, allowed=(0, 1))
    assert resolve(Ask.of(spec), CONFIG) == Need(2, 1000)
    assert str(resolve(Ask.of(spec), CONFIG)) == "2 free GPUs"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "line 1"),
        ("[]", "models"),
        ('{"models": {"m": "x"}}', "models.m"),
        ('{"models": {"m": -1}}', "models.m"),
        ('{"models": {"m": true}}', "models.m"),
        ('{"models": {"m": {}}}', "models.m"),
        ('{"models": {"m": {"vram": "9G"}}}', "vram"),
        ('{"models": {"m": {"gpus": 0}}}', "gpus 0"),
        ('{"models": {"m": {"share": 2, "gpus": 2}}}', "whole GPUs"),
        ('{"default_requirement": "much"}', "default_requirement"),
    ],
)
def test_a_broken_configuration_names_the_key(text: str, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        parse_llm_config(text)


def test_a_number_in_quotes_is_a_number() -> None:
    config = parse_llm_config('{"default_requirement": "1.0", "models": {"m": "0.5"}}')
    assert (config.default, config.of("m")) == (Requirement(1000), Requirement(500))


def test_an_empty_configuration_is_one_gpu_each() -> None:
    assert parse_llm_config("{}") == LlmConfig(Requirement(1000), {})


@pytest.mark.parametrize("allowed", [None, (0,), (1, 3)])
@pytest.mark.parametrize("llm", [None, "small", 'with "quotes"'])
def test_an_ask_reads_back_from_its_key(allowed: tuple[int, ...] | None, llm: str | None) -> None:
    ask = Ask(250, None, llm, True, allowed)
    assert Ask.from_key(ask.key()) == ask


@pytest.mark.parametrize(
    "words",
    [
        ("--llm", "small"),
        ("--llm=small",),
        ("--x", "--llm", "big", "--llm=small"),
        ("--llm", "small", "--llm"),
    ],
)
def test_the_model_is_seen_in_both_forms(words: tuple[str, ...]) -> None:
    assert JobSpec("csv", "t", "/", "/a.py", words).llm == "small"
    command = "python a.py " + " ".join(words)
    assert JobSpec("command", command, "/", command=command).llm == "small"
