"""Tests `submit`, which queues a job without a jobs file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.control import new_line
from gpu_scheduler.control.new_line import parse_new_line
from gpu_scheduler.core.command.build import display_command
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, resolve
from gpu_scheduler.store.job_lists import dependencies_of
from gpu_scheduler.store.requests import launch_context
from tests import changes
from tests.cli.desk import Desk
from tests.e2e.world import World
from tests.fakes.conda import plant
from tests.waiting import wait_for

FAKE_CONDA = Path(__file__).parents[1] / "fakes" / "conda.sh"
NO_SCHEDULER = "no scheduler is running, so the job waits until `start` in"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def make_venv(folder: Path) -> Path:
    venv = folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text(
        f"VIRTUAL_ENV={venv}; PATH={venv}/bin:$PATH; export VIRTUAL_ENV PATH\n"
    )
    (venv / "bin" / "python").write_text('#!/bin/sh\necho "the python of $VIRTUAL_ENV: $*"\n')
    (venv / "bin" / "python").chmod(0o755)
    return venv


def job_of(desk: Desk, job_id: int = 1) -> Job:
    job = desk.store.job(job_id)
    assert job is not None
    return job


def submitted(desk: Desk, *words: str) -> Job:
    """Submits a job and returns it."""
    code, out, err = desk.run("submit", "--json", *words)
    assert code == 0, err
    return job_of(desk, json.loads(out)["id"])


def test_submit_queues_a_script_with_its_arguments(desk: Desk, script: Path) -> None:
    assert desk.store
    code, out, err = desk.run(
        "submit", "train.py", "--env", "CartPole-v1", "--gpus", "2", "--timeout", "5", "a b"
    )
    text = "python -u train.py --env CartPole-v1 --gpus 2 --timeout 5 'a b'"
    assert (code, out) == (0, f"job 1 submitted: {text}\n")
    assert err == f"gpu-scheduler: {NO_SCHEDULER} {desk.path}\n"
    job = job_of(desk)
    assert (job.text, job.state, job.source) == (text, JobState.QUEUED, "submit")
    assert "that of the shell in which it was submitted" in desk.run("show", "1")[1]
    assert (job.spec.kind, job.spec.cwd, job.spec.gpus, job.spec.timeout_s) == (
        "command",
        str(desk.path),
        None,
        None,
    )


def test_submit_prints_only_the_id_as_json(desk: Desk, script: Path) -> None:
    assert desk.store
    code, out, _ = desk.run("submit", "--json", "train.py")
    assert (code, json.loads(out)) == (0, {"id": 1})


def test_submit_queues_a_command(desk: Desk) -> None:
    assert submitted(desk, "--", "echo", "a b", "--name", "x").text == "echo 'a b' --name x"
    assert submitted(desk, "--", "echo $HOME && false").text == "echo $HOME && false"


def test_equal_jobs_are_different_jobs(desk: Desk, script: Path) -> None:
    one, two = submitted(desk, "train.py"), submitted(desk, "train.py")
    assert one.id != two.id
    assert one.identity == two.identity


def test_submit_sets_every_attribute(desk: Desk, script: Path) -> None:
    first = submitted(desk, "--name", "prep", "train.py")
    values = {
        "vram": "2G", "gpus": "2", "allowed": "0,1", "oom-retries": "1", "fail-retries": "2",
        "timeout": "90s", "after": "prep", "after-any": str(first.id), "name": "x", "priority": "7",
        "conda": "ml", "cwd": str(desk.path), "env": "A=b c", "cuda": "off", "cuda-ids": "visible",
        "preempt-signal": "USR1", "resume-flag": "ckpt", "checkpoints": "out/*.pt",
        "pipefail": "off", "background": "wait", "max-running": "3", "on": "local",
    }  # fmt: skip
    others = {"share", "venv", "cancel", "gpu-type"}
    flags = {key for key, row in ATTRIBUTES.items() if row.form is None} - others
    assert values.keys() | flags | others == ATTRIBUTES.keys()
    words = [
        *(word for key, value in values.items() for word in (f"--{key}", value)),
        *(f"--{flag}" for flag in flags),
    ]
    spec = submitted(desk, *words, "train.py").spec
    assert (spec.vram, spec.gpus, spec.allowed, spec.oom_retries, spec.fail_retries) == (
        2048,
        2,
        (0, 1),
        1,
        2,
    )
    assert (spec.timeout_s, spec.after, spec.after_any, spec.name) == (90, ("prep",), ("1",), "x")
    assert (spec.pipefail, spec.background, spec.max_running) == ("off", "wait", 3)
    assert (spec.priority, spec.conda, spec.env, spec.cuda, spec.cuda_ids) == (
        7,
        "ml",
        (("A", "b c"),),
        "off",
        "visible",
    )
    assert (spec.exclusive, spec.hold) == (True, True)
    assert submitted(desk, "--on", "slurm", "--gpu-type", "a100", "--", "true").spec.gpu_type == "a100"
    assert submitted(desk, "--share", "0.5", "--retries", "3", "--dir", "/", "--", "true").spec.cwd == "/"


def test_a_job_that_declares_nothing_needs_one_idle_gpu(desk: Desk, script: Path) -> None:
    need = resolve(ResourceSpec.of(submitted(desk, "train.py").spec), LlmConfig())
    assert (need.count, need.alone) == (1, True)


@pytest.mark.parametrize(("name", "text"), [("a.py", "python -u a.py x"), ("b c.sh", "bash 'b c.sh' x"),
                                            ("./run", "./run x"), ("run", "./run x")])  # fmt: skip
def test_the_command_depends_on_the_kind_of_script(desk: Desk, name: str, text: str) -> None:
    (desk.path / "run").touch(mode=0o755)
    (desk.path / name).touch()
    job = submitted(desk, name, "x")
    assert job.text == text.replace("python ", f"{new_line.default_python(os.environ)} ")


def test_the_script_is_looked_up_in_the_folder_of_the_job(desk: Desk) -> None:
    folder = desk.path / "sub"
    folder.mkdir()
    (folder / "train.py").touch()
    (desk.path / "other.py").touch()
    assert submitted(desk, "--dir", "sub", "train.py").spec.cwd == str(folder)
    code, _, err = desk.run("submit", "--cwd", "sub", "other.py")
    assert code == 2
    assert (
        f"{folder}/other.py does not exist; scripts are looked up in the job's folder; give the path"
        f" {desk.path}/other.py" in err
    )
    assert submitted(desk, "--cwd", "sub", str(desk.path / "other.py")).text.endswith(
        f" {desk.path}/other.py"
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("nope.py", "nope.py does not exist; put a command after `--`"),
        ("folder", "is not a file"),
        ("data.txt", "ends in neither .py nor .sh and is not executable"),
        ("python train.py", "python does not exist; put a command after `--`"),
        ("--vram 2Q train.py", "vram"),
        ("--allowed 9 train.py", "no GPU 9"),
        ("--name 'a b' train.py", "name 'a b'"),
        ("--after 99 train.py", "--after 99: there is no job 99"),
        ("--after 99999999999999999999 train.py", "there is no job 99999999999999999999"),
        ("train.py --after-any nobody", "--after-any nobody: there is no job named nobody"),
        ("--after '' train.py", "--after: the value is empty"),
        ("--conda a --venv b train.py", "both a conda environment and a venv"),
        ("--python nopython train.py", "--python nopython: nopython is not on PATH"),
        ("--python ./data.txt train.py", "data.txt is not an executable file"),
        ("--python python3 run.sh", "is a shell script"),
        ("--python python3 -- true", "--python chooses the interpreter of a SCRIPT"),
        ("-- 'python train.py &'", "&"),
        ("train.py 'a\nb'", "line break"),
        ("-- ''", "runs nothing"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_and_nothing_is_submitted(
    desk: Desk, script: Path, words: str, problem: str
) -> None:
    (desk.path / "folder").mkdir()
    (desk.path / "data.txt").touch()
    (desk.path / "run.sh").touch()
    assert desk.store
    code, out, err = desk.run("submit", *shlex.split(words))
    assert (code, out) == (2, "")
    assert problem in err
    assert "nothing was submitted" in err
    assert desk.store.job(1) is None


def test_submit_prints_the_words_after_the_script_that_it_took(desk: Desk, script: Path) -> None:
    submitted(desk, "train.py")
    code, out, err = desk.run("submit", "train.py", "--after", "1", "--lr", "3", "--name=eval")
    assert (code, out) == (0, f"job 2 submitted: {job_of(desk).text} --lr 3\n")
    assert (
        "`submit` took --after 1 --name eval as its own; put `--` between the script and its arguments" in err
    )
    assert job_of(desk, 2).name == "eval"


def test_a_job_waits_for_the_jobs_that_it_names(desk: Desk, script: Path) -> None:
    submitted(desk, "--name", "prep", "train.py")
    submitted(desk, "train.py")
    job = submitted(desk, "--after", "prep,2", "train.py", "--after-any", "2")
    found = {
        (one.parent_id, str(one.kind), one.reference) for one in dependencies_of(desk.store, [job.id])[job.id]
    }
    assert found == {(1, "completed", "prep"), (2, "completed", "2"), (2, "finished", "2")}
    assert job_of(desk, job.id).unmet_parents == 3


def test_a_job_waits_for_all_open_jobs_that_share_a_name(desk: Desk, script: Path) -> None:
    for _ in range(2):
        submitted(desk, "--name", "prep", "train.py")
    job = submitted(desk, "--after", "prep,1", "train.py")
    assert {one.parent_id for one in dependencies_of(desk.store, [job.id])[job.id]} == {1, 2}


def test_a_range_of_parents_is_refused_unless_it_is_a_name(desk: Desk, script: Path) -> None:
    desk.job(name="epoch")
    code, _, err = desk.run("submit", "--after", "epoch,1-3", "train.py")
    assert (code, "--after 1-3: this is a range, which is not possible here" in err) == (2, True)
    desk.job(name="1-3")
    assert desk.run("submit", "--after", "1-3", "train.py")[0] == 0


def test_submit_warns_about_a_parent_that_has_not_completed(desk: Desk, script: Path) -> None:
    submitted(desk, "train.py")
    desk.record(changes.finish(1, Outcome.CANCELLED))
    code, _, err = desk.run("submit", "--after", "1", "train.py")
    assert code == 0
    assert (
        "warning: job 1 has not completed (cancelled), so this job is skipped until `retry 1` queues it again"
        in err
    )
    assert "warning" not in desk.run("submit", "--after-any", "1", "train.py")[2]
    desk.record(act.SettleDependencies())
    _, _, err = desk.run("submit", "--after", "2", "train.py")
    assert "warning: job 2 has not completed (skipped), so this job is skipped until `retry 1` queues" in err


def test_a_command_with_a_line_break_is_refused_with_a_remedy(desk: Desk) -> None:
    code, _, err = desk.run("submit", "--", "echo a\necho b")
    assert (code, "put it into a script and give the script instead; nothing was submitted" in err) == (
        2,
        True,
    )


def test_submit_gives_the_warnings_of_add(desk: Desk, script: Path) -> None:
    assert desk.store
    _, _, err = desk.run("submit", "train.py", "--device", "cuda:1")
    assert "warning: --device cuda:1: the job sees one GPU, always as cuda:0" in err


def test_the_nearest_venv_above_the_folder_of_the_job_is_used(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    venv, folder = make_venv(desk.path), desk.path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "t.py").touch()
    assert desk.store
    _, _, err = desk.run("submit", "--dir", "a/b", "t.py")
    assert f"job 1 uses the virtual environment {venv}" in err
    assert (job_of(desk).spec.venv, job_of(desk).text) == (str(venv), "python -u t.py")
    nearer = make_venv(folder)
    assert submitted(desk, "--dir", "a/b", "t.py").spec.venv == str(nearer)
    (nearer / "bin" / "activate").unlink()
    assert submitted(desk, "--dir", "a/b", "t.py").spec.venv == str(venv)


@pytest.mark.parametrize(
    ("words", "venv", "conda"),
    [("--conda ml", None, "ml"), ("--venv other", "other", None), ("--python /bin/sh", None, None)],
)
def test_a_chosen_environment_comes_before_the_nearest_venv(
    desk: Desk, script: Path, words: str, venv: str | None, conda: str | None
) -> None:
    make_venv(desk.path)
    spec = submitted(desk, *words.split(), "train.py").spec
    assert (spec.venv, spec.conda) == (venv and str(desk.path / venv), conda)
    assert (spec.command or "").startswith("/bin/sh -u " if "python" in words else "python -u ")


def test_commands_and_shell_scripts_do_not_use_the_nearest_venv(desk: Desk) -> None:
    make_venv(desk.path)
    (desk.path / "t.sh").touch()
    assert submitted(desk, "t.sh").spec.venv is None
    assert submitted(desk, "--", "python", "x.py").spec.venv is None


def test_a_venv_of_another_user_is_not_used(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = make_venv(desk.path)
    monkeypatch.setattr("gpu_scheduler.control.submit.is_trusted", lambda path: False)
    assert desk.store
    _, _, err = desk.run("submit", "train.py")
    assert f"warning: virtual environment {venv} is not used, because it belongs to another user" in err
    assert job_of(desk).spec.venv is None


def test_a_job_keeps_the_environment_of_its_caller(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    first = submitted(desk, "train.py")
    monkeypatch.setenv("MY_TOKEN", "other")
    second = submitted(desk, "train.py")
    found = [launch_context(desk.store, job.id).environment for job in (first, second)]
    assert [one and one["MY_TOKEN"] for one in found] == ["s3cret", "other"]
    assert first.identity == second.identity
    for words in (["status", "--all"], ["show", "1"], ["why", "1"], ["events"]):
        for form in ([], ["--jsonl" if words == ["events"] else "--json"]):
            assert "s3cret" not in "".join(map(str, desk.run(*words, *form)))


def test_submit_creates_the_store(desk: Desk, script: Path) -> None:
    code, out, err = desk.run("submit", "train.py")
    assert (code, out[:15]) == (0, "job 1 submitted")
    assert err.startswith(f"gpu-scheduler: {NO_SCHEDULER} {desk.path}\n")
    assert f"this is the first job of the new store {desk.data_dir.folder}" in err
    assert "new store" not in desk.run("submit", "train.py")[2]
    assert desk.run("status")[0] == 0


def test_submit_creates_no_store_for_a_job_that_is_refused(desk: Desk, script: Path) -> None:
    assert desk.run("submit", "nope.py")[0] == 2
    assert desk.run("submit", "--after", "1", "train.py")[0] == 1
    code, _, err = desk.run("submit", "--state-file", "no/x.json", "train.py")
    assert (code, "create it first" in err) == (2, True)
    assert sorted(path.name for path in desk.path.iterdir()) == ["train.py"]


def test_a_submitted_job_runs_at_once_in_its_folder_with_the_environment_of_its_caller(world: World) -> None:
    """The scheduler's own variables do not reach the job, and nothing shows those of the caller."""
    (world.folder / "sub").mkdir()
    (world.folder / "sub" / "t.py").write_text(
        "import os, sys\n"
        "found = [os.environ.get('MINE'), os.environ.get('THEIRS'), *sys.argv[1:]]\n"
        "open('got', 'w').write(str(found))\n"
    )
    caller = dict(world.env)
    world.env = {**caller, "THEIRS": "scheduler", "MINE": "scheduler"}
    world.start("--jobs-file", "")
    world.env = {**caller, "MINE": "s3caller"}
    world.run_ok("submit", "--dir", "sub", "t.py", "a b", "$HOME", "--")
    world.wait_finished(1)
    assert (world.folder / "sub" / "got").read_text() == "['s3caller', None, 'a b', '$HOME', '--']"
    world.end_scheduler()
    assert "s3caller" not in world.output()
    for words in (
        ("status", "--json", "--all"),
        ("why", "1", "--json"),
        ("show", "1"),
        ("events", "--jsonl"),
    ):
        assert "s3caller" not in world.run_ok(*words)
    hidden = (".db", ".db-wal", ".db-shm", "spec.json", "got")
    for path in world.folder.rglob("*"):
        if path.is_file() and not path.name.endswith(hidden):
            assert b"s3caller" not in path.read_bytes(), path


def test_a_job_that_was_submitted_without_a_scheduler_runs_when_one_starts(world: World) -> None:
    venv = make_venv(world.folder)
    (world.folder / "t.py").touch()
    (world.folder / "u.sh").write_text("echo then >>got\n")
    world.run_ok("submit", "--name", "first", "t.py", "x")
    world.run_ok("submit", "--after", "first", "u.sh")
    world.start("--jobs-file", "", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 0
    assert (world.folder / "got").read_text() == "then\n"
    assert f"the python of {venv}: -u t.py x" in world.run_ok("logs", "1")


def test_submits_at_the_same_time_create_one_store(world: World) -> None:
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda number: world.cli("submit", "--json", "--", f"echo {number}"), range(4)))
    assert [one.returncode for one in done] == [0] * 4, done
    assert sorted(json.loads(one.stdout)["id"] for one in done) == [1, 2, 3, 4]


def test_a_job_of_a_restored_store_keeps_its_environment(world: World) -> None:
    caller = dict(world.env)
    world.start("--jobs-file", "")
    world.env = {**caller, "MINE": "caller"}
    world.run_ok("submit", "--", "echo $MINE $THEIRS >>got; exit 3")
    world.wait_finished(1)
    world.end_scheduler()
    for path in (world.folder / "gpu_scheduler_state.d").glob("scheduler.db*"):
        path.unlink()
    shutil.rmtree(world.folder / "gpu_scheduler_state.d" / "backups", ignore_errors=True)
    world.env = {**caller, "THEIRS": "scheduler"}
    world.start("--jobs-file", "", "--restore")
    world.wait_finished(1)
    world.run_ok("retry", "1")
    assert world.wait_for_lines("got", 2) == ["caller"] * 2


def test_a_folder_whose_name_is_not_utf8_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk.path / os.fsdecode(b"b\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, _, err = desk.run("submit", "--", "true")
    assert code == 2
    assert (
        "the path is not valid UTF-8, so the store cannot record it; rename it; nothing was submitted" in err
    )
    assert os.listdir(folder) == []


def test_the_option_cuda_is_rewritten_where_it_stands_and_never_added(desk: Desk, script: Path) -> None:
    with_option = submitted(desk, "train.py", "--cuda", "3", "--lr", "1").spec
    assert display_command(with_option, "0,1") == "python -u train.py --cuda 0,1 --lr 1"
    assert display_command(submitted(desk, "train.py").spec, "0,1") == "python -u train.py"


def test_a_job_whose_environment_was_lost_does_not_start_in_another_one(world: World) -> None:
    world.run_ok("submit", "--hold", "--", "touch got")
    with closing(sqlite3.connect(world.folder / "gpu_scheduler_state.d" / "scheduler.db")) as db, db:
        db.execute("DELETE FROM environment")
    world.start("--jobs-file", "")
    world.run_ok("release", "1")
    wait_for(lambda: "the store has lost its environment; submit the job again" in world.output(), "reason")
    world.run_ok("cancel", "1")
    assert not (world.folder / "got").exists()


def test_a_job_uses_the_conda_of_its_caller_if_the_scheduler_has_none(world: World) -> None:
    root = plant(world.folder / "conda", "ml")
    conda_sh = root / "etc" / "profile.d" / "conda.sh"
    conda_sh.parent.mkdir(parents=True)
    conda_sh.write_text(f'. "{FAKE_CONDA}"\n')
    world.start("--jobs-file", "")
    world.env["CONDA_EXE"] = str(root / "bin" / "conda")
    world.run_ok("submit", "--conda", "ml", "--", "echo $CONDA_DEFAULT_ENV >got")
    world.wait_finished(1)
    assert (world.folder / "got").read_text() == "ml\n"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8), max_size=5))
def test_the_script_gets_its_arguments_unchanged(arguments: list[str]) -> None:
    words = ["python", "-u", "train.py", *arguments]
    line = format_command_line(["name=x", "cwd=/a b"], [shlex.join(words)])
    spec, _ = parse_new_line(line, "/", None)
    assert shlex.split(spec.command or "") == words
    assert spec.cwd == "/a b"


def sbatch_script(folder: Path, *lines: str, name: str = "job.sh") -> str:
    (folder / name).write_text("#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "true\n")
    return name


def test_the_sbatch_lines_of_a_script_set_attributes_and_the_options_of_the_command_line_win(
    desk: Desk,
) -> None:
    name = sbatch_script(desk.path, "--job-name=bert -t 2:00:00", "--gres=gpu:4 --mem=32G", "-p long")
    code, out, err = desk.run("submit", "--gpus", "2", name)
    assert (code, out) == (0, "job 1 submitted: bash job.sh\n")
    assert "warning: the #SBATCH lines of job.sh set name=bert, timeout=2h\n" in err
    assert "have options without effect here: --mem=32G, -p long\n" in err
    spec = job_of(desk).spec
    assert (spec.name, spec.timeout_s, spec.gpus, spec.vram) == ("bert", 7200, 2, None)


@pytest.mark.parametrize("name", ["job.sbatch", "job.slurm"])
def test_a_script_of_slurm_runs_with_bash(desk: Desk, name: str) -> None:
    assert desk.run("submit", sbatch_script(desk.path, name=name))[:2] == (
        0,
        f"job 1 submitted: bash {name}\n",
    )


def test_the_command_that_makes_a_script_executable_works_when_pasted(desk: Desk) -> None:
    (desk.path / "my job").write_text("#!/bin/sh\n")
    command = re.search("make it executable \\(`(.*)`\\)", desk.run("submit", "my job")[2])
    assert command is not None
    subprocess.run(command[1], shell=True, check=True, cwd=desk.path)
    assert desk.run("submit", "my job")[:2] == (0, "job 1 submitted: './my job'\n")


def test_an_array_of_jobs_is_refused_with_the_command_that_replaces_it(world: World) -> None:
    name = sbatch_script(world.folder, "--array=0-3:2%1 -J sweep", name="my job.sh")
    script = world.folder / name
    script.write_text(f'{script.read_text()}touch "out_$SLURM_ARRAY_TASK_ID $TAG $*"\n')
    done = world.cli("submit", "--env", "TAG=a b", "--gpus=0", name, "--", "--name", "$x")
    assert (done.returncode, done.stdout) == (2, "")
    command = re.search("submit them with `submit (.*)`; nothing was submitted", done.stderr)
    assert command is not None, done.stderr
    assert world.cli("submit", *shlex.split(command[1])).returncode == 0
    assert "2 jobs: 2 queued" in world.cli("status", "sweep").stdout
    assert world.cli("start", "--simulate", "2", "--drain").returncode == 0
    found = sorted(path.name for path in world.folder.glob("out_*"))
    assert found == ["out_0 a b --name $x", "out_2 a b --name $x"]
