"""Shares, needs of lines, and llm_config.json."""

from __future__ import annotations

import json
from dataclasses import replace

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
            "models": {
                "small": 0.5,
                "big": 2.5,
                "pair": {"share": 0.5, "gpus": 2},
                "two": {"gpus": 2},
                "mib": {"vram": 9000},
                "text": {"vram": "9G", "gpus": 2},
                "both": {"share": 0.25, "vram": "9G"},
            },
        }
    )
)


@settings(deadline=None)
@given(st.integers(1, 64_000))
def test_a_formatted_share_parses_to_the_same_value(thousandths: int) -> None:
    assert parse_share(format_share(thousandths)) == thousandths


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "half", "65", "0.00001"])
def test_rejects_an_invalid_share(text: str) -> None:
    with pytest.raises(ValueError, match="share"):
        parse_share(text)


def test_rounds_shares_up_so_that_three_thirds_never_overfill_a_gpu() -> None:
    assert parse_share("0.3334") * 3 > 1000
    assert parse_share("0.333") * 3 <= 1000


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (Ask(llm="small"), Need(1, 500)),
        (Ask(llm="unknown"), Need(1, 1000, assumed=True)),
        (Ask(), Need(1, 1000, assumed=True)),
        (Ask(llm="big"), Need(3, 1000)),
        (Ask(llm="pair"), Need(2, 500)),
        (Ask(llm="two"), Need(2, 1000, alone=True, assumed=True)),
        (Ask(command=True), Need(1, 1000, alone=True, assumed=True)),
        (Ask(command=True, llm="small"), Need(1, 500)),
        (Ask(command=True, gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (Ask(gpus=2, share=250, llm="small"), Need(2, 250)),
        (Ask(share=2000, llm="small"), Need(2, 1000)),
        (Ask(share=300), Need(1, 300)),
        (Ask(llm="mib"), Need(1, vram=9000)),
        (Ask(command=True, llm="text"), Need(2, vram=9216)),
        (Ask(llm="both"), Need(1, 250, vram=9216)),
        (Ask(llm="mib", exclusive=True), Need(1, vram=9000, exclusive=True)),
        (Ask(llm="mib", vram=5000), Need(1, vram=5000)),
        (Ask(llm="mib", share=500), Need(1, 500)),
        (Ask(llm="mib", gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (Ask(vram=5000, gpus=3), Need(3, vram=5000)),
        (Ask(vram=5000, share=200, gpus=2, exclusive=True), Need(2, 200, vram=5000, exclusive=True)),
        (Ask(command=True, exclusive=True), Need(1, 1000, alone=True, assumed=True)),
        (Ask(exclusive=True), Need(1, 1000, exclusive=True, assumed=True)),
        (Ask(share=2001, exclusive=True), Need(3, 1000, exclusive=True)),
    ],
)
def test_resolves_the_need_by_attribute_model_and_default(ask: Ask, need: Need) -> None:
    assert resolve(ask, CONFIG) == need


FAMILY = '["train.py", null]'


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (Ask(command=True, family=FAMILY), Need(1, vram=7000, learned=True)),
        (Ask(family=FAMILY), Need(1, vram=7000, learned=True)),
        (Ask(family=FAMILY, exclusive=True), Need(1, vram=7000, exclusive=True, learned=True)),
        (Ask(family=FAMILY, llm="unknown", command=True), Need(1, vram=7000, learned=True)),
        # A declaration precedes learned memory; an unknown workload class gets an idle GPU, or the default.
        (Ask(family=FAMILY, llm="small"), Need(1, 500)),
        (Ask(family=FAMILY, vram=50), Need(1, vram=50)),
        (Ask(family=FAMILY, share=50), Need(1, 50)),
        (Ask(family=FAMILY, gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (Ask(family="another", command=True), Need(1, 1000, alone=True, assumed=True)),
        (Ask(family="another"), Need(1, 1000, assumed=True)),
        (Ask(command=True), Need(1, 1000, alone=True, assumed=True)),
    ],
)
def test_learned_memory_ranks_between_model_and_default(ask: Ask, need: Need) -> None:
    assert resolve(ask, CONFIG, {FAMILY: 7000}) == need


def test_the_workload_class_is_set_only_without_a_declaration() -> None:
    plain = JobSpec("command", "python train.py --lr 1", "/w", command="python train.py --lr 1")
    assert Ask.of(plain).family is None
    assert Ask.of(plain, learn=True).family == FAMILY
    assert Ask.of(replace(plain, command="python train.py --lr 2"), learn=True).family == FAMILY
    model = Ask.of(replace(plain, command="python train.py --llm b"), learn=True)
    assert (model.llm, model.family) == ("b", '["train.py", "b"]')
    for declaration in ({"vram": 5}, {"share": 5}, {"gpus": 1}, {"torchrun": 1}):
        assert Ask.of(replace(plain, **declaration), learn=True).family is None  # type: ignore[arg-type]
    assert Ask.of(plain, 5, learn=True).family == FAMILY


def test_the_minimum_after_an_oom_overrides_the_line() -> None:
    spec = JobSpec("command", "x", "/", command="x", vram=4096, gpus=2, exclusive=True, allowed=(1, 2))
    assert Ask.of(spec) == Ask(None, 2, None, True, (1, 2), 4096, True)
    raised = Ask.of(spec, 9000)
    assert raised == Ask(None, 2, None, True, (1, 2), 4096, True, None, 9000)
    assert resolve(raised, CONFIG) == Need(2, vram=9000, exclusive=True)
    share = Ask.of(replace(spec, vram=None, share=500, exclusive=False), 9000)
    assert resolve(share, CONFIG) == Need(2, 500, vram=9000)


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (Ask(command=True, raised=9000), Need(1, vram=9000)),
        (Ask(command=True, exclusive=True, raised=9000), Need(1, vram=9000, exclusive=True)),
        (Ask(gpus=3, raised=9000), Need(3, vram=9000)),
        (Ask(share=2000, raised=9000), Need(2, 1000, vram=9000)),
        (Ask(llm="half", raised=9000), Need(1, 500, vram=9000)),
        (Ask(llm="two", raised=9000), Need(2, 1000, vram=9000)),
        (Ask(llm="pair", raised=9000), Need(2, vram=9000)),
        (Ask(llm="large", raised=9000), Need(1, vram=20_000)),
        (Ask(family=FAMILY, raised=9000), Need(1, vram=9000)),
        (Ask(raised=9000), Need(1, 1000, vram=9000)),
    ],
)
def test_the_minimum_after_an_oom_changes_only_memory(ask: Ask, need: Need) -> None:
    models = {
        "half": Requirement(500),
        "two": Requirement(2000),
        "pair": Requirement(None, 2, 4096),
        "large": Requirement(None, None, 20_000),
    }
    assert resolve(ask, LlmConfig(models=models), {FAMILY: 7000}) == need


def test_torchrun_applies_declared_memory_to_each_gpu() -> None:
    spec = JobSpec("csv", "x", "/", "a.py", ("--llm", "small"), torchrun=2, vram=9000)
    assert resolve(Ask.of(spec), CONFIG) == Need(2, vram=9000)
    assert resolve(Ask.of(spec, 9999), CONFIG) == Need(2, vram=9999)
    assert resolve(Ask.of(replace(spec, vram=None), 9999), CONFIG) == Need(2, 1000, vram=9999)


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (Need(1, 1000), "1 free GPU"),
        (Need(3, 1000), "3 free GPUs"),
        (Need(1, 1000, alone=True, assumed=True), "1 idle GPU"),
        (Need(2, 1000, alone=True, assumed=True), "2 idle GPUs"),
        (Need(1, 500), "0.5 of a GPU"),
        (Need(2, 500), "0.5 of each of 2 GPUs"),
        (Need(1, 500, exclusive=True), "0.5 of a GPU, alone"),
        (Need(1, 1000, exclusive=True), "1 free GPU"),
        (Need(1, vram=18432), "18.0 GiB of a GPU"),
        (Need(2, vram=18432), "18.0 GiB of each of 2 GPUs"),
        (Need(1, 250, vram=18432), "0.25 and 18.0 GiB of a GPU"),
        (Need(1, 1000, vram=18432), "1 free GPU with 18.0 GiB"),
        (Need(2, 1000, vram=18432), "2 free GPUs with 18.0 GiB each"),
        (Need(1, vram=900, exclusive=True), "900 MiB of a GPU, alone"),
        (Need(2, vram=18432, exclusive=True), "18.0 GiB of each of 2 GPUs, each alone"),
    ],
)
def test_formats_a_need(need: Need, text: str) -> None:
    assert str(need) == text


def test_torchrun_sets_the_need_whatever_the_model() -> None:
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
        ('{"models": {"m": {"vram": "9"}, "n": {"vram": "9T"}}}', "models.n: vram: memory '9T'"),
        ('{"models": {"m": {"vram": 0}}}', "models.m: vram: memory '0'"),
        ('{"models": {"m": {"vram": 9.5}}}', "vram 9.5 is not valid"),
        ('{"models": {"m": {"vram": true}}}', "vram True is not valid"),
        ('{"models": {"m": {"vram": null}}}', "vram None is not valid"),
        (
            '{"models": {"m": {"vram": "9G", "memory": 1}}}',
            "unknown key 'memory'; known keys: share, vram, gpus",
        ),
        ('{"models": {"m": {"gpus": 65}}}', "gpus 65"),
        ('{"models": {"m": {"gpus": true}}}', "gpus True"),
        ('{"models": {"m": {"share": 2, "vram": "9G"}}}', "whole GPUs"),
        ('{"models": {"m": {"gpus": 0}}}', "gpus 0"),
        ('{"models": {"m": {"share": 2, "gpus": 2}}}', "whole GPUs"),
        ('{"default_requirement": "much"}', "default_requirement"),
    ],
)
def test_an_invalid_configuration_names_the_key(text: str, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        parse_llm_config(text)


def test_accepts_a_number_in_quotes() -> None:
    config = parse_llm_config('{"default_requirement": "1.0", "models": {"m": "0.5"}}')
    assert (config.default, config.of("m")) == (Requirement(1000), Requirement(500))


def test_accepts_memory_as_mib_or_text_with_share_or_gpus() -> None:
    assert CONFIG.of("mib") == Requirement(None, None, 9000)
    assert CONFIG.of("text") == Requirement(None, 2, 9216)
    assert CONFIG.of("both") == Requirement(250, None, 9216)
    default = parse_llm_config('{"default_requirement": {"vram": "2G"}}')
    assert resolve(Ask(), default) == Need(1, vram=2048, assumed=True)
    assert resolve(Ask(command=True), default) == Need(1, 1000, alone=True, assumed=True)
    assert resolve(Ask(command=True, llm="unknown"), default) == Need(1, vram=2048, assumed=True)


def test_an_empty_configuration_means_one_gpu_for_each_job() -> None:
    assert parse_llm_config("{}") == LlmConfig(Requirement(1000), {})


@pytest.mark.parametrize(
    ("key", "ask"),
    [
        ("[500, 1, null, false, [0, 2]]", Ask(500, 1, None, False, (0, 2))),
        ('[null, null, "small", true, null]', Ask(llm="small", command=True)),
        ("[null, null, null, false, null]", Ask()),
    ],
)
def test_parses_and_writes_keys_of_an_older_store(key: str, ask: Ask) -> None:
    assert Ask.from_key(key) == ask
    assert ask.key() == key
    assert json.loads(replace(ask, vram=5).key()) == [*json.loads(key), 5, False, None]
    assert json.loads(replace(ask, raised=5).key()) == [*json.loads(key), None, False, None, 5]


ASKS = st.builds(
    Ask,
    st.none() | st.sampled_from([1, 500, 2000]),
    st.none() | st.integers(1, 3),
    st.none() | st.sampled_from(["small", 'with "quotes"', "é"]),
    st.booleans(),
    st.none() | st.sampled_from([(0,), (1, 3)]),
    st.none() | st.sampled_from([1, 9000]),
    st.booleans(),
    st.none() | st.sampled_from([FAMILY, "another"]),
    st.none() | st.sampled_from([1, 9000]),
)


@settings(deadline=None)
@given(ASKS, ASKS)
def test_specs_are_equal_if_their_keys_are(one: Ask, two: Ask) -> None:
    assert (one == two) == (one.key() == two.key())
    assert Ask.from_key(one.key()) == one


@pytest.mark.parametrize("allowed", [None, (0,), (1, 3)])
@pytest.mark.parametrize("llm", [None, "small", 'with "quotes"'])
def test_a_spec_parses_from_its_key(allowed: tuple[int, ...] | None, llm: str | None) -> None:
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
def test_finds_the_model_in_both_option_forms(words: tuple[str, ...]) -> None:
    assert JobSpec("csv", "t", "/", "/a.py", words).llm == "small"
    command = "python a.py " + " ".join(words)
    assert JobSpec("command", command, "/", command=command).llm == "small"
