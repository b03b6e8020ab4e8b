"""The availability of a GPU, based on its allocations, foreign use and committed memory."""

from __future__ import annotations

import re

import pytest

from gpu_scheduler.core.model.gpu import Gpu, GpuClaim, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.gpu_use import (
    display_memory,
    foreign_load,
    foreign_memory,
    foreign_peaks,
    ledger_of,
    listed_processes,
    unattributed_memory,
)
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from gpu_scheduler.show.gpu_text import obstacle_text
from gpu_scheduler.show.wait_text import wait_text
from tests.attempts import replace
from tests.core.gpu_world import TOTAL, facts, gpu, group, ledgers, running

LIMITS = Limits()
ALONE, HALF, WHOLE = ResourceSpec(is_command=True), ResourceSpec(share=500), ResourceSpec(share=1000)


def available(one: Gpu, *attempts: ActiveAttempt) -> Ledger:
    return ledger_of(one, attempts, LIMITS)


def start_or_reason(one: Gpu, resources: ResourceSpec, *attempts: ActiveAttempt) -> act.Start | str:
    """Records the sample.

    Then returns the start of a job with this resource spec, or the text of why it waits.
    """
    loads = (*one.foreign_loads, foreign_load(one, attempts, LIMITS))[-3:]
    noted = replace(
        one,
        foreign_peaks=foreign_peaks(one, attempts),
        foreign_loads=loads,
        foreign_load_boot=one.sampled_boot,
    )
    [action] = plan(facts(noted, attempts=attempts, pending_groups=(group(resources, 1),)))
    assert isinstance(action, (act.Start, act.SetWaitReason))
    return action if isinstance(action, act.Start) else wait_text(action.reason)


def loaded_gpu(
    load: float, used: int | None, processes: tuple[GpuProcess, ...] | None, **values: object
) -> Gpu:
    """Returns a GPU with this load in its first sample, which is not recorded yet."""
    one = gpu(0, used, processes, mean_load=load, foreign_loads=(), foreign_load_boot=None, **values)
    assert one.sample is not None
    return replace(one, sample=replace(one.sample, load_percent=load))


def test_adds_up_the_allocations_of_a_gpu_by_share_memory_or_whole_gpu() -> None:
    found = available(
        gpu(0),
        running(1, share=250),
        running(2, vram=6144),
        running(3, share=100, vram=1000, peaks={"U0": 2000}),
    )
    assert (found.allocated_share, found.committed_mib) == (250 + 250 + 100, 6144 + 6144 + 2200)
    assert (found.total_mib, found.closed) == (TOTAL, None)


@pytest.mark.parametrize("values", [{"share": 1000, "whole": True}, {"vram": 5, "whole": True}, {}])
def test_an_attempt_with_whole_gpus_takes_up_all_share_and_memory(values: dict[str, int]) -> None:
    found = available(gpu(0), running(1, **values))
    assert (found.allocated_share, found.committed_mib) == (1000, TOTAL)


def test_an_attempts_peak_counts_only_on_the_gpu_where_it_occurred() -> None:
    attempt = running(1, "U0", "U1", vram=5000, peaks={"U1": 9000})
    both = facts(gpu(0), gpu(1), attempts=(attempt,))
    assert [one.committed_mib for one in ledgers(both)] == [5000, 9900]


def test_a_gpu_is_unavailable_after_its_release_until_its_memory_is_free() -> None:
    released = running(1, vram=5000, state=AttemptState.RELEASED, released_boot=999.5)
    found = available(gpu(0), released)
    assert found.closed == GpuObstacle(0, ObstacleKind.AWAITING_MEMORY)
    left = found.minus([released.id])
    assert (left.allocated_share, left.committed_mib, left.closed) == (0, 0, None)


def test_a_foreign_process_counts_at_its_buffered_peak_until_it_exits() -> None:
    ramped = gpu(0, None, (GpuProcess(7, 2000),), process_starts={7: 3.0}, foreign_peaks={(7, 3.0): 8000})
    found = available(ramped)
    assert (found.committed_mib, found.foreign_mib, found.foreign_pid) == (8800, 2000, 7)
    # The process uses no memory now, but it still runs and may reach its peak again.
    assert available(gpu(0, foreign_peaks={(7, 3.0): 8000})).committed_mib == 8800
    assert available(gpu(0)).committed_mib == 0


def test_a_foreign_process_with_a_reused_pid_starts_a_new_peak() -> None:
    again = gpu(0, None, (GpuProcess(7, 100),), process_starts={7: 5.0})
    assert foreign_peaks(again, ()) == {(7, 5.0): 100}
    assert foreign_peaks(replace(again, foreign_peaks={(7, 3.0): 8000}), ()) == {
        (7, 3.0): 8000,
        (7, 5.0): 100,
    }
    assert foreign_peaks(replace(again, process_starts={}), ()) == {(7, 0.0): 100}


def test_each_foreign_process_counts_at_the_higher_of_peak_and_sample() -> None:
    two = gpu(0, None, (GpuProcess(7, 2001), GpuProcess(8, 5)), foreign_peaks={(7, 0.0): 10})
    assert foreign_peaks(two, ()) == {(7, 0.0): 2001, (8, 0.0): 5}
    assert available(two).committed_mib == 2202 + 6


def test_drops_the_foreign_peak_of_a_process_that_turns_out_to_belong_to_a_job() -> None:
    ours = gpu(
        0,
        None,
        (GpuProcess(7, 2000),),
        owners={7: 1},
        process_starts={7: 3.0},
        foreign_peaks={(7, 3.0): 8000},
    )
    assert foreign_peaks(ours, (running(1, vram=4000),)) == {}
    assert available(ours, running(1, vram=4000)).committed_mib == 4000
    assert plan(facts(ours, attempts=(running(1, vram=4000),))) == [
        act.GpuChanged(ours, replace(ours, foreign_peaks={}))
    ]


def test_records_the_peak_of_a_misplaced_process_as_a_foreign_peak() -> None:
    misplaced = gpu(1, None, (GpuProcess(7, 2000),), owners={7: 1})
    attempt = running(1, "U0", vram=4000)
    assert foreign_peaks(misplaced, (attempt,)) == {(7, 0.0): 2000}
    assert available(misplaced, attempt).committed_mib == 2200


def test_memory_already_in_use_is_never_allocated() -> None:
    over = gpu(0, 20_000, (GpuProcess(7, 20_000),), owners={7: 1})
    assert available(over, running(1, vram=4000)).committed_mib == 20_000
    assert available(over, running(1, vram=4000, peaks={"U0": 20_000})).committed_mib == 22_000


@pytest.mark.parametrize(
    ("one", "complete"),
    [
        (gpu(0, None, (GpuProcess(7, 5),)), True),
        (gpu(0), True),
        (gpu(0, 5, None), False),
        (gpu(0, 5, (GpuProcess(7, 5), GpuProcess(8, None))), False),
        (gpu(0, None, (GpuProcess(7, 5),), has_unmatched_process=True), False),
        (Gpu("U0", 0), False),
    ],
)
def test_reports_the_processes_of_a_gpu_only_if_all_are_known(one: Gpu, complete: bool) -> None:
    assert (listed_processes(one) is not None) == complete


TOTALS = [
    (gpu(0, 9000, None)),
    gpu(0, 9000, (GpuProcess(7, 9000),), owners={7: 1}, has_unmatched_process=True),
]


@pytest.mark.parametrize("one", TOTALS, ids=["no list", "unmatched"])
def test_without_a_process_list_foreign_memory_is_the_total_minus_our_own(one: Gpu) -> None:
    assert foreign_memory(one, (), LIMITS) == 9000
    assert available(one).committed_mib == 9900
    assert (available(one).foreign_pid, available(one).processes_listed) == (None, False)
    ours = running(1, vram=6000, baseline_mib={"U0": 1000})
    assert foreign_memory(one, (ours,), LIMITS) == 3000
    assert available(one, ours).committed_mib == 6000 + 3300
    assert foreign_memory(one, (replace(ours, vram=8500),), LIMITS) == 1000
    assert available(one, replace(ours, vram=8500)).committed_mib == 8500 + 1100
    assert (
        foreign_memory(one, (replace(ours, state=AttemptState.RELEASED, released_boot=5.0),), LIMITS) == 9000
    )


def test_without_a_process_list_a_jobs_own_load_does_not_block_the_other_half_of_its_gpu() -> None:
    one = loaded_gpu(97.0, 12_000, None)
    ours = running(1, share=500)
    assert available(one, ours).foreign_pid is None
    assert isinstance(start_or_reason(one, HALF, ours), act.Start)
    assert "load 97 %" in str(start_or_reason(loaded_gpu(97.0, 300, None), HALF))


@pytest.mark.parametrize(("mib", "who"), [(0, ""), (200, ""), (201, ", foreign processes use 201 MiB")])
def test_without_a_process_list_a_little_used_memory_does_not_count_as_a_foreign_process(
    mib: int, who: str
) -> None:
    short = available(gpu(0, mib, None)).obstacle(Need(1, vram=TOTAL))
    assert short is not None
    assert re.sub("room for [0-9.]+ GiB", "", obstacle_text(short)) == who


def test_foreign_memory_is_unknown_if_the_driver_reports_no_memory() -> None:
    unsampled = available(gpu(0, None, None))
    assert (unsampled.foreign_mib, unsampled.committed_mib) == (None, None)
    assert available(Gpu("U0", 0)).committed_mib is None
    sized = replace(
        gpu(0, None, (GpuProcess(7, 30),)), sample=GpuSample("U0", 0, "GB10", None, None, 0.0, ())
    )
    assert (available(sized).foreign_mib, available(sized).committed_mib, available(sized).total_mib) == (
        0,
        None,
        None,
    )


def unified(used: int, *processes: GpuProcess, listed: bool = True) -> Gpu:
    """Returns a GPU that uses the memory of a machine, which has as much memory as other GPUs."""
    one = gpu(0, used, processes if listed else None)
    assert one.sample is not None
    return replace(one, sample=replace(one.sample, unified=True))


def test_unified_memory_in_use_by_the_machine_is_committed_but_leaves_the_gpu_idle() -> None:
    busy_machine = unified(10_000)
    assert (available(busy_machine).foreign_mib, available(busy_machine).committed_mib) == (0, 10_000)
    assert unattributed_memory(busy_machine, (), LIMITS) is None
    for resources in (ALONE, HALF, WHOLE, ResourceSpec(vram=14_000)):
        assert isinstance(start_or_reason(busy_machine, resources), act.Start)
    assert "room for 13.7 GiB" in str(start_or_reason(busy_machine, ResourceSpec(vram=15_000)))
    full = unified(int(0.8 * TOTAL) + 600)
    assert "in use by unknown processes" in str(start_or_reason(full, HALF))
    assert isinstance(start_or_reason(full, ResourceSpec(vram=3000)), act.Start)


def test_memory_declared_on_unified_memory_is_kept_beside_that_of_the_machine() -> None:
    ours = running(1, vram=8000)
    beside = unified(9000, GpuProcess(5, 1000))
    beside = replace(beside, owners={5: 1})
    # 8000 MiB of the machine are in use, and 8000 MiB are declared.
    assert available(beside, ours).committed_mib == 8000 + 8000
    assert isinstance(start_or_reason(beside, ResourceSpec(vram=8000), ours), act.Start)
    assert isinstance(start_or_reason(beside, ResourceSpec(vram=9000), ours), str)


def test_a_gpu_with_unified_memory_is_idle_if_the_driver_lists_no_foreign_process() -> None:
    foreign = unified(9000, GpuProcess(7, 5000))
    assert "foreign process 7 uses 4.9 GiB" in str(start_or_reason(foreign, ALONE))
    desktop = unified(9000, GpuProcess(7, 150, graphics_only=True), GpuProcess(8, 180))
    assert isinstance(start_or_reason(desktop, ALONE), act.Start)
    unlisted = start_or_reason(unified(9000, listed=False), ALONE)
    assert "foreign processes use 8.8 GiB; `start --idle-threshold 10000` ignores it" in str(unlisted)
    assert isinstance(start_or_reason(unified(9000, listed=False), ResourceSpec(vram=9000)), act.Start)


def test_a_job_on_unified_memory_is_released_whatever_memory_the_machine_uses() -> None:
    ended = running(1, share=1000, state=AttemptState.RELEASED, released_boot=998.0, baseline_mib={"U0": 0})
    closed = act.AttemptChanged(ended, ended.closed())
    assert closed in plan(facts(unified(12_000), attempts=(ended,)))
    assert closed not in plan(facts(gpu(0, 12_000), attempts=(ended,)))


@pytest.mark.parametrize(
    ("used", "listed"), [(201, False), (1639, False), (6000, False), (16_000, False), (2048, True)]
)
def test_the_idle_threshold_that_a_wait_reason_names_would_do(used: int, listed: bool) -> None:
    one = gpu(0, used, () if listed else None)
    words = str(start_or_reason(one, ALONE))
    (named,) = re.findall(r"; `start --idle-threshold (\d+)` ignores it", words)
    enough = replace(LIMITS, idle_threshold_mib=int(named))
    assert ledger_of(one, (), enough).obstacle(Need(1, 1000, alone=True)) is None
    assert int(named) < 1.2 * used + 100
    with_process = start_or_reason(gpu(0, used, (GpuProcess(7, used),)), ALONE)
    assert "idle-threshold" not in str(with_process)


def exclusive(*processes: GpuProcess, used: int | None = None) -> Gpu:
    one = gpu(0, used, processes)
    assert one.sample is not None
    return replace(one, sample=replace(one.sample, exclusive=True))


@pytest.mark.parametrize("resources", [HALF, WHOLE, ResourceSpec(vram=2000), ResourceSpec(share=100)])
def test_a_gpu_in_exclusive_mode_takes_one_job_at_a_time(resources: ResourceSpec) -> None:
    assert isinstance(start_or_reason(exclusive(), resources), act.Start)
    ours = running(1, share=100)
    beside = replace(exclusive(GpuProcess(5, 100)), owners={5: 1})
    reason = str(start_or_reason(beside, resources, ours))
    assert reason.endswith(("(GPU 0: compute mode Exclusive_Process, one job at a time)", "0 free"))
    assert ("Exclusive_Process" in reason) or resources is WHOLE
    small = GpuProcess(7, 10)
    assert str(start_or_reason(exclusive(small), resources)).endswith(
        "(GPU 0: compute mode Exclusive_Process, used by process 7)"
    )
    display = GpuProcess(7, 10, graphics_only=True)
    assert isinstance(start_or_reason(exclusive(display), resources), act.Start)


def test_two_jobs_of_one_round_do_not_share_a_gpu_in_exclusive_mode() -> None:
    actions = plan(facts(exclusive(), gpu(1), pending_groups=(group(ResourceSpec(share=100), 1, 2, 3),)))
    starts = [one.gpus for one in actions if isinstance(one, act.Start)]
    assert sorted(starts) == [("U0",), ("U1",), ("U1",)]


def test_any_claim_of_another_program_closes_a_gpu_in_exclusive_mode() -> None:
    claimed = replace(exclusive(), claims=(GpuClaim(100, 7, "ann"),))
    assert "100 MiB claimed by" in str(start_or_reason(claimed, ResourceSpec(vram=2000)))


def test_unattributed_memory_is_reserved_and_counts_as_foreign_above_the_driver_allowance() -> None:
    left = gpu(0, 5000, (GpuProcess(7, 1000),))
    assert unattributed_memory(left, (), LIMITS) == 4000
    assert (available(left).committed_mib, available(left).foreign_mib) == (1100 + 4000, 1000 + 4000 - 512)
    driver = gpu(0, 512)
    assert (available(driver).committed_mib, available(driver).foreign_mib) == (512, 0)
    assert isinstance(start_or_reason(driver, ALONE), act.Start)
    assert str(start_or_reason(gpu(0, 22_118), ALONE)).endswith(
        "(GPU 0: 21.1 GiB in use by unknown processes or the driver)"
    )
    assert isinstance(start_or_reason(gpu(0, 713), ALONE), str)
    assert isinstance(start_or_reason(gpu(0, 712), ALONE), act.Start)


def test_unattributed_memory_may_belong_to_a_job_whose_process_is_not_listed_yet() -> None:
    unlisted = gpu(0, 9000)
    ours = running(1, vram=10_000, baseline_mib={"U0": 300})
    assert (available(unlisted, ours).committed_mib, available(unlisted, ours).foreign_mib) == (10_300, 0)
    assert available(gpu(0, 14_000), ours).committed_mib == 10_000 + 4000
    assert available(gpu(0, 14_000), ours).foreign_mib == 4000 - 512
    shown = gpu(0, 9000, (GpuProcess(7, 1000),), owners={7: 1})
    assert available(shown, ours).committed_mib == 10_000 + 8000
    # Memory that was in use before the job started stays unattributed.
    stuck = replace(ours, baseline_mib={"U0": 5000})
    assert available(unlisted, stuck).committed_mib == 10_000 + 5000
    assert available(gpu(0, 2000), stuck).committed_mib == 10_000 + 2000


def test_a_display_process_reserves_its_memory_but_does_not_block_a_job_with_a_whole_gpu() -> None:
    desktop = loaded_gpu(97.0, 60, (GpuProcess(7, 60, graphics_only=True, load_percent=97.0),))
    found = available(desktop)
    assert (found.foreign_mib, found.foreign_pid, found.committed_mib) == (0, None, 66)
    assert display_memory(desktop, LIMITS) == 66
    assert (
        display_memory(gpu(0, None, (GpuProcess(7, 60, graphics_only=True), GpuProcess(8, 900))), LIMITS)
        == 66
    )
    for ask in (ALONE, WHOLE, ResourceSpec(vram=TOTAL - 66 - 512)):
        assert isinstance(start_or_reason(desktop, ask), act.Start)
    assert isinstance(start_or_reason(desktop, ResourceSpec(vram=TOTAL - 65 - 512)), str)


def test_foreign_memory_above_the_threshold_blocks_jobs_without_declared_memory() -> None:
    crowded = gpu(0, 22_118, (GpuProcess(7, 22_118),))
    for ask in (ALONE, WHOLE, HALF):
        assert "foreign process 7 uses 21.6 GiB" in str(start_or_reason(crowded, ask))


def test_foreign_load_blocks_a_gpu_but_the_load_of_our_own_jobs_does_not() -> None:
    colleague = loaded_gpu(97.0, None, (GpuProcess(7, 1000, load_percent=97.0),))
    for ask in (WHOLE, HALF, ResourceSpec(vram=1000)):
        assert "foreign process 7, load 97 %" in str(start_or_reason(colleague, ask))
    assert "foreign process 7 uses 1000 MiB" in str(start_or_reason(colleague, ALONE))
    trainer = loaded_gpu(97.0, None, (GpuProcess(7, 1000, load_percent=97.0),), owners={7: 1})
    assert isinstance(start_or_reason(trainer, HALF, running(1, share=500)), act.Start)
    assert isinstance(start_or_reason(trainer, ResourceSpec(vram=11_776), running(1, share=500)), act.Start)
    assert isinstance(start_or_reason(trainer, ResourceSpec(vram=11_777), running(1, share=500)), str)


def test_a_job_with_declared_memory_may_share_a_gpu_with_foreign_processes_that_leave_room() -> None:
    most = gpu(0, 20_000, (GpuProcess(7, 20_000),))
    assert isinstance(start_or_reason(most, ResourceSpec(vram=2000)), act.Start)
    assert isinstance(start_or_reason(most, ResourceSpec(vram=2000, share=500)), act.Start)
    assert "room for 2.0 GiB" in str(start_or_reason(most, ResourceSpec(vram=3000)))
    assert "foreign process 7 uses 19.5 GiB" in str(start_or_reason(most, HALF))


OURS, THEIRS = GpuProcess(7, 5000, load_percent=90.0), GpuProcess(8, 500, load_percent=30.0)
DISPLAY = GpuProcess(9, 60, graphics_only=True, load_percent=50.0)
WITHOUT_LOAD = GpuProcess(8, 500)


@pytest.mark.parametrize(
    ("processes", "with_ours", "without_ours"),
    [
        # If each process reports its load, the load of the GPU (95 percent) is not used.
        ((OURS, THEIRS), 30.0, 100.0),
        ((OURS, THEIRS, DISPLAY), 30.0, 100.0),
        ((OURS, DISPLAY), 0.0, 90.0),
        ((DISPLAY,), 0.0, 0.0),
        ((THEIRS, GpuProcess(6, 1, load_percent=80.0)), 100.0, 100.0),
        ((THEIRS,), 30.0, 30.0),
        ((), 0.0, 0.0),
        # Otherwise the load of the GPU counts, but only if not allocated is on it.
        ((OURS, WITHOUT_LOAD), None, 95.0),
        ((WITHOUT_LOAD, GpuProcess(6, 1, load_percent=80.0)), None, 95.0),
        ((replace(OURS, load_percent=None), WITHOUT_LOAD), None, 95.0),
        (None, None, 95.0),
    ],
)
def test_foreign_load_excludes_the_processes_of_our_jobs(
    processes: tuple[GpuProcess, ...] | None, with_ours: float | None, without_ours: float | None
) -> None:
    one, ours = loaded_gpu(95.0, 5600 if processes is None else None, processes, owners={7: 1}), running(1)
    assert foreign_load(one, (ours,), LIMITS) == with_ours
    assert foreign_load(replace(one, owners={}), (), LIMITS) == without_ours
    released = replace(ours, state=AttemptState.RELEASED, released_boot=999.5)
    assert foreign_load(one, (released,), LIMITS) == with_ours
    # The job is allocated another GPU, so its process is foreign on this one.
    assert foreign_load(one, (replace(ours, gpus=("U1",)),), LIMITS) == without_ours


@pytest.mark.parametrize(
    "untold",
    [
        {"has_unmatched_process": True},
        {"sample": GpuSample("U0", 0, "GPU", TOTAL, 9000, 95.0, (THEIRS,))},
    ],
    ids=["a pid of another namespace", "a process that is not listed"],
)
def test_foreign_load_is_unknown_if_the_load_cannot_be_attributed(untold: dict[str, object]) -> None:
    one = replace(loaded_gpu(95.0, None, (THEIRS,)), **untold)
    assert foreign_load(one, (), LIMITS) == 95.0
    assert foreign_load(one, (running(1, vram=1000),), LIMITS) is None
    assert foreign_load(Gpu("U0", 0), (), LIMITS) is None


@pytest.mark.parametrize(
    ("loads", "mean"),
    [((), None), ((None,), None), ((90.0,), 90.0), ((0.0, 0.0, 90.0), 30.0), ((None, 70.0, 90.0), 80.0)],
)
def test_averages_only_the_known_foreign_loads(loads: tuple[float | None, ...], mean: float | None) -> None:
    assert available(gpu(0, foreign_loads=loads)).mean_foreign_load == mean


def test_places_a_job_with_a_half_share_beside_a_busy_job_of_ours() -> None:
    two = (GpuProcess(7, 5000, load_percent=90.0), GpuProcess(8, 5, load_percent=0.0))
    ours = running(1, share=500)
    assert isinstance(start_or_reason(loaded_gpu(90.0, None, two, owners={7: 1}), HALF, ours), act.Start)
    untold = tuple(replace(process, load_percent=None) for process in two)
    assert isinstance(start_or_reason(loaded_gpu(90.0, None, untold, owners={7: 1}), HALF, ours), act.Start)
    more = (two[0], GpuProcess(8, 5000, load_percent=85.0))
    assert "foreign process 8, load 85 %" in str(
        start_or_reason(loaded_gpu(90.0, None, more, owners={7: 1}), HALF, ours)
    )


def test_does_not_start_two_jobs_that_together_exceed_the_free_memory() -> None:
    three = facts(gpu(0), gpu(1), pending_groups=(group(ResourceSpec(vram=14_336), 1, 2, 3),))
    actions = plan(three)
    assert [(a.job_id, a.gpus) for a in actions if isinstance(a, act.Start)] == [(1, ("U0",)), (2, ("U1",))]
    [wait] = [a for a in actions if isinstance(a, act.SetWaitReason)]
    assert wait_text(wait.reason) == (
        "needs 14.0 GiB of a GPU, 0 free (GPU 0: room for 9.5 GiB; GPU 1: room for 9.5 GiB)"
    )


def test_an_allocation_counts_before_the_driver_lists_its_process() -> None:
    started = running(1, vram=14_336, measured_boot=None, launch_deadline_boot=2000.0)
    [wait] = plan(facts(gpu(0), attempts=(started,), pending_groups=(group(ResourceSpec(vram=14_336), 2),)))
    assert isinstance(wait, act.SetWaitReason)


def test_a_start_reduces_what_later_jobs_of_the_same_round_can_get() -> None:
    world = facts(
        gpu(0),
        pending_groups=(
            group(ResourceSpec(vram=5000), 1),
            group(HALF, 2),
            group(ResourceSpec(vram=7000), 3),
            group(ALONE, 4),
        ),
    )
    starts = [a for a in plan(world) if isinstance(a, act.Start)]
    assert [(a.job_id, a.share, a.vram, a.whole) for a in starts] == [
        (1, 0, 5000, False),
        (2, 500, None, False),
    ]
    assert [
        a.job_id
        for a in plan(facts(gpu(0), pending_groups=(group(ALONE, 1), group(HALF, 2))))
        if isinstance(a, act.Start)
    ] == [1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ResourceSpec(vram=5000), ResourceSpec(vram=5000, exclusive=True)),
        (ResourceSpec(vram=5000, exclusive=True), ResourceSpec(vram=5000)),
        (ResourceSpec(vram=12_288), ResourceSpec(share=501)),
        (ResourceSpec(share=500), ResourceSpec(vram=11_777)),
        (ResourceSpec(share=500), ResourceSpec(share=501)),
    ],
)
def test_a_start_planned_in_this_round_counts_like_a_recorded_start(
    first: ResourceSpec, second: ResourceSpec
) -> None:
    world = facts(gpu(0), pending_groups=(group(first, 1), group(second, 2)))
    assert [a.job_id for a in plan(world) if isinstance(a, act.Start)] == [1]
    wider = facts(gpu(0), gpu(1), pending_groups=world.pending_groups)
    assert [a.gpus for a in plan(wider) if isinstance(a, act.Start)] == [("U0",), ("U1",)]


def test_the_setting_exclusive_makes_every_job_exclusive() -> None:
    world = facts(
        gpu(0), pending_groups=(group(ResourceSpec(vram=5000), 1, 2),), settings=Settings(exclusive=True)
    )
    [start] = [a for a in plan(world) if isinstance(a, act.Start)]
    assert (start.job_id, start.whole, start.vram) == (1, True, 5000)


def test_the_wait_reason_names_memory_reserved_for_foreign_peaks() -> None:
    less = gpu(0, None, (GpuProcess(7, 500),), owners={7: None}, foreign_peaks={(7, 0.0): 18_000})
    reason = str(start_or_reason(less, ResourceSpec(vram=10_240)))
    assert reason.endswith("(GPU 0: room for 4.2 GiB, running foreign processes have used up to 17.6 GiB)")
    none = gpu(0, foreign_peaks={(7, 0.0): 18_000})
    assert str(start_or_reason(none, ResourceSpec(vram=10_240))) == reason
    same = gpu(0, None, (GpuProcess(7, 18_000),), owners={7: None})
    assert str(start_or_reason(same, ResourceSpec(vram=10_240))).endswith(
        "GiB, foreign process 7 uses 17.6 GiB)"
    )
