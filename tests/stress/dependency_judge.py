"""Judges whether jobs waited for their parents, from the jobs' own traces and from triggers in the store.

The triggers note the parents of a job, with their states, in the transaction that starts or skips the job.
They read the table of dependencies and never the counts that the scheduler keeps.
"""

from __future__ import annotations

from gpu_scheduler.store.store import Store
from tests.stress.dependency_trace import AttemptTrace, JobsTrace
from tests.stress.part import Findings

_COMPLETED = "('completed', 'ended')"
_PARENTS = "dependency LEFT JOIN job AS parent ON parent.id = parent_id WHERE dependency.job_id"
_IS_FAILED = f"kind = 'completed' AND state = 'finished' AND outcome NOT IN {_COMPLETED}"
_IS_MET = f"state = 'finished' AND (kind = 'finished' OR outcome IN {_COMPLETED})"

_TRIGGERS = (
    "CREATE TABLE stress_start (job_id, attempt, parent_id, kind, state, outcome, parent_attempt)",
    "CREATE TRIGGER stress_started AFTER INSERT ON attempt BEGIN INSERT INTO stress_start"
    " SELECT new.job_id, new.number, parent_id, dependency.kind, parent.state, parent.outcome,"
    f" (SELECT max(number) FROM attempt WHERE job_id = parent_id) FROM {_PARENTS} = new.job_id; END",
    "CREATE TABLE stress_skip (job_id, parent_id, kind, state, outcome)",
    "CREATE TRIGGER stress_skipped AFTER UPDATE OF state ON job"
    " WHEN new.state = 'finished' AND new.outcome = 'skipped' BEGIN INSERT INTO stress_skip"
    f" SELECT new.id, parent_id, dependency.kind, parent.state, parent.outcome FROM {_PARENTS} = new.id; END",
)

#: The counts that the scheduler keeps, beside the counts according to the tables.
_WRONG_COUNTS = f"""
    WITH edge AS (SELECT dependency.job_id AS child, dependency.kind AS kind, parent.state AS state,
                  parent.outcome AS outcome FROM dependency LEFT JOIN job AS parent ON parent.id = parent_id),
    counted AS (SELECT job.id, unmet_parents, failed_parents,
        (SELECT count(*) FROM edge WHERE child = job.id AND NOT coalesce({_IS_MET}, 0)) AS unmet,
        (SELECT count(*) FROM edge WHERE child = job.id AND coalesce({_IS_FAILED}, 0)) AS failed FROM job)
    SELECT * FROM counted WHERE (unmet_parents, failed_parents) <> (unmet, failed)
"""


def install_triggers(store: Store) -> None:
    """Adds the triggers that note what each job waited for."""
    with store.db.transaction() as db:
        for statement in _TRIGGERS:
            db.execute(statement)


def judge_starts(store: Store, trace: JobsTrace, found: Findings) -> None:
    """Checks that each job started after its parents, according to the store and to the jobs themselves."""
    for job_id, attempt in trace.twice:
        found.fault("run twice", f"job {job_id}, attempt {attempt}")
    rows = store.db.rows("SELECT * FROM stress_start")
    found.count("parents at a start", len(rows))
    for row in rows:
        problem = _unmet(row["kind"], row["state"], row["outcome"])
        run = trace.runs.get((row["job_id"], row["attempt"]))
        parent = trace.runs.get((row["parent_id"], row["parent_attempt"]))
        if problem is None and run is not None:
            problem = _order_problem(run, parent, completed=row["outcome"] == "completed")
        if problem is not None:
            text = f"job {row['job_id']}, attempt {row['attempt']}: parent {row['parent_id']} {problem}"
            found.fault("started early", text)


def _unmet(kind: str, state: str | None, outcome: str | None) -> str | None:
    """Returns why a parent did not allow the start, or None."""
    if state != "finished":
        return f"was {state or 'unknown'}"
    if kind == "completed" and outcome not in ("completed", "ended"):
        return f"was {outcome}"
    return None


def _order_problem(run: AttemptTrace, parent: AttemptTrace | None, *, completed: bool) -> str | None:
    """Returns in which way the traces contradict the store, or None. parent: its last attempt, if it ran."""
    if completed and (parent is None or parent.end is None or parent.code != 0):
        return f"completed according to the store, but its trace is {parent}"
    if parent is not None and parent.end is not None and parent.end > run.start:
        return f"was still running: {parent}, {run}"
    return None


def judge_skips(store: Store, found: Findings) -> None:
    """Checks that each job that was skipped had a failed parent at that moment."""
    parents: dict[int, list[bool]] = {}
    for row in store.db.rows("SELECT * FROM stress_skip"):
        has_failed = (
            row["state"] == "finished" and _unmet(row["kind"], row["state"], row["outcome"]) is not None
        )
        parents.setdefault(row["job_id"], []).append(has_failed)
    found.count("jobs skipped", len(parents))
    for job_id, failed in parents.items():
        if not any(failed):
            found.fault("skipped wrongly", f"job {job_id} had no failed parent")


def judge_counts(store: Store, found: Findings) -> None:
    """Compares the counts of parents that the scheduler keeps with the tables."""
    found.count("checks of the counts")
    for row in store.db.rows(_WRONG_COUNTS):
        found.fault("wrong counts", str(dict(row)))


def judge_outcomes(store: Store, trace: JobsTrace, found: Findings) -> None:
    """Compares the outcome of each job that ran with the trace of its last attempt."""
    for row in store.db.rows("SELECT id, state, outcome, exit_code FROM job WHERE state = 'finished'"):
        if row["outcome"] in ("completed", "failed"):
            run = trace.runs.get((row["id"], store.attempts(row["id"])[-1].number))
            if (
                run is None
                or run.code != row["exit_code"]
                or (row["outcome"] == "completed") != (run.code == 0)
            ):
                found.fault("wrong outcomes", f"{dict(row)}, but its trace is {run}")
