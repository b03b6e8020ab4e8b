"""Random edits of a jobs file, with restarts between any two steps: each job waits for what its line says."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.reading import Reading, find_cycles
from gpu_scheduler.core.model.job_spec import UNRESOLVED, DependencyKind, ParentStatus, parent_status
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.store import jobs_files
from tests.loop.test_dependencies import Desk

KINDS = {"after": DependencyKind.COMPLETED, "after_any": DependencyKind.FINISHED}
NAMES = st.sampled_from(["a", "b", "c", "1", "4"])
REFERENCES = st.lists(NAMES, max_size=2, unique=True).map(",".join)
COMMANDS = st.sampled_from(["true 1", "true 2", "true 3", "0,s.py,,1", "0,s.py,,2"])


@st.composite
def raw_lines(draw: st.DrawFn) -> str:
    items = {
        "name": draw(st.none() | NAMES),
        "after": draw(REFERENCES),
        "after-any": draw(st.just("") | REFERENCES),
        "gpus": draw(st.sampled_from([*[""] * 9, "x"])),  # gpus=x makes the line malformed
    }
    block = " ".join(f"{key}={value}" for key, value in items.items() if value)
    return f"[{block}] {draw(COMMANDS)}\n"


class CheckedDesk(Desk):
    """A jobs file whose jobs are compared with its last reading after every step."""

    def edges(self) -> dict[int, dict[tuple[int, DependencyKind], str]]:
        found: dict[int, dict[tuple[int, DependencyKind], str]] = {}
        sql = "SELECT job_id, parent_id, kind, reference FROM dependency"
        for job_id, parent_id, kind, reference in self.rig.store.db.rows(sql):
            found.setdefault(job_id, {})[parent_id, DependencyKind(kind)] = reference
        return found

    def check(self) -> None:
        """Compares the dependencies with the last reading, and the states of the jobs with them."""
        edges = self.edges()
        assert not find_cycles({job: {parent for parent, _ in of} for job, of in edges.items()})
        self._check_reading(jobs_files.load_reading(self.rig.store, str(self.path)), edges)
        sql = "SELECT id, state, outcome, unmet_parents, failed_parents FROM job"
        jobs = {row["id"]: row for row in self.rig.store.db.rows(sql)}
        ends = {
            job: (JobState(row["state"]), Outcome(row["outcome"]) if row["outcome"] else None)
            for job, row in jobs.items()
        }
        for job, row in jobs.items():
            found = [parent_status(kind, *ends.get(one, (None, None))) for one, kind in edges.get(job, {})]
            failed = found.count(ParentStatus.FAILED)
            assert (row["unmet_parents"], row["failed_parents"]) == (
                len(found) - found.count(ParentStatus.MET),
                failed,
            )
            assert not (failed and row["state"] == "queued")
            assert failed or row["outcome"] != "skipped"
        assert not self.rig.store.marks().has_unsettled_dependencies

    def _check_reading(
        self, reading: Reading, edges: Mapping[int, Mapping[tuple[int, DependencyKind], str]]
    ) -> None:
        ids = {row["id"] for row in self.rig.store.db.rows("SELECT id FROM job")}
        csv_jobs = {line.identity for line in reading if line.kind == "csv" and line.job_id is not None}
        for line in reading:
            if line.job_id is None:
                assert line.malformed or line.identity in csv_jobs  # every other line has a job
                continue
            of = edges.get(line.job_id, {})
            asked = {(kind, one) for name, kind in KINDS.items() for one in line.attributes.get(name, ())}
            assert {(kind, reference) for (_, kind), reference in of.items()} <= asked
            for kind, reference in asked:
                named = {one.job_id for one in reading if one.attributes.get("name") == reference}
                parents = {int(reference)} & ids if reference.isdigit() else named - {None}
                # A name without a line keeps its meaning, so it has at least one parent.
                assert parents or any(kind is one for _, one in of)
                assert (UNRESOLVED, kind) in of or all((parent, kind) in of for parent in parents if parent)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_jobs_wait_for_what_their_lines_say(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        desk = CheckedDesk(Path(folder))
        for step in data.draw(st.lists(st.sampled_from("iirrdaaafffsmwR"), min_size=3, max_size=15)):
            at = data.draw(st.integers(0, max(0, len(desk.lines) - 1)))
            if step == "i":
                desk.lines.insert(at, data.draw(raw_lines()))
            elif step == "r":
                desk.lines[at : at + 1] = [data.draw(raw_lines())]
            elif step == "d":
                del desk.lines[at : at + 1]
            elif step == "a":
                desk.lines += data.draw(st.lists(raw_lines(), min_size=1, max_size=3))
            elif step == "m" and len(desk.lines) > 1:
                desk.lines.append(desk.lines.pop(at))
            elif step == "s":
                desk.add_job(*data.draw(st.sets(st.sampled_from(sorted(desk.states())), max_size=2))
                             if desk.states() else (), name=data.draw(NAMES))  # fmt: skip
            elif step == "f" and desk.startable():
                outcome = data.draw(st.sampled_from([Outcome.COMPLETED, Outcome.FAILED]))
                desk.finish(data.draw(st.sampled_from(desk.startable())), outcome)
            elif step == "R" and (ended := [job for job, end in desk.states().items() if end == "failed"]):
                desk.retry(data.draw(st.sampled_from(ended)))
            last = desk.lines[-1:]
            if last and data.draw(st.integers(0, 5)) == 0:  # the last line has no line ending
                desk.lines[-1] = last[0].rstrip("\n")
            desk.save_lines()
            desk.lines[-1:] = last
            for later in data.draw(st.sampled_from([(0,), (0, 2), (0, 2, 8, 10)])):
                desk.read(later)
                if data.draw(st.booleans()):  # the scheduler dies before the round
                    desk.restart()
                    desk.read()
                desk.rig.tick()
                desk.check()
