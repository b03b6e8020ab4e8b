"""Tests of `import`: the jobs in the store, the renamed file, and what happens between the two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.control import import_queue
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.store.job_lists import job_count, parents_of
from gpu_scheduler.store.store import Store
from tests.cli.desk import Desk


@pytest.fixture
def queue(desk: Desk) -> Path:
    """A folder with scripts and, in `.venv`, a virtual environment."""
    assert desk.store
    for name in ("train.py", "eval.py"):
        (desk.path / name).touch()
    programs = desk.path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    (programs / "python").touch(mode=0o755)
    (programs.parent / "pyvenv.cfg").touch()
    return desk.path / "queue.json"


def write(queue: Path, *jobs: object) -> bytes:
    queue.write_text(json.dumps({"jobs": jobs}))
    return queue.read_bytes()


def job(desk: Desk, job_id: int) -> Job:
    found = desk.store.job(job_id)
    assert found is not None
    return found


def test_imports_the_pending_jobs_and_renames_the_file(desk: Desk, queue: Path) -> None:
    content = write(
        queue,
        {"id": 1, "name": "old", "script": "gone.py", "status": "done"},
        {
            "id": 2, "name": "exp/train", "script": "train.py", "args": ["--lr", "1e-4", "it's"],
            "retries": 2, "python": ".venv/bin/python", "cwd": str(desk.path), "env": {"A": "b c"},
            "status": "pending", "after": 1,
        },
        {"id": 3, "name": "eval", "script": "eval.py", "args": "--x 'a b'", "status": "queued", "after": 2},
        {"id": 4, "script": "gone.py", "status": "failed"},
    )  # fmt: skip
    code, out, err = desk.run("import", "queue.json")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        """job 1: exp-train: python -u train.py --lr 1e-4 'it'"'"'s'""",
        "job 2: eval: python3 -u eval.py --x 'a b' (after 1)",
        "not imported, because only pending jobs are: 1 done, 1 failed",
        "queue.json is now queue.json.bak",
        "no scheduler is running; `start` runs the jobs",
    ]
    assert not queue.exists()
    assert (desk.path / "queue.json.bak").read_bytes() == content
    spec = job(desk, 1).spec
    assert (spec.kind, spec.cwd, spec.venv, spec.env) == (
        "command", str(desk.path), str(desk.path / ".venv"), (("A", "b c"),)
    )  # fmt: skip
    assert (spec.name, spec.fail_retries, spec.after) == ("exp-train", 2, ())
    assert [(one.id, one.reference) for one in parents_of(desk.store, [2])[2]] == [(1, "1")]
    assert job(desk, 2).spec.fail_retries is None
    assert job(desk, 2).unmet_parents == 1


#: A Python program that runs `import` and is killed when it renames the file.
KILLED_AT_RENAME = """\
import os, signal
from gpu_scheduler.cli import main
os.rename = lambda old, new: os.kill(os.getpid(), signal.SIGKILL)
main(["import", "queue.json"])
"""


def test_a_second_import_after_a_crash_before_the_rename_only_renames(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py"})
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_RENAME], cwd=desk.path, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert queue.exists()
    assert job_count(desk.store) == 1
    (desk.path / "train.py").unlink()  # nothing is checked again
    assert desk.run("import", "queue.json") == (
        0,
        "queue.json was imported before as job 1; nothing was imported again\n"
        "queue.json is now queue.json.bak\n",
        "",
    )
    assert not queue.exists()
    assert job_count(desk.store) == 1


def test_a_crash_while_jobs_are_inserted_imports_nothing(
    desk: Desk, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(queue, {"script": "train.py"}, {"script": "eval.py"})
    insert = Store.insert_job

    def insert_one(store: Store, *args: Any, **more: Any) -> int:
        if job_count(store):
            raise KeyboardInterrupt
        return insert(store, *args, **more)

    monkeypatch.setattr(Store, "insert_job", insert_one)
    assert desk.run("import", "queue.json")[0] == 130
    assert queue.exists()
    assert job_count(desk.store) == 0


def test_two_imports_at_once_import_each_job_once(desk: Desk, queue: Path) -> None:
    write(queue, *[{"script": "train.py"}] * 30)
    words = [sys.executable, "-m", "gpu_scheduler", "import", "queue.json"]
    both = [subprocess.Popen(words, cwd=desk.path, stdout=subprocess.PIPE) for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert job_count(desk.store) == 30
    assert not queue.exists()
    assert list(desk.path.glob("queue.json*")) == [desk.path / "queue.json.bak"]


def test_an_earlier_backup_is_not_overwritten(desk: Desk, queue: Path) -> None:
    for number, script in enumerate(("train.py", "eval.py", "train.py --x"), 1):
        (desk.path / script).touch()
        write(queue, {"script": script})
        assert desk.run("import", "queue.json")[0] == 0
        assert job_count(desk.store) == number
    names = sorted(path.name for path in desk.path.glob("queue.json*"))
    assert names == ["queue.json.bak", "queue.json.bak.1", "queue.json.bak.2"]


def test_a_file_that_cannot_be_renamed_is_reported(
    desk: Desk, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(queue, {"script": "train.py"})

    def refuse(old: str, new: str) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        code, _, err = desk.run("import", "queue.json")
    assert code == 1
    assert "queue.json was imported but not renamed: Permission denied; rename it yourself" in err


def test_a_file_that_changes_during_the_import_is_not_renamed(
    desk: Desk, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(queue, {"script": "train.py"})
    read = import_queue._read

    def read_then_change(path: str) -> bytes:
        data = read(path)
        write(queue, {"script": "train.py"}, {"script": "eval.py"})
        return data

    monkeypatch.setattr(import_queue, "_read", read_then_change)
    code, _, err = desk.run("import", "queue.json")
    assert code == 1
    assert "not renamed: another program has just changed it" in err
    assert queue.exists()


def test_a_job_whose_parent_failed_is_held(desk: Desk, queue: Path) -> None:
    write(queue, {"name": "a", "status": "failed"}, {"script": "train.py", "after": 1}, {"script": "eval.py"})
    code, _, err = desk.run("import", "queue.json")
    assert code == 0
    assert err == (
        "gpu-scheduler: warning: job 1: held, because job 1 (a) in the file, which it waits for, is failed;"
        " `release` starts it anyway\n"
    )
    assert (job(desk, 1).state, job(desk, 2).state) == (JobState.HELD, JobState.QUEUED)
    assert job(desk, 1).reason == StateReason(ReasonKind.PARENT_NOT_IMPORTED, subject="job 1 (a)")
    why = "held by `import`, because job 1 (a) in the file did not complete"
    assert why in desk.run("status")[1]
    out = desk.run("why", 1)[1]
    assert out.startswith(f"job 1 is {why}\n")
    assert "`release 1` queues it" in out


def test_the_gpu_of_a_job_is_ignored_with_a_warning(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py", "env": {"CUDA_VISIBLE_DEVICES": "3", "SEED": "1"}})
    code, _, err = desk.run("import", "queue.json")
    assert code == 0
    assert "job 1: CUDA_VISIBLE_DEVICES=3 is ignored" in err
    assert job(desk, 1).spec.env == (("SEED", "1"),)


def test_an_interpreter_outside_a_virtual_environment_is_called_by_its_path(desk: Desk, queue: Path) -> None:
    (desk.path / ".venv" / "pyvenv.cfg").unlink()
    write(queue, {"script": "train.py", "python": f"{desk.path}/.venv/bin/python"})
    assert desk.run("import", "queue.json")[0] == 0
    assert job(desk, 1).spec.command == f"{desk.path}/.venv/bin/python -u train.py"
    assert job(desk, 1).spec.venv is None


@pytest.mark.parametrize(
    ("retries", "attempt", "left"), [(3, 0, 3), (3, 3, None), (1, 4, None), (None, 2, None)]
)
def test_the_retries_that_a_job_has_used_are_not_left(
    desk: Desk, queue: Path, retries: int | None, attempt: int, left: int | None
) -> None:
    write(queue, {"script": "train.py", "retries": retries, "attempt": attempt})
    assert desk.run("import", "queue.json")[0] == 0
    assert job(desk, 1).spec.fail_retries == left


@pytest.mark.parametrize(
    ("args", "words"), [("", ()), ("--x 'a b'", ("--x", "a b")), ([], ()), (["a b"], ("a b",)), (None, ())]
)
def test_arguments_are_a_list_or_a_text(
    desk: Desk, queue: Path, args: object, words: tuple[str, ...]
) -> None:
    write(queue, {"script": "train.py", "args": args})
    assert desk.run("import", "queue.json")[0] == 0
    assert job(desk, 1).spec.words() == ("python3", "-u", "train.py", *words)


def test_keys_that_are_null_or_describe_earlier_runs_have_no_effect(desk: Desk, queue: Path) -> None:
    nulls = dict.fromkeys(("id", "name", "args", "python", "cwd", "env", "status", "after", "retries"))
    runs = {"pid": 7, "log_file": "", "exit_code": 1, "added_at": "2026", "started_at": None}
    write(queue, {"script": "train.py", **nulls, **runs})
    assert desk.run("import", "queue.json")[0] == 0
    assert (job(desk, 1).spec.cwd, job(desk, 1).spec.name) == (str(desk.path), None)


def test_hostile_values_reach_the_script_unchanged(desk: Desk, queue: Path) -> None:
    folder = desk.path / "a 'b' [c] $(d)"
    folder.mkdir()
    (folder / "-x y.py").touch()
    write(
        queue,
        {
            "script": "-x y.py",
            "cwd": str(folder),
            "args": ["$(e)", "#f", "&"],
            "env": {"A": "] [b"},
            "name": "//",
        },
    )
    code, _, err = desk.run("import", "queue.json")
    assert (code, err) == (0, "")
    spec = job(desk, 1).spec
    assert spec.words() == ("python3", "-u", "./-x y.py", "$(e)", "#f", "&")
    assert (spec.cwd, spec.env, spec.name) == (str(folder), (("A", "] [b"),), None)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"script": "no.py"}, "job 2: script {}/no.py does not exist"),
        ({"script": ".venv"}, "job 2: script {}/.venv is not a file"),
        ({"script": "train.py", "cwd": "no"}, "job 2: the working folder {}/no does not exist"),
        ({"script": "train.py", "python": "no/python"}, "job 2: the interpreter {}/no/python does not exist"),
        (
            {"script": "train.py", "env": {"1": ""}},
            "job 2: these values do not form a valid line: env:1 is not",
        ),
        ({"script": "train.py", "args": ["a\nb"]}, "job 2: the command contains a line break or NUL"),
        ({"script": "train.py", "after": 9}, "job 2: after 9: the file has no such job"),
        ({"script": 1}, "job 2: script must be a path, not 1"),
    ],
)
def test_a_problem_of_one_job_refuses_all_jobs(
    desk: Desk, queue: Path, entry: dict[str, object], problem: str
) -> None:
    content = write(queue, {"script": "train.py"}, entry)
    code, out, err = desk.run("import", "queue.json")
    assert (code, out) == (2, "")
    assert err.startswith("gpu-scheduler: queue.json: 1 problem; nothing was imported\n")
    assert problem.format(desk.path) in err
    assert job_count(desk.store) == 0
    assert queue.read_bytes() == content


def test_many_problems_are_cut(desk: Desk, queue: Path) -> None:
    write(queue, *[{"script": "no.py"}] * 30)
    _, _, err = desk.run("import", "queue.json")
    assert "30 problems" in err
    assert len(err.splitlines()) == 23
    assert "… and 10 more" in err


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "does not exist"), ("[]", "not a queue"), ("{", "line 1, column 2: not JSON")],
)
def test_rejects_a_file_that_is_no_queue(desk: Desk, queue: Path, content: str | None, problem: str) -> None:
    if content is not None:
        queue.write_text(content)
    code, out, err = desk.run("import", "queue.json")
    assert (code, out) == (2, "")
    assert problem in err
    assert "nothing was imported" in err


def test_rejects_a_file_that_everyone_may_write_to(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py"})
    queue.chmod(0o666)
    code, _, err = desk.run("import", "queue.json")
    assert code == 2
    assert "queue.json is writable by everyone; copy it to a file that only you can write" in err


def test_a_file_without_pending_jobs_keeps_its_name(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py", "status": "running"})
    assert desk.run("import", "queue.json") == (
        0,
        "queue.json has no pending jobs; nothing was imported\n"
        "not imported, because only pending jobs are: 1 running\n",
        "",
    )
    assert queue.exists()


def test_many_jobs_share_a_line(desk: Desk, queue: Path) -> None:
    write(queue, *[{"script": "train.py"}] * 21)
    _, out, _ = desk.run("import", "queue.json")
    assert out.splitlines()[0] == "imported jobs 1-21 from queue.json"


def test_secrets_are_not_shown(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py", "args": ["--api-key", "hunter2hunter2"]})
    _, out, _ = desk.run("import", "queue.json")
    assert "hunter2" not in out
    assert job(desk, 1).spec.command == "python3 -u train.py --api-key hunter2hunter2"


def test_creates_a_missing_store(desk: Desk) -> None:
    (desk.path / "train.py").touch()
    write(desk.path / "queue.json", {"script": "train.py"})
    assert desk.run("import", "queue.json")[0] == 0
    assert job_count(desk.store) == 1


def test_a_problem_creates_no_store(desk: Desk) -> None:
    write(desk.path / "queue.json", {"script": "no.py"})
    assert desk.run("import", "queue.json")[0] == 2
    assert [path.name for path in desk.path.iterdir()] == ["queue.json"]


def test_warns_like_submit(desk: Desk, queue: Path) -> None:
    write(queue, {"script": "train.py", "args": ["--device", "cuda:1"]})
    assert "warning: job 1: --device cuda:1: the job sees one GPU" in desk.run("import", "queue.json")[2]
