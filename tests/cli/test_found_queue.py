"""Commands in any folder find the queue of the running scheduler, and never guess."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.cli.parser import parse
from gpu_scheduler.cli.program import choose_location, invocation
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.errors import UsageError
from gpu_scheduler.show.location import Location, QueueUse, Verdict, find_queue
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import listed
from tests.cli.desk import Desk
from tests.cli.test_add import NOTED
from tests.cli.test_parser import COMMANDS, LAST
from tests.store.test_scheduler_lock import held

#: Commands that use no queue, or start one.
FIXED = {"service", "start", "doctor", "run", "wait", "gpus", "lint", "completion"}
#: Commands that change a whole queue.
WHOLE = [
    "stop", "stop --jobs --grace 3", "cancel --all", "clear", "pause all", "resume all", "recover --all",
    "retry --failed",
]  # fmt: skip


@pytest.fixture
def far(desk: Desk, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder, which becomes the working folder. It has no queue."""
    folder = tmp_path_factory.mktemp("far")
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def running(desk: Desk, *options: str) -> Iterator[int]:
    """Runs a scheduler of the desk, which is listed. Yields its pid."""
    desk.store.record_options(StartOptions(jobs_file=str(desk.path / "jobs.txt")))
    with desk.scheduler(*options) as pid, listed(desk.data_dir):
        yield pid


@contextmanager
def second_queue(folder: Path) -> Iterator[int]:
    """Holds the lock of another queue, and lists it. Yields the pid of the process."""
    folder.mkdir(exist_ok=True)
    home = DataDir.of(str(folder / "gpu_scheduler_state.json"))
    home.folder.mkdir(mode=0o700)
    with held(home.lock) as child, listed(home):
        yield child.pid


def named(desk: Desk, pid: int) -> str:
    return f"gpu-scheduler: queue of {desk.data_dir.state_file}, pid {pid}\n"


def test_every_command_that_uses_a_queue_finds_the_only_running_one(
    desk: Desk, far: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(desk, "deaf") as pid:
        for command, rest in COMMANDS.items():
            words = [command, *rest, *LAST.get(command, [])]
            options = parse(words)
            try:
                choose_location(options, words)
                found, err = options.state_file, capsys.readouterr().err
            except UsageError as error:
                found, err = None, str(error)
            if command in FIXED:
                assert (found, err) == ("gpu_scheduler_state.json", ""), command
            elif " ".join(words) in WHOLE:
                assert found is None, command
                assert f"--state-file {desk.data_dir.state_file} {' '.join(words)}  (pid {pid})" in err
            else:
                assert (found, err) == (str(desk.data_dir.state_file), named(desk, pid)), command


def test_commands_work_on_the_queue_that_they_found(desk: Desk, far: Path) -> None:
    job = desk.job(name="bert")
    with running(desk) as pid:
        code, out, err = desk.run("status")
        assert (code, err) == (0, named(desk, pid))
        assert "bert" in out
        assert desk.run("cancel", job)[::2] == (0, named(desk, pid))
        assert desk.state(job) == JobState.FINISHED
        code, out, err = desk.run("submit", "train.py")
        assert (code, out, err) == (0, "job 2 submitted: python -u train.py\n", named(desk, pid))
        submitted = desk.store.job(2)
        assert submitted is not None
        assert submitted.spec.cwd == str(far)
        assert desk.run("wait", "--job", job)[2].startswith(named(desk, pid))
    assert [path.name for path in far.iterdir()] == ["train.py"]


def test_completion_offers_the_jobs_of_the_queue_that_it_found(
    desk: Desk, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.job(name="bert")
    with running(desk, "deaf"):
        assert desk.run("completion", "bash")[2] == ""
        monkeypatch.setenv("_GPU_SCHEDULER_WORDS", "jobs")
        assert desk.run("completion", "bash")[:2] == (0, "1\nbert\n")


def test_add_appends_to_the_jobs_file_of_the_queue_with_the_folder_of_the_caller(
    desk: Desk, far: Path
) -> None:
    with running(desk, "deaf") as pid:
        assert desk.run("add", "--", "python", "train.py")[::2] == (0, named(desk, pid) + NOTED)
        assert desk.run("add", "train.py")[::2] == (0, named(desk, pid) + NOTED)
        assert desk.run("add", "--cwd", "/usr", "train.py")[::2] == (0, named(desk, pid) + NOTED)
        assert desk.run("add", "--output-file", "own.txt", "train.py")[::2] == (0, NOTED)
        desk.store.record_options(StartOptions(jobs_file=""))
        assert desk.run("add", "train.py")[0] == 2
    script = far / "train.py"
    assert (desk.path / "jobs.txt").read_text() == (
        f"[cwd={far}] python train.py\n[cwd={far}] 200,{script},,,\n[cwd=/usr] 200,{script},,,\n"
    )
    assert (far / "own.txt").read_text() == f"200,{script},,,\n"
    assert sorted(path.name for path in far.iterdir()) == ["own.txt", "train.py"]


@pytest.mark.parametrize("words", WHOLE)
def test_a_command_changes_all_of_a_queue_only_if_it_is_named(desk: Desk, far: Path, words: str) -> None:
    job = desk.job()
    with running(desk) as pid:
        code, out, err = desk.run(*words.split())
        assert (code, out) == (2, "")
        first, line = err.splitlines()
        assert first.startswith("gpu-scheduler: this folder has no queue")
        assert line == f"  {invocation()} --state-file {desk.data_dir.state_file} {words}  (pid {pid})"
        assert (desk.requests(), desk.state(job)) == ([], "queued")
        typed = line.removeprefix(f"  {invocation()} ").partition("  (")[0]
        code, _, err = desk.run(*shlex.split(typed))
        assert (code, err) == (0, "")


@pytest.mark.parametrize("words", [["status"], ["submit", "train.py"], ["add", "train.py"], ["cancel", "1"]])
def test_several_running_queues_are_listed_with_the_option_for_each(
    desk: Desk, far: Path, tmp_path: Path, words: list[str]
) -> None:
    other = tmp_path / "my proj"
    with running(desk, "deaf") as pid, second_queue(other) as other_pid:
        code, out, err = desk.run(*words)
        assert (code, out) == (2, "")
        assert err.splitlines()[1:] == [
            f"  --state-file {desk.data_dir.state_file}  (pid {pid})",
            f"  --state-file '{other}/gpu_scheduler_state.json'  (pid {other_pid})",
        ]
        assert desk.run("add", "--output-file", "-", "train.py")[::2] == (0, "")
    assert [path.name for path in far.iterdir()] == ["train.py"]


def test_a_folder_whose_queue_has_no_scheduler(desk: Desk, tmp_path: Path) -> None:
    """Every command uses that queue and says so; jobs may be meant for the other queue."""
    job, other = desk.job(), tmp_path / "other"
    (desk.path / "train.py").touch()
    with second_queue(other) as pid:
        option = f"  --state-file {other}/gpu_scheduler_state.json  (pid {pid})"
        for words in (["status"], ["hold", str(job)], ["pause", "0"], ["add", "--", "true"], ["events"]):
            code, _, err = desk.run(*words)
            assert code == 0
            assert err.splitlines()[:2] == [
                "gpu-scheduler: the queue of this folder has no scheduler, but another queue of yours has:",
                option,
            ]
        code, out, err = desk.run("submit", "train.py")
        assert (code, out) == (2, "")
        assert "nothing was queued" in err
        assert err.splitlines()[1:] == ["  --state-file gpu_scheduler_state.json  (this folder)", option]
        assert desk.store.job(2) is None
        assert desk.run("submit", "--state-file", "gpu_scheduler_state.json", "train.py")[0] == 0
        assert desk.run("lint", "jobs.txt")[2] == ""
    assert desk.run("status")[2] == ""


def test_the_list_is_not_read_if_this_folder_has_a_running_queue_or_one_is_named(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_scheduler.store import scheduler_lock as registry

    def refuse() -> None:
        raise AssertionError("the list was read")

    with ExitStack() as stack:
        stack.enter_context(running(desk, "deaf"))
        stack.enter_context(second_queue(tmp_path / "other"))
        monkeypatch.setattr(registry, "running_schedulers", refuse)
        assert desk.run("status")[::2] == (0, "")
        monkeypatch.chdir(tmp_path / "other")
        assert desk.run("status", "--state-file", desk.data_dir.state_file)[::2] == (0, "")
        monkeypatch.setenv("GPU_SCHEDULER_STATE_FILE", str(desk.data_dir.state_file))
        assert desk.run("status")[::2] == (0, "")


def test_submit_says_where_the_first_scheduler_must_be_started(desk: Desk) -> None:
    code, _, err = desk.run("submit", "--", "true")
    assert code == 0
    assert f"the job waits until `start` in {desk.path}\n" in err
    err = desk.run("submit", "--state-file", "x y.json", "--data-dir", "d", "--", "true")[2]
    assert f"the job waits until `start --state-file 'x y.json' --data-dir d` in {desk.path}\n" in err


def test_a_scheduler_of_this_folder_that_starts_after_the_first_look_is_its_queue(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_scheduler.store import scheduler_lock as registry

    looks = iter([None])  # the lock was still free at the first look
    real = registry.scheduler_pid
    with ExitStack() as stack:
        stack.enter_context(running(desk, "deaf"))
        stack.enter_context(second_queue(tmp_path / "other"))
        monkeypatch.setattr(registry, "scheduler_pid", lambda lock: next(looks, real(lock)))
        assert find_queue(QueueUse.ADD_JOBS, None, None, {}) == (Verdict.CLEAR, Location(), [])
