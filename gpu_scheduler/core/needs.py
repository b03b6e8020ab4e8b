"""What a job needs of the GPUs: from the attributes on its line, the model named by `--llm`, or the default.

`Ask` is what the line says and never changes by itself; `Need` is what that means under the present
llm_config.json. Jobs of one Ask wait for the same thing, so a round looks at each Ask once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core import jsontext
from gpu_scheduler.core.share import WHOLE, format_share, parse_share
from gpu_scheduler.core.units import parse_mib, shown_mib

if TYPE_CHECKING:
    from gpu_scheduler.core.jobspec import JobSpec

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class Ask:
    """What a line says about GPUs. share in thousandths; None = not said; allowed: indices, None = any.

    vram: MiB on each GPU. family: what it runs (`family_of`), said only where needs are learned and the line
    names none. raised: MiB that it needs on each GPU since it ran out of memory, whatever else says its need.
    """

    share: int | None = None
    gpus: int | None = None
    llm: str | None = None
    command: bool = False
    allowed: tuple[int, ...] | None = None
    vram: int | None = None
    exclusive: bool = False
    family: str | None = None
    raised: int | None = None

    @classmethod
    def of(cls, spec: JobSpec, raised_mib: int | None = None, *, learn: bool = False) -> Ask:
        """The Ask of a job. torchrun says by itself how many whole GPUs, whatever model it runs."""
        share, gpus, llm = spec.share, spec.gpus, spec.llm
        command, family = spec.kind == "command", None
        if spec.torchrun is not None:
            share, gpus, llm, command = WHOLE if spec.vram is None else None, spec.torchrun, None, False
        elif learn and share is None and gpus is None and spec.vram is None:
            family = family_of(spec)
        return cls(share, gpus, llm, command, spec.allowed, spec.vram, spec.exclusive, family, raised_mib)

    @lru_cache(maxsize=4096)  # noqa: B019 - of values, and few of them
    def key(self) -> str:
        """Text that is equal for equal Asks, and that `from_key` reads back."""
        said = [self.share, self.gpus, self.llm, self.command, self.allowed]
        more = [self.vram, self.exclusive, self.family]
        if self.raised is not None:
            return json.dumps([*said, *more, self.raised], ensure_ascii=False)
        return json.dumps(said + more if any(more) else said, ensure_ascii=False)

    @classmethod
    @lru_cache(maxsize=4096)
    def from_key(cls, key: str) -> Ask:
        """The Ask whose key this is."""
        share, gpus, llm, command, allowed, *more = json.loads(key)
        return cls(share, gpus, llm, command, None if allowed is None else tuple(allowed), *more)


def family_of(spec: JobSpec) -> str:
    """Jobs of one family are expected to need the same: the same program (or script) and `--llm`."""
    return json.dumps([spec.program, spec.llm], ensure_ascii=False)


@dataclass(frozen=True)
class Need:
    """What a job takes of each of `count` distinct GPUs: `share` thousandths, `vram` MiB, or both.

    share 0 and vram None: not declared. exclusive: no other job of ours is on them; alone: nor anybody else.
    learned: vram is what jobs of its kind were seen to use; assumed: neither its line nor the entry of its
    model says share or vram, so that it is the default, or a GPU alone: no declaration, and never judged.
    """

    count: int
    share: int = 0
    alone: bool = False
    vram: int | None = None
    exclusive: bool = False
    learned: bool = False
    assumed: bool = False

    @property
    def whole(self) -> bool:
        """Whether no other job of ours may be on its GPUs."""
        return self.alone or self.exclusive

    def __str__(self) -> str:
        each = "" if self.count == 1 else "each of "
        many = "a GPU" if self.count == 1 else f"{self.count} GPUs"
        if self.vram is not None and self.share == WHOLE:
            free = f"{self.count} free GPU{'' if self.count == 1 else 's'}"
            return f"{free} with {shown_mib(self.vram)}{'' if self.count == 1 else ' each'}"
        if self.vram is not None:
            part = f"{format_share(self.share)} and " if self.share else ""
            shared = "" if not self.exclusive else ", alone" if self.count == 1 else ", each alone"
            return f"{part}{shown_mib(self.vram)} of {each}{many}{shared}"
        if self.share == WHOLE or self.alone or not self.share:
            kind = "idle" if self.alone else "free"
            return f"{self.count} {kind} GPU{'' if self.count == 1 else 's'}"
        shared = ", alone" if self.exclusive else ""
        return f"{format_share(self.share)} of {each}{many}{shared}"


@dataclass(frozen=True)
class Requirement:
    """An entry of llm_config.json: a share in thousandths (may exceed 1000), perhaps of several GPUs; vram:
    MiB on each of them."""

    share: int | None = WHOLE
    gpus: int | None = None
    vram: int | None = None


@dataclass(frozen=True)
class LlmConfig:
    """llm_config.json: requirement per model, and the one for every other."""

    default: Requirement = Requirement()
    models: dict[str, Requirement] = field(default_factory=dict)

    def of(self, llm: str | None) -> Requirement:
        """The requirement of a model; the default for an unknown or missing one."""
        return self.models.get(llm, self.default) if llm is not None else self.default


def parse_llm_config(text: str) -> LlmConfig:
    """The configuration in llm_config.json. Raises ValueError naming key, value and what is accepted."""
    raw = jsontext.parse(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("models", {}), dict):
        raise ValueError('expected {"default_requirement": 1.0, "models": {"NAME": 0.5, …}}')
    models = {name: _requirement(f"models.{name}", value) for name, value in raw.get("models", {}).items()}
    return LlmConfig(_requirement("default_requirement", raw.get("default_requirement", 1.0)), models)


def _requirement(key: str, value: Any) -> Requirement:
    if not isinstance(value, dict):
        return Requirement(_share(key, value))
    unknown = sorted(set(value) - {"share", "vram", "gpus"})
    if unknown:
        raise ValueError(f"{key}: {unknown[0]!r} is not known; known: share, vram, gpus")
    share = None if "share" not in value else _share(key, value["share"])
    vram = None if "vram" not in value else _vram(key, value["vram"])
    gpus = value.get("gpus")
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= 64):
        raise ValueError(f"{key}: gpus {gpus!r} is not a whole number from 1 to 64")
    if share is None and gpus is None and vram is None:
        raise ValueError(f'{key}: say "share", "vram" or "gpus"')
    if share is not None and share > WHOLE and (gpus is not None or vram is not None):
        raise ValueError(f"{key}: a share above 1 is a number of whole GPUs; leave out gpus and vram")
    return Requirement(share, gpus, vram)


def _vram(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{key}: vram {value!r} is neither MiB such as 9000 nor such as "9G"')
    try:
        return parse_mib(str(value))
    except ValueError as error:
        raise ValueError(f"{key}: vram: {error}") from None


def _share(key: str, value: Any) -> int:
    # A text that is a number is one: so the older scheduler took it.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{key}: {value!r} is not a number such as 0.5")
    try:
        return parse_share(str(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def resolve(ask: Ask, config: LlmConfig, learned: Mapping[str, int] = _NOTHING) -> Need:
    """What a job with this Ask needs: its attributes, else its model, else what was learned of its family
    (MiB), else the default (docs/design.md, Needs); of memory at least what it was raised to."""
    need = _said(ask, config, learned)
    if ask.raised is None:
        return need
    # Of one that took its GPUs alone it is known now how much it needs.
    share = 0 if need.alone else need.share
    vram = max(ask.raised, need.vram or 0)
    return Need(need.count, share, vram=vram, exclusive=ask.exclusive)


def _said(ask: Ask, config: LlmConfig, learned: Mapping[str, int]) -> Need:
    if ask.share is not None or ask.gpus is not None or ask.vram is not None:
        return _need(ask.share, ask.gpus, ask.vram, ask.exclusive)
    if ask.llm not in config.models:
        vram = learned.get(ask.family) if ask.family is not None else None
        if vram is not None:
            return Need(1, vram=vram, exclusive=ask.exclusive, learned=True)
        if ask.command and ask.llm is None:
            return Need(1, WHOLE, alone=True, assumed=True)
    requirement = config.of(ask.llm)
    need = _need(requirement.share, requirement.gpus, requirement.vram, ask.exclusive)
    return need if ask.llm in config.models else replace(need, assumed=True)


def _need(share: int | None, gpus: int | None, vram: int | None, exclusive: bool) -> Need:
    if share is None and vram is None:
        return Need(gpus or 1, WHOLE, alone=True, assumed=True)
    if share is not None and share > WHOLE:
        return Need(math.ceil(share / WHOLE), WHOLE, exclusive=exclusive)
    return Need(gpus or 1, share or 0, vram=vram, exclusive=exclusive)
