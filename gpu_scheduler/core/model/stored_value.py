"""Defines messages: a code, which has a sentence, and the values that the sentence names.

The store has a message as a JSON object of its code and its values; only `views` fills in its sentence. What
the scheduler decides depends on codes and values, never on a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins

T = TypeVar("T", bound="StoredValue")


class _Values:
    """Looks up each value of a sentence: a phrase about the message, or a field of it."""

    def __init__(self, message: object, phrases: Mapping[str, Callable[..., str]], context: tuple[Any, ...]):
        self._message, self._phrases, self._context = message, phrases, context

    def __getitem__(self, name: str) -> Any:
        phrase = self._phrases.get(name)
        return getattr(self._message, name) if phrase is None else phrase(self._message, *self._context)


class Code(str, Enum):
    """The code of a message, as stored. Its definition is a row: the code, its sentence and its remedy.

    sentence: the text that front ends show; names in braces stand for fields of the message, or for phrases
    that `views` forms from them. Without a sentence, the code is its own text. remedy: what the user can do,
    in the same form; "" if nothing is known, or if there is nothing to do.
    """

    _value_: str
    sentence: str
    remedy: str

    def __new__(cls, code: str, sentence: str | None = None, remedy: str = "") -> Code:
        """Creates a member."""
        self = str.__new__(cls, code)
        self._value_ = code
        self.sentence = code if sentence is None else sentence
        self.remedy = remedy
        return self

    def fill(self, message: object, phrases: Mapping[str, Callable[..., str]], *context: Any) -> str:
        """Fills the values of a message into the sentence.

        A name stands for what the phrase of this name returns for the message and the context, or for a field
        of the message.
        """
        return self.sentence.format_map(_Values(message, phrases, context))


class StoredValue(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base class of values that are stored as JSON, without fields that have default values."""

    @classmethod
    def unknown(cls: type[T], text: str) -> T:
        """Returns a value for a text that this version cannot read.

        A class without such a value raises ValueError, which names the class and the text.
        """
        raise ValueError(f"the stored text is not a valid {cls.__name__}: {text!r}")

    def to_json(self) -> str:
        """Returns the value as a JSON object."""
        # The encoder of msgspec would reject texts from bytes that are not UTF-8.
        return json.dumps(to_builtins(self))

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        """Returns the value that `to_json` wrote, or the result of `unknown` if the text cannot be read.

        Raises ValueError if the text cannot be read and the class has no value for that.
        """
        value: T = _read(cls, text)
        return value

    @classmethod
    def from_values(cls: type[T], values: Mapping[str, Any]) -> T:
        """Builds a value from its fields in JSON. Raises ValueError for invalid fields."""
        try:
            return convert(values, cls)
        except ValidationError as error:
            raise ValueError(str(error)) from None


@lru_cache(maxsize=4096)  # many jobs have the same reason
def _read(cls: Any, text: str) -> Any:
    try:
        return cls.from_values(json.loads(text))
    except ValueError:
        return cls.unknown(text)
