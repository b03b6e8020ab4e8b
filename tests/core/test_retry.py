"""Retries of failed jobs, and the memory that the retries get."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.explain.explanation import explain_failure
from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AttemptResult,
    AttemptStatus,
    FailureContext,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import NextKind, NextStep
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.attempt_end import FIRST_WAIT_S, MAX_WAIT_S, GpuInventory, decide_retry
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of
from gpu_scheduler.core.scheduling.placement import could_fit
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from tests.attempts import replace
from tests.core.decisions import changed_attempts, end_in
from tests.core.gpu_world import NOW, TOTAL, facts, gpu, running
from tests.reasons import words

OOM = (
    'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    x = torch.empty(9)\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
FAULT = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: bad rate\n'
SETTINGS = Settings()
INVENTORY = GpuInventory({"U0": TOTAL, "U1": TOTAL}, TOTAL - 512)


def failed(tail: str = OOM, oom: int | None = 3, fail: int | None = None, **values: object) -> ActiveAttempt:
    """Returns an attempt that declared 4 GiB and failed with this log."""
    base = running(vram=4096, failure_context=FailureContext(tail, (), oom, fail))
    return replace(base, **values)


def decide(attempt: ActiveAttempt, settings: Settings, inventory: GpuInventory) -> tuple[NextStep, ...]:
    """Returns the next step after a command that exited with 1."""
    result = AttemptResult(None, 1, None, True, None, (), 1.0, 2.0)
    failure = explain_failure(result, attempt.observed.failure_context).failure
    return decide_retry(attempt, failure, settings, inventory)


def retry(attempt: ActiveAttempt, settings: Settings, inventory: GpuInventory) -> NextStep | None:
    """Returns the retry of a command that exited with 1, or None if it is not retried."""
    return next((step for step in decide(attempt, settings, inventory) if step.is_retry), None)


def raised_to(attempt: ActiveAttempt, inventory: GpuInventory) -> int | None:
    """Returns how much memory the retry after an OOM gets, in MiB."""
    [step] = decide(attempt, SETTINGS, inventory)
    assert step.kind is NextKind.OOM_RETRY
    return step.vram_mib


def test_an_oom_retry_gets_more_memory_than_declared_and_observed() -> None:
    assert decide(failed(), SETTINGS, INVENTORY) == (NextStep(NextKind.OOM_RETRY, 1, 3, vram_mib=5120),)


@pytest.mark.parametrize(
    ("values", "raised"),
    [
        ({}, 5120),
        ({"peaks": {"U0": 3000}}, 5120),
        ({"peaks": {"U0": 4097}}, 5122),
        ({"peaks": {"U0": 8000}}, 10_000),
        ({"gpus": ("U0", "U1"), "peaks": {"U0": 100, "U1": 8000}}, 10_000),
        ({"peaks": {"U0": 20_000}}, TOTAL - 512),
        ({"vram": 4097}, 5122),
        ({"vram": None, "share": 500}, 15_360),
        ({"vram": None, "share": 500, "peaks": {"U0": 16_000}}, 20_000),
        ({"vram": None, "share": 1000}, TOTAL - 512),
        ({"vram": 4096, "whole": True, "peaks": {"U0": 9000}}, TOTAL - 512),
        ({"vram": 19_300}, TOTAL - 512),
    ],
)
def test_an_oom_retry_increases_the_larger_of_peak_and_declaration(
    values: dict[str, object], raised: int
) -> None:
    assert raised_to(replace(failed(), **values), INVENTORY) == raised


def test_an_oom_retry_keeps_the_need_if_neither_declaration_nor_peak_is_known() -> None:
    blind = failed(vram=None, share=500)
    assert decide(replace(blind, vram=None, share=500), SETTINGS, GpuInventory()) == (
        NextStep(NextKind.OOM_RETRY, 1, 3),
    )
    known = replace(blind, vram=None, share=500, peaks={"U0": 1000})
    assert raised_to(known, GpuInventory()) == 1250
    assert raised_to(replace(failed(), peaks={"U0": 40_000}), GpuInventory()) == 50_000


def test_does_not_retry_an_oom_if_the_job_already_had_the_most_available_memory() -> None:
    most = replace(failed(), vram=TOTAL - 512)
    assert decide(most, SETTINGS, INVENTORY) == (NextStep(NextKind.NO_LARGER_GPU, vram_mib=TOTAL - 512),)
    assert raised_to(replace(most, vram=TOTAL - 513), INVENTORY) == TOTAL - 512
    assert retry(replace(most, vram=TOTAL - 511), SETTINGS, INVENTORY) is None
    # The job had the largest GPU to itself.
    alone = replace(most, vram=None, whole=True)
    assert decide(alone, SETTINGS, INVENTORY) == (NextStep(NextKind.NO_LARGER_GPU, vram_mib=TOTAL),)
    larger = GpuInventory({"U0": TOTAL, "U1": 2 * TOTAL}, 2 * TOTAL - 512)
    assert raised_to(alone, larger) == 30_720


def test_a_job_without_a_gpu_is_not_retried_with_more_memory() -> None:
    attempt = failed(fail=1, gpus=(), vram=None, whole=True)
    assert decide(attempt, SETTINGS, INVENTORY) == (NextStep(NextKind.RETRY, 1, 1, FIRST_WAIT_S),)


def test_oom_retries_stop_at_their_limit() -> None:
    assert decide(failed(oom_retries_used=2), SETTINGS, INVENTORY) == (
        NextStep(NextKind.OOM_RETRY, 3, 3, vram_mib=5120),
    )
    assert decide(failed(oom_retries_used=3), SETTINGS, INVENTORY) == (
        NextStep(NextKind.OOM_RETRIES_USED_UP, of=3),
    )
    assert retry(failed(oom_retries_used=4), SETTINGS, INVENTORY) is None
    assert decide(failed(oom=0), SETTINGS, INVENTORY) == ()


def test_the_retry_options_of_start_apply_if_the_line_sets_no_retries() -> None:
    option = Settings(oom_retries=1, fail_retries=1)
    assert decide(failed(oom=None), option, INVENTORY) == (NextStep(NextKind.OOM_RETRY, 1, 1, vram_mib=5120),)
    assert retry(failed(oom=0, fail=0), option, INVENTORY) is None
    assert decide(failed(FAULT, oom=None), option, INVENTORY) == (
        NextStep(NextKind.RETRY, 1, 1, FIRST_WAIT_S),
    )
    assert retry(failed(FAULT, fail=0), option, INVENTORY) is None


def test_a_failure_without_an_oom_does_not_use_up_an_oom_retry() -> None:
    assert decide(failed(FAULT), SETTINGS, INVENTORY) == ()
    assert decide(failed(""), SETTINGS, INVENTORY) == ()


def test_the_wait_between_retries_doubles_up_to_a_limit() -> None:
    waits = [
        step.wait_s or 0.0
        for n in range(20)
        for step in decide(failed(FAULT, fail=20, fail_retries_used=n), SETTINGS, INVENTORY)
    ]
    assert waits[0] == FIRST_WAIT_S
    assert waits == sorted(waits)
    doubled = [wait for wait in waits if wait < MAX_WAIT_S]
    assert doubled == [FIRST_WAIT_S * 2**n for n in range(len(doubled))]
    assert waits[-1] == MAX_WAIT_S
    assert retry(failed(FAULT, fail=20, fail_retries_used=20), SETTINGS, INVENTORY) is None


def test_further_ooms_use_fail_retries_once_the_oom_retries_are_used_up() -> None:
    decision = decide(failed(oom=3, oom_retries_used=3, fail=2, fail_retries_used=1), SETTINGS, INVENTORY)
    assert decision == (NextStep(NextKind.OOM_RETRIES_USED_UP, of=3), NextStep(NextKind.RETRY, 2, 2, 20.0))
    none = decide(failed(oom=0, fail=1), SETTINGS, INVENTORY)
    assert none == (NextStep(NextKind.RETRY, 1, 1, 10.0),)
    assert raised_to(failed(oom=3, fail=2), INVENTORY) == 5120


@pytest.mark.parametrize(
    "values",
    [
        {"is_line_gone": True},
        {"stop_request": StopRequest("cancelled", 3.0)},
        {"stop_request": StopRequest("timed_out", 3.0)},
        {"failure_context": None},
    ],
)
@pytest.mark.parametrize("tail", [OOM, FAULT])
def test_does_not_retry_a_cancelled_job_or_a_job_without_its_line(
    values: dict[str, object], tail: str
) -> None:
    attempt = failed(tail, fail=5)
    assert retry(attempt, SETTINGS, INVENTORY)
    assert decide(replace(attempt, **values), SETTINGS, INVENTORY) == ()


@pytest.mark.parametrize("tail", [OOM, FAULT])
def test_a_job_that_fails_before_it_can_be_preempted_is_retried_like_any_other(tail: str) -> None:
    attempt = failed(tail, fail=5)
    preempted = replace(attempt, stop_request=StopRequest("preempted", 60.0))
    assert decide(preempted, SETTINGS, INVENTORY) == decide(attempt, SETTINGS, INVENTORY)


def finish_of(attempt: ActiveAttempt, *gpus: Gpu, code: int = 1, **values: object) -> ActiveAttempt:
    """Returns this attempt, whose command exited with `code`, after `plan` has finished it."""
    result = AttemptResult(None, code, None, True, None, (), 1.0, 2.0)
    done = replace(attempt, status=AttemptStatus("dead", result=result), survivors=())
    actions = plan(facts(*(gpus or (gpu(0),)), attempts=(done,), **values))
    close = end_in(actions)
    assert changed_attempts(actions) == [close, close.released(NOW)]
    return close


def test_a_retry_requeues_the_job_with_updated_retry_counts() -> None:
    end = finish_of(failed(oom_retries_used=1, fail_retries_used=2))
    assert (end.outcome, end.job.state, end.job.outcome) == (Outcome.FAILED, JobState.QUEUED, None)
    assert (
        end.job.oom_retries_used,
        end.job.fail_retries_used,
        end.job.min_vram_mib,
        end.job.not_before_boot,
    ) == (
        2,
        2,
        5120,
        NOW.boot,
    )
    assert (end.exit_code, end.job.launch_failures, end.started_at, end.ended_at) == (1, 0, 1.0, 2.0)
    assert end.reason is not None
    assert words(end.reason).endswith("; OOM retry 2 of 3 with 5.0 GiB per GPU")
    again = finish_of(failed(FAULT, fail=3, oom_retries_used=1, fail_retries_used=2))
    assert (
        again.job.state,
        again.job.oom_retries_used,
        again.job.fail_retries_used,
        again.job.min_vram_mib,
    ) == (
        JobState.QUEUED,
        1,
        3,
        None,
    )
    assert again.job.not_before_boot == NOW.boot + 40


def test_the_last_failure_finishes_the_job_and_reports_the_retries() -> None:
    end = finish_of(failed(oom_retries_used=3, fail_retries_used=1))
    assert (end.job.state, end.job.outcome, end.job.oom_retries_used, end.job.fail_retries_used) == (
        JobState.FINISHED,
        Outcome.FAILED,
        3,
        1,
    )
    assert end.job.min_vram_mib is None
    assert "OOM retries used up (3)" in words(end.reason)


def test_a_job_that_exits_with_0_is_completed_despite_an_oom_in_its_log() -> None:
    end = finish_of(failed(), code=0)
    assert (end.outcome, end.job.state, end.job.oom_retries_used) == (Outcome.COMPLETED, JobState.FINISHED, 0)


@pytest.mark.parametrize("cause", ["cancelled", "timed_out", "preempted", "machine"])
def test_a_stopped_attempt_is_not_retried(cause: str) -> None:
    result = AttemptResult(cause, 1, None, True, None, (), 1.0, 2.0)
    done = replace(failed(fail=5), status=AttemptStatus("dead", result=result), survivors=())
    close = end_in(plan(facts(gpu(0), attempts=(done,))))
    assert close.job.state is not JobState.QUEUED


def test_a_failed_launch_does_not_use_up_a_retry() -> None:
    result = AttemptResult(None, 1, None, False, "no script", (), None, 2.0)
    done = replace(
        failed(fail=5, oom_retries_used=1, fail_retries_used=2), status=AttemptStatus("dead", result=result)
    )
    close = end_in(plan(facts(gpu(0), attempts=(done,))))
    assert (close.outcome, close.job.oom_retries_used, close.job.fail_retries_used) == (
        Outcome.NOT_STARTED,
        1,
        2,
    )


def gpu_of_size(index: int, total: int | None, **values: object) -> Gpu:
    sample = GpuSample(f"U{index}", index, "GPU", total, 0, 0.0, ())
    return replace(gpu(index), sample=sample, **values)


@pytest.mark.parametrize(
    ("attempt", "gpus", "raised"),
    [
        (failed(vram=7000), (gpu_of_size(0, 8192),), 7480),
        (failed(vram=7000), (gpu_of_size(0, 8192), gpu_of_size(1, TOTAL)), 8750),
        # Only the largest allowed GPUs count, as many as the job needs.
        (
            failed(vram=7000, resources=ResourceSpec(vram=7000, allowed=(0,))),
            (gpu_of_size(0, 8192), gpu_of_size(1, TOTAL)),
            7480,
        ),
        (failed(vram=7000, gpus=("U0", "U1")), (gpu_of_size(0, 8192), gpu_of_size(1, TOTAL)), 7480),
        (
            failed(vram=7000, gpus=("U0", "U1")),
            (gpu_of_size(0, 8192), gpu_of_size(1, TOTAL), gpu_of_size(2, TOTAL)),
            8750,
        ),
        # A GPU that cannot be read keeps its stored size.
        (failed(vram=7000), (gpu_of_size(0, None, total_mib=8192),), 7480),
        (failed(vram=7000), (replace(gpu(0), sample=None, total_mib=8192),), 7480),
        # A GPU of unknown size imposes no limit. The memory of displays and unattributed memory are never
        # available.
        (failed(vram=7000), (gpu_of_size(0, None),), 8750),
        (failed(vram=7000), (gpu_of_size(0, None), gpu_of_size(1, 8192)), 7480),
        (failed(vram=7000, baseline_mib={"U0": 100}), (gpu_of_size(0, 8192),), 7380),
        (
            failed(vram=7000),
            (
                replace(
                    gpu_of_size(0, 8192),
                    sample=GpuSample("U0", 0, "", 8192, 60, 0.0, (GpuProcess(1, 60, True),)),
                ),
            ),
            7414,
        ),
    ],
)
def test_the_memory_of_an_oom_retry_is_limited_by_the_gpus_that_the_job_may_use(
    attempt: ActiveAttempt, gpus: tuple[Gpu, ...], raised: int
) -> None:
    held = tuple(
        replace(one, foreign_peaks={(1, 0.0): 60} if one.sample and one.sample.used_mib else {})
        for one in gpus
    )
    assert finish_of(attempt, *held).job.min_vram_mib == raised


def test_an_oom_retry_raises_declared_or_observed_memory_by_a_quarter() -> None:
    attempt, asked = failed(), [4096]
    while (end := finish_of(attempt)).job.state is JobState.QUEUED:
        assert end.job.min_vram_mib is not None
        asked.append(end.job.min_vram_mib)
        attempt = replace(attempt, vram=end.job.min_vram_mib, oom_retries_used=end.job.oom_retries_used)
    assert asked == [4096, 5120, 6400, 8000]
    # If a peak was observed before the failure, the first retry already gets more than that peak.
    assert finish_of(failed(peaks={"U0": 8500})).job.min_vram_mib == 10_625


def test_the_sample_of_the_round_in_which_a_job_ends_counts_for_its_retry() -> None:
    last = gpu(0, None, (GpuProcess(7, 9000),), owners={7: 9})
    result = AttemptResult(None, 1, None, True, None, (), 1.0, 2.0)
    done = replace(
        failed(peaks={"U0": 8000}), status=AttemptStatus("dead", result=result), measured_boot=998.0
    )
    end = end_in(plan(facts(last, attempts=(done,))))
    assert end.job.min_vram_mib == 11_250


@settings(deadline=None)
@given(
    st.integers(1, 30_000),
    st.dictionaries(st.sampled_from(["U0"]), st.integers(0, 30_000)),
    st.sampled_from([8192, 24_576, 81_920]),
    st.integers(0, 6),
)
def test_repeated_oom_retries_increase_memory_until_no_larger_amount_fits(
    declared: int, peaks: dict[str, int], total: int, retries: int
) -> None:
    limits = Limits()
    attempt = replace(failed(oom=retries), vram=declared, peaks=peaks)
    inventory = GpuInventory({"U0": total}, total - limits.margin_mib)
    for used in range(retries + 2):
        step = retry(attempt, SETTINGS, inventory)
        if step is None:
            assert used == retries or (attempt.vram or 0) >= total - limits.margin_mib
            return
        assert step.vram_mib is not None
        assert (attempt.vram or 0) < step.vram_mib
        world: Facts = facts(gpu_of_size(0, total))
        assert could_fit(need_of(ResourceSpec(vram=step.vram_mib), world), total, limits)
        attempt = replace(attempt, vram=step.vram_mib, oom_retries_used=used + 1)
    pytest.fail("it never gives up")
