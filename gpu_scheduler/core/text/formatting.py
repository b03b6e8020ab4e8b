"""Formats times, sizes and counts as text, and makes user text safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpu_scheduler.core.text.secrets import masked

#: Control characters, direction marks, line separators and lone surrogates.
_UNSAFE_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
#: Length of the longest text, in characters, that is shown in full.
MAX_CHARACTERS = 1000
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def safe_text(text: str, *, keep_line_breaks: bool = False) -> str:
    """Returns the text with secrets hidden and all characters that could control a terminal escaped.

    keep_line_breaks: leave line breaks as they are.
    """
    if keep_line_breaks:
        return "\n".join(safe_text(line) for line in text.split("\n"))
    return _UNSAFE_CHARACTERS.sub(lambda found: _escape(found[0]), masked(text))


def limit_length(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Truncates a text that is longer than `max_characters`, and appends its length.

    Secrets in such a text are hidden first, so that none of them is cut in two.
    """
    return (
        text
        if len(text) <= max_characters
        else f"{masked(text)[:max_characters]}… ({len(text):,} characters)"
    )


def without_repetition(text: str, others: Iterable[str], max_characters: int = 80) -> str:
    """Returns the text with each passage that repeats one of `others` cut to about `max_characters`.

    Secrets are hidden first, so that none of them is cut in two.
    """
    text = masked(text)
    for other in others:
        # `text` has single blanks where the other text, such as a line of a log, may have several.
        same = " ".join(masked(other).split())
        at = text.find(same[:max_characters])
        if len(same) <= max_characters or at < 0:
            continue
        end = at + max_characters
        while end < len(text) and text[end] == same[end - at : end - at + 1]:
            end += 1
        if end > at + max_characters:
            begin = text[at : at + max_characters + 1].rpartition(" ")[0] or text[at : at + max_characters]
            text = f"{text[:at]}{begin} …{text[end:].removeprefix('…')}"
    return text


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def format_duration(seconds: float) -> str:
    """Formats a duration with one or two units: "0.4 s", "35 s", "2 min 5 s", "1 h 3 min", "2 d 4 h"."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count} {unit} {rest // smaller} {below}" if rest >= smaller else f"{count} {unit}"
    return f"{whole} s"


def format_eta(seconds: float) -> str:
    """Formats the time that is left with one or two units and no blanks: "45s", "3m20s", "1h24m", "2d4h"."""
    whole = max(1, round(seconds))
    for unit, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count}{unit}{rest // smaller}{below}" if rest >= smaller else f"{count}{unit}"
    return f"{whole}s"


def format_elapsed(seconds: float) -> str:
    """Formats a duration like a clock: "0:05", "12:30", "3:04:05", "2-03:04:05"."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def format_age(at: float | None, now: float) -> str:
    """Formats how long ago a time was, in one unit: "now", "5 s ago", "2 min ago"; "" for None."""
    if at is None:
        return ""
    seconds = now - at
    if seconds < 1:
        return "now"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def format_memory(mib: int | None) -> str:
    """Formats a memory size: "512 MiB", "23.5 GiB", "?" for None."""
    if mib is None:
        return "?"
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def memory_text(peaks: Mapping[int, int], declared: int | None) -> str:
    """Formats the peak use of each GPU's memory next to the declared memory; "" if neither is known.

    Examples: "17910 of 18432 MiB", "GPU 0 700, GPU 1 650 MiB", "? of 18432 MiB" before the first measurement.
    """
    if not peaks and declared is None:
        return ""
    parts = [f"GPU {gpu} {mib}" for gpu, mib in sorted(peaks.items())]
    peak = ", ".join(parts) if len(parts) > 1 else str(max(peaks.values(), default="?"))
    return f"{peak} MiB" if declared is None else f"{peak} of {declared} MiB"


def count_noun(count: int, noun: str) -> str:
    """Formats a count with its noun: "1 job", "20,000 jobs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def times_text(count: int) -> str:
    """Formats how often something happened: "once", "9 times"."""
    return "once" if count == 1 else f"{count} times"


def format_jobs(job_ids: Iterable[int], noun: str = "job") -> str:
    """Formats the ids of jobs, or the indices of GPUs: "job 3", "jobs 3, 4"."""
    listed = [str(job_id) for job_id in job_ids]
    return f"{noun}{'' if len(listed) == 1 else 's'} {', '.join(listed)}"


def format_gpus(indices: Iterable[int]) -> str:
    """Formats the indices of GPUs: "GPU 3", "GPUs 3, 4"."""
    return format_jobs(indices, "GPU")


def and_more(listed: str, more: int) -> str:
    """Adds the number of further items to a list of the first ones, if there are any: "3, 4 and 2 more"."""
    return f"{listed} and {more:,} more" if more > 0 else listed


def pid_text(pid: int) -> str:
    """Formats a scheduler's pid; 0 means that the scheduler runs in another pid namespace."""
    return f"pid {pid}" if pid else "in another container"
