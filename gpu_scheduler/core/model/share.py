"""Parses and formats shares of a GPU, in integer thousandths, so that two halves fill one GPU exactly."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

#: One whole GPU, in thousandths.
WHOLE = 1000


def parse_share(text: str) -> int:
    """Parses a decimal number of GPUs such as "0.5" (500) or "2" (2000) into thousandths.

    Raises ValueError, with the accepted forms, for anything but a plain number from 0.001 to 64.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"share {text!r} is not a number such as 0.5 or 2") from None
    if not value.is_finite() or not Decimal("0.001") <= value <= 64:
        raise ValueError(f"share {text!r} is not between 0.001 and 64")
    # Rounded up: three jobs of 0.3334 must never share one GPU by rounding.
    return int((value * WHOLE).to_integral_value(rounding="ROUND_CEILING"))


def format_share(thousandths: int) -> str:
    """Formats a share as the shortest decimal text: 500 -> "0.5", 1000 -> "1"."""
    whole, rest = divmod(thousandths, WHOLE)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def share_text(share: int, mib: int | None) -> str:
    """Formats a declared share (thousandths) with its memory: "share 0.25 (6144 MiB)"."""
    return f"share {format_share(share)}" + ("" if mib is None else f" ({mib} MiB)")
