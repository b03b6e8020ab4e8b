"""How the parents of a job are shown."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.core.model.job_spec import UNRESOLVED, DependencyKind, Parent
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.show import tables
from gpu_scheduler.show.job_views import JobView
from gpu_scheduler.show.status_json import job_object
from gpu_scheduler.show.wait_text import job_reason_text, parent_objects, parents_wait_text
from tests.records import job_view


def parent(
    number: int,
    state: JobState | None = JobState.QUEUED,
    outcome: Outcome | None = None,
    kind: DependencyKind = DependencyKind.COMPLETED,
    reference: str = "",
) -> Parent:
    return Parent(number, None, state, outcome, kind, reference or str(number))


RUNNING, HELD = parent(3, JobState.RUNNING), parent(4, JobState.HELD)
DONE = parent(2, JobState.FINISHED, Outcome.COMPLETED)
FAILED = parent(6, JobState.FINISHED, Outcome.TIMED_OUT)


@pytest.mark.parametrize(
    ("parents", "text"),
    [
        ([DONE, RUNNING, HELD], "after job 3 (running), job 4 (held)"),
        (
            [RUNNING, HELD, parent(7), parent(8), parent(9)],
            "after job 3 (running), job 4 (held), job 7 (queued) and 2 more",
        ),
        ([RUNNING, HELD, parent(7)], "after job 3 (running), job 4 (held), job 7 (queued)"),
        ([DONE, RUNNING, HELD, parent(7)], "after job 3 (running), job 4 (held), job 7 (queued)"),
        ([RUNNING, FAILED], "job 6 timed out, so the job will be skipped"),
        ([RUNNING, FAILED._replace(kind=DependencyKind.FINISHED)], "after job 3 (running)"),
        (
            [parent(UNRESOLVED, None, reference="prep"), RUNNING],
            "after prep (no such job, or it waits for this job), job 3 (running)",
        ),
        ([parent(99, None)], "after job 99 (unknown)"),
        ([DONE], "after jobs whose end is not recorded yet"),
    ],
)
def test_the_wait_for_parents_names_those_that_have_not_ended(parents: list[Parent], text: str) -> None:
    assert parents_wait_text(parents) == text


def waiting(number: int, *parents: Parent) -> JobView:
    return job_view(number, unmet_parents=len(parents), wait=WaitReason(WaitKind.PARENTS), parents=parents)


def test_the_reason_of_a_blocked_job_names_its_parents() -> None:
    assert job_reason_text(waiting(5, RUNNING)) == "after job 3 (running)"


def test_jobs_with_the_same_parents_share_a_row() -> None:
    rows = tables.queued_rows([waiting(5, RUNNING), waiting(6, RUNNING), waiting(7, HELD)], 0.0)
    assert "".join(cell.text for cell in rows[0].cells) == "2 jobs wait for job 3 (running): 5, 6"
    assert [cell.text for cell in rows[1].cells][-1] == "after job 4 (held)"


def test_the_json_of_a_job_lists_its_parents() -> None:
    parents = (
        parent(UNRESOLVED, None, reference="prep"),
        DONE._replace(name="data", reference="data"),
        FAILED,
    )
    listed = json.loads(json.dumps(job_object(job_view(5, parents=parents))["after"]))
    assert listed == [
        {"id": None, "name": None, "state": None, "outcome": None, "kind": "after", "reference": "prep"},
        {
            "id": 2, "name": "data", "state": "finished", "outcome": "completed", "kind": "after",
            "reference": "data",
        },
        {
            "id": 6, "name": None, "state": "finished", "outcome": "timed_out", "kind": "after",
            "reference": "6",
        },
    ]  # fmt: skip
    assert parent_objects([RUNNING._replace(kind=DependencyKind.FINISHED)])[0]["kind"] == "after-any"
    assert job_object(job_view(5))["after"] == []
