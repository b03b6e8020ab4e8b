"""A change of a jobs file gives the dependencies that reading all of its lines anew gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.intake.line_dependencies import LineDependencies
from gpu_scheduler.store.job_lists import dependencies_of, dependent_jobs_of_file
from tests.loop.rig import Rig
from tests.loop.watched_file import WatchedFile

NAMES = st.sampled_from(["a", "b", "c", "g/a", "g/b"])
REFERENCES = st.lists(NAMES | st.sampled_from(["g", "?", "g/*"]), max_size=2, unique=True)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Returns a line with some name and references. Equal CSV lines share a job."""
    name, after, after_any = draw(st.none() | NAMES), draw(REFERENCES), draw(REFERENCES)
    items = [f"name={name}"] if name else []
    items += [f"after={','.join(after)}"] if after else []
    items += [f"after-any={','.join(after_any)}"] if after_any else []
    number = draw(st.integers(0, 9))
    return f"[{' '.join(items)}] " + (f"0,s.py,,{number}" if draw(st.booleans()) else f"true {number}")


#: Replaces `count` lines from a relative position on by other lines.
EDITS = st.tuples(st.floats(0, 1), st.integers(0, 3), st.lists(texts(), max_size=3))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig"))
    yield made
    made.store.close()


FILES = iter(range(1_000_000))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.lists(texts(), min_size=3, max_size=8), edits=st.lists(EDITS, min_size=1, max_size=6))
def test_an_edit_gives_the_dependencies_of_a_whole_reading(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, first: list[str], edits: list[tuple[float, int, list[str]]]
) -> None:
    # Each file has its own working folder, so that its CSV lines share no job with those of another file.
    folder = rig.folder / f"{next(FILES)}"
    folder.mkdir()
    (folder / "s.py").touch()
    monkeypatch.chdir(folder)
    desk = WatchedFile(rig)
    desk.path = folder / "jobs.txt"
    desk.watch = desk._watch()
    lines = list(first)
    for at, count, new in [(0.0, 0, []), *edits]:
        start = round(at * len(lines))
        lines[start : start + count] = new
        desk.lines = [f"{line}\n" for line in lines]
        desk.save_lines()
        for later in (0.0, 3.0, 10.0):
            desk.read(later)
        check(desk)


def test_a_parent_that_another_reference_means_as_well_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rig = Rig(tmp_path)
    for name in ("a", "g/old"):
        rig.add_job("true", name=name)
    desk = WatchedFile(rig)
    (tmp_path / "s.py").touch()
    for parents in ([], ["[name=g/a] 0,s.py,,1\n"], ["[name=a] 0,s.py,,1\n"]):
        desk.lines = ["[after-any=a,g] true\n", *parents]
        desk.save_lines()
        for later in (0.0, 3.0, 10.0):
            desk.read(later)
    check(desk)
    rig.store.close()


def check(desk: WatchedFile) -> None:
    """Checks that reading all lines anew would change nothing. Every line of the file counts."""
    store, path, reading = desk.rig.store, str(desk.path), desk.watch._reading
    before = dependencies_of(store, dependent_jobs_of_file(store, path))
    changes = store.db.connection.total_changes
    names = desk.watch._dependencies._names
    LineDependencies(store, path).store_changes((), reading, (), names)
    assert dependencies_of(store, dependent_jobs_of_file(store, path)) == before
    assert store.db.connection.total_changes == changes
