"""How paths in a store change after its project folder was moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.jobsfile.reading import Line, line_from_result
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import newest_jobs
from gpu_scheduler.store.jobs_files import (
    JobsFileRecord,
    jobs_files,
    load_reading,
    save_reading,
    working_folder,
)
from gpu_scheduler.store.moved_or_copied import Relocation
from gpu_scheduler.store.store import Store


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Provides a project with a store, a jobs file with one line, and a job in another folder."""
    folder = tmp_path / "old"
    folder.mkdir()
    (tmp_path / "else").mkdir()
    for name in ("jobs.txt", "t.py"):
        (folder / name).touch()
    store = Store(DataDir.of(str(folder / "s.json")), create=True)
    moved_or_copied.adopt_folder(store)
    path = str(folder / "jobs.txt")
    spec = JobSpec("csv", "0,t.py,,,", str(folder), script=str(folder / "t.py"))
    job = store.insert_job(spec, f"file:{path}")
    store.insert_job(JobSpec("command", "true", str(tmp_path / "else"), command="true"), "cli")
    working_folder(store, path, str(folder))
    line = Line(1, "0,t.py,,,\n", "0,t.py,,,", "csv", spec.identity, {}, None, None, False, job)
    save_reading(store, path, (), (line,))
    store.close()
    return folder


@pytest.mark.parametrize("way", ["renamed", "moved by copying"])
def test_lines_keep_their_jobs_after_their_folder_is_moved(tmp_path: Path, old: Path, way: str) -> None:
    new = tmp_path / "new"
    if way == "renamed":
        old.rename(new)
    else:
        shutil.copytree(old, new)
        shutil.rmtree(old)
    store = Store(DataDir.of(str(new / "s.json")))
    moved_or_copied.adopt_folder(store)
    first, second = store.job(1), store.job(2)
    assert first is not None
    assert second is not None
    spec = first.spec
    assert (spec.cwd, spec.script) == (str(new), str(new / "t.py"))
    assert (first.identity, first.source) == (spec.identity, f"file:{new}/jobs.txt")
    assert second.spec.cwd == str(tmp_path / "else")
    assert jobs_files(store) == [JobsFileRecord(f"{new}/jobs.txt", str(new), None)]
    [line] = load_reading(store, f"{new}/jobs.txt")
    assert (line.job_id, line.identity) == (1, spec.identity)
    assert load_reading(store, f"{old}/jobs.txt") == ()
    store.close()


@pytest.mark.parametrize("left", ["a link", "a mount point", "hidden files"])
def test_lines_run_in_the_folder_of_their_moved_file_whatever_is_at_the_old_path(
    tmp_path: Path, old: Path, left: str
) -> None:
    new = tmp_path / "new"
    old.rename(new)
    if left == "a link":
        old.symlink_to(new)
    else:
        old.mkdir()
    if left == "hidden files":
        (old / ".git").touch()
    store = Store(DataDir.of(str(new / "s.json")))
    moved_or_copied.adopt_folder(store)
    assert jobs_files(store) == [JobsFileRecord(f"{new}/jobs.txt", str(new), None)]
    [row] = load_reading(store, f"{new}/jobs.txt")
    assert row.job_id == 1
    spec = JobSpec.from_json(store.db.rows("SELECT spec FROM job WHERE id = 1")[0]["spec"])
    assert (spec.cwd, spec.script) == (str(new), f"{new}/t.py")
    store.close()


def test_a_moved_reading_replaces_an_older_reading_of_the_same_path(tmp_path: Path, old: Path) -> None:
    new = tmp_path / "new"
    old.rename(new)
    store = Store(DataDir.of(str(new / "s.json")))
    path, raws = f"{new}/jobs.txt", ["echo another\n"]
    working_folder(store, path, str(new))
    save_reading(store, path, (), (line(raws, 0, str(new), store),))
    moved_or_copied.adopt_folder(store)
    assert jobs_files(store) == [JobsFileRecord(path, str(new), None)]
    assert [row.job_id for row in load_reading(store, path)] == [1]
    store.close()


def test_moving_only_the_data_directory_changes_no_path(tmp_path: Path, old: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (old / "s.d").rename(new / "s.d")
    store = Store(DataDir.of(str(new / "s.json")))
    moved_or_copied.adopt_folder(store)
    assert jobs_files(store) == [JobsFileRecord(f"{old}/jobs.txt", str(old), None)]
    store.close()


def test_only_files_that_moved_with_the_store_get_a_new_path(tmp_path: Path) -> None:
    for name in ("a/both", "b/both", "b/moved", "a/stayed"):
        (tmp_path / name).mkdir(parents=True)
    to = Relocation(f"{tmp_path}/a", f"{tmp_path}/b")
    assert to.new_path(f"{tmp_path}/a/moved") == f"{tmp_path}/b/moved"
    for kept in ("a/both", "a/stayed", "a/nowhere", "ab"):
        assert to.new_path(f"{tmp_path}/{kept}") == f"{tmp_path}/{kept}"


ABSOLUTE = ("0,{0}/t.py,,,\n", "[cwd={0}/sub] true\n", "[venv={0}/env cwd=sub] 0,t.py,,two,\n")


@pytest.mark.parametrize("state", ["queued", "running", "finished"])
def test_a_line_with_an_absolute_path_does_not_count_as_changed(tmp_path: Path, state: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "sub").mkdir(parents=True)
    (old / "env").mkdir()
    for name in ("jobs.txt", "t.py", "sub/t.py"):
        (old / name).touch()
    store = Store(DataDir.of(str(old / "s.json")), create=True)
    moved_or_copied.adopt_folder(store)
    path, read = str(old / "jobs.txt"), [raw.format(old) for raw in ABSOLUTE]
    working_folder(store, path, str(old))
    save_reading(store, path, (), tuple(line(read, n, str(old), store) for n in range(len(read))))
    store.db.connection.execute("UPDATE job SET state = ?", (state,))
    store.close()
    old.rename(new)
    store = Store(DataDir.of(str(new / "s.json")))
    moved_or_copied.adopt_folder(store)

    # The text of the file has not changed, so nothing needs to be done.
    reading = load_reading(store, f"{new}/jobs.txt")
    assert [kept.identity for kept in reading] == [line(read, n, str(new)).identity for n in range(len(read))]
    assert [kept.job_id for kept in reading] == [1, 2, 3]
    specs = [JobSpec.from_json(row["spec"]) for row in store.db.rows("SELECT spec FROM job ORDER BY id")]
    assert (specs[0].script, specs[0].cwd) == (f"{new}/t.py", str(new))
    assert specs[1].cwd == f"{new}/sub"
    assert (specs[2].script, specs[2].venv, specs[2].cwd) == (f"{new}/sub/t.py", f"{new}/env", f"{new}/sub")

    # When the user writes the new folder into the lines, jobs that run or have run are recognized. Waiting
    # jobs are replaced.
    written = [line([raw.format(new) for raw in ABSOLUTE], n, str(new)).identity for n in range(len(read))]
    known = newest_jobs(store, frozenset(filter(None, written)))
    assert set(known) == (set() if state == "queued" else set(written))
    store.close()


def line(raws: list[str], index: int, cwd: str, store: Store | None = None) -> Line:
    """Returns a line of a jobs file as it is read in the folder `cwd`.

    If a store is given, the line has a job in it.
    """
    parsed = parse_line(raws[index], cwd, "/home/me")
    assert isinstance(parsed, ParsedJob)
    job = None if store is None else store.insert_job(parsed.spec, f"file:{cwd}/jobs.txt")
    return line_from_result(index + 1, raws[index], parsed).with_job(job)
