"""Measures the width of text on a terminal, and truncates or wraps text.

The package rich provides the widths of characters. It is imported only for text with characters that may be
wide.
"""

from __future__ import annotations

#: This character replaces the omitted part of a text.
ELLIPSIS = "…"


def display_width(text: str) -> int:
    """Returns the width of a text in terminal columns."""
    if text.isascii() or _is_narrow(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def truncate_end(text: str, columns: int) -> str:
    """Returns the text, truncated at its end if it is wider than `columns`."""
    if display_width(text) <= columns:
        return text
    return f"{_prefix(text, columns - 1)}{ELLIPSIS}" if columns > 0 else ""


def truncate_middle(text: str, columns: int) -> str:
    """Returns the text, truncated in the middle if it is too wide.

    Both ends are kept, because both help to distinguish jobs.
    """
    if display_width(text) <= columns:
        return text
    if columns < 3:
        return truncate_end(text, columns)
    tail = (columns - 1) // 2
    end = _prefix(text[::-1], tail)[::-1]
    return f"{_prefix(text, columns - 1 - tail)}{ELLIPSIS}{end}"


def wrap_text(text: str, columns: int) -> list[str]:
    """Wraps a text to lines of at most `columns`, at spaces if possible."""
    lines = []
    while display_width(text) > columns > 0:
        line = _prefix(text, columns)
        at = line.rfind(" ")
        line = line[:at] if at > 0 else line or text[:1]
        lines.append(line)
        text = text[len(line) :].lstrip(" ")
    return [*lines, text]


def wrap_words(text: str, columns: int) -> list[str]:
    """Wraps a text to rows of at most `columns` without breaking words, because a word may be a path.

    A word that is longer than `columns` gets its own row.
    """
    indent = text[: len(text) - len(text.lstrip(" "))]
    first, *words = text.lstrip(" ").split(" ")
    found = [indent + first]
    for word in words:
        row = f"{found[-1]} {word}"
        if word and display_width(row) > columns:
            found.append(word)
        else:
            found[-1] = row
    return [row.rstrip(" ") for row in found]


def _prefix(text: str, columns: int) -> str:
    """Returns as many leading characters of the text as fit into `columns`."""
    if _is_narrow(text):
        return text[:columns]
    for at, character in enumerate(text):
        columns -= display_width(character)
        if columns < 0:
            return text[:at]
    return text


def _is_narrow(text: str) -> bool:
    """Returns whether every character is known to be one column wide, such as a Latin letter."""
    return text.isascii() or all(c < "\u0300" or c in ELLIPSIS or "\u2500" <= c <= "\u259f" for c in text)
