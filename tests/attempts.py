"""Builds attempts for tests, whose values can be given as the properties of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from msgspec import Struct, structs

from gpu_scheduler.core.model.attempt import ActiveAttempt, Allocation, Observed
from gpu_scheduler.core.model.states import AttemptState

_S = TypeVar("_S", bound=Struct)
#: Values of all allocations, and values by GPU.
_OF_ALLOCATIONS = ("gpus", "share", "vram", "whole", "budgets", "peaks", "baseline_mib", "overused_gpus")


def make_attempt(
    attempt_id: int,
    job_id: int,
    token: str,
    boot_id: str,
    state: AttemptState,
    gpus: tuple[str, ...] = (),
    share: int = 0,
    vram: int | None = None,
    whole: bool = False,
    budgets: Mapping[str, int | None] | None = None,
    **values: Any,
) -> ActiveAttempt:
    """Returns an attempt with these values, which may be all those that `replace` accepts."""
    values |= {"gpus": gpus, "share": share, "vram": vram, "whole": whole, "budgets": budgets or {}}
    return replace(ActiveAttempt(attempt_id, job_id, token, boot_id, state), **values)


def replace(one: _S, **values: Any) -> _S:
    """Does what `msgspec.structs.replace` does. For an attempt, accepts more values.

    These are the observed values, the values of all its allocations and those by GPU, its runner and its
    misplaced GPUs, the resources and the run_time of its job. Empty budgets mean that nothing was declared.
    """
    if not isinstance(one, ActiveAttempt):
        return structs.replace(one, **values)
    seen = {name: values.pop(name) for name in Observed.__struct_fields__ if name in values}
    given = {name: values.pop(name) for name in _OF_ALLOCATIONS if name in values}
    if "resources" in values:
        values["spec_key"] = values.pop("resources").key()
    if "runner" in values:
        runner = values.pop("runner")
        values |= {"runner_pid": runner and runner.pid, "runner_start_ticks": runner and runner.start_ticks}
    if "misplaced_gpus" in values:
        values["misplaced"] = tuple((gpu, 0) for gpu in values.pop("misplaced_gpus"))
    if "run_time" in values:
        key = values.pop("run_time")
        values |= {"identity": key.identity, "spec_json": key.spec_json} if key else {"identity": ""}
    if given:
        old = {name: getattr(one, name) for name in _OF_ALLOCATIONS} | given
        values["assumed"] = not old["budgets"]
        values["allocations"] = tuple(
            Allocation(
                old["share"], old["vram"], old["whole"], old["peaks"].get(gpu), gpu, old["budgets"].get(gpu),
                old["baseline_mib"].get(gpu), overuse_logged=gpu in old["overused_gpus"],
            )
            for gpu in old["gpus"]
        )  # fmt: skip
    return cast("_S", structs.replace(one, **values).seen(**seen))
