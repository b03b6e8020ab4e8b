"""Resolves the GPU need of a job from the attributes of its line, the model named by `--llm`, or the default.

A `ResourceSpec` is what the line requests, and never changes by itself. A `Need` is the result of applying
the current llm_config.json to it. Jobs with the same resource spec wait for the same reason, so a round
resolves each spec only once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from gpu_scheduler.core.model.job_spec import LOCAL, Need, group_of
from gpu_scheduler.core.model.values import WHOLE, Code, format_mib, parse_mib, parse_share
from gpu_scheduler.core.scheduling.placement import with_spike_buffer
from gpu_scheduler.core.text.parsing import parse_json

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import ActiveAttempt
    from gpu_scheduler.core.model.job_spec import JobSpec


_NOTHING_LEARNED: Mapping[str, int] = {}


class ResourceSpec(Struct, frozen=True):
    """The GPU resources that a line requests. None means not stated.

    share: thousandths. gpus: 0 for a job that needs no GPU. allowed: GPU indices. vram: MiB on each GPU.
    workload_class: see `workload_class_of`; set only if needs are learned and the line states none.
    min_vram_mib: the minimum memory on each GPU for a job that has run out of memory, whatever else
    determines its need. preempt: whether the job may preempt running jobs of lower priority. group: the group
    of the job, whose jobs share a limit. max_running: how many jobs of the group may run at the same time, as
    far as this job is concerned. on: the engine, "local", or None for the scheduler's default. gpu_type: the
    type of the GPUs on an engine.
    """

    share: int | None = None
    gpus: int | None = None
    llm: str | None = None
    is_command: bool = False
    allowed: tuple[int, ...] | None = None
    vram: int | None = None
    exclusive: bool = False
    workload_class: str | None = None
    min_vram_mib: int | None = None
    preempt: bool = False
    group: str | None = None
    max_running: int | None = None
    on: str | None = None
    gpu_type: str | None = None

    @classmethod
    def of(cls, spec: JobSpec, min_vram_mib: int | None = None, *, learn_needs: bool = False) -> ResourceSpec:
        """Returns a job's resource spec. With torchrun, the line sets the GPU count, whatever the model."""
        share, gpus, llm = spec.share, spec.gpus, spec.llm
        group = None if spec.name is None else group_of(spec.name)
        if spec.max_running is not None:
            group = group or spec.name  # jobs with this same name are a group
        if gpus == 0:
            return cls(gpus=0, group=group, max_running=spec.max_running, on=spec.on)
        command, family = spec.kind == "command", None
        if spec.torchrun is not None:
            share, gpus, llm, command = WHOLE if spec.vram is None else None, spec.torchrun, None, False
        elif learn_needs and share is None and gpus is None and spec.vram is None:
            family = workload_class_of(spec)
        return cls(
            share, gpus, llm, command, spec.allowed, spec.vram, spec.exclusive, family, min_vram_mib,
            spec.preempt, group, spec.max_running, spec.on, spec.gpu_type,
        )  # fmt: skip

    def engine(self, default: str) -> str | None:
        """Returns the engine on which the job runs; None for this machine. default: that of `start --on`."""
        where = self.on or default
        return None if where == LOCAL else where

    @property
    def needs_gpus(self) -> bool:
        """False for a job that runs without a GPU."""
        return self.gpus != 0

    @lru_cache(maxsize=4096)  # noqa: B019 - keys are values, and few
    def key(self) -> str:
        """Returns the text that identifies this spec, without its last unset values; `from_key` parses it."""
        values = astuple(self)
        if self.on is not None or self.gpu_type is not None:
            number = len(values)
        elif self.group is not None:
            number = 12
        elif self.preempt:
            number = 10
        elif self.min_vram_mib is not None:
            number = 9
        else:
            number = 8 if any(values[5:8]) else 5
        return json.dumps(values[:number], ensure_ascii=False)

    @classmethod
    @lru_cache(maxsize=4096)
    def from_key(cls, key: str) -> ResourceSpec:
        """Returns the spec with this key."""
        share, gpus, llm, command, allowed, *extra = json.loads(key)
        return cls(share, gpus, llm, command, None if allowed is None else tuple(allowed), *extra)


def resources_of(attempt: ActiveAttempt) -> ResourceSpec:
    """Returns the current resource spec of the job of an attempt."""
    return ResourceSpec.from_key(attempt.job.spec_key) if attempt.job.spec_key else ResourceSpec()


def workload_class_of(spec: JobSpec) -> str:
    """Returns the workload class, from program and `--llm`. Jobs of one class should need the same memory."""
    return workload_class_key(spec.program, spec.llm)


def workload_class_key(program: str, llm: str | None) -> str:
    """Returns the key of the workload class of this program and model."""
    return json.dumps([program, llm], ensure_ascii=False)


class Requirement(Struct, frozen=True):
    """An entry of llm_config.json.

    share: thousandths, which may exceed 1000; gpus: the number of GPUs; vram: MiB on each GPU.
    """

    share: int | None = WHOLE
    gpus: int | None = None
    vram: int | None = None


class LlmConfig(Struct, frozen=True):
    """The contents of llm_config.json: a requirement for each model, and a default for all other jobs."""

    default: Requirement = Requirement()
    models: dict[str, Requirement] = field(default_factory=dict)

    def of(self, llm: str | None) -> Requirement:
        """Returns the requirement of a model, or the default if the model is unknown or None."""
        return self.models.get(llm, self.default) if llm is not None else self.default


def parse_llm_config(text: str) -> LlmConfig:
    """Parses llm_config.json. Raises ValueError with the key, its value and the accepted forms."""
    raw = parse_json(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("models", {}), dict):
        raise ValueError('expected {"default_requirement": 1.0, "models": {"NAME": 0.5, …}}')
    models = {name: _requirement(f"models.{name}", value) for name, value in raw.get("models", {}).items()}
    return LlmConfig(_requirement("default_requirement", raw.get("default_requirement", 1.0)), models)


def _requirement(key: str, value: Any) -> Requirement:
    if not isinstance(value, dict):
        return Requirement(_share(key, value))
    unknown = sorted(set(value) - {"share", "vram", "gpus"})
    if unknown:
        raise ValueError(f"{key}: unknown key {unknown[0]!r}; known keys: share, vram, gpus")
    share = None if "share" not in value else _share(key, value["share"])
    vram = None if "vram" not in value else _vram(key, value["vram"])
    gpus = value.get("gpus")
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= 64):
        raise ValueError(f"{key}: gpus {gpus!r} is not a whole number from 1 to 64")
    if share is None and gpus is None and vram is None:
        raise ValueError(f'{key}: set "share", "vram" or "gpus"')
    if share is not None and share > WHOLE and (gpus is not None or vram is not None):
        raise ValueError(f"{key}: a share above 1 means whole GPUs; remove gpus and vram")
    return Requirement(share, gpus, vram)


def _vram(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{key}: vram {value!r} is not valid; write a number of MiB such as 9000, or "9G"')
    try:
        return parse_mib(str(value))
    except ValueError as error:
        raise ValueError(f"{key}: vram: {error}") from None


def _share(key: str, value: Any) -> int:
    # A number in quotes counts as a number, because the older scheduler accepted it.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{key}: {value!r} is not a number such as 0.5")
    try:
        return parse_share(str(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def resolve(
    resources: ResourceSpec, config: LlmConfig, learned_mib: Mapping[str, int] = _NOTHING_LEARNED
) -> Need:
    """Returns the need that results from a resource spec (docs/design.md, Needs).

    It comes from the first of these that is known: the spec's attributes, its model, the MiB learned for its
    workload class, the default. The need has at least `min_vram_mib` of memory.
    """
    if not resources.needs_gpus:
        return Need(0)
    need = _stated_need(resources, config, learned_mib)
    if resources.min_vram_mib is None:
        return need
    # A job that had its GPUs to itself no longer needs this, because its memory need is now known.
    share = 0 if need.alone else need.share
    vram = max(resources.min_vram_mib, need.vram or 0)
    return Need(need.count, share, vram=vram, exclusive=resources.exclusive)


def engine_request(resources: ResourceSpec, config: LlmConfig) -> dict[str, Any]:
    """Returns what an engine has to give a job: its number of GPUs, its thousandths of one GPU, their type.

    Memory cannot be requested from an engine, so a job that declares some gets whole GPUs, and so does a job
    that needs its GPUs to itself.
    """
    need = resolve(resources, config)
    is_part = need.count == 1 and 0 < need.share < WHOLE and need.vram is None and not need.alone
    return {
        "gpus": need.count,
        "share": need.share if is_part else None,
        "gpu_type": resources.gpu_type,
    }


def _stated_need(resources: ResourceSpec, config: LlmConfig, learned_mib: Mapping[str, int]) -> Need:
    if resources.share is not None or resources.gpus is not None or resources.vram is not None:
        return _declared_need(resources.share, resources.gpus, resources.vram, resources.exclusive)
    if resources.llm not in config.models:
        vram = learned_mib.get(resources.workload_class) if resources.workload_class is not None else None
        if vram is not None:
            return Need(1, vram=vram, exclusive=resources.exclusive, learned=True)
        if resources.is_command and resources.llm is None:
            return Need(1, WHOLE, alone=True, assumed=True)
    requirement = config.of(resources.llm)
    need = _declared_need(requirement.share, requirement.gpus, requirement.vram, resources.exclusive)
    return need if resources.llm in config.models else replace(need, assumed=True)


def _declared_need(share: int | None, gpus: int | None, vram: int | None, exclusive: bool) -> Need:
    if share is None and vram is None:
        return Need(gpus or 1, WHOLE, alone=True, assumed=True)
    if share is not None and share > WHOLE:
        return Need(math.ceil(share / WHOLE), WHOLE, exclusive=exclusive)
    return Need(gpus or 1, share or 0, vram=vram, exclusive=exclusive)


# Learns the GPU memory of a job from the peaks of earlier runs of its workload class (`start --learn`).
#
# `needs` applies the learned memory to jobs that declare nothing. `calibration` suggests declarations
# instead.


#: The quantile of the peaks on which a learned need is based.
QUANTILE = 0.95


class WorkloadClass(Struct, frozen=True):
    """The completed runs of one program with one model, or without a model (llm is None).

    declared_mib: the declaration of the newest run; None if it declared no memory. gpus: the smallest number
    of GPUs that a run used. mean_s, longest_s: run times in seconds; None if unknown.
    """

    program: str
    llm: str | None
    runs: int
    max_mib: int
    p95_mib: int
    declared_mib: int | None
    gpus: int
    mean_s: float | None
    longest_s: float | None = None

    @property
    def key(self) -> str:
        """The key of the class, which is also in the resource specs of the class's jobs."""
        return workload_class_key(self.program, self.llm)


def quantile(values: Sequence[int], q: float = QUANTILE) -> int:
    """Returns the q-quantile of the values by the nearest-rank method, which returns one of the values."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def learned_needs(classes: Iterable[WorkloadClass], spike_buffer: float) -> dict[str, int]:
    """Returns the MiB for each workload class: the 95th percentile of its peaks plus the spike buffer."""
    return {one.key: with_spike_buffer(one.p95_mib, spike_buffer) for one in classes}


# Suggests memory declarations for `calibrate`, based on the memory peaks of finished jobs.
#
# For a model, it suggests an entry of llm_config.json; for a program without a model, an attribute.


#: An entry is suggested only after at least this many runs, or one run of at least this many seconds.
MIN_ENTRY_RUNS, MIN_RUN_S = 3, 600.0
#: Suggestions are rounded up to a multiple of this number of MiB.
STEP_MIB = 64


class NoSuggestion(Code):
    """The reason why nothing is suggested."""

    NEEDS_WHOLE_GPU = "needs_whole_gpu", "needs a GPU to itself"
    WITHIN_TOLERANCE = "within_tolerance", "within ±{percent:g}%"
    AS_SUGGESTED = "as_suggested", "the current entry is right"


class CalibrationRules(Struct, frozen=True):
    """The parameters of suggestions.

    spike_buffer: fraction to add to a peak; tolerance: fraction by which a peak may deviate from its
    declaration; margin_mib: memory to leave free on each GPU; totals_mib: memory size of each managed GPU, ()
    if unknown.
    """

    spike_buffer: float
    tolerance: float
    margin_mib: int
    totals_mib: tuple[int, ...] = ()


class Advice(Struct, frozen=True):
    """The suggestion for a workload class.

    current_entry: the model's entry in llm_config.json, as JSON; suggested_entry: the replacement for it;
    has_enough_runs: whether there is enough evidence for the replacement; line_vram_mib: the vram suggested
    for the lines of a class without a model; why_not: why nothing is suggested.
    """

    workload_class: WorkloadClass
    current_entry: Any = None
    suggested_entry: dict[str, Any] | None = None
    has_enough_runs: bool = False
    line_vram_mib: int | None = None
    why_not: NoSuggestion | None = None


def advise(
    classes: Sequence[WorkloadClass], models: Mapping[str, Any], config: LlmConfig, rules: CalibrationRules
) -> list[Advice]:
    """Returns advice for each workload class, in order. models: the current entries of llm_config.json."""
    return [
        _advise_line(one, rules) if one.llm is None else _advise_model(one, classes, models, config, rules)
        for one in classes
    ]


def _advise_model(
    workload_class: WorkloadClass,
    classes: Sequence[WorkloadClass],
    models: Mapping[str, Any],
    config: LlmConfig,
    rules: CalibrationRules,
) -> Advice:
    """Returns advice on the model's entry, based on the runs of all programs that use the model."""
    llm = workload_class.llm or ""
    same = [one for one in classes if one.llm == llm]
    largest = max(same, key=lambda one: one.p95_mib)
    together = replace(
        largest,
        max_mib=max(one.max_mib for one in same),
        gpus=min(one.gpus for one in same),  # a run on fewer GPUs shows that no more GPUs are needed
        declared_mib=config.of(llm).vram or largest.declared_mib,
    )
    wanted, why = _suggested_mib(together, rules)
    entry = None if wanted is None else _suggested_entry(models.get(llm), wanted, together.gpus)
    enough = entry is not None and _has_enough_runs(same)
    return Advice(workload_class, models.get(llm), entry, enough, why_not=why)


def _has_enough_runs(classes: Sequence[WorkloadClass]) -> bool:
    """Returns whether there are enough runs with a model, by any programs, to suggest the model's entry."""
    is_long = any((one.longest_s or 0.0) >= MIN_RUN_S for one in classes)
    return is_long or sum(one.runs for one in classes) >= MIN_ENTRY_RUNS


def _advise_line(workload_class: WorkloadClass, rules: CalibrationRules) -> Advice:
    wanted, why = _suggested_mib(workload_class, rules)
    return Advice(workload_class, line_vram_mib=wanted, why_not=why)


def _suggested_mib(
    measured: WorkloadClass, rules: CalibrationRules
) -> tuple[int | None, NoSuggestion | None]:
    """Returns the suggested MiB on each GPU, or why nothing is suggested."""
    p95, declared, gpus = measured.p95_mib, measured.declared_mib, measured.gpus
    steps = -(-with_spike_buffer(p95, rules.spike_buffer) // STEP_MIB)
    wanted = steps * STEP_MIB
    if len(rules.totals_mib) >= gpus:
        room = sorted(rules.totals_mib, reverse=True)[gpus - 1] - rules.margin_mib
        if measured.max_mib > room:
            return None, NoSuggestion.NEEDS_WHOLE_GPU
        wanted = min(wanted, room)  # a larger need would not fit on any GPU
    if declared is not None:
        if abs(p95 - declared) <= rules.tolerance * declared:
            return None, NoSuggestion.WITHIN_TOLERANCE
        if abs(wanted - declared) <= STEP_MIB:
            return None, NoSuggestion.AS_SUGGESTED
    return wanted, None


def _suggested_entry(current_entry: Any, vram_mib: int, gpus: int) -> dict[str, Any]:
    """Returns the new entry of a model, which keeps the share and gpus of an existing JSON object."""
    kept = dict(current_entry) if isinstance(current_entry, dict) else {}
    if "share" in kept and parse_share(str(kept["share"])) > WHOLE:
        del kept["share"]  # a share above 1 cannot be combined with memory
    text = format_mib(vram_mib)
    entry: dict[str, Any] = {**kept, "vram": int(text) if text.isdigit() else text}
    if gpus > 1:
        entry.setdefault("gpus", gpus)
    return entry


def suggested_entries(
    advice: Collection[Advice], *, has_enough_runs: bool = True
) -> dict[str, dict[str, Any]]:
    """Returns the suggested entry of each model whose entry should change.

    has_enough_runs: True to return the models with enough evidence, False to return the other models.
    """
    found = [one for one in advice if one.has_enough_runs is has_enough_runs]
    return {
        one.workload_class.llm: one.suggested_entry
        for one in found
        if one.workload_class.llm is not None and one.suggested_entry
    }
