"""Tests which queued jobs are handed over to an engine, and why the others wait."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.job import AttemptStatus
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import SetWaitReason, Start
from gpu_scheduler.core.scheduling.engine_queue import by_engine, hand_over
from gpu_scheduler.core.scheduling.facts import EngineAnswer, EngineState, Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt

SPEC = ResourceSpec(gpus=1, on="slurm")
NOW = Now(1e9, 1000.0, "boot")


def group(spec: ResourceSpec, *jobs: int, **values: Any) -> PendingGroup:
    return PendingGroup(spec, tuple(QueuedJob(one, 200, one) for one in jobs), **values)


def facts(*groups: PendingGroup, limit: int = 20, state: EngineState | None = None, **values: Any) -> Facts:
    known = EngineState(answers={one.resources.key(): EngineAnswer() for one in groups}, at=NOW.wall - 1)
    local, on_engines = by_engine(groups, "local")
    engines = {"slurm": known if state is None else state}
    settings = Settings(slurm_limit=limit)
    return Facts(
        NOW, settings, LlmConfig(), pending_groups=local, engine_groups=on_engines, engines=engines, **values
    )


def started(found: Facts) -> list[int]:
    starts = [one for one in hand_over(found) if isinstance(one, Start)]
    assert all(one.engine == "slurm" and not one.gpus for one in starts)
    return [one.job_id for one in starts]


def wait(found: Facts) -> WaitKind | None:
    reasons = [one.reason.kind for one in hand_over(found) if isinstance(one, SetWaitReason)]
    return reasons[0] if reasons else None


def attempt(job_id: int, claim: Any, spec: ResourceSpec = SPEC) -> Any:
    return make_attempt(
        job_id, job_id, "t", "boot", AttemptState.STARTING, executor="slurm", resources=spec,
        status=AttemptStatus(claim=claim),
    )  # fmt: skip


def test_jobs_are_handed_over_in_queue_order_up_to_the_limit() -> None:
    other = ResourceSpec(gpus=2, on="slurm")
    found = facts(group(SPEC, 1, 4), group(other, 2, 3), limit=3)
    assert started(found) == [1, 2, 3]
    assert wait(found) is WaitKind.ENGINE_FULL


@pytest.mark.parametrize(("claim", "is_counted"), [("accepted", True), ("none", True), ("live", False)])
def test_the_limit_counts_the_jobs_that_have_not_begun(claim: str, is_counted: bool) -> None:
    found = facts(group(SPEC, 2), limit=1, attempts=(attempt(1, claim),))
    assert started(found) == ([] if is_counted else [2])


def test_jobs_of_this_machine_are_not_handed_over() -> None:
    found = facts(group(ResourceSpec(gpus=1), 1), group(ResourceSpec(gpus=1, on="local"), 2))
    assert hand_over(found) == []
    assert [one.jobs[0].job_id for one in found.pending_groups] == [1, 2]
    local, on_engines = by_engine([group(ResourceSpec(gpus=1), 1)], "slurm")
    assert (local, [*on_engines]) == ((), ["slurm"])


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (EngineState(), WaitKind.ENGINE_SILENT),
        (EngineState(at=NOW.wall - 61), WaitKind.ENGINE_SILENT),
        (EngineState(at=NOW.wall), WaitKind.ENGINE_ASKED),
        (
            EngineState(answers={SPEC.key(): EngineAnswer("limit", is_final=False)}, at=NOW.wall),
            WaitKind.ENGINE_UNUSABLE,
        ),
        (EngineState("slurmctld does not answer", at=NOW.wall), WaitKind.ENGINE_UNUSABLE),
        (
            EngineState(answers={SPEC.key(): EngineAnswer("no such node")}, at=NOW.wall),
            WaitKind.ENGINE_REFUSES,
        ),
        (EngineState("away", {SPEC.key(): EngineAnswer()}, NOW.wall), WaitKind.ENGINE_UNUSABLE),
    ],
)
def test_a_job_waits_for_a_usable_engine_that_can_run_it(state: EngineState, kind: WaitKind) -> None:
    found = facts(group(SPEC, 1), state=state)
    assert (started(found), wait(found)) == ([], kind)


def test_a_job_waits_if_the_scheduler_does_not_use_its_engine() -> None:
    _local, on_engines = by_engine([group(SPEC, 1)], "local")
    found = Facts(NOW, Settings(), LlmConfig(), engine_groups=on_engines)
    assert (started(found), wait(found)) == ([], WaitKind.NO_ENGINE)


def test_a_group_limit_counts_jobs_here_and_on_the_engine() -> None:
    here = ResourceSpec(gpus=0, group="a", max_running=2)
    there = ResourceSpec(gpus=0, group="a", max_running=2, on="slurm")
    runs_here = make_attempt(9, 9, "t", "boot", AttemptState.RUNNING, resources=here)
    found = facts(group(there, 1, 2), attempts=(runs_here,))
    assert (started(found), wait(found)) == ([1], WaitKind.GROUP_FULL)


def test_jobs_on_an_engine_do_not_count_as_jobs_without_a_gpu_here() -> None:
    there = ResourceSpec(gpus=0, on="slurm")
    found = facts(group(there, 1, 2, 3), attempts=(attempt(8, "live", there), attempt(9, "live", there)))
    assert started(found) == [1, 2, 3]


def test_the_key_of_a_spec_keeps_its_engine() -> None:
    for spec in (SPEC, ResourceSpec(on="slurm", gpu_type="a100", group="g", max_running=3), ResourceSpec()):
        assert ResourceSpec.from_key(spec.key()) == spec
