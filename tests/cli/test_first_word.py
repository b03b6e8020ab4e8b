"""`gpu-scheduler FILE`, with a jobs file instead of a command.

Running it again continues where it stopped.
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.cli.commands import COMMANDS
from gpu_scheduler.cli.parser import first_word_index, parse
from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon import service
from gpu_scheduler.errors import UsageError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests.cli.desk import Desk
from tests.e2e.world import World
from tests.waiting import wait_for
from tests.warm import Process

ROOT = Path(__file__).parents[2]
KEPT = "no jobs were forgotten, and the scheduler was not started"
SIMULATED = ("--simulate", "2", "--poll", "0.5", "--log-dir", "logs")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.txt", "status", "with blank", "train.py"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("jobs.txt", StartOptions(jobs_file="jobs.txt", drain=True)),
        ("jobs.txt --watch", StartOptions(jobs_file="jobs.txt")),
        ("jobs.txt --drain", StartOptions(jobs_file="jobs.txt", drain=True)),
        ("jobs.txt --sim 2 -v", StartOptions(jobs_file="jobs.txt", drain=True, simulate="2", verbose=True)),
        ("--state-file x.json jobs.txt", StartOptions(state_file="x.json", jobs_file="jobs.txt", drain=True)),
        ("--state-file=x.json jobs.txt", StartOptions(state_file="x.json", jobs_file="jobs.txt", drain=True)),
        ("jobs.txt --state-file x.json", StartOptions(state_file="x.json", jobs_file="jobs.txt", drain=True)),
        ("--data-dir start jobs.txt", StartOptions(data_dir="start", jobs_file="jobs.txt", drain=True)),
        ("./status", StartOptions(jobs_file="./status", drain=True)),
        ("start", StartOptions()),
        ("start --watch", StartOptions()),
        ("start --jobs-file jobs.txt", StartOptions(jobs_file="jobs.txt")),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_jobs_file_instead_of_a_command_is_run_and_drained(words: str, expected: StartOptions) -> None:
    options = parse(words.split())
    assert (options.command, StartOptions.from_values(vars(options))) == ("start", expected)


@pytest.mark.usefixtures("here")
def test_a_jobs_file_may_have_any_name_that_is_not_a_command() -> None:
    assert parse(["with blank"]).jobs_file == "with blank"
    assert parse(["status"]).command == "status"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("jobs.txt --watch --drain", ["--watch", "--drain", "not allowed"]),
        ("jobs.txt --jobs-file other.txt", ["two jobs files", "jobs.txt", "other.txt"]),
        ("jobs.txt status", ["unrecognized arguments: status", "the jobs file is jobs.txt"]),
        ("jobs.txt --json", ["--json", " start --help` lists"]),
        ("status --quux", ["unrecognized arguments: --quux; `status` accepts --", "--json", "--all"]),
        ("start --quux", ["unrecognized arguments: --quux; `start` accepts --", ", and others\n"]),
        ("hold 3 --bogus", ["--bogus; `hold` accepts --", "--state-file", "--data-dir\n"]),
        ("jobs.txt --frsh", ["--frsh; did you mean `--fresh`?\n"]),
        ("start with blank", ["with blank (use `--jobs-file 'with blank'`"]),
        ("start jobs.txt --sim 2", ["unrecognized arguments: jobs.txt (use `--jobs-file jobs.txt`"]),
        (
            "screens jobs.txt",
            ["jobs.txt; `screens` accepts only options (put quotes around", " screens --help` lists"],
        ),
        ("job.txt --sim 2", ["'job.txt'", "neither a command nor an existing file"]),
        ("-", ["standard input cannot be a jobs file", "`… > jobs.txt`, then `start --drain`"]),
        ("statu", ["'statu'", "did you mean `status`?"]),
        ("train.py --lr 3", ["; `submit train.py --lr 3` runs a script with its arguments as one job"]),
        ("submit --mem=18G -- x", ["--mem=18G; did you mean `--vram MEM`?"]),
        ("submit --time 2h -- x", ["--time; did you mean `--timeout TIME`?"]),
        ("submit --depends 3 -- x", ["--depends; did you mean `--after JOBS`?"]),
        ("submit --dependency=3 -- x", ["did you mean `--after JOBS`?"]),
        ("submit --gpu 0 -- x", ["--gpu; did you mean `--gpus N` or `--allowed LIST`?"]),
        ("submit -n 2 -- x", ["-n; did you mean `--gpus N` or `--allowed LIST`?"]),
        ("submit -J bert -- x", ["-J; did you mean `--name bert`?"]),
        ("submit --gres=gpu:2 -- x", ["did you mean `--gpus 2`?"]),
        ("submit --time=1:00:00 -- x", ["did you mean `--timeout 1h`?"]),
        ("submit --dependency=afterok:1:2 -- x", ["did you mean `--after 1,2`?"]),
        ("submit -d afterany:1 -- x", ["did you mean `--after-any 1`?"]),
        (
            "submit --array 1-9%3 train.py",
            ["`--grid i=1..9 --max-running 3 --env 'SLURM_ARRAY_TASK_ID={i}'`?"],
        ),
        ("submit --export=A=1 -- x", ["did you mean `--env KEY=VALUE`?"]),
        ("submit --wrap=x", ["--wrap=x; did you mean `submit -- COMMAND`?"]),
        ("submit --output=a.log -- x", ["leave it out, because `logs JOB` prints a job's output"]),
        ("cancel --failed", ["--failed; `cancel` accepts --all"]),
        ("why 2 3", ["3; `why` accepts one JOB"]),
        ("submit --nodes=1 -- x", ["--nodes=1; leave it out, because every job runs on this machine"]),
        ("submit --vrma=1 -- x", ["--vrma=1; did you mean `--vram MEM`?"]),
        ("submit --quux -- x", ["--quux; options of `submit` come before the script"]),
        ("add --mem 18G -- x", ["did you mean `--vram MEM`?"]),
        ("add --gres=gpu:2 train.py", ["did you mean `--gpus-count 2`?"]),
        ("add --nodes=2 train.py", ["leave it out"]),
    ],
)
@pytest.mark.usefixtures("here")
def test_usage_errors_suggest_a_correction(words: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words.split())
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [
        ("run", "--mem=8G", "--mb M"),
        ("run", "--gpus=2", "--count N` or `--allowed LIST"),
        ("run", "--time=2h", "--timeout S` (of the wait) or `-- timeout 2h COMMAND"),
        ("run", "--depends=3", "wait JOB` first, or `submit --after JOB"),
        ("run", "--name=x", "submit --name NAME"),
        ("wait", "--name=x", "wait JOB"),
        ("wait", "--time=2h", "--timeout S"),
        ("wait", "--gres=gpu:1", "--count N` or `--allowed LIST"),
    ],
)
def test_run_and_wait_suggest_their_own_options(command: str, option: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([command, option, *(["--", "x"] if command == "run" else [])])
    assert f"unrecognized arguments: {option}; did you mean `{meant}`?\n" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        *((word, "status") for word in ("list", "ps", "ls", "queue", "ps aux")),
        ("watch", "status --watch"),
        ("kill", "cancel JOB…"),
        ("kill 3", "cancel 3"),
        ("kill -9 3 bert", "cancel 3 bert"),
        ("rm 5-9", "cancel 5-9"),
        ("rm 'a b'", "cancel 'a b'"),
        ("rerun --failed", "retry --failed"),
        ("sbatch -n 4 jobs.txt --lr 3", "submit jobs.txt --lr 3"),
        ("sbatch", "submit SCRIPT…"),
        ("sacct -j 3", "status --all"),
        ("sinfo", "gpus"),
        ("salloc", "run -- COMMAND"),
        ("srun --gres=gpu:1 true a", "run -- true a"),
        ("scontrol", "show JOB` or `hold JOB"),
        ("scontrol show job 3", "show 3"),
        ("scontrol requeue 3", "retry 3"),
        ("scontrol update job=3 TimeLimit=2", "set JOB KEY=VALUE"),
        ("help submit", "--help"),
        ("scancel -u me", "cancel --all"),
        ("scancel --name=bert", "cancel bert"),
        (
            "sbatch --gres=gpu:2 -t 5 -d afterok:3 train.py 1",
            "submit --gpus 2 --timeout 5m --after 3 train.py 1",
        ),
        ("sbatch -a 0-4:2 train.py", "submit --grid i=0,2,4 --env 'SLURM_ARRAY_TASK_ID={i}' train.py"),
        ("sbatch --wrap 'python t.py'", "submit -- COMMAND"),
        ("ts", "status"),
        ("tsp -C", "clear"),
        ("ts -k 3", "cancel 3"),
        ("ts -t 3", "logs 3 -f -n 10"),
        ("ts sleep 'a b'", "submit -- sleep 'a b'"),
        ("logz 3 -f", "logs 3 -f"),
        ("sh -c 'a b'", "submit -- sh -c 'a b'"),
    ],
)
@pytest.mark.usefixtures("here")
def test_suggests_the_equivalent_of_a_command_of_another_program(words: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(words))
    text = str(caught.value)
    assert text.startswith(f"{words.split()[0]!r} is neither a command nor an existing file; did you mean")
    assert f"did you mean `{meant}`?\n" in text
    if not any(word in meant for word in ("JOB", "SCRIPT", "COMMAND", "a b", "--help")):
        parse(shlex.split(meant))  # it can be pasted


def test_a_file_named_like_a_command_of_another_program_is_a_jobs_file(here: Path) -> None:
    (here / "queue").touch()
    assert parse(["queue"]).jobs_file == "queue"


@given(
    before=st.lists(
        st.sampled_from([["--state-file", "start"], ["--data-dir", "x"], ["--data-dir=stop"], ["--version"]])
    ),
    command=st.sampled_from([None, *COMMANDS]),
    behind=st.lists(st.sampled_from(["start", "x", "--sim", "-v", "--", "/", "--state-file"])),
)
def test_the_first_word_that_is_not_an_option_or_its_value_is_the_command_or_file(
    before: list[list[str]], command: str | None, behind: list[str]
) -> None:
    words = [word for words in before for word in words]
    assert first_word_index([*words, command or "/", *behind]) == len(words)


def test_every_name_of_the_program_accepts_a_jobs_file(here: Path) -> None:
    for name in (["scheduler.py"], ["-m", "gpu_scheduler"]):
        path = [str(ROOT / name[0])] if len(name) == 1 else name
        done = subprocess.run(
            [sys.executable, *path, "jobs.txt", *SIMULATED],
            cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "drained: 0 of 0 jobs completed; exit code 0" in done.stdout


def started_scheduler(world: World, *words: str) -> Process:
    """Starts `gpu-scheduler jobs.txt …` and waits until it is running. Closing `world` ends the program."""
    with open(world.output_file, "wb") as out:
        words = ("jobs.txt", *SIMULATED, *words)
        process = Process("gpu_scheduler", words, world.folder, world.env, out.fileno(), out.fileno())
    world.process = process
    wait_for(lambda: "scheduler up" in world.output(), "scheduler up")
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_restart_skips_finished_jobs_and_continues_running_jobs(
    world: World, number: int, code: int
) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    world.append("echo one >> ran", f"echo two >> ran; {wait}")
    world.append(f"echo three >> ran; {wait}", "echo four >> ran")
    started_scheduler(world)
    world.wait_for_lines("ran", 3)
    assert world.end_scheduler(number) == code
    (world.folder / "go").touch()
    done = world.cli("jobs.txt", *SIMULATED)
    assert done.returncode == 0, done.stdout
    assert "drained: 4 of 4 jobs completed" in done.stdout
    assert sorted((world.folder / "ran").read_text().split()) == ["four", "one", "three", "two"]
    # A second run has nothing left to do.
    assert "drained: 4 of 4 jobs completed" in world.run_ok("jobs.txt", *SIMULATED)
    assert len((world.folder / "ran").read_text().split()) == 4


def test_watch_runs_new_lines_until_the_scheduler_is_stopped(world: World) -> None:
    world.append("echo one >> ran")
    process = started_scheduler(world, "--watch")
    world.wait_for_lines("ran")
    world.wait_finished(1)
    world.append("echo two >> ran")
    world.wait_for_lines("ran", 2)
    assert process.poll() is None
    assert world.end_scheduler() == 0


def test_the_exit_code_reflects_the_ends_of_the_jobs(world: World) -> None:
    world.append("exit 3", "exit 0")
    assert world.cli("jobs.txt", *SIMULATED).returncode == 3


def test_fresh_runs_every_line_again_with_new_job_ids(world: World) -> None:
    world.append("echo one >> ran", "echo two >> ran")
    world.run_ok("jobs.txt", *SIMULATED)
    world.run_ok("pause", "1")
    folder = DataDir.of(str(world.folder / world.state)).runs
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    world.run_ok("jobs.txt", *SIMULATED, "--fresh")
    assert sorted((world.folder / "ran").read_text().split()) == ["one", "one", "two", "two"]
    status = world.status()
    assert {job["id"]: job["outcome"] for job in status["jobs"]} == {3: "completed", 4: "completed"}
    assert [gpu["index"] for gpu in status["gpus"] if gpu["state"] == "paused"] == [1]
    assert sorted(path.name for path in folder.iterdir()) == ["3", "4"]


def test_a_failed_start_with_fresh_forgets_no_jobs(world: World) -> None:
    world.append("echo one >> ran")
    world.run_ok("jobs.txt", *SIMULATED)
    done = world.cli("jobs.txt", *SIMULATED, "--fresh", "--gpus", "9")
    assert done.returncode == 2
    assert list(world.jobs()) == [1]


def test_fresh_is_refused_while_a_scheduler_or_a_job_runs(world: World) -> None:
    world.append("while :; do sleep 0.02; done")
    started_scheduler(world)
    world.wait_until(lambda jobs: jobs and jobs[1]["state"] == "running", "job 1 running")
    done = world.cli("jobs.txt", *SIMULATED, "--fresh")
    assert done.returncode == 1
    assert "a scheduler is already running" in done.stderr
    world.end_scheduler(signal.SIGKILL)
    done = world.cli("jobs.txt", *SIMULATED, "--fresh")
    assert done.returncode == 1
    refusal = "--fresh forgets nothing while jobs are active\n`stop --jobs` ends the running jobs"
    assert refusal in done.stderr
    assert list(world.jobs()) == [1]
    world.run_ok("stop", "--jobs")
    world.jobs_file.write_text("echo two\n")
    world.run_ok("jobs.txt", *SIMULATED, "--fresh")
    assert list(world.jobs()) == [2]


class Prompt:
    """A user at a terminal who gives one answer.

    Records the questions and counts the starts of the scheduler.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
        self.questions: list[str] = []
        self.begun = 0
        self._answer = answer
        monkeypatch.setattr(os, "isatty", lambda fd: True)
        monkeypatch.setattr("builtins.input", self._input)
        monkeypatch.setattr(service, "run", self._run)
        monkeypatch.setattr(service, "run_in_background", self._run)

    def _input(self, question: str) -> str:
        self.questions.append(question)
        if self._answer is None:
            raise EOFError
        return self._answer

    def _run(self, *_: object, **__: object) -> int:
        self.begun += 1
        return 0


@pytest.mark.parametrize("mode", [(), ("--daemon",)])
@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [("y", True), (" YES ", True), ("n", False), ("", False), ("yo", False), (None, False)],
)
def test_fresh_asks_for_confirmation_on_a_terminal(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, mode: tuple[str, ...], answer: str | None, goes_on: bool
) -> None:
    desk.job()
    desk.job()
    asked = Prompt(monkeypatch, answer)
    code, _, err = desk.run("start", "--fresh", *mode)
    assert asked.questions == ["forget 2 jobs in gpu_scheduler_state.d? [y/N] "]
    assert (code, asked.begun) == ((0, 1) if goes_on else (1, 0))
    assert err == ("" if goes_on else f"gpu-scheduler: {KEPT}\n")
    assert state_counts(desk.store) == {"queued": 2}


def test_the_confirmation_prompt_uses_the_singular_and_the_full_path_of_another_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    desk.job()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    asked = Prompt(monkeypatch, "y")
    desk.run("start", "--fresh", "--state-file", "../gpu_scheduler_state.json")
    assert asked.questions == [f"forget 1 job in {desk.data_dir.folder}? [y/N] "]


def test_fresh_does_not_ask_with_yes_or_without_recorded_jobs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Prompt(monkeypatch, "n")
    assert desk.run("start", "--fresh")[0] == 0
    assert state_counts(desk.store) == {}
    assert desk.run("start", "--fresh")[0] == 0
    desk.job()
    assert desk.run("start", "--fresh", "--yes")[0] == 0
    assert desk.run("start", "--yes")[0] == 0
    assert (asked.questions, asked.begun) == ([], 4)


def test_a_refused_fresh_start_does_not_ask_for_confirmation(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.run_job("while :; do sleep 0.02; done")
    asked = Prompt(monkeypatch, "y")
    code, _, err = desk.run("start", "--fresh")
    assert (code, asked.questions, asked.begun) == (1, [], 0)
    assert f"job {job} is active" in err


def test_daemon_asks_before_it_detaches_from_the_terminal(desk: Desk) -> None:
    desk.job()
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "start", "--fresh", "--daemon", *SIMULATED],
        cwd=desk.path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=far,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    os.close(far)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said = bytearray()

    def look() -> bool:
        said.extend(process.stdout.read() or b"")  # type: ignore[union-attr]
        return b"[y/N]" in said

    wait_for(look, "the question")
    os.write(near, b"n\n")
    assert process.wait(60) == 1
    os.set_blocking(process.stdout.fileno(), True)
    with process.stdout as out:
        said.extend(out.read())
    os.close(near)
    assert b"no jobs were forgotten, and the scheduler was not started" in said
    assert scheduler_pid(desk.data_dir.lock) is None
    assert state_counts(desk.store) == {"queued": 1}
