from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.cli import main
from gpu_scheduler.cli.parser import parse
from gpu_scheduler.config import StartOptions
from gpu_scheduler.control.jobs_file import append_line
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES, KNOWN_ATTRIBUTES, NAMED
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.model.states import JobState, Outcome
from tests import changes
from tests.cli.desk import Desk
from tests.fakes.conda import plant

ROOT = Path(__file__).parents[2]
#: What `add` says about a line without an environment.
PLAIN = "the line names no environment, so its job gets the programs on the scheduler's PATH\n"
NOTED = f"gpu-scheduler: {PLAIN}"
CONDA = ROOT / "tests" / "fakes" / "conda.sh"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def test_add_appends_and_prints_the_line(desk: Desk, script: Path) -> None:
    code, out, err = desk.run("add", "train.py", "--conda", "myenv", "--args", "--llm x --layers 1,2",
                              "--gpus", "0,1")  # fmt: skip
    assert (code, out, err) == (0, f'200,{script},myenv,"--llm x --layers 1,2",0,1\n', "")
    assert (desk.path / "jobs.txt").read_text() == out


def test_add_needs_only_a_script(desk: Desk, script: Path) -> None:
    assert desk.run("add", "./sub/../train.py") == (0, f"200,{script},,,\n", NOTED)


def test_add_warns_about_likely_mistakes(desk: Desk, script: Path) -> None:
    code, out, err = desk.run("add", "train.py", "--args", "--device cuda:1")
    assert (code, out) == (0, f"200,{script},,--device cuda:1,\n")
    assert err == (
        f"{NOTED}gpu-scheduler: warning: --device cuda:1: the job sees one GPU, always as cuda:0; write"
        " cuda:0, and [allowed=1] for GPU 1\n"
    )
    assert (desk.path / "jobs.txt").read_text() == out


def test_add_names_the_environment_of_a_line_that_names_none(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = desk.path / ".venv"
    for name in ("pyvenv.cfg", "bin/activate", "bin/python"):
        (venv / name).parent.mkdir(parents=True, exist_ok=True)
        (venv / name).touch()
    near = f"; `--venv {venv}` takes the one that is nearest\n"
    assert desk.run("add", "--", "make")[2] == NOTED.replace("\n", near)
    assert desk.run("add", "train.py", "--venv", str(venv))[2] == ""
    monkeypatch.setenv("FAKE_CONDA_ROOT", str(desk.path / "conda"))
    desk.store.record_options(StartOptions(conda_sh=str(CONDA)))
    names = "gpu-scheduler: the line names no environment, so its job gets conda environment base"
    assert desk.run("add", "train.py")[2] == names + near


def test_add_says_that_a_number_given_as_gpus_is_the_number_of_a_gpu(desk: Desk, script: Path) -> None:
    said = "gpu-scheduler: --gpus 1 means GPU number 1; `--gpus-count N` requests N GPUs\n"
    assert desk.run("add", "train.py", "--gpus", "1") == (0, f"200,{script},,,1\n", said + NOTED)
    assert desk.run("add", "train.py", "--gpus", "0,1")[2] == NOTED


def test_add_with_a_dash_as_output_file_only_prints_the_line(desk: Desk, script: Path) -> None:
    code, out, _ = desk.run("add", "train.py", "--output-file", "-", "--priority", "5", "--args", "--resume")
    assert (code, out) == (0, f"5,{script},,--resume,\n")
    assert not (desk.path / "jobs.txt").exists()
    assert not (desk.path / "-").exists()


def test_add_ends_an_incomplete_last_line_before_appending(desk: Desk, script: Path) -> None:
    jobs = desk.path / "jobs.txt"
    jobs.write_text("echo first")
    desk.run("add", "train.py")
    desk.run("add", "train.py", "--priority", "1")
    assert jobs.read_text() == f"echo first\n200,{script},,,\n1,{script},,,\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope.py"], "does not exist"),
        (["."], "is not a file"),
        (["train.py", "--gpus", "3-0"], "--gpus 3-0"),
        (["train.py", "--gpus", "0,,1"], "--gpus 0,,1"),
        (["train.py", "--gpus", "9"], "no GPU 9"),
        (["train.py", "--args", 'say "hello'], "quote"),
        (["train.py", "--args", "a\nb"], "line break"),
        (["train.py", "--conda", "a b"], "a b"),
        (["train.py", "--args", "bad \udcff byte"], "UTF-8"),
    ],
)
def test_add_rejects_invalid_values_and_writes_nothing(
    desk: Desk, script: Path, words: list[str], told: str
) -> None:
    assert desk.store
    code, out, err = desk.run("add", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert "nothing was added" in err
    assert len(err.splitlines()) <= 2
    assert not (desk.path / "jobs.txt").exists()


def test_add_accepts_any_gpu_without_a_store(desk: Desk, script: Path) -> None:
    assert desk.run("add", "train.py", "--gpus", "9")[:2] == (0, f"200,{script},,,9\n")
    assert not desk.data_dir.folder.exists()


def test_add_works_with_a_broken_store(desk: Desk, script: Path) -> None:
    desk.data_dir.create()
    desk.data_dir.database.write_text(
        "no database at all, but long enough to be read as a page of one\n" * 50
    )
    assert desk.run("add", "train.py") == (0, f"200,{script},,,\n", NOTED)


def test_add_reports_a_jobs_file_that_cannot_be_written(desk: Desk, script: Path) -> None:
    code, out, err = desk.run("add", "train.py", "--output-file", "no/such/jobs.txt")
    assert (code, out) == (1, "")
    assert "no/such/jobs.txt cannot be written" in err


def test_add_reports_an_identical_job_that_is_queued_or_completed(desk: Desk, script: Path) -> None:
    line = f"200,{script},,--llm x,"
    read = parse_line(line, str(desk.path), "/")
    assert isinstance(read, ParsedJob)
    job_id = desk.store.insert_job(read.spec, f"file:{desk.path}/jobs.txt")
    code, out, err = desk.run("add", "train.py", "--args", "--llm x", "--priority", "7")
    assert (code, out) == (0, f"7,{script},,--llm x,\n")
    assert f"adds no new job: the identical job {job_id} is queued" in err
    desk.record(changes.finish(job_id, Outcome.COMPLETED))
    code, _, err = desk.run("add", "train.py", "--args", "--llm x")
    assert code == 0
    assert f"the identical job {job_id} has completed; `retry {job_id}` runs it again" in err
    assert desk.run("add", "train.py", "--args", "--llm y")[2] == NOTED
    assert desk.run("add", "train.py", "--args", "--llm x", "--conda", "e")[2] == ""


def test_add_does_not_warn_about_an_identical_job_that_failed(desk: Desk, script: Path) -> None:
    read = parse_line(f"200,{script},,,", str(desk.path), "/")
    assert isinstance(read, ParsedJob)
    job_id = desk.store.insert_job(read.spec, "cli")
    desk.record(changes.finish(job_id, Outcome.FAILED))
    assert desk.state(job_id) == JobState.FINISHED
    assert desk.run("add", "train.py") == (0, f"200,{script},,,\n", NOTED)


def test_add_finds_identical_jobs_by_the_folder_of_the_jobs_file(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = parse_line(f"200,{script},,,", "/data/there", "/")
    assert isinstance(read, ParsedJob)
    job_id = desk.store.insert_job(read.spec, "cli")
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, '/data/there')", (f"{desk.path}/jobs.txt",))
    assert f"job {job_id}" in desk.run("add", "train.py")[2]
    assert desk.run("add", "train.py", "--output-file", "other.txt")[2] == NOTED


def test_concurrent_adds_lose_no_line(desk: Desk, script: Path) -> None:
    (desk.path / "jobs.txt").write_text("echo first")
    code = (
        "import sys; from gpu_scheduler.cli import main\n"
        "for i in range(25): assert main(['add', 'train.py', '--args', f'--seed {sys.argv[1]}.{i}']) == 0"
    )
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(n)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
        for n in range(3)
    ]
    assert [adder.wait(60) for adder in adders] == [0, 0, 0]
    lines = (desk.path / "jobs.txt").read_text().splitlines()
    assert lines[0] == "echo first"
    assert sorted(lines[1:]) == sorted(f"200,{script},,--seed {n}.{i}," for n in range(3) for i in range(25))


def test_add_reopens_a_file_replaced_while_it_waited_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    jobs = tmp_path / "jobs.txt"
    jobs.write_text("old\n")
    real = fcntl.flock
    replaced: list[int] = []

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        if not replaced:
            (tmp_path / "new").write_text("new\n")
            os.replace(tmp_path / "new", jobs)
            replaced.append(fd)

    monkeypatch.setattr(fcntl, "flock", flock)
    append_line(str(jobs), "echo added")
    assert jobs.read_text() == "new\necho added\n"


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=30)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.text("abZ9 ,#'\"\\-_.ü[]", min_size=1, max_size=12),
    words=st.lists(TEXT, max_size=4),
    conda=st.none() | st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,8}", fullmatch=True),
    priority=st.integers(-99, 999),
    gpus=st.none() | st.sets(st.integers(0, 12), min_size=1, max_size=5),
)
def test_an_added_line_parses_to_the_same_job(
    tmp_path: Path,
    name: str,
    words: list[str],
    conda: str | None,
    priority: int,
    gpus: set[int] | None,
) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text("")
    jobs = tmp_path / "jobs.txt"
    jobs.write_text("")
    argv = ["add", str(script), "--args", shlex.join(words), "--priority", str(priority), "--output-file",
            str(jobs), "--state-file", str(tmp_path / "s.json")]  # fmt: skip
    argv += ["--conda", conda] if conda else []
    argv += ["--gpus", ",".join(map(str, gpus))] if gpus else []
    assert main(argv) == 0
    (line,) = jobs.read_bytes().decode().removesuffix("\n").split("\n")
    read = parse_line(line, "/", "/")
    assert isinstance(read, ParsedJob)
    spec = read.spec
    assert spec.script == str(script)
    assert list(spec.arguments) == words
    assert (spec.conda, spec.priority) == (conda, priority)
    assert spec.allowed == (None if gpus is None else tuple(sorted(gpus)))


def line_of(desk: Desk, *words: str) -> str:
    """Returns the line that `add` writes for these words."""
    code, out, err = desk.run("add", *words)
    assert code == 0, err
    return out.removesuffix("\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--", "python", "-m", "x"], "python -m x"),
        (["--priority", "3", "--", "a b && c"], "[priority=3] a b && c"),
        (["--", "echo", "a b", "$HOME", "#", "*"], "echo 'a b' '$HOME' '#' '*'"),
        (["--", "A=1", "make"], "A=1 make"),
        (["--", "[ -f x ] && y"], "true && [ -f x ] && y"),
        (["--", "[[ -f x ]] && y"], "true && [[ -f x ]] && y"),
        (["--", "0,a.py,b"], "true && 0,a.py,b"),
        (["--", "7", "x"], "true && 7 x"),
        (["--", "priority,script"], "true && priority,script"),
        (["--", "echo", "--", "--gpus", "1", "2"], "echo -- --gpus 1 2"),
        (["--gpus", "0-1", "--conda", "/", "--", "x"], "[allowed=0-1 conda=/] x"),
        (["--env", "A=b c]", "--env", "B=", "--", "x"], "['env:A=b c]' env:B=] x"),
        (["--cwd", "/", "--venv", "~", "--", "x"], "[venv=HOME cwd=/] x"),
        (
            ["--retries", "2", "--exclusive", "--hold", "--", "x"],
            "[exclusive oom-retries=2 hold] x",
        ),
    ],
)
def test_add_writes_the_command_after_two_dashes_as_a_line(
    desk: Desk, words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = desk.path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "activate").touch()
    monkeypatch.setenv("HOME", str(home))
    assert line_of(desk, *words) == line.replace("HOME", str(home), line.count("=HOME"))
    assert (desk.path / "jobs.txt").read_text().count("\n") == 1


def test_add_accepts_every_attribute_for_a_script(desk: Desk, script: Path) -> None:
    words = ["--vram", "18G", "--gpus-count", "2", "--fail-retries", "1", "--timeout", "2h", "--name", "bert",
             "--cuda", "rewrite", "--cuda-ids", "visible", "--env", "A=1"]  # fmt: skip
    block = "vram=18G gpus=2 fail-retries=1 timeout=2h name=bert env:A=1 cuda=rewrite cuda-ids=visible"
    assert line_of(desk, *words, "train.py", "--args", "x") == f"[{block}] 200,{script},,x,"


def test_every_attribute_has_an_option_of_add() -> None:
    words = [f"--{key}" + ("" if row.form is None else "=x") for key, row in ATTRIBUTES.items()]
    replaced = {
        "--gpus=x": "--gpus-count=x",
        "--priority=x": "--priority=1",
        "--env=x": "--env=A=x",
    }
    given = [replaced.get(word, word) for word in words if word != "--cancel"]
    assert parse(["add", *given, "--", "x"]).command_words == ["x"]
    known = {name.partition(":")[0] for name in KNOWN_ATTRIBUTES.split()}
    assert known == set(NAMED)


@settings(deadline=None, max_examples=60)
@given(
    words=st.lists(TEXT, min_size=2, max_size=5)
    | st.lists(st.sampled_from(["[", "0,a", "#", "]", "7"]), min_size=2)
)
def test_command_arguments_survive_a_round_trip(words: list[str]) -> None:
    read = parse_line(format_command_line(["name=a"], words), "/", "/")
    assert isinstance(read, ParsedJob)
    assert (read.spec.kind, read.spec.name) == ("command", "a")
    command = read.spec.command or ""
    assert shlex.split(command.removeprefix("true && ")) == words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-"], "so nothing was added; append the line to the jobs file yourself, as in `… >> jobs.txt`"),
        (["train.py", "--gpus", "0", "1", "2"], "write --gpus 0,1,2\n"),
        (["--gpus", "0", "1", "train.py"], "write --gpus 0,1\n"),
        (
            ["train.py", "--lr", "3"],
            'pass the script\'s own arguments with --args: `add train.py --args "--lr 3"`',
        ),
        (
            ["train.py", "--after", "1", "--lr", "3"],
            "or queue it without a jobs file: `submit --after 1 train.py --lr 3`",
        ),
        (
            ["train.py", "--python", "/bin/x"],
            "--python is an option of `submit`, which queues a job without a",
        ),
        (["--wait", "train.py"], "--wait is an option of `submit`"),
        (["train.py", "--n", "$x"], "`add train.py --args '--n '\"'\"'$x'\"'\"''`"),
        (["--lr", "3", "train.py"], 'with --args: as in `add train.py --args "--lr 3"`'),
        (["train.py", "--vrma", "8G"], "did you mean `--vram`? Pass the script's own"),
        (["python", "train.py", "--lr", "3"], "`add -- python train.py --lr 3`"),
        (["--name", "a", "my run.sh", "3"], "`add --name a -- bash 'my run.sh' 3`"),
        (["my train.py", "--name", "a", "--lr", "3"], """`add --name a 'my train.py' --args "--lr 3"`"""),
        (["train.py", "--", "--lr", "3"], 'the script\'s arguments with --args "--lr 3"'),
        ([], "give a SCRIPT, or a command after `--`"),
        (["--"], "there is no command after `--`"),
        (["--args", "x", "--", "y"], "--args works only with a script"),
        (["--", "#x"], "'#x' runs nothing; nothing was added"),
        (["--", "sleep 1 &"], "remove the `&`"),
        (["--", "for i in 1; do"], "bash rejects the command"),
        (["--", "a\nb"], "contains a line break or NUL; put it into a script and give the script"),
        (["--vram", "8X", "--", "x"], "vram: memory '8X'"),
        (["--name", "a b", "train.py"], "name 'a b' must consist"),
        (["--env", "A", "--", "x"], "--env: 'A' has no value; write A=VALUE"),
        (["--env", "CUDA_VISIBLE_DEVICES=1", "--", "x"], "is set by the scheduler"),
        (["--share", "2", "--vram", "8G", "train.py"], "give gpus=N instead"),
        (["--venv", "v", "--conda", "c", "train.py"], "both a conda environment and a venv"),
        (["--gpus", "9", "--", "x"], "--gpus 9: GPU list '9': there is no GPU 9"),
    ],
)
def test_add_suggests_a_correction_for_rejected_arguments(
    desk: Desk, script: Path, words: list[str], told: str
) -> None:
    assert desk.store
    code, out, err = desk.run("add", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert not (desk.path / "jobs.txt").exists()


def test_start_and_lint_explain_the_format_of_a_gpu_list(desk: Desk) -> None:
    for words in (["start", "--gpus", "0", "2"], ["lint", "--gpus", "0", "2"]):
        code, _, err = desk.run(*words)
        assert (code, "write --gpus 0,2\n" in err) == (2, True)


def test_an_added_command_runs_in_the_folder_in_which_it_was_added(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sub = desk.path / "sub"
    sub.mkdir()
    monkeypatch.chdir(sub)
    state = ("--state-file", str(desk.path / "gpu_scheduler_state.json"))
    jobs = ("--output-file", str(desk.path / "jobs.txt"))
    assert line_of(desk, *state, *jobs, "--", "make") == f"[cwd={sub}] make"
    assert line_of(desk, *state, "--", "make") == "make"
    assert line_of(desk, *state, *jobs, "--cwd", "..", "--", "make") == f"[cwd={desk.path}] make"
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, ?)", (jobs[1], str(sub)))
    assert line_of(desk, *state, *jobs, "--", "make") == "make"


def test_adding_a_completed_command_creates_a_new_job(desk: Desk) -> None:
    for _ in range(2):
        line = line_of(desk, "--", "echo")
        read = parse_line(line, str(desk.path), "/")
        assert isinstance(read, ParsedJob)
        job_id = desk.store.insert_job(read.spec, "cli")
        assert desk.run("add", "--", "echo")[2] == NOTED
        desk.record(changes.finish(job_id, Outcome.COMPLETED))
    assert "not a program on PATH" in desk.run("add", "--", "pyhton", "t.py")[2]


def test_add_warns_of_an_unknown_conda_environment(
    desk: Desk, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line_of(desk, "train.py", "--conda", "nope") == f"200,{script},nope,,"
    monkeypatch.setenv("FAKE_CONDA_ROOT", str(plant(desk.path / "conda", "ml")))
    desk.store.record_options(StartOptions(conda_sh=str(CONDA)))
    for words in (["train.py", "--conda", "nope"], ["--conda", "nope", "--", "true"]):
        code, out, err = desk.run("add", *words)
        assert (code, out.count("nope")) == (0, 1)
        assert (
            "gpu-scheduler: warning: conda environment nope does not exist; environments: base, ml\n" in err
        )
    assert desk.run("add", "train.py", "--conda", "ml")[2] == ""
    monkeypatch.setattr("gpu_scheduler.health.job_checks.list_environments", None)
    (desk.path / "conda" / "etc" / "profile.d").mkdir(parents=True)
    (desk.path / "conda" / "etc" / "profile.d" / "conda.sh").symlink_to(CONDA)
    desk.store.record_options(
        StartOptions(conda_sh=str(desk.path / "conda" / "etc" / "profile.d" / "conda.sh"))
    )
    assert desk.run("add", "train.py", "--conda", "ml", "--args", "1")[2] == ""


def test_add_warns_if_the_scheduler_watches_another_file(desk: Desk, script: Path) -> None:
    desk.store.record_options(StartOptions(jobs_file=str(desk.path / "jobs.txt")))
    assert desk.run("add", "train.py", "--output-file", "other.txt")[2] == NOTED  # no scheduler is running
    with desk.scheduler("deaf") as pid:
        assert desk.run("add", "train.py")[2] == NOTED
        assert desk.run("add", "train.py", "--output-file", "-")[2] == ""
        assert desk.run("add", "train.py", "--output-file", "other.txt")[2] == (
            f"{NOTED}gpu-scheduler: warning: the scheduler (pid {pid}) does not watch {desk.path}/other.txt;"
            f" it watches {desk.path}/jobs.txt\n"
        )
        desk.store.record_options(StartOptions(jobs_file=""))
        assert "it watches no jobs file" in desk.run("add", "train.py", "--output-file", "other.txt")[2]
        code, out, err = desk.run("add", "train.py")
        assert (code, out) == (2, "")
        assert "the scheduler watches no jobs file, so nothing was added; use `submit`" in err


def test_add_errors_name_the_invalid_field(desk: Desk, script: Path) -> None:
    code, _, err = desk.run("add", "train.py", "--conda", "my env,x")
    assert (code, "conda environment 'my env,x' is neither a name nor" in err) == (2, True)
    assert desk.run("add", "train.py", "--conda", "/a,b", "--output-file", "-")[:2] == (
        0,
        f'200,{script},"/a,b",,\n',
    )
    assert "put quotes around a name or value that contains a space" in desk.run("add", "my", "train.py")[2]


def test_add_refuses_a_reference_to_an_unknown_job(desk: Desk) -> None:
    jobs = desk.path / "jobs.txt"
    assert desk.run("add", "--after", "prep", "--", "true")[0] == 2
    assert not jobs.exists()
    jobs.write_text("[name=prep] true")
    assert desk.run("add", "--after", "prep", "--name", "next", "--", "true")[0] == 0
    code, _, err = desk.run("add", "--after", "prep,7", "--", "true")
    assert code == 2
    assert "after=7: there is no job 7; `status --all` lists the jobs; nothing was added" in err
    code, _, err = desk.run("add", "--after-any", "next", "--name", "prep", "--", "true")
    assert (code, "after-any=next: the job would wait for itself, through line 2" in err) == (2, True)
    assert jobs.read_text().count("\n") == 2
