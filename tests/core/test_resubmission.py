"""Tests what happens when the line of an ended job is submitted again."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.jobsfile.diff import Resubmission, decide_resubmission
from gpu_scheduler.core.model.job_spec import Kind
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import JobState, Outcome

NEW, REQUEUED, KEPT = Resubmission


@pytest.mark.parametrize(
    ("kind", "state", "outcome", "cancel", "effect"),
    [
        ("command", None, None, False, NEW),
        ("csv", None, None, False, NEW),
        *(("command", state, None, False, NEW) for state in JobState),
        *(("csv", state, None, False, KEPT) for state in JobState if state is not JobState.FINISHED),
        ("csv", JobState.FINISHED, Outcome.COMPLETED, False, KEPT),
        *(
            ("csv", JobState.FINISHED, outcome, cancel, KEPT if cancel else REQUEUED)
            for outcome in Outcome
            if outcome is not Outcome.COMPLETED
            for cancel in (False, True)
        ),
    ],
)
def test_resubmitting_an_unsuccessful_csv_job_reruns_it_but_a_command_becomes_a_new_job(
    kind: Kind, state: JobState | None, outcome: Outcome | None, cancel: bool, effect: Resubmission
) -> None:
    newest = None if state is None else JobFact(1, state, outcome)
    assert decide_resubmission(kind, newest, cancel) is effect
