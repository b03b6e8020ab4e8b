"""Converts values that consist of a kind and its data to JSON objects for the store, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

T = TypeVar("T", bound="StoredValue")


class StoredValue(Struct, frozen=True):
    """Base class of values that are stored as JSON, without fields that have default values."""

    #: The functions that build fields from JSON, by the name of the field. Other fields have the same value
    #: in JSON.
    _BUILD: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @classmethod
    def unknown(cls: type[T], text: str) -> T:
        """Returns a value for a text that this version cannot read.

        A class without such a value raises ValueError, which names the class and the text.
        """
        raise ValueError(f"the stored text is not a valid {cls.__name__}: {text!r}")

    def to_json(self) -> str:
        """Returns the value as a JSON object."""
        return json.dumps(self, default=_given_fields)

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        """Returns the value that `to_json` wrote, or the result of `unknown` if the text cannot be read.

        Raises ValueError if the text cannot be read and the class has no value for that.
        """
        value: T = _READ(cls, text)
        return value

    @classmethod
    def from_values(cls: type[T], values: Mapping[str, Any]) -> T:
        """Builds a value from its fields in JSON. Raises ValueError or TypeError for invalid fields."""
        build = cls._BUILD
        given = {name: build[name](value) if name in build else value for name, value in dict(values).items()}
        return cls(**given)


def _read(cls: type[T], text: str) -> T:
    try:
        return cls.from_values(json.loads(text))
    except (ValueError, TypeError):
        return cls.unknown(text)


#: Cached, because many jobs have the same reason.
_READ: Callable[[Any, str], Any] = lru_cache(maxsize=4096)(_read)


def _given_fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a value that differ from their defaults."""
    names, defaults = value.__struct_fields__, value.__struct_defaults__
    known = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    values = {name: getattr(value, name) for name in names}
    return {name: one for name, one in values.items() if name not in known or one != known[name]}
