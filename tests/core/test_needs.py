"""Shares, the GPU needs of lines, and llm_config.json."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.values import format_share, parse_share
from gpu_scheduler.core.scheduling.needs import (
    LlmConfig,
    Requirement,
    ResourceSpec,
    parse_llm_config,
    resolve,
)

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


def test_three_rounded_shares_of_a_third_never_overfill_a_gpu() -> None:
    assert parse_share("0.3334") * 3 > 1000
    assert parse_share("0.333") * 3 <= 1000


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (ResourceSpec(llm="small"), Need(1, 500)),
        (ResourceSpec(llm="unknown"), Need(1, 1000, assumed=True)),
        (ResourceSpec(), Need(1, 1000, assumed=True)),
        (ResourceSpec(llm="big"), Need(3, 1000)),
        (ResourceSpec(llm="pair"), Need(2, 500)),
        (ResourceSpec(llm="two"), Need(2, 1000, alone=True, assumed=True)),
        (ResourceSpec(is_command=True), Need(1, 1000, alone=True, assumed=True)),
        (ResourceSpec(is_command=True, llm="small"), Need(1, 500)),
        (ResourceSpec(is_command=True, gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (ResourceSpec(gpus=2, share=250, llm="small"), Need(2, 250)),
        (ResourceSpec(share=2000, llm="small"), Need(2, 1000)),
        (ResourceSpec(share=300), Need(1, 300)),
        (ResourceSpec(llm="mib"), Need(1, vram=9000)),
        (ResourceSpec(is_command=True, llm="text"), Need(2, vram=9216)),
        (ResourceSpec(llm="both"), Need(1, 250, vram=9216)),
        (ResourceSpec(llm="mib", exclusive=True), Need(1, vram=9000, exclusive=True)),
        (ResourceSpec(llm="mib", vram=5000), Need(1, vram=5000)),
        (ResourceSpec(llm="mib", share=500), Need(1, 500)),
        (ResourceSpec(llm="mib", gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (ResourceSpec(vram=5000, gpus=3), Need(3, vram=5000)),
        (ResourceSpec(vram=5000, share=200, gpus=2, exclusive=True), Need(2, 200, vram=5000, exclusive=True)),
        (ResourceSpec(is_command=True, exclusive=True), Need(1, 1000, alone=True, assumed=True)),
        (ResourceSpec(exclusive=True), Need(1, 1000, exclusive=True, assumed=True)),
        (ResourceSpec(share=2001, exclusive=True), Need(3, 1000, exclusive=True)),
    ],
)
def test_takes_the_need_from_the_attributes_or_else_the_model_or_else_the_default(
    ask: ResourceSpec, need: Need
) -> None:
    assert resolve(ask, CONFIG) == need


WORKLOAD_CLASS = '["train.py", null]'


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (ResourceSpec(is_command=True, workload_class=WORKLOAD_CLASS), Need(1, vram=7000, learned=True)),
        (ResourceSpec(workload_class=WORKLOAD_CLASS), Need(1, vram=7000, learned=True)),
        (
            ResourceSpec(workload_class=WORKLOAD_CLASS, exclusive=True),
            Need(1, vram=7000, exclusive=True, learned=True),
        ),
        (
            ResourceSpec(workload_class=WORKLOAD_CLASS, llm="unknown", is_command=True),
            Need(1, vram=7000, learned=True),
        ),
        # A declaration overrides learned memory. An unknown workload class gets an idle GPU or the default
        # need.
        (ResourceSpec(workload_class=WORKLOAD_CLASS, llm="small"), Need(1, 500)),
        (ResourceSpec(workload_class=WORKLOAD_CLASS, vram=50), Need(1, vram=50)),
        (ResourceSpec(workload_class=WORKLOAD_CLASS, share=50), Need(1, 50)),
        (ResourceSpec(workload_class=WORKLOAD_CLASS, gpus=2), Need(2, 1000, alone=True, assumed=True)),
        (ResourceSpec(workload_class="another", is_command=True), Need(1, 1000, alone=True, assumed=True)),
        (ResourceSpec(workload_class="another"), Need(1, 1000, assumed=True)),
        (ResourceSpec(is_command=True), Need(1, 1000, alone=True, assumed=True)),
    ],
)
def test_learned_memory_overrides_the_default_need_but_not_the_models_need(
    ask: ResourceSpec, need: Need
) -> None:
    assert resolve(ask, CONFIG, {WORKLOAD_CLASS: 7000}) == need


def test_a_job_has_a_workload_class_only_if_it_declares_no_need() -> None:
    plain = JobSpec("command", "python train.py --lr 1", "/w", command="python train.py --lr 1")
    assert ResourceSpec.of(plain).workload_class is None
    assert ResourceSpec.of(plain, learn_needs=True).workload_class == WORKLOAD_CLASS
    assert (
        ResourceSpec.of(replace(plain, command="python train.py --lr 2"), learn_needs=True).workload_class
        == WORKLOAD_CLASS
    )
    model = ResourceSpec.of(replace(plain, command="python train.py --llm b"), learn_needs=True)
    assert (model.llm, model.workload_class) == ("b", '["train.py", "b"]')
    for declaration in ({"vram": 5}, {"share": 5}, {"gpus": 1}, {"torchrun": 1}):
        assert ResourceSpec.of(replace(plain, **declaration), learn_needs=True).workload_class is None
    assert ResourceSpec.of(plain, 5, learn_needs=True).workload_class == WORKLOAD_CLASS


def test_the_minimum_memory_after_an_oom_overrides_the_line() -> None:
    spec = JobSpec("command", "x", "/", command="x", vram=4096, gpus=2, exclusive=True, allowed=(1, 2))
    assert ResourceSpec.of(spec) == ResourceSpec(None, 2, None, True, (1, 2), 4096, True)
    raised = ResourceSpec.of(spec, 9000)
    assert raised == ResourceSpec(None, 2, None, True, (1, 2), 4096, True, None, 9000)
    assert resolve(raised, CONFIG) == Need(2, vram=9000, exclusive=True)
    share = ResourceSpec.of(replace(spec, vram=None, share=500, exclusive=False), 9000)
    assert resolve(share, CONFIG) == Need(2, 500, vram=9000)


@pytest.mark.parametrize(
    ("ask", "need"),
    [
        (ResourceSpec(is_command=True, min_vram_mib=9000), Need(1, vram=9000)),
        (
            ResourceSpec(is_command=True, exclusive=True, min_vram_mib=9000),
            Need(1, vram=9000, exclusive=True),
        ),
        (ResourceSpec(gpus=3, min_vram_mib=9000), Need(3, vram=9000)),
        (ResourceSpec(share=2000, min_vram_mib=9000), Need(2, 1000, vram=9000)),
        (ResourceSpec(llm="half", min_vram_mib=9000), Need(1, 500, vram=9000)),
        (ResourceSpec(llm="two", min_vram_mib=9000), Need(2, 1000, vram=9000)),
        (ResourceSpec(llm="pair", min_vram_mib=9000), Need(2, vram=9000)),
        (ResourceSpec(llm="large", min_vram_mib=9000), Need(1, vram=20_000)),
        (ResourceSpec(workload_class=WORKLOAD_CLASS, min_vram_mib=9000), Need(1, vram=9000)),
        (ResourceSpec(min_vram_mib=9000), Need(1, 1000, vram=9000)),
    ],
)
def test_the_minimum_memory_after_an_oom_changes_only_the_memory_of_a_need(
    ask: ResourceSpec, need: Need
) -> None:
    models = {
        "half": Requirement(500),
        "two": Requirement(2000),
        "pair": Requirement(None, 2, 4096),
        "large": Requirement(None, None, 20_000),
    }
    assert resolve(ask, LlmConfig(models=models), {WORKLOAD_CLASS: 7000}) == need


def test_torchrun_applies_declared_memory_to_each_gpu() -> None:
    spec = JobSpec("csv", "x", "/", "a.py", ("--llm", "small"), torchrun=2, vram=9000)
    assert resolve(ResourceSpec.of(spec), CONFIG) == Need(2, vram=9000)
    assert resolve(ResourceSpec.of(spec, 9999), CONFIG) == Need(2, vram=9999)
    assert resolve(ResourceSpec.of(replace(spec, vram=None), 9999), CONFIG) == Need(2, 1000, vram=9999)


def test_the_torchrun_attribute_sets_the_need_regardless_of_the_model() -> None:
    spec = JobSpec("csv", "x", "/", "a.py", ("--llm", "small"), torchrun=2, allowed=(0, 1))
    assert ResourceSpec.from_key(ResourceSpec.of(spec).key()) == ResourceSpec(
        share=1000, gpus=2, allowed=(0, 1)
    )
    assert resolve(ResourceSpec.of(spec), CONFIG) == Need(2, 1000)


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
def test_an_error_in_llm_config_names_the_key(text: str, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        parse_llm_config(text)


def test_llm_config_accepts_a_share_in_quotes() -> None:
    config = parse_llm_config('{"default_requirement": "1.0", "models": {"m": "0.5"}}')
    assert (config.default, config.of("m")) == (Requirement(1000), Requirement(500))


def test_llm_config_accepts_memory_in_mib_or_as_text_with_a_share_or_gpus() -> None:
    assert CONFIG.of("mib") == Requirement(None, None, 9000)
    assert CONFIG.of("text") == Requirement(None, 2, 9216)
    assert CONFIG.of("both") == Requirement(250, None, 9216)
    default = parse_llm_config('{"default_requirement": {"vram": "2G"}}')
    assert resolve(ResourceSpec(), default) == Need(1, vram=2048, assumed=True)
    assert resolve(ResourceSpec(is_command=True), default) == Need(1, 1000, alone=True, assumed=True)
    assert resolve(ResourceSpec(is_command=True, llm="unknown"), default) == Need(1, vram=2048, assumed=True)


def test_an_empty_llm_config_gives_each_job_one_gpu() -> None:
    assert parse_llm_config("{}") == LlmConfig(Requirement(1000), {})


@pytest.mark.parametrize(
    ("key", "ask"),
    [
        ("[500, 1, null, false, [0, 2]]", ResourceSpec(500, 1, None, False, (0, 2))),
        ('[null, null, "small", true, null]', ResourceSpec(llm="small", is_command=True)),
        ("[null, null, null, false, null]", ResourceSpec()),
    ],
)
def test_reads_and_writes_the_resource_keys_of_older_stores_unchanged(key: str, ask: ResourceSpec) -> None:
    assert ResourceSpec.from_key(key) == ask
    assert ask.key() == key
    assert json.loads(replace(ask, vram=5).key()) == [*json.loads(key), 5, False, None]
    assert json.loads(replace(ask, min_vram_mib=5).key()) == [*json.loads(key), None, False, None, 5]


SPECS = st.builds(
    ResourceSpec,
    st.none() | st.sampled_from([1, 500, 2000]),
    st.none() | st.integers(1, 3),
    st.none() | st.sampled_from(["small", 'with "quotes"', "é"]),
    st.booleans(),
    st.none() | st.sampled_from([(0,), (1, 3)]),
    st.none() | st.sampled_from([1, 9000]),
    st.booleans(),
    st.none() | st.sampled_from([WORKLOAD_CLASS, "another"]),
    st.none() | st.sampled_from([1, 9000]),
)


@settings(deadline=None)
@given(SPECS, SPECS)
def test_resource_specs_are_equal_exactly_if_their_keys_are_equal(
    one: ResourceSpec, two: ResourceSpec
) -> None:
    assert (one == two) == (one.key() == two.key())
    assert ResourceSpec.from_key(one.key()) == one


@pytest.mark.parametrize("allowed", [None, (0,), (1, 3)])
@pytest.mark.parametrize("llm", [None, "small", 'with "quotes"'])
def test_a_resource_spec_can_be_restored_from_its_key(
    allowed: tuple[int, ...] | None, llm: str | None
) -> None:
    ask = ResourceSpec(250, None, llm, True, allowed)
    assert ResourceSpec.from_key(ask.key()) == ask


@pytest.mark.parametrize(
    "words",
    [
        ("--llm", "small"),
        ("--llm=small",),
        ("--x", "--llm", "big", "--llm=small"),
        ("--llm", "small", "--llm"),
    ],
)
def test_finds_the_model_in_both_forms_of_the_llm_option(words: tuple[str, ...]) -> None:
    assert JobSpec("csv", "t", "/", "/a.py", words).llm == "small"
    command = "python a.py " + " ".join(words)
    assert JobSpec("command", command, "/", command=command).llm == "small"
