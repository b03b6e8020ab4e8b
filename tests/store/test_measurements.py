"""The measured memory of attempts in the store, and the needs that are learned from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, Job
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.needs import ResourceSpec, workload_class_of
from gpu_scheduler.core.scheduling.reconcile_attempt import was_sent_sigkill
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.intake.state_file_watcher import allocated_shares
from gpu_scheduler.store.attempt_history import LearnedNeedsReader, workload_classes
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_after
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

NOW = Now(1_700_000_000.0, 1000.0, "boot")
BOTH = ("U0", "U1")
#: The sample of one GPU: its UUID, the used MiB, and the load in percent.
Sample = tuple[str, int | None, float | None]
OOM_ONCE_AND_TWO_FAILURES = (changes.OUT_OF_MEMORY, "", "")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(DataDir.of(str(tmp_path / "s.json")), create=True)
    samples = [GpuSample(uuid, index, "card", 24576, 0, 0.0) for index, uuid in enumerate(BOTH)]
    CheckedWriter(made, Settings()).record_gpus(samples, BOTH, NOW)
    return made


def record(store: Store, *actions: act.Action) -> dict[int, int]:
    return CheckedWriter(store, Settings()).record(actions, NOW)


def add(store: Store, text: str = "python train.py", **values: object) -> int:
    return store.insert_job(JobSpec("command", text, "/", command=text, **values), "cli")  # type: ignore[arg-type]


def start(store: Store, job: int, gpus: tuple[str, ...] = ("U0",), **values: Any) -> int:
    return record(store, act.Start(job, gpus, **{"share": 0, **values}))[job]


def use(store: Store, job: int, attempt: int, at: float, *samples: Sample) -> None:
    if attempt_of(store, attempt).state is AttemptState.STARTING:
        record(store, changes.run(attempt))
    record(store, changes.measure(attempt, at, *samples))


def end(store: Store, job: int, attempt: int, outcome: Outcome = Outcome.COMPLETED, **values: Any) -> None:
    record(store, changes.end(attempt, outcome, **values))


def fail(store: Store, job: int, *logs: str) -> None:
    """Records an attempt of a job for the end of each of these logs. Each fails, and is retried."""
    for log in logs:
        attempt = start(store, job)
        record(store, changes.fail(attempt, log), *changes.leave(attempt))


def ran(store: Store, text: str, *peaks: int, outcome: Outcome = Outcome.COMPLETED, **values: Any) -> None:
    """Records a job from start to end, with one GPU for each of these peaks."""
    job = add(store, text)
    attempt = start(
        store,
        job,
        BOTH[: len(peaks)],
        vram=values.pop("vram", None),
        assumed=values.pop("assumed", False),
    )
    if peaks:
        use(store, job, attempt, 1.0, *((uuid, mib, 50.0) for uuid, mib in zip(BOTH, peaks, strict=False)))
    end(store, job, attempt, outcome, **values)


def attempt_of(store: Store, attempt_id: int) -> Attempt:
    attempt = store.attempt(attempt_id)
    assert attempt is not None
    return attempt


def last(store: Store, job: int) -> dict[str, Any]:
    """Returns the data of the newest event of a job."""
    row = store.db.row("SELECT data FROM event WHERE job_id = ? ORDER BY id DESC LIMIT 1", job)
    assert row is not None
    data: dict[str, Any] = json.loads(row["data"])
    return data


def test_keeps_the_peak_of_each_gpu_and_the_time_of_the_last_sample(store: Store) -> None:
    job = add(store)
    attempt = start(store, job, BOTH, vram=9000)
    use(store, job, attempt, 5.0, ("U0", 4000, 40.0), ("U1", None, None))
    use(store, job, attempt, 6.5, ("U0", 3000, 20.0), ("U1", 100, 90.0))
    record = attempt_of(store, attempt)
    assert record.peaks == {"U0": 4000, "U1": 100}
    assert [(one.load_sum, one.load_samples) for one in record.allocations] == [(60.0, 2), (90.0, 1)]
    assert record.measured_boot == 6.5
    end(store, job, attempt)
    # The load is the mean over samples, not over GPUs.
    assert (last(store, job)["peaks"], last(store, job)["load"]) == ([4000, 100], 50.0)


def test_records_each_gpu_on_which_a_job_exceeds_its_declared_memory(store: Store) -> None:
    job = add(store)
    attempt = start(store, job, BOTH, vram=9000)
    use(store, job, attempt, 9.0, *((uuid, 12000, None) for uuid in BOTH))
    assert attempt_of(store, attempt).overused_gpus == BOTH


@pytest.mark.parametrize(
    ("values", "budgets"),
    [
        ({"vram": 9000}, {"U0": 9000, "U1": 9000}),
        ({"share": 250}, {"U0": 6144, "U1": 6144}),
        ({"share": 250, "vram": 9000}, {"U0": 9000, "U1": 9000}),
        ({"share": 1000}, {"U0": 24_576, "U1": 24_576}),
        ({"share": 250, "whole": True}, {"U0": 24_576, "U1": 24_576}),
        ({"vram": 9000, "learned": True}, {"U0": 9000, "U1": 9000}),
        ({"vram": 9000, "assumed": True}, {}),
        ({"share": 500, "assumed": True}, {}),
        ({"share": 1000, "whole": True, "assumed": True}, {}),
    ],
)
def test_keeps_the_declared_memory_on_each_gpu_across_a_restart(
    store: Store, values: dict[str, Any], budgets: dict[str, int]
) -> None:
    job = add(store)
    attempt = start(store, job, BOTH, **values)
    [row] = [row for row in store.active_attempts() if row.id == attempt]
    assert row.budgets == budgets
    end(store, job, attempt)
    assert last(store, job)["budgets"] == (list(budgets.values()) or None)
    assert last(store, job)["declared"] == (values.get("vram") if budgets else None)


def test_a_share_of_a_gpu_of_unknown_size_does_not_declare_memory(store: Store) -> None:
    with store.db.transaction() as db:
        db.execute("UPDATE gpu SET total_mib = NULL WHERE uuid = 'U1'")
    job = add(store)
    attempt = start(store, job, BOTH, share=250)
    end(store, job, attempt)
    assert last(store, job)["budgets"] == [6144, None]


def test_records_that_an_attempt_has_whole_gpus(store: Store) -> None:
    job, other = add(store), add(store)
    assert [attempt_of(store, start(store, one, whole=one == job)).whole for one in (job, other)] == [
        True,
        False,
    ]


def test_the_run_time_is_not_negative_if_the_clock_was_set_back(store: Store) -> None:
    job = add(store)
    end(store, job, start(store, job), started_at=200.0, ended_at=100.0)
    assert last(store, job)["seconds"] == 0.0


def test_records_the_used_retries(store: Store) -> None:
    job = add(store)
    fail(store, job, *OOM_ONCE_AND_TWO_FAILURES)
    row = store.job(job)
    assert row is not None
    assert (row.oom_retries_used, row.fail_retries_used) == (1, 2)


def test_memory_set_by_the_user_overrides_memory_raised_after_an_oom(store: Store) -> None:
    job = add(store, vram=4096)
    record(store, changes.fail(start(store, job, vram=4096), changes.OUT_OF_MEMORY))
    record(store, changes.set_attribute(job, "name", "bert"))
    row = store.job(job)
    assert row is not None
    assert (row.min_vram_mib, ResourceSpec.from_key(row.spec_key).min_vram_mib) == (5120, 5120)
    record(store, changes.set_attribute(job, "vram", 6000))
    row = store.job(job)
    assert row is not None
    assert (row.min_vram_mib, ResourceSpec.from_key(row.spec_key).min_vram_mib) == (None, None)
    assert ResourceSpec.from_key(row.spec_key).vram == 6000


def job_of(store: Store, job_id: int) -> Job:
    job = store.job(job_id)
    assert job is not None
    return job


@pytest.mark.parametrize(
    ("outcome", "recoveries", "left"),
    [
        pytest.param(Outcome.INTERRUPTED, 1, (1, 2), id="the scheduler recovers the job"),
        pytest.param(Outcome.INTERRUPTED, 0, (0, 0), id="the user queues it again"),
    ],
)
def test_only_the_user_gives_a_job_its_retries_again(
    store: Store, outcome: Outcome, recoveries: int, left: tuple[int, int]
) -> None:
    job = add(store)
    fail(store, job, *OOM_ONCE_AND_TWO_FAILURES)
    end(store, job, start(store, job), outcome)
    record(store, changes.queue(job, StateReason(ReasonKind.RECOVERED), recoveries=recoveries))
    assert (job_of(store, job).oom_retries_used, job_of(store, job).fail_retries_used) == left


@pytest.mark.parametrize(
    ("outcome", "state", "finished_at"),
    [
        (Outcome.FAILED, JobState.FINISHED, 160.0),
        (Outcome.INTERRUPTED, JobState.HELD, None),
        (Outcome.NOT_STARTED, JobState.QUEUED, None),
    ],
)
def test_only_a_finished_job_has_a_time_at_which_it_finished(
    store: Store, outcome: Outcome, state: JobState, finished_at: float | None
) -> None:
    job = add(store)
    end(store, job, start(store, job), outcome, ended_at=160.0)
    assert (job_of(store, job).state, job_of(store, job).finished_at) == (state, finished_at)


def test_sigkill_leaves_the_time_of_sigterm_so_that_survivors_are_not_awaited_for_ever(store: Store) -> None:
    attempt = start(store, add(store))
    writer = CheckedWriter(store, Settings())

    def after(kill: bool, boot: float) -> ActiveAttempt:
        writer.record([act.Sweep(attempt, kill)], Now(NOW.wall, boot, "boot"))
        [stored] = store.active_attempts()
        return stored

    terminated = after(False, 1000.0)
    assert (terminated.swept_boot, terminated.signalled_boot) == (1000.0, 1000.0)
    assert not was_sent_sigkill(terminated, Now(NOW.wall, 1030.0, "boot"))
    killed = after(True, 1030.0)
    assert (killed.swept_boot, killed.signalled_boot) == (1000.0, 1030.0)
    assert was_sent_sigkill(killed, Now(NOW.wall, 1032.0, "boot"))


def test_memory_raised_after_an_oom_is_no_declaration(store: Store) -> None:
    job = add(store, "python big.py")
    attempt = start(store, job)
    use(store, job, attempt, 1.0, ("U0", 8000, 50.0))
    record(store, changes.fail(attempt, changes.OUT_OF_MEMORY))
    again = start(store, job, vram=10_000)
    use(store, job, again, 2.0, ("U0", 8500, 50.0))
    end(store, job, again)
    rows = store.db.rows("SELECT peak_mib, declared_mib FROM measurement ORDER BY id")
    assert [tuple(row) for row in rows] == [(8000, None), (8500, None)]


def test_the_first_launch_after_a_shortage_is_no_second_launch(store: Store) -> None:
    job = add(store)
    attempt = start(store, job)

    def relaunches() -> int:
        record(store, act.Relaunch(attempt))
        return sum(one.kind == "relaunched" for one in events_after(store, 0, 100))

    CheckedWriter(store, Settings()).record_shortage(attempt)
    assert relaunches() == 0
    assert relaunches() == 1


def test_reports_only_the_first_few_of_many_infeasible_jobs(store: Store) -> None:
    jobs = [add(store, vram=99999) for _ in range(7)]
    row = store.job(jobs[0])
    assert row is not None
    need = Need(1, vram=99999)
    never = WaitReason(WaitKind.GPUS_TOO_SMALL, need=need, size_mib=24_576, largest_mib=24_576)
    record(store, act.SetWaitReason(row.spec_key, WaitReason(WaitKind.NO_FREE_GPU, need=need)))
    assert [one for one in events_after(store, 0, 100) if one.kind == "infeasible"] == []
    record(store, act.SetWaitReason(row.spec_key, never))
    found = [(one.job_id, one.reason) for one in events_after(store, 0, 100) if one.kind == "infeasible"]
    assert found == [(job, never) for job in jobs[:5]]


def test_records_the_measurement_of_an_ended_attempt(store: Store) -> None:
    ran(store, "python big.py", 4000, 3000, vram=5000, started_at=100.0, ended_at=160.0)
    ran(store, "python never-seen.py")
    ran(store, "python bad.py", 100, outcome=Outcome.FAILED)
    ran(store, "python default.py", 200, vram=300, assumed=True)
    rows = store.db.rows(
        "SELECT gpu_count, peak_mib, declared_mib, seconds, outcome FROM measurement ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        (2, 4000, 5000, 60.0, "completed"),
        (1, 100, None, 0.0, "failed"),
        (1, 200, None, 0.0, "completed"),
    ]


def test_keeps_the_newest_measurements_of_each_workload_class(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.store.attempt_history.KEPT_PER_CLASS", 2)
    for peak in (1000, 2000, 3000):
        ran(store, "python a.py", peak)
        ran(store, "python b.py", peak + 1)
    rows = store.db.rows("SELECT workload_class, peak_mib FROM measurement ORDER BY workload_class, id")
    assert [tuple(row) for row in rows] == [
        ('["a.py", null]', 2000), ('["a.py", null]', 3000),
        ('["b.py", null]', 2001), ('["b.py", null]', 3001),
    ]  # fmt: skip
    assert [(one.program, one.runs, one.max_mib) for one in workload_classes(store)] == [
        ("a.py", 2, 3000), ("b.py", 2, 3001),
    ]  # fmt: skip


def test_summarizes_the_usage_of_a_workload_class(store: Store) -> None:
    ran(store, "python a.py --llm qwen", 1000, 900, vram=3000, started_at=100.0, ended_at=100.0)
    ran(store, "python a.py --llm qwen", 9999, outcome=Outcome.FAILED)
    ran(store, "python a.py --llm qwen", 2000, vram=4000)
    [one] = workload_classes(store)
    assert (one.program, one.llm, one.runs, one.max_mib, one.p95_mib) == ("a.py", "qwen", 2, 2000, 2000)
    assert (one.declared_mib, one.gpus, one.mean_s, one.longest_s) == (4000, 1, 0.0, 0.0)


def test_learned_needs_are_updated_after_a_measurement(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = LearnedNeedsReader(store, 0.10)
    assert learned.needs(store.marks()) == {}
    ran(store, "python ä.py", 1000)
    job = store.job(1)
    assert job is not None
    family = workload_class_of(job.spec)
    assert learned.needs(store.marks()) == {family: 1100}
    ran(store, "python ä.py", 2000)
    ran(store, "python b.py", 10)
    assert learned.needs(store.marks()) == {family: 2200, '["b.py", null]': 11}
    monkeypatch.setattr("gpu_scheduler.store.attempt_history.workload_classes", None)
    assert learned.needs(store.marks())[family] == 2200


def test_reads_an_open_attempt_for_the_next_round(store: Store) -> None:
    job = add(store)
    fail(store, job, *OOM_ONCE_AND_TWO_FAILURES)
    attempt = start(store, job, vram=9000, whole=True)
    use(store, job, attempt, 6.5, ("U0", 9901, 20.0))
    row = next(row for row in store.active_attempts() if row.id == attempt)
    fact = row
    assert (fact.vram, fact.whole, fact.peaks, fact.measured_boot) == (9000, True, {"U0": 9901}, 6.5)
    assert (fact.overused_gpus, fact.job.oom_retries_used, fact.job.fail_retries_used) == (("U0",), 1, 2)


def shares(store: Store) -> dict[str, int]:
    spike_buffer = store.recorded_options().spike_buffer
    return allocated_shares(store.gpus(), store.active_attempts(), spike_buffer)


def test_the_allocated_share_grows_with_the_buffered_peak_until_release(store: Store) -> None:
    store.record_options(StartOptions(spike_buffer=0.5))
    job = add(store)
    attempt = start(store, job, vram=6144)
    assert shares(store) == {"U0": 250, "U1": 0}
    use(store, job, attempt, 6.5, ("U0", 8192, 20.0))
    assert shares(store) == {"U0": 500, "U1": 0}
    end(store, job, attempt)
    assert shares(store)["U0"] == 500
    record(store, changes.release(attempt))
    assert shares(store) == {"U0": 0, "U1": 0}
