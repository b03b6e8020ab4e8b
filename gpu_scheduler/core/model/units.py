"""Defines the units: memory, time and shares as people write them, such as "18G" and "15m".

Memory is counted in MiB, time in seconds, and shares of a GPU in integer thousandths, so that two halves fill
one GPU exactly.
"""

from __future__ import annotations

import re
from decimal import Decimal

from msgspec import Struct


class Now(Struct, frozen=True):
    """The current time, read from two clocks.

    wall: seconds since 1970, for display; boot: seconds since boot (CLOCK_BOOTTIME), for every deadline;
    boot_id: the id of that boot.
    """

    wall: float
    boot: float
    boot_id: str


#: The most memory that can be requested on one GPU: 1 PiB, in MiB.
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
