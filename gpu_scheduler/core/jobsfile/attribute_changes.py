"""Parses changes to the attributes of a job, such as `vram=18G`, `vram=` and `exclusive`, and checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import (
    ATTRIBUTE_HELP,
    FLAGS,
    SYNONYMS,
    check_conflicts,
    field_of,
    format_attribute,
    is_unset,
    key_of,
    parse_item,
    unknown_attribute,
)
from gpu_scheduler.core.jobsfile.job_line import check_cuda_option
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec

#: Attributes that commands of their own change, with these commands.
_COMMANDS = {"hold": "`hold JOB` and `release JOB`", "cancel": "`cancel JOB`"}
#: The attributes that can be changed.
CHANGEABLE = tuple(
    key for key in ATTRIBUTE_HELP if field_of(key) in COMPARED_ATTRIBUTES and key not in _COMMANDS
)
_DEFAULTS = JobSpec("command", "", "/")


def parse_changes(items: Iterable[str], known_gpus: frozenset[int] | None) -> dict[str, Any]:
    """Returns the new values of attributes, by the names of the JobSpec fields. `KEY=` removes an attribute.

    known_gpus: the indices of the existing GPUs; None to accept any index. Raises ValueError with the mistake
    and its remedy.
    """
    changes: dict[str, Any] = {}
    for item in items:
        key, given, value = item.partition("=")
        meant = SYNONYMS.get(key, key)
        _check_key(key, meant)
        field = field_of(meant)
        if field in changes:
            raise ValueError(f"attribute {meant} is given twice; give it once")
        if meant == "command":
            if not value:
                raise ValueError("a command is missing; write it in quotes, as in command='python train.py'")
            changes[field] = value
        elif given and not value:
            changes[field] = getattr(_DEFAULTS, field)
        elif given or meant in FLAGS:
            changes[field] = parse_item(item, key, value if given else None, known_gpus)
        else:
            raise ValueError(f"attribute {key} has no value; write {key}=…, or {key}= to remove it")
    return changes


def _check_key(key: str, meant: str) -> None:
    if meant in _COMMANDS:
        raise ValueError(f"{meant} is not set as an attribute; use {_COMMANDS[meant]}")
    if meant in CHANGEABLE or meant == "command":
        return
    if meant in ATTRIBUTE_HELP or key.startswith("env:"):
        raise ValueError(
            f"{key} belongs to what the job runs and cannot be changed; cancel the job and submit it again"
        )
    unclear = f"attribute {key!r} cannot be changed; these can: {' '.join(CHANGEABLE)}"
    raise ValueError(unknown_attribute(key, None) or unclear)


def check_changes(spec: JobSpec, changes: Mapping[str, Any]) -> None:
    """Raises ValueError for changes that contradict each other or other attributes of the job."""
    changed = replace(spec, **changes)
    check_conflicts({**changed.attributes, "conda": spec.conda, "venv": spec.venv})
    if spec.torchrun is not None and (changed.gpus is not None or changed.share is not None):
        raise ValueError("the job runs torchrun on a fixed number of GPUs; gpus and share cannot be set")
    check_cuda_option(changed)


def format_change(name: str, value: Any) -> str:
    """Formats the new value of a field of JobSpec as `parse_changes` accepts it: "vram=18G", "vram="."""
    return f"{key_of(name)}=" if is_unset(value) else format_attribute(name, value)
