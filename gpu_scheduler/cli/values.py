"""Reads and checks single command-line values. Each error message shows the accepted values."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpu_scheduler.config import NO_GPUS

if TYPE_CHECKING:
    from gpu_scheduler.show.job_refs import JobRef

T = TypeVar("T")
_GPU_IDS = "ids such as 0, 0,2 or 0-3"
_INTEGER = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def number(greater_than: float, maximum: float, *, minimum: float | None = None) -> Callable[[str], float]:
    """Returns a reader for numbers above `greater_than` (or at least `minimum`) and at most `maximum`."""
    accepted = f"greater than {greater_than:g} and at most" if minimum is None else f"from {minimum:g} to"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        good = value > greater_than if minimum is None else value >= minimum
        if not (good and value <= maximum):
            raise ArgumentTypeError(f"{text!r} is not a number {accepted} {maximum:.10g}")
        return value

    return read


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """Returns a reader that accepts whole numbers from `minimum` to `maximum`."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        return int(text)

    return read


def _checked(parse: Callable[..., T], *values: str) -> T:
    """Returns the result of a parser; turns its error into one whose message argparse shows."""
    try:
        return parse(*values)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def priority(text: str) -> int:
    """Reads a priority: a whole number or one of the words CRITICAL, HIGH, NORMAL, LOW."""
    from gpu_scheduler.core.model.job_spec import parse_priority

    return _checked(parse_priority, text)


def mib(text: str) -> int:
    """Reads 0 or an amount of memory written as in attributes (512, 1G, 1.5GiB). Returns MiB."""
    if text.strip() == "0":
        return 0
    try:
        return positive_mib(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}; 0 is accepted too") from None


def positive_mib(text: str) -> int:
    """Reads an amount of memory written as in attributes (512, 1G, 1.5GiB). Returns MiB."""
    from gpu_scheduler.core.model.values import parse_mib

    return _checked(parse_mib, text)


def path(text: str) -> str:
    """Reads the path of a file or folder, which must not be empty."""
    if not text or "\0" in text:
        raise ArgumentTypeError("the path is empty")
    return text


def address(text: str) -> str:
    """Reads HOST:PORT. An IPv6 address is in brackets."""
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")
    integer(0, 65535)(text.rpartition(":")[2])
    return text


def duration(text: str) -> float:
    """Reads a time such as 90, 90s, 30m, 2h or 1d. Returns seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([smhd]?)", text, re.ASCII)
    if found is None or not float(found[1]):
        raise ArgumentTypeError(f"{text!r} is no time such as 90s, 30m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def variable(text: str) -> str:
    """Reads an environment variable with its value. The parser of lines checks the name."""
    name, given, _ = text.partition("=")
    if not given:
        raise ArgumentTypeError(f"{text!r} has no value; write {name}=VALUE")
    return text


def job_ref(text: str) -> JobRef:
    """Reads a reference to jobs: a number, a range of numbers such as 5-9, a name, a group or a pattern."""
    from gpu_scheduler.core.model.job_spec import parse_job_ref

    return _checked(parse_job_ref, text)


def job_refs(text: str) -> list[JobRef]:
    """Reads references to jobs that are separated by commas."""
    return [job_ref(word) for word in text.split(",")]


def single_job(text: str) -> int | str:
    """Reads a reference to one job: a number or a name."""
    read = job_ref(text)
    if isinstance(read, range):
        raise ArgumentTypeError(f"{text!r} is a range of jobs; give a single job, such as {read[0]}")
    return read


def gpu_ids(text: str) -> tuple[int, ...] | None:
    """Reads GPU ids: one id, several ids separated by commas, or a range. Returns None for `all`."""
    from gpu_scheduler.core.model.gpu import parse_gpu_list

    if not text.strip():
        raise ArgumentTypeError("no GPU was given; use ids such as 0, 0,2 or 0-3, or `all`")
    return _checked(parse_gpu_list, text)


def excluded_gpus(text: str) -> tuple[int, ...]:
    """Reads GPU ids like `gpu_ids`, but not `all`."""
    if text.strip().lower() == "all":
        raise ArgumentTypeError(f"`all` would leave no GPU; give {_GPU_IDS}")
    return gpu_indices(text)


def gpu_indices(text: str) -> tuple[int, ...]:
    """Reads the ids of at least one GPU, such as 0,2 or 0-3; not `all`."""
    from gpu_scheduler.core.model.gpu import parse_gpu_items

    return tuple(sorted(set(_checked(parse_gpu_items, text, _GPU_IDS))))


def gpu_choice(text: str) -> str:
    """Checks the form of `start --gpus`: a count such as 4, a list such as 0,2,3 or `3,`, or "none"."""
    from gpu_scheduler.core.model.gpu import parse_gpu_list

    stripped = text.strip()
    if re.fullmatch(r"0+", stripped):
        raise ArgumentTypeError("write `--gpus 0,` for GPU 0, or a count such as `--gpus 4`, or none")
    if not stripped:
        raise ArgumentTypeError("give a count such as 4, or a list such as 0,2,3")
    if stripped != NO_GPUS and not re.fullmatch(r"[0-9]+", stripped):
        _checked(parse_gpu_list, stripped.removesuffix(","))
    return stripped


def words_of(*accepted: str) -> Callable[[str], frozenset[str]]:
    """Returns a reader for some of these words, separated by commas."""

    def read(text: str) -> frozenset[str]:
        found = frozenset(text.split(","))
        if not found <= frozenset(accepted):
            raise ArgumentTypeError(f"{text!r} is not a list of the words {', '.join(accepted)}")
        return found

    return read
