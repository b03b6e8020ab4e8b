"""The view of a job. It is built from the store or, if that is not up to date, from the attempt folder."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest

from gpu_scheduler.core.model.event import MisplacedProcess
from gpu_scheduler.core.model.job import (
    AttemptResult,
    AttemptStatus,
    ClaimState,
    FailureContext,
    StopRequest,
)
from gpu_scheduler.core.model.job_spec import DependencyKind, Need, Parent
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState, JobState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import AttemptChanged
from gpu_scheduler.core.scheduling.reconcile_attempt import reconcile
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.show import tables
from gpu_scheduler.show.job_text import job_warnings
from gpu_scheduler.show.job_views import JobView, ViewContext, job_view, runs_as_recorded
from gpu_scheduler.show.wait_text import job_reason_text
from tests.attempts import make_attempt, replace
from tests.reasons import worded, words
from tests.records import attempt_record, job_record

NOW = Now(1000.0, 500.0, "boot")
FULL = WaitReason(WaitKind.NO_FREE_GPU, need=Need(1, 1000))
INFEASIBLE = WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(2, 1000), gpus=1)
PARENT = Parent(2, None, JobState.RUNNING, None, DependencyKind.COMPLETED, "2")


def context(**values: Any) -> ViewContext:
    return ViewContext(NOW, indices={"A": 0, "B": 1}, **values)


def view_as(recorded: str, status: AttemptStatus, failure_context: FailureContext | None = None) -> JobView:
    fact = make_attempt(
        11, 3, "t", "boot", AttemptState(recorded), status=status, failure_context=failure_context
    )
    fact = replace(fact, launch_deadline_boot=NOW.boot + 100)
    return job_view(job_record(state=recorded), attempt_record(), context(open_attempts={11: fact}))


@pytest.mark.parametrize(
    ("row", "last", "values", "reason"),
    [
        ({}, None, {}, "not examined yet"),
        ({}, None, {"wait_reasons": {"ASK": FULL}}, "needs 1 free GPU, 0 free"),
        (
            {},
            {"outcome": "interrupted"},
            {"wait_reasons": {"ASK": FULL}},
            "waiting for processes of its last attempt to end",
        ),
        (
            {},
            {"outcome": "interrupted", "released_boot": 4.0},
            {"wait_reasons": {"ASK": FULL}},
            "needs 1 free GPU, 0 free",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_REMOVED, due_at=NOW.boot + 6.2)},
            None,
            {"wait_reasons": {"ASK": FULL}},
            "line removed from jobs.txt; the job is cancelled in 7 s unless the line is restored",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_REMOVED), "source": "cli"},
            None,
            {},
            "line removed from its jobs file; the job is cancelled unless the line is restored",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_REMOVED, due_at=NOW.boot + 6.2)},
            None,
            {"is_scheduler_up": False},
            "line removed from jobs.txt; the job is cancelled unless the line is restored",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_MALFORMED, line_number=2)},
            None,
            {},
            "line 2 of jobs.txt is malformed; the job waits until it is corrected",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_CHANGED, line_number=4, due_at=NOW.boot + 1.5)},
            None,
            {},
            "line 4 of jobs.txt was changed; the change takes effect in 2 s",
        ),
        (
            {"line_wait": WaitReason(WaitKind.LINE_CHANGED, line_number=4, due_at=NOW.boot - 1.5)},
            None,
            {},
            "line 4 of jobs.txt was changed; the scheduler has not read it yet",
        ),
        (
            {"reason": worded("try 2 of 5 in 5 s"), "line_wait": WaitReason(WaitKind.LINE_REMOVED)},
            None,
            {},
            "try 2 of 5 in 5 s",
        ),
        (
            {"reason": worded("try 2 of 5 in 5 s"), "not_before_boot": NOW.boot + 3, "boot_id": NOW.boot_id},
            None,
            {"wait_reasons": {"ASK": FULL}},
            "try 2 of 5 in 5 s",
        ),
        (
            {"reason": worded("try 2 of 5 in 5 s"), "not_before_boot": NOW.boot - 3, "boot_id": NOW.boot_id},
            None,
            {"wait_reasons": {"ASK": FULL}},
            "needs 1 free GPU, 0 free",
        ),
        (
            {"reason": worded("x")},
            None,
            {"open_requests": {3: "hold"}},
            "hold requested; waiting for the scheduler",
        ),
        *(
            (
                {"unmet_parents": 1, **row},
                None,
                {"wait_reasons": {"ASK": FULL}, "parents": {3: (PARENT,)}},
                text,
            )
            for row, text in (
                ({}, "after job 2 (running)"),
                ({"reason": worded("try 2 of 5 in 5 s")}, "after job 2 (running)"),
                (
                    {"line_wait": WaitReason(WaitKind.LINE_MALFORMED, line_number=2)},
                    "line 2 of jobs.txt is malformed; the job waits until it is corrected",
                ),
                ({"state": "held", "reason": worded("held by the user")}, "held by the user"),
            )
        ),
        ({"state": "held", "reason": worded("held by the user")}, None, {}, "held by the user"),
        ({"state": "held"}, None, {}, "held"),
        ({"state": "running"}, {}, {}, None),
    ],
)
def test_a_job_view_shows_why_a_queued_job_waits(
    row: dict[str, Any], last: dict[str, Any] | None, values: dict[str, Any], reason: str | None
) -> None:
    view = job_view(job_record(**row), None if last is None else attempt_record(**last), context(**values))
    assert job_reason_text(view) == reason


@pytest.mark.parametrize(("unmet_parents", "infeasible"), [(0, True), (1, False)])
def test_a_job_is_infeasible_only_once_it_is_compared_with_the_gpus(
    unmet_parents: int, infeasible: bool
) -> None:
    record = job_record(unmet_parents=unmet_parents)
    view = job_view(record, None, context(wait_reasons={"ASK": INFEASIBLE}, parents={3: (PARENT,)}))
    assert view.infeasible is infeasible
    assert view.parents == (PARENT,)


@pytest.mark.parametrize(
    ("launches", "reason"),
    [
        (
            0,
            "not started yet, because the machine is short of processes, memory, file descriptors or disk"
            " space; the scheduler keeps trying",
        ),
        (1, None),
        (2, "launched 2 times but not started yet"),
    ],
)
def test_a_job_view_shows_why_a_starting_job_is_delayed(launches: int, reason: str | None) -> None:
    last = attempt_record(launch_count=launches)
    fact = make_attempt(11, 3, "t", "boot", AttemptState.STARTING, launch_deadline_boot=NOW.boot + 100)
    view = job_view(job_record(state="starting"), last, context(open_attempts={11: fact}))
    assert (
        view.record.state,
        job_reason_text(view),
        tables.running_row(view, NOW.wall).last.text,
    ) == (
        "starting",
        reason,
        reason or "",
    )
    fact = replace(fact, status=AttemptStatus("live", 12))
    assert job_view(job_record(state="starting"), last, context(open_attempts={11: fact})).wait is None


def test_only_queued_jobs_are_shown_as_infeasible() -> None:
    never = WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(9, 1000), gpus=2, managed=2)
    assert job_view(job_record(), None, context(wait_reasons={"ASK": never})).infeasible
    assert not job_view(job_record(state="finished"), None, context(wait_reasons={"ASK": never})).infeasible


def ended(cause: str | None, exit_code: int | None, signal: int | None = None) -> AttemptStatus:
    return AttemptStatus("dead", result=AttemptResult(cause, exit_code, signal, True, None, (), 960.0, 990.0))


@pytest.mark.parametrize(
    ("recorded", "status", "state", "outcome", "is_recorded"),
    [
        ("running", AttemptStatus("live", 12, "12.gpujob"), "running", None, True),
        ("starting", AttemptStatus("live", 12), "running", None, False),
        ("starting", AttemptStatus(), "starting", None, True),
        ("running", AttemptStatus("live", 12, stop=StopRequest("cancelled", 5.0)), "stopping", None, False),
        ("stopping", AttemptStatus("live", 12, stop=StopRequest("cancelled", 5.0)), "stopping", None, True),
        ("running", ended(None, 0), "finished", "completed", False),
        ("running", ended(None, 7), "finished", "failed", False),
        ("running", ended("cancelled", None, 15), "finished", "cancelled", False),
        ("running", ended("machine", None, 15), "held", None, False),
        ("running", AttemptStatus("dead"), "held", None, False),
        ("running", AttemptStatus("invalid"), "running", None, True),
        (
            "running",
            AttemptStatus("dead", stop=StopRequest("cancelled", 5.0)),
            "finished",
            "cancelled",
            False,
        ),
    ],
)
def test_in_a_job_view_the_attempt_folder_overrides_the_recorded_state(
    recorded: str, status: AttemptStatus, state: str, outcome: str | None, is_recorded: bool
) -> None:
    view = view_as(recorded, status)
    assert (view.record.state, view.record.outcome, view.is_recorded) == (state, outcome, is_recorded)


@pytest.mark.parametrize("claim", ["dead", "none", "invalid"])
@pytest.mark.parametrize("window_open", [None, False, True])
def test_a_job_view_shows_a_job_that_ran_before_a_reboot_as_interrupted(
    claim: Any, window_open: bool | None
) -> None:
    status = AttemptStatus(claim, window_open=window_open, folder_complete=True)
    before = make_attempt(11, 3, "t", "an earlier boot", AttemptState.RUNNING, status=status)
    view = job_view(job_record(state="running"), attempt_record(), context(open_attempts={11: before}))
    assert (view.record.state, view.record.held_by, view.is_recorded) == ("held", "interrupted", False)
    cells = tables.held_row(view, NOW.wall)
    assert (cells.state.text, cells.last.text) == (
        "interrupted",
        "the machine was restarted; `retry 3` runs it again; not recorded yet",
    )


def test_a_job_view_shows_the_reason_exit_code_and_times_of_an_unrecorded_end() -> None:
    view = view_as("running", ended(None, 7), FailureContext("ValueError: x\n"))
    assert words(view.record.reason) == "exit code 7: ValueError: x"
    assert (view.record.exit_code, view.record.signal, view.started_at, view.record.finished_at) == (
        7,
        None,
        960.0,
        990.0,
    )
    assert (view.gpus, view.attempt and view.attempt.number, view.log, view.session) == (
        (0, 1),
        1,
        "/logs/3.log",
        None,
    )


def test_a_job_view_shows_a_live_screen_session_by_its_full_name() -> None:
    live = AttemptStatus("live", 12, "12.gpujob_0_echo_3")
    assert view_as("running", live).session == live.session


def test_a_job_view_omits_the_session_of_a_closed_screen_window() -> None:
    view = view_as("running", AttemptStatus("live", 12, "12.gpujob_0_echo_3", window_open=False))
    assert (view.record.state, view.session, view.window_closed) == ("running", None, True)
    view = view_as("running", AttemptStatus("live", 12, "12.gpujob_0_echo_3", window_open=True))
    assert (view.session, view.window_closed) == ("12.gpujob_0_echo_3", False)
    noted = attempt_record(window_closed=True)
    view = job_view(job_record(state="running"), noted, context())
    assert (view.session, view.window_closed) == (None, True)
    view = job_view(job_record(state="finished"), noted, context())
    assert (view.session, view.window_closed) == (None, False)


def test_a_job_view_warns_of_a_process_on_a_gpu_outside_the_allocation() -> None:
    row = attempt_record(["A"], misplaced=(("B", 71),))
    view = job_view(job_record(state="running"), row, context())
    assert view.warnings == (MisplacedProcess(1, 1, 71, (0,)),)
    [warning] = job_warnings(view)
    assert warning.startswith("job 3 was given GPU 0 but uses GPU 1 (process 71): ")


def test_a_job_view_shows_memory_peaks_and_declared_memory() -> None:
    row = attempt_record(vram=900, budgets={"A": 900, "B": 900}, peaks={"A": 700, "B": 800})
    view = job_view(job_record(state="running"), row, context())
    assert (view.vram_declared, view.peaks, view.warnings) == (900, {0: 700, 1: 800}, ())
    # The job does not declare anything; the 900 MiB come from default_requirement.
    view = job_view(
        job_record(state="running"), attempt_record(vram=900, peaks={"A": 700, "B": 800}), context()
    )
    assert view.vram_declared is None
    view = job_view(job_record(), None, context())
    assert (view.vram_declared, view.peaks) == (None, {})


def test_a_job_view_warns_of_memory_use_above_the_declaration() -> None:
    row = attempt_record(
        vram=500, budgets={"A": 500, "B": 500}, peaks={"A": 400, "B": 800}, overused=["B"],
        misplaced=(("C", 71),),
    )  # fmt: skip
    view = job_view(job_record(state="running"), row, context())
    first, second = job_warnings(view)
    assert first.startswith("job 3 declared 500 MiB but used 800 MiB on GPU 1: its neighbors ")
    assert "process 71" in second
    ended = replace(row, misplaced=(), state=AttemptState.ENDED)
    over = job_view(job_record(state="finished"), ended, context())
    assert job_warnings(over) == ["job 3 declared 500 MiB but used 800 MiB on GPU 1"]


def test_a_job_view_warns_of_memory_use_above_the_declared_share() -> None:
    row = attempt_record(share=250, budgets={"A": 6144, "B": 20480}, peaks={"A": 16000}, overused=["A"])
    expected = "job 3 declared share 0.25 (6144 MiB) but used 16000 MiB on GPU 0"
    view = job_view(job_record(state="running"), row, context())
    assert job_warnings(view) == [f"{expected}: its neighbors may run out of memory"]
    assert view.vram_declared is None
    over = job_view(job_record(state="finished"), replace(row, state=AttemptState.ENDED), context())
    assert job_warnings(over) == [expected]


def test_an_attempt_counts_as_running_as_recorded_only_if_reconciling_would_change_no_state() -> None:
    result = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)
    kept = 0
    for state, claim, stop, ended, cancel in product(
        AttemptState,
        get_args(ClaimState),
        (None, StopRequest("cancelled", 9.0)),
        (None, result),
        (None, StopRequest("user", 9.0)),
    ):
        status = AttemptStatus(claim, stop=stop, result=ended)
        attempt = make_attempt(11, 3, "t", "boot", state, status=status, stop_request=cancel, survivors=())
        if runs_as_recorded(attempt):
            kept += 1
            actions = reconcile(attempt, NOW, Settings())
            changed = [action.new for action in actions if isinstance(action, AttemptChanged)]
            assert all(one.state in (state, AttemptState.ORPHANED) for one in changed)
    assert kept
