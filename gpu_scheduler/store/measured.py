"""What finished attempts were seen to use, by family: the program and the model that it was run with."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.ledger import buffered
from gpu_scheduler.core.needs import family_of
from gpu_scheduler.store.store import Store

#: The quantile of the peaks that a learned need rests on.
QUANTILE = 0.95
#: Measurements that are kept of each family.
_MEASURED = 200


@dataclass(frozen=True)
class Seen:
    """What runs of a family that completed used. family: its key, as family_of makes it; peaks: MiB;
    declared: MiB, that of the newest run, None = none; gpus: the fewest that one had; seconds: where
    known."""

    family: str
    program: str
    llm: str | None
    peaks: tuple[int, ...]
    declared: int | None
    gpus: int
    seconds: tuple[float, ...]

    @property
    def p95(self) -> int:
        """The peak that 95 % of the runs do not exceed (nearest rank), MiB."""
        return quantile(self.peaks)


def quantile(values: Sequence[int], q: float = QUANTILE) -> int:
    """The smallest of the values that at least the fraction q of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def seen(store: Store) -> list[Seen]:
    """Every family that completed at least once, by program and model."""
    rows = store.db.rows(
        "SELECT family, gpus, peak_mib, declared_mib, seconds FROM measured WHERE outcome = 'completed'"
        " ORDER BY family, id"
    )
    families: dict[str, list[tuple[int, int, int | None, float | None]]] = {}
    for row in rows:
        runs = families.setdefault(row["family"], [])
        runs.append((row["gpus"], row["peak_mib"], row["declared_mib"], row["seconds"]))
    found = []
    for family, runs in families.items():
        program, llm = json.loads(family)
        peaks = tuple(peak for _, peak, _, _ in runs)
        seconds = tuple(took for _, _, _, took in runs if took is not None)
        found.append(Seen(family, program, llm, peaks, runs[-1][2], min(gpus for gpus, *_ in runs), seconds))
    return found


def keep(db: sqlite3.Connection, row: sqlite3.Row, at: float) -> None:
    """Keep what an ended attempt was seen to use, for jobs of its kind.

    row: the attempt, with its job's `spec` and `raised_mib`; at: wall seconds.
    """
    peak = max(json.loads(row["peaks"]).values(), default=0)
    if not peak:
        return
    spec = JobSpec.from_json(row["spec"])
    # What was learned, or raised after an OOM, is no declaration that could be judged.
    judged = not row["learned"] and row["raised_mib"] is None
    declared = spec.vram if not judged else row["vram"] if json.loads(row["budgets"]) else None
    # A clock that was set back in between has no say.
    seconds = None if row["started_at"] is None else max(0.0, row["ended_at"] - row["started_at"])
    family = family_of(spec)
    db.execute(
        "INSERT INTO measured (family, at, gpus, peak_mib, declared_mib, seconds, outcome)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (family, at, len(json.loads(row["gpus"])), peak, declared, seconds, row["outcome"]),
    )
    db.execute(
        "DELETE FROM measured WHERE family = ? AND id <= (SELECT id FROM measured WHERE family = ?"
        " ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (family, family, _MEASURED),
    )


class Learned:
    """What jobs of each family need: the p95 of their peaks with the spike buffer, MiB. Read again only when
    something was measured since."""

    def __init__(self, store: Store, spike: float) -> None:
        self._store = store
        self._spike = spike
        self._newest: int | None = None
        self._needs: dict[str, int] = {}

    def needs(self) -> dict[str, int]:
        """family -> MiB."""
        row = self._store.db.row("SELECT max(id) AS newest FROM measured")
        newest = row["newest"] if row else None
        if newest != self._newest:
            self._newest = newest
            self._needs = {one.family: buffered(one.p95, self._spike) for one in seen(self._store)}
        return self._needs
