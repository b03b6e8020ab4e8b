"""Whether memory was promised twice: what is held over time, from what the jobs themselves wrote and from the
record, and a watcher that looks at both while it happens."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.probes import usage
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.torture.trace import number_of

#: Seconds by which clocks of different kinds may disagree.
_CLOCKS_S = 0.005
#: Seconds between two looks of the watcher.
_EVERY_S = 0.004


@dataclass
class Span:
    """So much of a card is held by somebody, in seconds of the monotonic clock; still: without an end."""

    who: str
    gpu: int
    mib: int
    begin: float
    end: float = math.inf


@dataclass
class Other(Span):
    """Somebody else's process at its peak, from when it is to be known until it is told to go."""

    pid: int = 0

    def lives(self) -> bool:
        """Whether it still holds what it has."""
        return self.end == math.inf and usage.start_ticks(self.pid) is not None


def crowded(spans: Iterable[Span], total_mib: int) -> list[str]:
    """What began while it did not fit beside the rest of its card, in words."""
    found = []
    held: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        here = [other for other in held.get(span.gpu, ()) if other.end > span.begin] + [span]
        held[span.gpu] = here
        if sum(other.mib for other in here) > total_mib:
            told = " + ".join(f"{other.who} {other.mib}" for other in here)
            found.append(f"GPU {span.gpu}: {told} MiB of {total_mib} at {span.begin:.3f}")
    return found


def of_trace(trace: Path) -> tuple[dict[int, Span], list[int]]:
    """What the jobs had been promised while they lived, by number, and those that ran out of memory."""
    spans: dict[int, Span] = {}
    full = []
    for line in trace.read_text().splitlines() if trace.exists() else []:
        number, what, _, gpu, mib, at, *more = line.split()
        if what == "start":
            spans[int(number)] = Span(f"job {number}", int(gpu), int(mib), float(at))
        else:
            spans[int(number)].end = float(at)
            full += [int(number)] * ("oom" in more)
    return spans, full


def of_record(store: Store) -> dict[int, list[Span]]:
    """What the record says that they held, by number; a little shorter at both ends than it was."""
    wall = time.time() - time.monotonic()
    boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    index = store.indices()
    spans: dict[int, list[Span]] = {}
    for row in store.db.rows("SELECT attempt.*, job.text FROM attempt JOIN job ON job.id = job_id"):
        number = number_of(row["text"])
        until = row["released_boot"]
        end = math.inf if until is None else until - boot - _CLOCKS_S
        for uuid in json.loads(row["gpus"]):
            begin = row["created_at"] - wall + _CLOCKS_S
            spans.setdefault(number, []).append(
                Span(f"job {number}", index[uuid], row["vram"] or 0, begin, end)
            )
    return spans


def waited(lived: dict[int, Span], sent_at: dict[int, float]) -> int:
    """How many were appended before the end of one, on the card where they began after it."""
    return sum(
        any(other.gpu == span.gpu and sent_at[number] < other.end <= span.begin for other in lived.values())
        for number, span in lived.items()
    )


def let_go_early(lived: dict[int, Span], held: dict[int, list[Span]]) -> list[str]:
    """Jobs that lived while the record did not hold their memory, in words."""
    found = []
    for number, span in lived.items():
        told = held.get(number, [])
        begins = [one.begin - 2 * _CLOCKS_S for one in told if one.gpu == span.gpu]
        ends = [one.end + 2 * _CLOCKS_S for one in told if one.gpu == span.gpu]
        if not told or span.begin < min(begins, default=math.inf) or span.end > max(ends, default=0.0):
            found.append(f"{span} is {told} on the record")
    return found


class Watcher(threading.Thread):
    """Looks at the record and at the cards all the time. home None: there is no record. doubled, overfull:
    what was wrong, each case once, in words."""

    def __init__(
        self, home: Home | None, sim: Path, total_mib: int, others: Callable[[], list[Other]]
    ) -> None:
        super().__init__(name="watcher")
        self.looks = 0
        self.most = 0
        self.doubled: dict[object, str] = {}
        self.overfull: dict[object, str] = {}
        self.error: Exception | None = None
        self._home, self._sim, self._total, self._others = home, str(sim), total_mib, others
        self._over = threading.Event()

    def stop(self) -> None:
        """No more looks. Raises what went wrong with them."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Until it is over; an error of its own is kept for `stop`."""
        store = Store(self._home) if self._home is not None else None
        try:
            while not self._over.wait(_EVERY_S):
                if store is not None:
                    self._look_at_record(store)
                self._look_at_cards()
                self.looks += 1
        except Exception as error:  # noqa: BLE001 - `stop` raises it again
            self.error = error
        finally:
            if store is not None:
                store.close()

    def _look_at_record(self, store: Store) -> None:
        index = store.indices()
        # Those that are known before the look at the record and alive after it were there at that instant.
        known = self._others()
        rows = store.db.rows("SELECT id, gpus, vram FROM attempt WHERE released_boot IS NULL")
        alive = [other for other in known if other.lives()]
        for gpu in index.values():
            here = [row for row in rows if gpu in [index[uuid] for uuid in json.loads(row["gpus"])]]
            ours = sum(row["vram"] or 0 for row in here)
            theirs = sum(other.mib for other in alive if other.gpu == gpu)
            self.most = max(self.most, ours + theirs)
            if ours + theirs > self._total:
                ids = tuple(row["id"] for row in here)
                self.doubled[(gpu, ids)] = f"GPU {gpu}: attempts {ids} {ours} MiB + others {theirs} MiB"

    def _look_at_cards(self) -> None:
        # Nobody takes anything meanwhile, so that no two are added up of which one came after the other.
        with usage.locked(self._sim):
            uses = usage.read_uses(self._sim)
        used: dict[int, int] = {}
        for use in uses:
            for gpu, mib in use.gpus.items():
                used[gpu] = used.get(gpu, 0) + mib
        for gpu, mib in used.items():
            if mib > self._total:
                pids = tuple(use.pid for use in uses if gpu in use.gpus)
                self.overfull[(gpu, pids)] = f"GPU {gpu}: {mib} MiB are used, by processes {pids}"
