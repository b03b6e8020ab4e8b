"""How many columns of a terminal a text takes up, and texts cut to fit.

rich knows the widths of characters, and is imported where there are some that could be wide, never before.
"""

from __future__ import annotations

#: What stands for the part of a text that is left out.
ELLIPSIS = "…"


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes up."""
    if text.isascii() or _is_narrow(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, columns: int) -> str:
    """The text, cut at its end where it is wider than so many columns."""
    if columns_of(text) <= columns:
        return text
    return f"{_head(text, columns - 1)}{ELLIPSIS}" if columns > 0 else ""


def cut_in_the_middle(text: str, columns: int) -> str:
    """The text, cut in its middle where it is wider than so many columns: both ends tell jobs apart."""
    if columns_of(text) <= columns:
        return text
    if columns < 3:
        return cut(text, columns)
    tail = (columns - 1) // 2
    end = _head(text[::-1], tail)[::-1]
    return f"{_head(text, columns - 1 - tail)}{ELLIPSIS}{end}"


def wrapped(text: str, columns: int) -> list[str]:
    """The text as lines of at most so many columns, broken at blanks where that is possible."""
    lines = []
    while columns_of(text) > columns > 0:
        line = _head(text, columns)
        at = line.rfind(" ")
        line = line[:at] if at > 0 else line or text[:1]
        lines.append(line)
        text = text[len(line) :].lstrip(" ")
    return [*lines, text]


def rows(text: str, columns: int) -> list[str]:
    """The text as rows of at most so many columns. No word is broken, since it may be a path: one that is
    longer has a row of its own."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    first, *words = text.lstrip(" ").split(" ")
    found = [indent + first]
    for word in words:
        row = f"{found[-1]} {word}"
        if word and columns_of(row) > columns:
            found.append(word)
        else:
            found[-1] = row
    return [row.rstrip(" ") for row in found]


def _head(text: str, columns: int) -> str:
    """The first characters, as many as fit."""
    if _is_narrow(text):
        return text[:columns]
    for at, character in enumerate(text):
        columns -= columns_of(character)
        if columns < 0:
            return text[:at]
    return text


def _is_narrow(text: str) -> bool:
    """Whether each character is known to take one column: Latin ones, and what progress bars are made of."""
    return text.isascii() or all(c < "\u0300" or c in ELLIPSIS or "\u2500" <= c <= "\u259f" for c in text)
