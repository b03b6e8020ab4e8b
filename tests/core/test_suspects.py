"""GPUs that make jobs fail are put aside, and only these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.explain.explanation import explain_failure
from gpu_scheduler.core.model.gpu import Suspicion
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, FailureContext
from gpu_scheduler.core.model.reasons import DEVICE_FAILURES, FailureKind, ReasonKind, StateReason, WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.gpu_faults import find_suspects
from gpu_scheduler.core.scheduling.history import AttemptEnd, GpuHistory, RunTimeKey
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import is_drained
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import replace
from tests.core.decisions import changed_gpus
from tests.core.gpu_world import NOW, facts, gpu, running

T = NOW.wall - 1000.0
CRASH = StateReason(ReasonKind.COMMAND_FAILED, exit_code=1)
ECC = StateReason(ReasonKind.COMMAND_FAILED, FailureKind.DEVICE_ERROR, 1, error="uncorrectable ECC error")
ALL = ResourceSpec(gpus=1)


def end(
    job: int, on: str, at: float, failure: StateReason | None = CRASH, *, took: float = 1.0, number: int = 0
) -> AttemptEnd:
    """Returns the end of an attempt on GPUs such as "02"; without a failure, it has completed."""
    gpus, start = tuple(f"U{index}" for index in on), T + at - took
    return AttemptEnd(T + at, 100 * job + number, job, gpus, start, start, failure is None, failure)


def at(
    seconds: float, *ends: AttemptEnd, attempts: tuple[ActiveAttempt, ...] = (), **values: object
) -> Facts:
    """Returns the facts of a round, with GPUs 0 to 3."""
    now = Now(T + seconds, 1000.0, "boot")
    return facts(*map(gpu, range(4)), attempts=attempts, now=now, history=GpuHistory(ends), **values)


def suspects(situation: Facts) -> dict[int, Suspicion]:
    """Returns the suspect GPUs, by index, as they are recorded."""
    _, actions = find_suspects(situation)
    changed = changed_gpus(actions)
    return {one.index: one.suspicion for one in changed if one.suspicion is not None}


QUICK = [end(1, "0", 1), end(2, "0", 2), end(3, "0", 3)]
GOOD = end(9, "1", 4, None)
DEVICE = [end(1, "0", 1, ECC), end(2, "0", 50, ECC, took=40)]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([*QUICK, GOOD], [0]),
        (QUICK, []),  # nothing shows that the jobs would run elsewhere
        ([*QUICK[:2], GOOD], []),
        ([*QUICK[:2], end(2, "0", 3, number=1), GOOD], []),  # only two different jobs
        ([*QUICK[:2], end(3, "0", 62), GOOD], []),  # not within a minute
        ([*QUICK[:2], end(3, "0", 3, took=10.5), GOOD], []),
        ([*QUICK, end(9, "1", 62, None)], []),  # too late
        ([*QUICK, end(9, "1", -58, None, took=5)], []),  # too early
        ([*QUICK, end(9, "0", 4, None)], []),  # on the same GPU
        ([*QUICK[:2], end(8, "0", 2.5, None), QUICK[2], GOOD], []),  # one completed there in between
        ([*QUICK, end(9, "1", 30, took=20)], []),  # a failure shows nothing, however late it comes
        ([*QUICK, GOOD, end(1, "2", 5, number=1)], []),  # fails elsewhere too
        ([*QUICK, GOOD, end(4, "2", 40)], []),  # others fail elsewhere
        ([*QUICK, GOOD, end(4, "2", 2), end(8, "3", 4, None)], []),  # on two of four GPUs
        ([*QUICK, GOOD, end(4, "2", 2), end(8, "2", 4, None)], [0]),  # one of many fails there
        ([*QUICK, GOOD, end(4, "2", 64)], [0]),  # much later
        ([*QUICK, GOOD, end(4, "0", 100, took=90)], []),  # began in doubt, and ran for long
        ([*QUICK, GOOD, end(4, "0", 100, ECC, took=90)], [0]),  # until the GPU failed again
        (DEVICE, [0]),
        ([DEVICE[0]], []),
        ([DEVICE[0], end(1, "0", 2, ECC, number=1)], []),
        ([DEVICE[0], end(2, "0", 61.5, ECC)], []),
        ([end(1, "01", 1, ECC), end(2, "01", 2, ECC)], []),  # neither GPU is named
        ([end(job, "01", job, replace(ECC, error="CUDA error: ECC on cuda:1")) for job in (1, 2)], [1]),
        ([end(job, "23", job, replace(ECC, error="GPU 0: uncorrectable ECC error")) for job in (1, 2)], [2]),
    ],
)  # fmt: skip
def test_which_failures_make_a_gpu_suspect(ends: list[AttemptEnd], expected: list[int]) -> None:
    assert list(suspects(at(100, *ends))) == expected


@pytest.mark.parametrize(
    "failure",
    [
        replace(CRASH, failure=kind, exit_code=code)
        for kind, code in (
            *((kind, 1) for kind in FailureKind if kind not in (
                *DEVICE_FAILURES, FailureKind.FABRIC_NOT_READY, FailureKind.NO_KERNEL_IMAGE,
                FailureKind.KERNEL_FAULT,
                FailureKind.NO_GPU_VISIBLE, FailureKind.GPU_DRIVER, FailureKind.CRASHED)),
            (FailureKind.PROGRAM, 2),
            (None, 0),  # work was left in the background
        )
    ],
)  # fmt: skip
def test_failures_of_the_command_or_the_machine_never_count(failure: StateReason) -> None:
    assert suspects(at(100, *(end(job, "0", job, failure) for job in range(1, 7)), GOOD)) == {}


_LOGS = {
    FailureKind.GPU_ECC: (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "  what():  CUDA error: uncorrectable ECC error encountered\nAborted",
    ),
    FailureKind.GPU_BUSY: (
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorDevicesUnavailable: x",
        "CUDA error 46 at ggml-cuda.cu:102",
    ),
    FailureKind.DEVICE_ERROR: (
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "RuntimeError: CUDA error: initialization error",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.",
    ),
    FailureKind.CUDA_FORKED: ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. Use 'spawn'",),
    FailureKind.PROGRAM: ("SyntaxError: invalid syntax", "KeyError: 'lr'"),
    None: (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "ECC Errors : 0\nValueError: x",
        "commit of transaction xid 46 failed",
        "CUDA error 700 at x.cu:1",
    ),
}


@pytest.mark.parametrize(("kind", "log"), [(kind, log) for kind, logs in _LOGS.items() for log in logs])
def test_the_analysis_tells_device_errors_from_those_of_the_program(
    kind: FailureKind | None, log: str
) -> None:
    result = AttemptResult(None, 1, None, True, None, (), 1.0, 2.0)
    reason = explain_failure(result, FailureContext(f"{log}\n"))
    assert (reason.failure if reason.failure in _LOGS else None) is kind
    assert reason.error is not None or kind is None


def test_a_running_job_elsewhere_shows_that_jobs_can_run_once_it_has_run_for_ten_seconds() -> None:
    elsewhere = (running(7, "U1", started_at=T, job_id=70),)
    found, actions = find_suspects(at(9, *QUICK, attempts=elsewhere))
    assert actions == []
    assert found.gpus[0].suspicion == Suspicion((1, 2, 3), T + 3, awaits=70)  # until then, none starts here
    assert list(suspects(at(10.5, *QUICK, attempts=elsewhere))) == [0]
    adopted = (replace(elsewhere[0], watched_pid=5),)
    assert suspects(at(10.5, *QUICK, attempts=adopted)) == {}


def test_only_device_errors_put_the_last_usable_gpu_aside() -> None:
    def alone(*ends: AttemptEnd) -> Facts:
        situation = at(100, *ends)
        return replace(situation, gpus=(situation.gpus[0], *(gpu(n, paused=True) for n in (1, 2, 3))))

    assert suspects(alone(*QUICK, GOOD)) == {}
    assert list(suspects(alone(*DEVICE))) == [0]


@pytest.mark.parametrize(("after", "expected"), [(0, {}), (2, {0: (1, 2)}), (4, {})])
def test_the_number_of_quick_failures_is_an_option(after: int, expected: dict[int, tuple[int, ...]]) -> None:
    found = suspects(at(100, *QUICK[: after or 3], GOOD, settings=Settings(suspect_after=after)))
    assert {index: one.jobs for index, one in found.items()} == expected
    assert bool(suspects(at(100, *DEVICE, settings=Settings(suspect_after=after)))) == bool(after)


def test_a_resumed_gpu_begins_anew() -> None:
    situation = at(100, *QUICK, GOOD)
    resumed = replace(situation, gpus=(replace(situation.gpus[0], usable_since=T + 50), *situation.gpus[1:]))
    assert suspects(resumed) == {}
    again = GpuHistory([*QUICK, GOOD, *(end(job, "0", 50 + job) for job in (4, 5, 6)), end(8, "1", 60, None)])
    assert suspects(replace(resumed, history=again))[0].jobs == (4, 5, 6)


def test_the_waits_between_trials_double_until_one_passes() -> None:
    ends, waits, now = [*QUICK, GOOD], [], 3.0
    for job in range(10, 17):
        waits.append(suspects(at(now, *ends))[0].trial_at - T - now)
        now += waits[-1] + 2
        ends.append(end(job, "0", now, took=1))
    assert waits == [600, 1200, 2400, 4800, 9600, 14400, 14400]
    trial = running(5, "U0", started_at=T + now + 20_000, job_id=50)
    assert list(suspects(at(now + 20_050, *ends, attempts=(trial,)))) == [0]
    assert suspects(at(now + 20_060, *ends, attempts=(trial,))) == {}
    by_itself = replace(CRASH, failure=FailureKind.MODULE_MISSING)
    assert list(suspects(at(now + 30_000, *ends, end(60, "0", now + 20_000, by_itself)))) == [0]
    assert suspects(at(now + 30_000, *ends, end(60, "0", now + 20_000, None))) == {}


def queued(job: int, retries: int, used: int = 0, **values: object) -> PendingGroup:
    spec = RunTimeKey("", f'{{"kind": "command", "text": "", "cwd": "/", "fail_retries": {retries}}}')
    entry = QueuedJob(job, 200, job, T, T, spec, used)
    return PendingGroup(ALL, (replace(entry, **values),))


def starts(situation: Facts) -> dict[int, tuple[str, ...]]:
    situation, _ = find_suspects(situation)
    known = replace(situation, gpus=tuple(situation.gpus))
    return {one.job_id: one.gpus for one in plan(known) if isinstance(one, Start)}


BUSY = tuple(running(n, f"U{n}", whole=True, share=1000, started_at=T) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("seconds", "groups", "expected"),
    [
        (602, [queued(1, 1)], {}),
        (604, [queued(1, 1)], {1: ("U0",)}),
        (604, [queued(1, 1, used=1), queued(2, 0), queued(4, 2, used=1)], {4: ("U0",)}),
        (604, [queued(1, 0)], {}),  # it has no tries left
        (604, [queued(1, 2, used=1, failed_on=("U0",))], {1: ("U0",)}),  # it need not be another job
    ],
)
def test_one_job_with_tries_left_tries_a_suspect_gpu(
    seconds: float, groups: list[PendingGroup], expected: dict[int, tuple[str, ...]]
) -> None:
    situation = at(seconds, *QUICK, GOOD, attempts=BUSY, pending_groups=tuple(groups))
    assert starts(situation) == expected
    trial = running(5, "U0", share=100, started_at=T + 603.5)
    assert starts(replace(situation, attempts=(*BUSY, trial))) == {}


def test_a_drain_ends_if_only_the_user_can_make_a_suspect_gpu_available() -> None:
    situation, _ = find_suspects(
        at(700, *(end(4 * job + int(n), n, job, ECC) for n in "0123" for job in (1, 2)))
    )
    assert all(one.suspicion for one in situation.gpus)
    assert is_drained(replace(situation, pending_groups=(queued(50, 0),)), [ALL], False)
    assert not is_drained(replace(situation, pending_groups=(queued(50, 1),)), [ALL], False)
    # The job with tries left cannot try the GPU that the other one needs.
    specs = [ResourceSpec(gpus=1, allowed=(0,)), ResourceSpec(gpus=1, allowed=(1,))]
    groups = (replace(queued(50, 0), resources=specs[0]), replace(queued(51, 1), resources=specs[1]))
    paused = tuple(replace(one, paused=one.index == 1) for one in situation.gpus)
    assert is_drained(replace(situation, gpus=paused, pending_groups=groups), specs, False)


@pytest.mark.parametrize(
    ("seconds", "free", "failed_on", "expected"),
    [
        (100, (0, 1), ("U0",), ("U1",)),
        (100, (0,), ("U0",), None),  # it waits for another one
        (309, (0,), ("U0",), None),
        (311, (0,), ("U0",), ("U0",)),
        (-60, (0,), ("U0",), ("U0",)),  # the clock was set back
        (100, (0,), ("U0", "U1", "U2", "U3"), ("U0",)),  # there is no other
    ],
)
def test_a_retry_takes_another_gpu(
    seconds: float, free: tuple[int, ...], failed_on: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    busy = tuple(running(n, f"U{n}", share=1000, whole=True) for n in range(4) if n not in free)
    group = queued(5, 1, used=1, failed_on=failed_on)
    situation = at(seconds, attempts=busy, pending_groups=(group,))
    assert starts(situation).get(5) == expected
    if expected is None:
        reasons = [one.reason for one in plan(situation) if hasattr(one, "reason")]
        assert isinstance(reasons[0], WaitReason)
        assert [one.kind.value for one in reasons[0].obstacles] == ["failed here"]
        other = replace(group, jobs=(*group.jobs, QueuedJob(6, 200, 6, T, T)))
        assert starts(replace(situation, pending_groups=(other,))) == {6: ("U0",)}


Fate = Callable[[int, int], tuple[float, StateReason | None]]


def play(jobs: int, fate: Fate) -> tuple[list[int], set[int]]:
    """Plays jobs on four GPUs; returns those that failed, and the GPUs that were ever suspect.

    fate: the seconds that a job takes on a GPU, and its failure.
    """
    now, waiting, ends = 0.0, list(range(jobs)), list[AttemptEnd]()
    open_: dict[int, tuple[int, float]] = {}
    ever: set[int] = set()
    while waiting or open_:
        for index, (job, begun) in list(open_.items()):
            took, failure = fate(job, index)
            if now >= begun + took:
                ends.append(end(job, str(index), begun + took, failure, took=took))
                del open_[index]
        attempts = tuple(
            running(job + 1, f"U{index}", job_id=job, started_at=T + begun, state=AttemptState.RUNNING)
            for index, (job, begun) in open_.items()
        )
        found, _ = find_suspects(at(now, *ends, attempts=attempts))
        ever |= {one.index for one in found.gpus if one.suspicion and one.suspicion.awaits is None}
        for one in found.gpus:
            if waiting and one.index not in open_ and one.suspicion is None:
                open_[one.index] = waiting.pop(0), now
        now += 0.5
    return [one.job_id for one in ends if one.failure is not None], ever


@given(bad=st.integers(0, 3), dies_s=st.floats(0.1, 5.0), lasts_s=st.floats(0.2, 20.0))
@settings(max_examples=12)
def test_one_gpu_that_fails_everything_costs_three_jobs(bad: int, dies_s: float, lasts_s: float) -> None:
    failed, ever = play(20, lambda job, on: (dies_s, CRASH) if on == bad else (lasts_s, None))
    assert len(failed) <= 4
    assert ever <= {bad}


@given(times=st.lists(st.floats(0.1, 9.9), min_size=16, max_size=16))
@settings(max_examples=12)
def test_a_file_whose_every_line_fails_puts_no_gpu_aside(times: list[float]) -> None:
    failed, ever = play(16, lambda job, on: (times[job], CRASH))
    assert (len(failed), ever) == (16, set())
