"""Stores a value that consists of a kind and its data as a JSON object, and reads it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound="StoredValue")


class StoredValue:
    """Base of frozen dataclasses that are stored as JSON, without the fields that have their defaults."""

    #: Field -> function that builds its value from JSON; other fields have the same value in JSON.
    _BUILD: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @classmethod
    def unknown(cls: type[T], text: str) -> T:
        """Returns the value that stands for a text that this version cannot read."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Returns the value as a JSON object."""
        return json.dumps(self, default=_given_fields)

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        """Returns the value that `to_json` wrote; `unknown` if another version wrote one of its own."""
        value: T = _READ(cls, text)
        return value

    @classmethod
    def from_values(cls: type[T], values: Mapping[str, Any]) -> T:
        """Returns the value with these fields, as they are in JSON. Raises ValueError or TypeError."""
        build = cls._BUILD
        given = {name: build[name](value) if name in build else value for name, value in dict(values).items()}
        return cls(**given)


def _read(cls: type[T], text: str) -> T:
    try:
        return cls.from_values(json.loads(text))
    except (ValueError, TypeError):
        return cls.unknown(text)


#: Many jobs have the same reason.
_READ: Callable[[Any, str], Any] = lru_cache(maxsize=4096)(_read)


def _given_fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults."""
    values = {one.name: (getattr(value, one.name), one.default) for one in fields(value)}
    return {name: given for name, (given, default) in values.items() if given != default}
