"""Changes to the attributes of a job: how they are parsed and checked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES, format_change
from gpu_scheduler.core.jobsfile.compose import (
    CHANGEABLE,
    check_changes,
    parse_changes,
)
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec

SPEC = JobSpec("command", "python a.py", "/", command="python a.py")


@pytest.mark.parametrize(
    ("items", "changes"),
    [
        (["vram=18G", "priority=-5"], {"vram": 18432, "priority": -5}),
        (["vram=", "priority=", "name="], {"vram": None, "priority": None, "name": None}),
        (["exclusive"], {"exclusive": True}),
        (["exclusive="], {"exclusive": False}),
        (["after=prep,7", "after-any="], {"after": ("prep", "7"), "after_any": ()}),
        (["retries=2"], {"oom_retries": 2}),
        (["timeout=2h"], {"timeout_s": 7200.0}),
        (["allowed=0-1"], {"allowed": (0, 1)}),
        (["allowed="], {"allowed": None}),
    ],
)
def test_parses_changes_as_in_a_jobs_file(items: list[str], changes: dict[str, Any]) -> None:
    assert parse_changes(items, frozenset({0, 1})) == changes
    shown = [format_change(field, value) for field, value in changes.items()]
    assert parse_changes(shown, None) == changes


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["vram"], "attribute vram has no value; write vram=…, or vram= to remove it"),
        (["vram=20H"], "memory '20H'"),
        (["vram=1G", "vram=2G"], "attribute vram is given twice"),
        (["retries=1", "oom-retries=2"], "attribute oom-retries is given twice"),
        (["exclusive=1"], "attribute exclusive takes no value"),
        (["hold"], "hold is not set as an attribute; use `hold JOB` and `release JOB`"),
        (["hold="], "use `hold JOB` and `release JOB`"),
        (["cancel"], "use `cancel JOB`"),
        (["env:A=1"], "env:A belongs to what the job runs and cannot be changed; cancel the job and submit"),
        (["cwd=/tmp"], "cwd belongs to what the job runs"),
        (["conda=x"], "conda belongs to what the job runs"),
        (["speed=1"], "attribute 'speed' cannot be changed; these can: vram gpus share"),
        (["mem=1G"], "attribute 'mem' is unknown; write vram=MEM"),
        (["=3"], "attribute '' cannot be changed"),
        (["after=a,,b"], "after=a,,b is not a list of jobs; write it without blanks"),
        (["allowed=5"], "5"),
    ],
)
def test_a_wrong_change_is_refused(items: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_changes(items, frozenset({0, 1}))


@pytest.mark.parametrize(
    ("spec", "items", "words"),
    [
        (replace(SPEC, gpus=2), ["share=2"], "a share above 1 is a number of whole GPUs; leave out gpus"),
        (replace(SPEC, share=2000), ["vram=1G"], "with vram, give gpus=N instead"),
        (replace(SPEC, torchrun=2), ["gpus=4"], "the job runs torchrun on a fixed number of GPUs"),
        (replace(SPEC, command="a | b", text="a | b"), ["cuda=add"], "it is unclear where --cuda belongs"),
    ],
)
def test_changes_must_not_contradict_the_rest_of_the_job(spec: JobSpec, items: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_changes(spec, parse_changes(items, None))


def test_a_change_may_replace_attributes_that_would_contradict_it() -> None:
    check_changes(replace(SPEC, gpus=2), parse_changes(["share=2", "gpus="], None))


def test_every_attribute_that_is_not_part_of_the_identity_can_be_changed() -> None:
    fields = {ATTRIBUTES[key].field for key in CHANGEABLE}
    assert fields == set(COMPARED_ATTRIBUTES) - {"hold", "cancel"}
    assert set(CHANGEABLE) < set(ATTRIBUTES)
