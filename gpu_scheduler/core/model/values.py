"""Defines how values are written: as JSON in the store, as sentences, and by people, such as "18G" and "15m".

A message is a code, which has a sentence, and the values that the sentence names. The store has it as a JSON
object of its code and its values; only `show` fills in its sentence. What the scheduler decides depends on
codes and values, never on a text.

Memory is counted in MiB, time in seconds, and shares of a GPU in integer thousandths, so that two halves fill
one GPU exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
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
    that `show` forms from them. Without a sentence, the code is its own text. remedy: what the user can do,
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


class Now(Struct, frozen=True):
    """The current time, read from two clocks.

    wall: seconds since 1970, for display; boot: seconds since boot (CLOCK_BOOTTIME), for every deadline;
    boot_id: the id of that boot.
    """

    wall: float
    boot: float
    boot_id: str


#: The most memory that a GPU can plausibly have, or a job request on one: 1 PiB, in MiB.
MAX_MIB = 1 << 30
#: The longest time limit: one year, in seconds.
MAX_S = 366 * 86400

_MEMORY = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,6})?)(?:([MG])(?:i?B)?)?", re.IGNORECASE)
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_mib(text: str) -> int:
    """Parses "18000", "18G" or "17.5GiB" into MiB, rounded up. Units are binary in every spelling.

    Raises ValueError with the accepted forms.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"memory {text!r} is not valid; write a number of MiB such as 18000, or 18G or 17.5GiB"
        )
    factor = 1024 if (match[2] or "").upper() == "G" else 1
    mib = int((Decimal(match[1]) * factor).to_integral_value(rounding="ROUND_CEILING"))
    if not 1 <= mib <= MAX_MIB:
        raise ValueError(f"memory {text!r} is not between 1 MiB and {MAX_MIB // 1024} GiB")
    return mib


def format_mib(mib: int) -> str:
    """Formats MiB so that `parse_mib` returns the same number: "18G" for 18432, "18000" for 18000."""
    return f"{mib // 1024}G" if mib >= 1024 and mib % 1024 == 0 else str(mib)


def round_mib(mib: int) -> int:
    """Rounds MiB to the precision of `format_memory`.

    A stored value then changes only if its text changes too.
    """
    if mib < 1024:
        return mib
    tenths, rest = divmod(10 * mib, 1024)
    tenths += rest > 512 or (rest == 512 and tenths % 2)  # rounds half to even, like string formatting
    return (1024 * tenths + 5) // 10


def parse_seconds(text: str) -> float:
    """Parses "90s", "15m", "2h" or "1d" into seconds. Raises ValueError with the accepted forms."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"time {text!r} is not valid; write a time such as 90s, 15m, 2h or 1d")
    seconds = float(Decimal(match[1]) * _SECONDS[match[2]])
    if not 0 < seconds <= MAX_S:
        raise ValueError(f"time {text!r} must be above 0 and at most {MAX_S // 86400}d")
    return seconds


def format_seconds(seconds: float) -> str:
    """Formats seconds for `parse_seconds`: "2h" for 7200, "90s" for 90."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


#: One whole GPU, in thousandths.
WHOLE = 1000


def parse_share(text: str) -> int:
    """Parses a decimal number of GPUs such as "0.5" (500) or "2" (2000) into thousandths.

    Raises ValueError, with the accepted forms, unless the text is a plain number from 0.001 to 64.
    """
    # Decimal would also accept digits of other scripts, underscores and exponents.
    if not re.fullmatch(r"(?=\.?[0-9])[0-9]*(?:\.[0-9]*)?", text):
        raise ValueError(f"share {text!r} is not a number such as 0.5 or 2")
    value = Decimal(text)
    if not Decimal("0.001") <= value <= 64:
        raise ValueError(f"share {text!r} is not between 0.001 and 64")
    # Rounded up, so that three jobs with a share of 0.3334 never fit on one GPU.
    return int((value * WHOLE).to_integral_value(rounding="ROUND_CEILING"))


def format_share(thousandths: int) -> str:
    """Formats a share as the shortest decimal text: "0.5" for 500, "1" for 1000."""
    whole, rest = divmod(thousandths, WHOLE)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def share_text(share: int, mib: int | None) -> str:
    """Formats a declared share (thousandths) with its memory, such as "share 0.25 (6144 MiB)"."""
    return f"share {format_share(share)}" + ("" if mib is None else f" ({mib} MiB)")
