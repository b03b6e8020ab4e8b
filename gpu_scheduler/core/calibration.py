"""What the peaks of finished jobs suggest to declare: an entry of llm_config.json for each model, an
attribute for programs without one; and the text of that file with such entries, the rest as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.ledger import buffered
from gpu_scheduler.core.needs import LlmConfig
from gpu_scheduler.core.share import WHOLE, parse_share
from gpu_scheduler.core.units import format_mib

#: What an entry must rest on to be written: so many runs, or one of so many seconds.
ENOUGH_RUNS, ENOUGH_S = 3, 600.0
#: Suggestions are rounded up to multiples of this, MiB.
STEP_MIB = 64

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Family:
    """The completed runs of one program with one model (llm None: without). declared_mib: of the newest run,
    None = no memory declared; gpus: the fewest that a run had; mean_s, longest_s: seconds, None = not
    known."""

    program: str
    llm: str | None
    runs: int
    max_mib: int
    p95_mib: int
    declared_mib: int | None
    gpus: int
    mean_s: float | None
    longest_s: float | None = None


@dataclass(frozen=True)
class Rules:
    """spike: fraction added to a peak; tolerance: by which a declaration may be off; margin_mib: to be
    left free beside a declaration; totals: MiB of each managed GPU, () = not known."""

    spike: float
    tolerance: float
    margin_mib: int
    totals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What is suggested for a family. now: what llm_config.json says of its model, as JSON; entry: what it
    should say; enough: it rests on runs enough to be written; attributes: what its lines should begin with;
    why: why nothing is suggested."""

    family: Family
    now: Any = None
    entry: dict[str, Any] | None = None
    enough: bool = False
    attributes: str | None = None
    why: str | None = None


def advise(
    families: Sequence[Family], models: Mapping[str, Any], config: LlmConfig, rules: Rules
) -> list[Advice]:
    """One for each family, in their order. models: the entries of llm_config.json as they stand there."""
    advised = []
    for family in families:
        if family.llm is None:
            advised.append(_of_lines(family, rules))
            continue
        same = [one for one in families if one.llm == family.llm]
        now = models.get(family.llm)
        largest = max(same, key=lambda one: one.p95_mib)
        declared = config.of(family.llm).vram or largest.declared_mib
        gpus = min(one.gpus for one in same)  # one that ran on fewer needs no more
        wanted, why = _wanted(largest.p95_mib, max(one.max_mib for one in same), gpus, declared, rules)
        entry = None if wanted is None else _entry(now, wanted, gpus)
        advised.append(Advice(family, now, entry, entry is not None and _is_enough(same), why=why))
    return advised


def _is_enough(same: Sequence[Family]) -> bool:
    """Whether the runs of one model, by whatever programs, are evidence enough to write its entry."""
    is_long = any((one.longest_s or 0.0) >= ENOUGH_S for one in same)
    return is_long or sum(one.runs for one in same) >= ENOUGH_RUNS


def _of_lines(family: Family, rules: Rules) -> Advice:
    wanted, why = _wanted(family.p95_mib, family.max_mib, family.gpus, family.declared_mib, rules)
    if wanted is None:
        return Advice(family, why=why)
    more = f" gpus={family.gpus}" if family.gpus > 1 else ""
    return Advice(family, attributes=f"[vram={format_mib(wanted)}{more}]")


def _wanted(
    p95: int, most: int, gpus: int, declared: int | None, rules: Rules
) -> tuple[int | None, str | None]:
    """MiB on each GPU, or why none is suggested."""
    steps = -(-buffered(p95, rules.spike) // STEP_MIB)
    wanted = steps * STEP_MIB
    if len(rules.totals) >= gpus:
        room = sorted(rules.totals, reverse=True)[gpus - 1] - rules.margin_mib
        if most > room:
            return None, "needs a GPU alone"
        wanted = min(wanted, room)  # more would never be placed
    if declared is not None:
        if abs(p95 - declared) <= rules.tolerance * declared:
            return None, f"within ±{100 * rules.tolerance:g}%"
        if abs(wanted - declared) <= STEP_MIB:
            return None, "as suggested"
    return wanted, None


def _entry(now: Any, wanted: int, gpus: int) -> dict[str, Any]:
    """The entry of a model. What an entry that is an object says of shares and GPUs is kept."""
    kept = dict(now) if isinstance(now, dict) else {}
    if "share" in kept and parse_share(str(kept["share"])) > WHOLE:
        del kept["share"]  # a number of whole GPUs, which goes with no memory
    text = format_mib(wanted)
    entry: dict[str, Any] = {**kept, "vram": int(text) if text.isdigit() else text}
    if gpus > 1:
        entry.setdefault("gpus", gpus)
    return entry


def with_entries(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """llm_config.json, whose text is well-formed, with these entries in its "models"; the rest stays letter
    by letter."""
    for name, entry in entries.items():
        text = _with_entry(text, name, json.dumps(entry, ensure_ascii=False))
    return text


def _with_entry(text: str, name: str, value: str) -> str:
    top = _skip(text, 0)
    models = [start for key, start, _ in _members(text, top) if key == "models"]
    if not models:
        return _with_member(text, top, "models", "{\n    " + f"{_quoted(name)}: {value}" + "\n  }")
    places = [(start, end) for key, start, end in _members(text, models[-1]) if key == name]
    if not places:
        return _with_member(text, models[-1], name, value)
    start, end = places[-1]  # of a name that stands there twice, the last counts
    return text[:start] + value + text[end:]


def _with_member(text: str, at: int, name: str, value: str) -> str:
    """One more member at the end of the object that begins at `at`."""
    ends = [end for _, _, end in _members(text, at)]
    first = _skip(text, at + 1)
    between = text[at + 1 : first]
    if not ends:
        return f"{text[: at + 1]}\n  {_quoted(name)}: {value}\n{text[first:]}"
    blank = between if "\n" in between else " "
    return f"{text[: ends[-1]]},{blank}{_quoted(name)}: {value}{text[ends[-1] :]}"


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """(key, where its value begins, where it ends) of the object that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """The first place from `at` on that is no blank."""
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def changes(advised: Collection[Advice], *, enough: bool = True) -> dict[str, dict[str, Any]]:
    """Model -> the entry that it should have, of those that should have another one.

    enough: those that rest on runs enough to be written, or the others.
    """
    found = [one for one in advised if one.enough is enough]
    return {one.family.llm: one.entry for one in found if one.family.llm is not None and one.entry}
