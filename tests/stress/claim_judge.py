"""Finds GPU memory that two programs held at once, in the trace that the commands themselves wrote.

The trace has the lines of tests.stress.claimed_command. Only the plan of the test says how much memory each
command may use; the locks in the trace must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.stress.memory_judge import Span, overcommitments


@dataclass(frozen=True)
class Promise:
    """The GPU memory that a command was promised.

    count: the number of GPUs; mib: MiB on each of them, None for whole GPUs; allowed: the GPUs to choose
    from; is_share: the job declared only a share, and earlier jobs of its scheduler may have left it less.
    """

    count: int
    mib: int | None
    allowed: frozenset[int]
    is_share: bool = False

    def is_kept(self, held_mib: int, total_mib: int) -> bool:
        """Returns whether a claim of this size on one of the GPUs keeps the promise."""
        mib = total_mib if self.mib is None else self.mib
        return held_mib <= mib if self.is_share else held_mib == mib


@dataclass
class Holding:
    """One start of a command, with its end.

    holder: pid of the process with the locks; 0 if there is none. held, held_at_end: the locked MiB by GPU.
    begin, end: monotonic seconds (`end` is infinite, and `code` None, if the command wrote no end).
    """

    number: int
    holder: int
    gpus: tuple[int, ...]
    held: dict[int, int]
    begin: float
    end: float = math.inf
    code: int | None = None
    held_at_end: dict[int, int] | None = None


class Trace:
    """The trace of all commands, read as it grows. holdings: the starts of each command, by number."""

    def __init__(self, path: Path) -> None:
        self.holdings: dict[int, list[Holding]] = {}
        self._path, self._at = path, 0

    def read(self) -> int:
        """Reads the lines that were added; returns their number."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        lines = new[: new.rfind(b"\n") + 1].decode().splitlines()
        self._at += new.rfind(b"\n") + 1
        for line in lines:
            self._add(*line.split())
        return len(lines)

    def _add(self, number: str, what: str, value: str, gpus: str, held: str, at: str) -> None:
        amounts = {} if held == "-" else dict(_pair(text) for text in held.split(","))
        known = self.holdings.setdefault(int(number), [])
        if what == "start":
            indices = tuple(map(int, gpus.split(",")))
            known.append(Holding(int(number), int(value), indices, amounts, float(at)))
        else:
            known[-1].end, known[-1].code, known[-1].held_at_end = float(at), int(value), amounts

    def open(self) -> list[Holding]:
        """Returns the holdings without an end."""
        return [one for one in self.all() if one.code is None]

    def all(self) -> Iterator[Holding]:
        """Yields every holding."""
        for starts in self.holdings.values():
            yield from starts


def _pair(text: str) -> tuple[int, int]:
    gpu, mib = text.split(":")
    return int(gpu), int(mib)


def held_twice(
    trace: Trace, promises: Mapping[int, Promise], killed: Mapping[int, float], total_mib: int
) -> list[str]:
    """Describes every use of memory that did not fit beside the other uses of its GPU.

    killed: the time at which the holder of a command was killed, by the number of the command. From then on,
    it holds nothing.
    """
    spans = []
    for one in trace.all():
        promise = promises[one.number]
        promised = total_mib if promise.mib is None else promise.mib
        end = min(one.end, killed.get(one.number, math.inf))
        for gpu in one.gpus:
            mib = one.held.get(gpu, 0) if promise.is_share else promised
            spans.append(Span(f"command {one.number}", gpu, mib, one.begin, end))
    return overcommitments(spans, total_mib)


def broken_promises(
    trace: Trace, promises: Mapping[int, Promise], killed: Collection[int], total_mib: int
) -> list[str]:
    """Describes every command whose GPUs or locks are not those that it was promised, at its start or end.

    killed: the numbers of the commands whose holder was killed, which may have had no locks any more.
    """
    found = []
    for one in trace.all():
        promise = promises[one.number]
        if len(set(one.gpus)) != promise.count or not promise.allowed.issuperset(one.gpus):
            found.append(f"{one} got other GPUs than {promise}")
        for held in (one.held, one.held_at_end):
            if held is None or (one.number in killed and not held):
                continue
            is_kept = all(promise.is_kept(held.get(gpu, 0), total_mib) for gpu in one.gpus)
            if not is_kept or not held.keys() <= set(one.gpus):
                found.append(f"{one} has not locked {promise}")
    return found
