"""Builds attempts for tests, whose values can be given as the properties of an attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from msgspec import Struct, structs

from gpu_scheduler.core.model.job import ActiveAttempt, AdoptedProcess, Allocation, Job, Observed
from gpu_scheduler.core.model.states import AttemptState, JobState

#: Values of its job.
_OF_JOB = (
    "priority", "checkpoint", "launch_failures", "spec_key", "oom_retries_used", "fail_retries_used",
    "recoveries", "identity", "spec_json",
)  # fmt: skip
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
    job = Job(job_id, JobState.STARTING)
    return replace(ActiveAttempt(attempt_id, job_id, token, boot_id, state, job=job), **values)


def replace(one: _S, **values: Any) -> _S:
    """Does what `msgspec.structs.replace` does. For an attempt, accepts more values.

    These are the observed values, the values of all its allocations and those by GPU, its runner and its
    misplaced GPUs, the resources and the run_time of its job. Empty budgets mean that nothing was declared.
    """
    if not isinstance(one, ActiveAttempt):
        return structs.replace(one, **values)
    seen = {name: values.pop(name) for name in Observed.__struct_fields__ if name in values}
    given = {name: values.pop(name) for name in _OF_ALLOCATIONS if name in values}
    of_job = {name: values.pop(name) for name in _OF_JOB if name in values}
    if "stop_request" in values:
        of_job["stop"] = values.pop("stop_request")
    if values.get("watched_pid") is not None:
        of_job["adopted"] = AdoptedProcess(
            values["watched_pid"], values.get("watched_ticks") or 0, "boot", 0.0
        )
    if "preempt_signal" in values:
        of_job["spec_json"] = json.dumps({"preempt_signal": values.pop("preempt_signal")})
    if "resources" in values:
        of_job["spec_key"] = values.pop("resources").key()
    if "runner" in values:
        runner = values.pop("runner")
        values |= {"runner_pid": runner and runner.pid, "runner_start_ticks": runner and runner.start_ticks}
    if "misplaced_gpus" in values:
        values["misplaced"] = tuple((gpu, 0) for gpu in values.pop("misplaced_gpus"))
    if "run_time" in values:
        key = values.pop("run_time")
        of_job |= {"identity": key.identity, "spec_json": key.spec_json} if key else {"identity": ""}
    if of_job:
        values["job"] = structs.replace(one.job, **of_job)
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
