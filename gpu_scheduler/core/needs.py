"""What a job needs of the GPUs: from the attributes on its line, the model named by `--llm`, or the default.

`Ask` is what the line says and never changes by itself; `Need` is what that means under the present
llm_config.json. Jobs of one Ask wait for the same thing, so a round looks at each Ask once.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.share import WHOLE, format_share, parse_share

if TYPE_CHECKING:
    from gpu_scheduler.core.jobspec import JobSpec


@dataclass(frozen=True)
class Ask:
    """What a line says about GPUs. share in thousandths; None = not said; allowed: indices, None = any."""

    share: int | None = None
    gpus: int | None = None
    llm: str | None = None
    command: bool = False
    allowed: tuple[int, ...] | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Ask:
        """The Ask of a job. torchrun says by itself how many whole GPUs, whatever model it runs."""
        if spec.torchrun is not None:
            return cls(WHOLE, spec.torchrun, allowed=spec.allowed)
        return cls(spec.share, spec.gpus, spec.llm, spec.kind == "command", spec.allowed)

    @lru_cache(maxsize=4096)  # noqa: B019 - of values, and few of them
    def key(self) -> str:
        """Text that is equal for equal Asks, and that `from_key` reads back."""
        return json.dumps([self.share, self.gpus, self.llm, self.command, self.allowed], ensure_ascii=False)

    @classmethod
    @lru_cache(maxsize=4096)
    def from_key(cls, key: str) -> Ask:
        """The Ask whose key this is."""
        share, gpus, llm, command, allowed = json.loads(key)
        return cls(share, gpus, llm, command, None if allowed is None else tuple(allowed))


@dataclass(frozen=True)
class Need:
    """`count` distinct GPUs, `share` thousandths of each; `alone` = only fully idle ones."""

    count: int
    share: int
    alone: bool = False

    def __str__(self) -> str:
        if self.count == 1:
            if self.alone:
                return "1 idle GPU"
            return "1 free GPU" if self.share == WHOLE else f"{format_share(self.share)} of a GPU"
        kind = "idle GPUs" if self.alone else "free GPUs"
        return (
            f"{self.count} {kind}"
            if self.share == WHOLE
            else (f"{format_share(self.share)} of each of {self.count} GPUs")
        )


@dataclass(frozen=True)
class Requirement:
    """An entry of llm_config.json: a share in thousandths (may exceed 1000), perhaps of several GPUs."""

    share: int | None = WHOLE
    gpus: int | None = None


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
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("models", {}), dict):
        raise ValueError('expected {"default_requirement": 1.0, "models": {"NAME": 0.5, …}}')
    models = {name: _requirement(f"models.{name}", value) for name, value in raw.get("models", {}).items()}
    return LlmConfig(_requirement("default_requirement", raw.get("default_requirement", 1.0)), models)


def _requirement(key: str, value: Any) -> Requirement:
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"share", "gpus"})
        if unknown:
            raise ValueError(f"{key}: {unknown[0]!r} is not carried out by this version; known: share, gpus")
        share = None if "share" not in value else _share(key, value["share"])
        gpus = value.get("gpus")
        if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= 64):
            raise ValueError(f"{key}: gpus {gpus!r} is not a whole number from 1 to 64")
        if share is None and gpus is None:
            raise ValueError(f'{key}: say "share", "gpus" or both')
        if share is not None and share > WHOLE and gpus is not None:
            raise ValueError(f"{key}: a share above 1 is a number of whole GPUs; leave out gpus")
        return Requirement(share, gpus)
    return Requirement(_share(key, value))


def _share(key: str, value: Any) -> int:
    # A text that is a number is one: so the older scheduler took it.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{key}: {value!r} is not a number such as 0.5")
    try:
        return parse_share(str(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def resolve(ask: Ask, config: LlmConfig) -> Need:
    """What a job with this Ask needs: its attributes, else its model, else the default (DESIGN §6)."""
    if ask.share is not None or ask.gpus is not None:
        return _need(ask.share, ask.gpus)
    if ask.command and ask.llm is None:
        return Need(1, WHOLE, alone=True)
    requirement = config.of(ask.llm)
    return _need(requirement.share, requirement.gpus)


def _need(share: int | None, gpus: int | None) -> Need:
    if share is None:
        return Need(gpus or 1, WHOLE, alone=True)
    if share > WHOLE:
        return Need(math.ceil(share / WHOLE), WHOLE)
    return Need(gpus or 1, share)
