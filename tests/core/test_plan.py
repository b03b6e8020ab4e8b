"""How a round is planned: job order, backfill, wait reasons, requests, and the end of a drain."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus, Checkpoint, Job, StopRequest
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.gpu_use import foreign_memory, ledger_of
from gpu_scheduler.core.scheduling.history import Overtakes, QueueStart
from gpu_scheduler.core.scheduling.needs import LlmConfig, Requirement, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import is_drained, need_of
from gpu_scheduler.core.scheduling.plan import next_deadline, plan
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from gpu_scheduler.show.wait_text import wait_text
from tests.attempts import replace
from tests.core.decisions import changed_gpus, changed_jobs, stops_in
from tests.core.gpu_world import NOW, facts, gpu, group, round_of, running

LIMITS = Limits()
HALF, WHOLE, TWO = ResourceSpec(share=500), ResourceSpec(share=1000), ResourceSpec(gpus=2, share=1000)


def whole(uuid: str, **values: object) -> ActiveAttempt:
    return running(9, uuid, **{"share": 1000, **values})


def starts(actions: list[act.Action]) -> dict[int, tuple[str, ...]]:
    return {a.job_id: a.gpus for a in actions if isinstance(a, act.Start)}


def test_two_jobs_with_half_shares_get_one_gpu_and_a_job_with_a_whole_share_another() -> None:
    found = starts(plan(round_of(2, group(HALF, (1, 0), (2, 0)), group(WHOLE, (3, 0)))))
    assert found == {1: ("U0",), 2: ("U0",), 3: ("U1",)}


def test_jobs_start_by_priority_first_and_queue_position_second() -> None:
    assert starts(plan(round_of(1, group(WHOLE, (2, 0), (1, 200))))) == {2: ("U0",)}
    assert starts(plan(round_of(1, group(WHOLE, (1, 200)), group(HALF, (2, 0))))) == {2: ("U0",)}


def test_a_job_that_fits_starts_before_a_blocked_job() -> None:
    actions = plan(round_of(1, group(TWO, (1, 0)), group(HALF, (2, 1))))
    assert starts(actions) == {2: ("U0",)}
    two_gpus = round_of(2, group(TWO, (1, 0)), group(HALF, (2, 1)), attempts=(whole("U0"),))
    actions = plan(two_gpus)
    assert starts(actions) == {2: ("U1",)}


def test_jobs_behind_a_job_that_is_not_loaded_yet_wait_for_the_next_round() -> None:
    lines = (group(HALF, (1, 0), (2, 0), more=True), group(WHOLE, (3, 5)))
    assert starts(plan(round_of(3, *lines))) == {1: ("U0",), 2: ("U0",)}


@pytest.mark.parametrize(
    ("ago_s", "started", "due_in_s"),
    [(None, [1], None), (3.0, [], 2.0), (5.0, [1], None), (-60.0, [1], None)],
    ids=["no start yet", "within the interval", "after the interval", "clock set back"],
)
def test_at_most_one_job_starts_in_each_start_interval(
    ago_s: float | None, started: list[int], due_in_s: float | None
) -> None:
    newest = () if ago_s is None else (QueueStart(200, 0, 0.0, NOW.wall - ago_s),)
    spaced = round_of(
        3, group(HALF, (1, 0), (2, 0)), group(TWO, (3, 5)),
        settings=Settings(start_interval_s=5.0), overtakes=Overtakes(newest),
    )  # fmt: skip
    actions = plan(spaced)
    assert list(starts(actions)) == started
    deadline = next_deadline(spaced, None)
    assert deadline == (None if due_in_s is None else pytest.approx(NOW.boot + due_in_s))
    reasons = [a.reason for a in actions if isinstance(a, act.SetWaitReason)]
    assert reasons == ([WaitReason(WaitKind.START_INTERVAL, "5")] * 2 if due_in_s else [])
    if reasons:
        said = "about to start; there are at least 5 s between two starts (--start-interval)"
        assert wait_text(reasons[0]) == said


def test_the_start_interval_does_not_hide_why_a_job_does_not_fit() -> None:
    facts_now = round_of(
        1, group(HALF, (1, 0), reason=WaitReason(WaitKind.START_INTERVAL, "5")), group(TWO, (2, 0)),
        settings=Settings(start_interval_s=5.0), overtakes=Overtakes((QueueStart(200, 0, 0.0, NOW.wall),)),
    )  # fmt: skip
    [wait] = plan(facts_now)
    assert isinstance(wait, act.SetWaitReason)
    assert (wait.spec_key, wait.reason.kind) == (TWO.key(), WaitKind.TOO_FEW_GPUS)


def test_starts_jobs_queued_behind_a_blocked_group_of_jobs() -> None:
    lines = (group(TWO, (1, 0), (2, 0), more=True), group(WHOLE, (3, 5)))
    assert starts(plan(round_of(2, *lines, attempts=(whole("U0"),)))) == {3: ("U1",)}


@pytest.mark.parametrize(
    ("attempts", "started"), [((), {1}), ((running(9, share=50),), {1}), ((running(9, share=80),), set())]
)
def test_the_jobs_of_one_round_share_the_memory_that_other_programs_leave(
    attempts: tuple[ActiveAttempt, ...], started: set[int]
) -> None:
    claimed = gpu(0, claims=(GpuClaim(16_576, 8),))  # leaves 8000 MiB
    two = group(ResourceSpec(share=250), 1, 2)  # each claims 6144 MiB
    assert starts(plan(facts(claimed, attempts=attempts, pending_groups=(two,)))).keys() == started


def test_every_job_waits_while_the_gpus_cannot_be_read() -> None:
    blind = round_of(2, group(WHOLE, (1, 0)), all_sampled=False, probe_error="gone")
    [wait] = plan(blind)
    assert isinstance(wait, act.SetWaitReason)
    assert wait.reason == WaitReason(WaitKind.GPUS_UNREADABLE, "gone")
    assert wait_text(wait.reason) == "the GPUs cannot be read: gone"


def test_memory_release_does_not_wait_for_an_unmanaged_gpu() -> None:
    ended = whole("gone", state=AttemptState.RELEASED, released_boot=999.5)
    assert plan(round_of(1, attempts=(ended,))) == [act.AttemptChanged(ended, ended.closed())]


def test_places_no_jobs_before_the_first_complete_gpu_sample() -> None:
    assert plan(round_of(2, group(HALF, (1, 0)), all_sampled=False)) == []


def test_records_a_wait_reason_only_when_it_changes() -> None:
    blocked = round_of(1, group(WHOLE, (1, 0)), attempts=(whole("U0"),))
    wait = next(a for a in plan(blocked) if isinstance(a, act.SetWaitReason))
    assert wait.reason == WaitReason(WaitKind.NO_FREE_GPU, need=Need(1, 1000))
    assert wait_text(wait.reason) == "needs 1 free GPU, 0 free"
    again = round_of(1, group(WHOLE, (1, 0), reason=wait.reason), attempts=(whole("U0"),))
    assert plan(again) == []


def test_a_gpu_accepts_no_jobs_until_its_ended_attempt_has_released_it() -> None:
    ended = whole("U0", state=AttemptState.ENDED, survivors=(77,), swept_boot=999.5, signalled_boot=999.5)
    wait = next(
        a
        for a in plan(round_of(1, group(HALF, (1, 0)), attempts=(ended,)))
        if isinstance(a, act.SetWaitReason)
    )
    assert "quarantined: job 90 left process 77" in wait_text(wait.reason)
    # The sample was taken before the release.
    released = replace(ended, state=AttemptState.RELEASED, released_boot=999.5)
    wait = next(
        a
        for a in plan(round_of(1, group(HALF, (1, 0)), attempts=(released,)))
        if isinstance(a, act.SetWaitReason)
    )
    assert "awaiting memory release" in wait_text(wait.reason)
    cool = replace(released, released_boot=998.0)
    actions = plan(round_of(1, group(HALF, (1, 0)), attempts=(cool,)))
    assert actions[0] == act.AttemptChanged(cool, cool.closed())
    assert starts(actions) == {1: ("U0",)}


def test_foreign_memory_is_the_memory_of_processes_without_an_attempt() -> None:
    listed = (GpuProcess(1, 5000), GpuProcess(2, 3000), GpuProcess(3, 400, graphics_only=True))
    ours = gpu(0, 8500, listed, owners={1: 9, 2: None, 3: None})
    assert foreign_memory(ours, (whole("U0"),), LIMITS) == 3000
    shown = ledger_of(ours, (whole("U0", share=500),), LIMITS)
    assert (shown.allocated_share, shown.foreign_mib, shown.foreign_pid) == (500, 3000, 2)


def test_a_misplaced_process_counts_as_foreign() -> None:
    stray = gpu(1, 5000, (GpuProcess(1, 5000),), owners={1: 9})
    shown = ledger_of(stray, (whole("U0"),), LIMITS)
    assert (shown.allocated_share, shown.foreign_mib, shown.foreign_pid) == (0, 5000, 1)


def test_foreign_memory_is_computed_from_totals_if_there_is_no_process_list() -> None:
    blind = gpu(0, 20_000, None)
    assert foreign_memory(blind, (), LIMITS) == 20_000
    half = whole("U0", share=500, baseline_mib={"U0": 1000})
    assert foreign_memory(blind, (half,), LIMITS) == 20_000 - 12_288
    assert foreign_memory(gpu(0, 9000, None), (half,), LIMITS) == 1000


def answered(*requests: tuple[str, str], **values: object) -> list[act.Action]:
    made = tuple(Request(n, verb, target) for n, (verb, target) in enumerate(requests, 1))
    return plan(round_of(1, requests=made, **values))


TRUE = JobSpec("command", "true", "/w", command="true").to_json()
QUEUED = {7: Job(7, JobState.QUEUED, spec_json=TRUE)}


@pytest.mark.parametrize(
    ("verb", "state", "expected"),
    [
        ("cancel", JobState.QUEUED, JobState.FINISHED),
        ("cancel", JobState.HELD, JobState.FINISHED),
        ("cancel", JobState.STARTING, "stop"),
        ("cancel", JobState.RUNNING, "stop"),
        ("cancel", JobState.FINISHED, None),
        ("retry", JobState.FINISHED, JobState.QUEUED),
        ("retry", JobState.HELD, JobState.QUEUED),
        ("retry", JobState.RUNNING, None),
        ("hold", JobState.QUEUED, JobState.HELD),
        ("hold", JobState.RUNNING, None),
        ("release", JobState.HELD, JobState.QUEUED),
        ("release", JobState.QUEUED, None),
        ("line_removed", JobState.QUEUED, JobState.FINISHED),
        ("line_removed", JobState.RUNNING, None),
        ("clear", JobState.FINISHED, "cleared_at"),
        ("clear", JobState.HELD, None),
        ("recover", JobState.HELD, None),
        ("recover", JobState.FINISHED, None),
    ],
)
def test_every_request_is_answered_whether_carried_out_or_refused(
    verb: str, state: JobState, expected: JobState | str | None
) -> None:
    """expected: the next state of the job, or the value that changes instead; None if it is refused."""
    actions = answered((verb, "7"), jobs={7: Job(7, state, Outcome.COMPLETED)})
    assert isinstance(actions[-1], act.AnswerRequest)
    if expected is None:
        assert len(actions) == 1
        assert actions[-1].answer.is_refusal
    else:
        [job] = changed_jobs(actions[:1])
        if isinstance(expected, JobState):
            assert job.state is expected
        else:
            assert (job.state, getattr(job, expected) is not None) == (state, True)
        assert not actions[-1].answer.is_refusal


def test_a_second_request_for_a_job_waits_for_the_next_round() -> None:
    actions = answered(("hold", "7"), ("release", "7"), ("pause", "U0"), jobs=QUEUED)
    [job], [paused] = changed_jobs(actions), changed_gpus(actions)
    assert (job.state, paused.paused) == (JobState.HELD, True)
    kinds = (act.JobChanged, act.AnswerRequest, act.GpuChanged, act.AnswerRequest)
    assert tuple(map(type, actions)) == kinds


def test_a_cancel_is_recorded_before_its_attempt_is_reconciled() -> None:
    late = whole("U0", state=AttemptState.STARTING, status=AttemptStatus(), launch_deadline_boot=0.0)
    assert plan(round_of(1, attempts=(late,))) == [act.Relaunch(9)]
    wish = (Request(1, "cancel", "90"),)
    actions = plan(round_of(1, attempts=(late,), requests=wish, jobs={90: Job(90, JobState.STARTING)}))
    assert [type(action) for action in actions] == [act.JobChanged, act.AnswerRequest]
    assert [job_id for job_id, _ in stops_in(actions)] == [90]


def test_stop_with_jobs_cancels_running_jobs_and_starts_no_more() -> None:
    stop = (Request(1, "stop", args={"jobs": True, "grace_s": 2}),)
    live = whole("U0")
    asked = round_of(2, group(HALF, (1, 0)), attempts=(live,), requests=stop)
    assert plan(asked) == [act.stopped(live.job, StopRequest("cancelled", 2.0))]
    stop_request = StopRequest("cancelled", 2.0)
    dying = whole("U0", stop_request=stop_request, signalled_boot=999.9, state=AttemptState.STOPPING)
    told = replace(dying, status=AttemptStatus(claim="live", stop=StopRequest("cancelled", 2.0)))
    assert plan(replace(asked, attempts=(told,))) == []
    left = whole("U0", state=AttemptState.ENDED)
    assert plan(replace(asked, attempts=(left,))) == []
    gone = whole("U0", state=AttemptState.RELEASED, released_boot=998.0)
    assert [type(a).__name__ for a in plan(replace(asked, attempts=(gone,)))] == [
        "EndScheduler",
        "AnswerRequest",
    ]


@pytest.mark.parametrize(
    ("line_wait", "expected"),
    [
        # It could not be overtaken while the queue in Redis kept it from starting.
        (WaitReason(WaitKind.NOT_CONFIRMED), (False, None, NOW.wall)),
        (None, (False, None, 5.0)),
    ],
)
def test_a_job_waits_for_gpus_from_its_confirmation_on(
    line_wait: WaitReason | None, expected: tuple[bool, WaitReason | None, float]
) -> None:
    gated = Job(7, source_missing=line_wait is not None, line_wait=line_wait, queued_at=5.0)
    asked = round_of(1, requests=(Request(1, "confirm", "7"),), jobs={7: gated})
    change = plan(asked)[0]
    assert isinstance(change, act.JobChanged)
    assert (change.new.source_missing, change.new.line_wait, change.new.queued_at) == expected


def test_removing_hold_from_a_line_releases_only_a_job_held_by_that_line() -> None:
    drop = (Request(1, "set", "7", {"name": "hold", "value": False}),)
    saved = Checkpoint("/saved")
    held = Job(7, JobState.HELD, held_by="line", spec_json=TRUE, resume_from=saved)
    by_line = plan(round_of(1, requests=drop, jobs={7: held}))
    *_, released = [one for one in by_line if isinstance(one, act.JobChanged)]
    assert (released.new.state, released.new.resume_from) == (JobState.QUEUED, saved)
    assert released.because == StateReason(ReasonKind.RELEASED_BY_LINE)
    by_user = plan(round_of(1, requests=drop, jobs={7: replace(held, held_by="user")}))
    assert all(job.state is JobState.HELD for job in changed_jobs(by_user))


def test_a_drain_ends_once_every_waiting_job_needs_action_from_the_user() -> None:
    idle = round_of(2)
    assert is_drained(idle, [], False)
    assert not is_drained(idle, [HALF], False)
    assert not is_drained(idle, [], True)
    assert is_drained(idle, [ResourceSpec(gpus=3)], False)
    assert not is_drained(replace(idle, attempts=(whole("U0"),)), [], False)
    paused = replace(idle, gpus=tuple(replace(g, paused=True) for g in idle.gpus))
    assert is_drained(paused, [HALF], False)
    assert is_drained(replace(idle, all_sampled=False), [], False)
    assert not is_drained(replace(idle, all_sampled=False), [ResourceSpec(gpus=3)], False)


def test_places_no_jobs_in_a_round_that_finishes_an_attempt() -> None:
    starting = whole("U0", state=AttemptState.STARTING)
    actions = plan(round_of(2, group(HALF, (1, 0)), attempts=(starting,)))
    assert actions == [act.AttemptChanged(starting, starting.running(NOW))]


def test_a_start_records_unattributed_memory_as_its_baseline() -> None:
    left = gpu(0, 900, (GpuProcess(1, 300),), owners={1: None}, foreign_peaks={(1, 0.0): 300})
    [start] = plan(replace(round_of(0, group(HALF, (1, 0))), gpus=(left,)))
    assert start == act.Start(1, ("U0",), 500, (("U0", 600),))


def test_a_gpu_without_a_sample_or_with_a_fault_accepts_no_jobs() -> None:
    unseen = Gpu("U0", 0)
    assert "GPU 0: not reported by the probe" in wait_reason_on(unseen)
    lost = replace(gpu(0), sample=GpuSample("U0", 0, "GPU", 24576, None, None, None, LOST))
    assert "GPU 0: lost" in wait_reason_on(lost)
    assert "GPU 0: paused" in wait_reason_on(gpu(0, paused=True))


def wait_reason_on(one: Gpu) -> str:
    [wait] = plan(replace(round_of(0, group(HALF, (1, 0))), gpus=(one,)))
    assert isinstance(wait, act.SetWaitReason)
    return wait_text(wait.reason)


def test_a_released_attempt_has_no_allocation() -> None:
    released = whole("U0", state=AttemptState.RELEASED, released_boot=990.0)
    assert ledger_of(gpu(0), (released,), LIMITS).minus([released.id]).allocated_share == 0


def test_foreign_memory_is_computed_from_totals_if_a_process_has_unknown_memory() -> None:
    vague = gpu(0, 7000, (GpuProcess(1, None), GpuProcess(2, 50)))
    assert foreign_memory(vague, (), LIMITS) == 7000
    crowd = gpu(0, 7000, (GpuProcess(1, 10), GpuProcess(2, 5000), GpuProcess(3, 60)))
    assert ledger_of(crowd, (), LIMITS).foreign_pid == 2


def test_a_drain_considers_which_gpus_a_line_allows() -> None:
    paused = tuple(replace(g, paused=g.index == 0) for g in round_of(2).gpus)
    assert is_drained(replace(round_of(2), gpus=paused), [ResourceSpec(share=500, allowed=(0,))], False)
    assert not is_drained(replace(round_of(2), gpus=paused), [ResourceSpec(share=500, allowed=(0, 1))], False)


def test_resume_and_requeue_events_contain_their_reasons() -> None:
    paused = replace(
        round_of(1, requests=(Request(1, "resume", "U0"),)), gpus=(replace(gpu(0), paused=True),)
    )
    assert [one.paused for one in changed_gpus(plan(paused))] == [False]
    wish = (Request(1, "requeue", "7", {"added_to": "jobs.txt"}),)
    done = {7: Job(7, JobState.FINISHED, Outcome.FAILED)}
    added = StateReason(ReasonKind.LINE_ADDED_AGAIN, subject="jobs.txt")
    again = act.JobChanged(done[7], done[7].queued_again(NOW), added)
    assert plan(round_of(1, requests=wish, jobs=done))[0] == again
    cancel = (Request(1, "set", "7", {"name": "cancel", "value": True}),)
    *_, job = changed_jobs(plan(round_of(1, requests=cancel, jobs=QUEUED)))
    by_line = StateReason(ReasonKind.CANCELLED_BY_LINE)
    assert (job.state, job.outcome, job.reason) == (JobState.FINISHED, Outcome.CANCELLED, by_line)


def test_a_job_that_is_retried_in_the_round_of_a_clear_is_in_the_lists_again() -> None:
    done = {7: Job(7, JobState.FINISHED, Outcome.FAILED)}
    wishes = (Request(1, "clear"), Request(2, "retry", "7"))
    [change] = [
        one for one in plan(round_of(1, requests=wishes, jobs=done)) if isinstance(one, act.JobChanged)
    ]
    assert (change.old.cleared_at, change.new.cleared_at) == (NOW.wall, None)


def test_a_gpu_that_is_not_managed_can_be_paused() -> None:
    other = gpu(5)
    pausing = round_of(1, requests=(Request(1, "pause", "U5"),), other_gpus=(other,))
    assert plan(pausing)[0] == act.GpuChanged(other, replace(other, paused=True))


def test_every_job_waits_while_there_is_a_storage_issue() -> None:
    disk = WaitReason(WaitKind.STORAGE, "disk")
    full = round_of(
        2, group(HALF, (1, 0)), group(TWO, (2, 0), reason=disk), storage_issue="disk", probe_error="hangs"
    )
    assert plan(full) == [act.SetWaitReason(HALF.key(), disk)]
    assert starts(plan(replace(full, storage_issue=None, probe_error=None))) == {1: ("U0",)}
    pausing = replace(full, requests=(Request(1, "pause", "U0"),))
    assert [(one.uuid, one.paused) for one in changed_gpus(plan(pausing))] == [("U0", True)]


def gpu_of_size(index: int, total: int | None, **values: object) -> Gpu:
    sample = GpuSample(f"U{index}", index, "GPU", total, 0, 0.0, ())
    return replace(gpu(index), sample=sample, **values)


def test_a_drain_does_not_wait_for_a_job_larger_than_every_gpu() -> None:
    small, large = gpu_of_size(0, 8192), gpu_of_size(1, 24_576)
    both = replace(round_of(0), gpus=(small, large))
    nine = ResourceSpec(vram=9000)
    assert not is_drained(both, [nine], False)
    assert is_drained(both, [nine, ResourceSpec(vram=9000, gpus=2)], False) is False
    assert is_drained(both, [ResourceSpec(vram=9000, gpus=2)], False)
    assert is_drained(both, [ResourceSpec(vram=24_065)], False)
    assert not is_drained(both, [ResourceSpec(vram=24_064)], False)
    assert is_drained(both, [ResourceSpec(vram=9000, allowed=(0,))], False)
    # Only the user can resume the paused GPU, which is the only one large enough. A GPU of unknown size may
    # be large enough.
    assert is_drained(replace(both, gpus=(small, replace(large, paused=True))), [nine], False)
    assert not is_drained(replace(both, gpus=(small, gpu_of_size(1, None))), [nine], False)
    assert not is_drained(replace(both, gpus=(small, Gpu("U1", 1))), [nine], False)


FAMILY = '["train.py", null]'


@pytest.mark.parametrize(
    ("learned", "alone"),
    [
        (9000, False),
        (24_576 - 512 - 200, False),
        # Learned memory is ignored if it leaves no room on a GPU or exceeds every GPU.
        (24_576 - 512 - 199, True),
        (30_000, True),
        (None, True),
    ],
)
def test_learned_memory_applies_only_if_it_leaves_room_on_a_gpu(learned: int | None, alone: bool) -> None:
    ask = ResourceSpec(is_command=True, workload_class=FAMILY)
    known = {} if learned is None else {FAMILY: learned}
    world = round_of(1, group(ask, (1, 0), (2, 0)), learned_mib=known)
    [start] = [a for a in plan(world) if isinstance(a, act.Start) and a.job_id == 1]
    assert (start.whole, start.vram) == ((True, None) if alone else (False, learned))
    need = need_of(ask, replace(world, settings=Settings(exclusive=True)))
    assert need.exclusive
    assert need.vram == (None if alone else learned)


def test_learned_memory_is_limited_by_the_gpus_that_the_job_may_use() -> None:
    world = replace(
        round_of(0), gpus=(gpu_of_size(0, 8192), gpu_of_size(1, 24_576)), learned_mib={FAMILY: 9000}
    )
    assert need_of(ResourceSpec(is_command=True, workload_class=FAMILY), world).vram == 9000
    assert need_of(ResourceSpec(is_command=True, workload_class=FAMILY, allowed=(0,)), world).alone
    assert need_of(ResourceSpec(is_command=True, workload_class="another"), world).alone
    assert need_of(ResourceSpec(vram=20_000), world).vram == 20_000


def test_reports_an_infeasible_need_with_numbers_until_the_gpus_change() -> None:
    ask = ResourceSpec(vram=30_000)
    [wait] = plan(round_of(2, group(ask, (1, 0))))
    assert isinstance(wait, act.SetWaitReason)
    assert wait.reason.is_infeasible
    assert wait_text(wait.reason) == (
        "infeasible: needs 29.3 GiB of a GPU, but the largest managed GPU has 24.0 GiB, of which 23.5 GiB"
        " can be allocated to jobs (margin 512 MiB)"
    )
    larger = replace(
        round_of(0, group(ask, (1, 0), reason=wait.reason)), gpus=(gpu(0), gpu_of_size(1, 81_920))
    )
    assert starts(plan(larger)) == {1: ("U1",)}
    busy = replace(larger, attempts=(whole("U1", whole=True),))
    [wait] = plan(busy)
    assert isinstance(wait, act.SetWaitReason)
    assert (wait.reason.is_infeasible, wait_text(wait.reason)) == (
        False,
        "needs 29.3 GiB of a GPU, 0 free (GPU 0: room for 23.5 GiB; GPU 1: full)",
    )


def test_a_start_allocates_the_declared_share_and_memory() -> None:
    asks = (
        ResourceSpec(vram=5000, share=250, exclusive=True),
        ResourceSpec(vram=6000),
        ResourceSpec(share=2000),
        ResourceSpec(is_command=True),
        ResourceSpec(),
        ResourceSpec(llm="qwen"),
    )
    world = round_of(7, *(group(ask, (n, 0)) for n, ask in enumerate(asks, 1)))
    world = replace(world, config=LlmConfig(models={"qwen": Requirement(1000)}))
    found = [
        (a.job_id, len(a.gpus), a.share, a.vram, a.whole, a.assumed)
        for a in plan(world)
        if isinstance(a, act.Start)
    ]
    assert found == [
        (1, 1, 250, 5000, True, False),
        (2, 1, 0, 6000, False, False),
        (3, 2, 1000, None, False, False),
        (4, 1, 1000, None, True, True),
        (5, 1, 1000, None, False, True),
        (6, 1, 1000, None, False, False),
    ]
