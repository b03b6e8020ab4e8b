"""Hides the secrets in the results of use cases. All text for front ends passes through this module.

The store, `command.sh` and the job's environment keep the secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_scheduler.core.text.secrets import hide_secrets, masked, masked_words

if TYPE_CHECKING:
    from gpu_scheduler.core.model.event import Event

_Result = TypeVar("_Result")

#: The fields that may contain a secret, for types that occur often in results.
#: Few commands import these types, so they are named.
_TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "JobRecord": ("text", "spec_json", "reason"),
    "AttemptRecord": ("launch_error", "reason"),
}
_EVENT_FIELDS = ("command", "spec", "reason")
#: Fields that hold a JobSpec as JSON.
_SPEC_FIELDS = ("spec", "spec_json")
#: A JSON escape that ends in a letter or digit. A secret's name directly after it is not recognised.
_JSON_ESCAPE = re.compile(r"\\[bfnrtu]")


def without_secrets(result: _Result) -> _Result:
    """Returns a result with `(hidden)` in place of every secret; an unchanged result if it has no secret."""
    shown: Any = _shown(result)
    return shown  # type: ignore[no-any-return]


def event_without_secrets(event: Event) -> Event:
    """Returns an event with `(hidden)` in place of every secret. This is faster than `without_secrets`."""
    shown: Event = _with_shown_fields(event, _EVENT_FIELDS)
    return shown


def _shown(value: Any) -> Any:
    names = _TEXT_FIELDS.get(type(value).__name__)
    if names is not None:
        return _with_shown_fields(value, names)
    if isinstance(value, str):
        return value if isinstance(value, Enum) else masked(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_shown, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_shown, value))
    if isinstance(value, Mapping):
        return {key: _shown(one) for key, one in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return _with_shown_fields(value, [one.name for one in fields(value) if one.init])


def _with_shown_fields(value: Any, names: Iterable[str]) -> Any:
    """Returns a dataclass or named tuple without the secrets in these fields."""
    changed = {}
    for name in names:
        before = getattr(value, name)
        if before is not None and (after := _shown_field(name, before)) != before:
            changed[name] = after
    if not changed:
        return value
    return value._replace(**changed) if hasattr(value, "_replace") else replace(value, **changed)


def _shown_field(name: str, value: Any) -> Any:
    if name == "env":
        return tuple(hide_secrets(value).items())
    if name == "arguments":
        return tuple(masked_words(value))
    return _shown_spec(value) if name in _SPEC_FIELDS and isinstance(value, str) else _shown(value)


def _shown_spec(text: str) -> str:
    if masked(text) == text and not _JSON_ESCAPE.search(text):
        env = json.loads(text).get("env", ()) if '"env": ' in text else ()
        if hide_secrets(env) == dict(env):
            return text
    # Few jobs need this module, so it is imported only here.
    from gpu_scheduler.core.model.job_spec import JobSpec

    shown: JobSpec = _shown(JobSpec.from_json(text))
    return shown.to_json()
