"""Parsing and formatting of attribute blocks: memory, retries, times, and their errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_scheduler.core.jobsfile.attributes import (
    ATTRIBUTES,
    KNOWN_ATTRIBUTES,
    check_conflicts,
    format_attribute,
    parse_block,
)
from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec


@pytest.mark.parametrize(
    ("block", "values"),
    [
        ("[vram=18000]", {"vram": 18000}),
        ("[vram=18G gpus=2]", {"vram": 18432, "gpus": 2}),
        ("[vram=17.5GiB share=0.5]", {"vram": 17920, "share": 500}),
        ("[vram=9G exclusive]", {"vram": 9216, "exclusive": True}),
        ("[exclusive]", {"exclusive": True}),
        ("[oom-retries=2]", {"oom_retries": 2}),
        ("[retries=2]", {"oom_retries": 2}),
        ("[oom-retries=0]", {"oom_retries": 0}),
        ("[retries=1000]", {"oom_retries": 1000}),
        ("[fail-retries=1]", {"fail_retries": 1}),
        ("[retries=3 fail-retries=1]", {"oom_retries": 3, "fail_retries": 1}),
        ("[timeout=2h]", {"timeout_s": 7200.0}),
        ("[timeout=90s]", {"timeout_s": 90.0}),
    ],
)
def test_parses_a_valid_attribute_block(block: str, values: dict[str, Any]) -> None:
    assert parse_block(f"{block} python t.py", None).values == values


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("[retries=2 oom-retries=2]", "attribute oom-retries is given twice"),
        ("[oom-retries=2 retries=2]", "attribute retries is given twice (it means oom-retries)"),
        ("[retries=1 retries=2]", "attribute retries is given twice (it means oom-retries)"),
        ("[vram=1G vram=2G]", "attribute vram is given twice"),
        ("[timeout=1s timeout=2s]", "attribute timeout is given twice"),
        ("[retries=1001]", "retries=1001 is not a whole number from 0 to 1000"),
        ("[fail-retries=1.0]", "fail-retries=1.0 is not a whole number"),
        ("[fail-retries=1001]", "fail-retries=1001"),
        ("[fail-retries=]", "attribute fail-retries has no value"),
        ("[vram]", "attribute vram has no value; write vram=…"),
        ("[vram=18T]", "vram: memory '18T' is not valid; write a number of MiB such as 18000"),
        ("[vram=0]", "vram: memory '0' is not between"),
        ("[vram='18 G']", "vram: memory '18 G'"),
        ("[timeout=90]", "timeout: time '90' is not valid; write a time such as 90s, 15m, 2h or 1d"),
        ("[timeout=0s]", "timeout: time '0s' must be above 0"),
        ("[exclusive=yes]", "attribute exclusive takes no value; write [exclusive]"),
        ("[exclusive exclusive]", "attribute exclusive is given twice"),
        ("[timeout_s=5]", "attribute 'timeout_s' is unknown"),
        ("[oom_retries=5]", "attribute 'oom_retries' is unknown"),
        ("[fail_retries=5]", "attribute 'fail_retries' is unknown"),
        ("[speed=5]", f"attribute 'speed' is unknown; known attributes: {KNOWN_ATTRIBUTES}"),
        ("[mem=5]", "attribute 'mem' is unknown; write vram=MEM"),
        ("[gpu=5]", "attribute 'gpu' is unknown; write gpus=N or allowed=LIST"),
        ("[time=2h]", "attribute 'time' is unknown; write timeout=TIME"),
        ("[nodes=2]", "attribute 'nodes' is unknown; leave it out, because every job runs on this machine"),
        ("[vrma=5]", "attribute 'vrma' is unknown; write vram=MEM"),
        ("[env=A:1]", "attribute 'env' is unknown; write env:A=…"),
        ("[env.A=1]", "attribute 'env.A' is unknown; write env:A=…"),
        ("[env]", "attribute 'env' is unknown; write env:KEY=VALUE"),
    ],
)
def test_errors_name_the_mistake_and_the_remedy(block: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_block(f"{block} python t.py", None)


@pytest.mark.parametrize("key", ["retries", "oom-retries", "fail-retries"])
def test_an_error_names_the_attribute_as_the_user_wrote_it(key: str) -> None:
    for value in ("-1", "two", "1001"):
        with pytest.raises(ValueError, match=f"^{key}={value} is not a whole number from 0 to 1000"):
            parse_block(f"[{key}={value}] python t.py", None)
    with pytest.raises(ValueError, match=f"^attribute {key} has no value; write {key}=…"):
        parse_block(f"[{key}=] python t.py", None)


def test_every_attribute_sets_a_field_of_its_own_and_every_flag_a_truth_value() -> None:
    types = JobSpec.__annotations__
    assert len({row.field for row in ATTRIBUTES.values()}) == len(ATTRIBUTES)
    for row in ATTRIBUTES.values():
        assert (types[row.field] == "bool") == (row.form is None), row.key


def test_the_known_attributes_include_retries_as_a_synonym() -> None:
    assert {"retries", "oom-retries"} <= set(KNOWN_ATTRIBUTES.split())


@pytest.mark.parametrize(
    ("block", "suggestion"),
    [
        ("[vram=8G,retries=2]", "[vram=8G retries=2]"),
        ("[vram=8G, retries=2]", "[vram=8G]"),
        ("[vram=8G;retries=2]", "[vram=8G retries=2]"),
        ("[allowed=0,1,hold]", "[allowed=0,1 hold]"),
        ("[hold,vram=8G]", "[hold vram=8G]"),
        ("[name=a,vram=8G,exclusive,env:A=1]", "[name=a vram=8G exclusive env:A=1]"),
        ("[gpus=2,after=3]", "[gpus=2 after=3]"),
    ],
)
def test_rejects_commas_between_attributes_and_suggests_spaces(block: str, suggestion: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"attributes must be separated by blanks; write {suggestion}")
    ):
        parse_block(f"{block} python t.py", None)


def test_commas_within_a_value_do_not_separate_attributes() -> None:
    values = parse_block("[allowed=0,2 env:A=1,hold cwd=/a,b] python t.py", None).values
    assert values == {"allowed": (0, 2), "env": (("A", "1,hold"),), "cwd": "/a,b"}
    with pytest.raises(ValueError, match="name 'a,b' must consist"):
        parse_block("[name=a,b] python t.py", None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 1500, "gpus": 2}, "leave out gpus"),
        ({"share": 1500, "vram": 9000}, "with vram, give gpus=N instead"),
        ({"conda": "a", "venv": "b"}, "give only one"),
    ],
)
def test_rejects_contradictory_attributes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_conflicts(values)


@pytest.mark.parametrize(
    "values",
    [
        {"share": 1000, "gpus": 2, "vram": 9000},
        {"share": 1500},
        {"gpus": 2, "vram": 9000},
        {"share": 1500, "gpus": None, "vram": None},
    ],
)
def test_accepts_attributes_that_can_be_combined(values: dict[str, Any]) -> None:
    check_conflicts(values)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("vram", 18432, "vram=18G"),
        ("vram", 18000, "vram=18000"),
        ("vram", None, "no vram"),
        ("timeout_s", 7200.0, "timeout=2h"),
        ("timeout_s", None, "no timeout"),
        ("oom_retries", 0, "oom-retries=0"),
        ("fail_retries", 3, "fail-retries=3"),
        ("exclusive", True, "exclusive"),
        ("exclusive", False, "no exclusive"),
        ("share", 500, "share=0.5"),
        ("allowed", (0, 1, 2, 5), "allowed=0-2,5"),
    ],
)
def test_formats_an_attribute_as_it_is_written_in_a_block(name: str, value: Any, text: str) -> None:
    assert format_attribute(name, value) == text
    if value not in (None, False):
        assert parse_block(f"[{text}] x", None).values == {name: value}


@pytest.mark.parametrize("name", ["vram", "exclusive", "oom_retries", "fail_retries", "timeout_s"])
def test_retry_counts_and_time_limits_do_not_change_the_identity_of_a_job(name: str) -> None:
    assert name in COMPARED_ATTRIBUTES
    message = {"vram": 5, "exclusive": True, "oom_retries": 1, "fail_retries": 1, "timeout_s": 5.0}[name]
    plain = JobSpec("command", "x", "/", command="x")
    more = JobSpec.from_json(plain.to_json().replace("}", f', "{name}": {str(message).lower()}}}'))
    assert getattr(more, name) == message
    assert more.identity == plain.identity
    assert JobSpec.from_json(more.to_json()) == more


def test_a_line_with_vram_and_retries_parses_to_one_job() -> None:
    parsed = parse_line("[vram=8G retries=2] python sweep.py --seed 3", "/w", "/h")
    assert isinstance(parsed, ParsedJob)
    assert parsed.spec == JobSpec(
        "command",
        "python sweep.py --seed 3",
        "/w",
        command="python sweep.py --seed 3",
        vram=8192,
        oom_retries=2,
    )


@pytest.mark.parametrize("block", ["[after=a, c]", "[after-any=a,]", "[after=,a]"])
def test_a_list_of_jobs_contains_no_blanks(block: str) -> None:
    with pytest.raises(ValueError, match="is not a list of jobs; write it without blanks, as in after"):
        parse_block(f"{block} true", None)
