"""Properties that all commands share: exit codes, stderr, and imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler import __version__
from gpu_scheduler.cli import status
from gpu_scheduler.cli.commands import COMMANDS, function_name
from gpu_scheduler.errors import GpuStateError, SchedulerError, UsageError
from tests.cli.desk import Desk

ROOT = Path(__file__).parents[2]
ROUNDS = "gpu_scheduler.rounds.loop"
HEAVY = (
    "shtab",
    "rich_argparse",
    "pynvml",
    "GPUtil",
    "inotify_simple",
    ROUNDS,
)
#: Modules that are needed to check the machine but not to show one job.
CHECKS = (
    "email",
    "importlib.metadata",
    "gpu_scheduler.attempts.executors",
    "gpu_scheduler.gpus.probes.probe_process",
    "gpu_scheduler.health.sessions",
    "gpu_scheduler.health.doctor",
    "gpu_scheduler.system.run_program",
)


def program(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("error", [SchedulerError("a"), UsageError("b"), GpuStateError("d")])
def test_errors_become_an_exit_code_and_one_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: SchedulerError
) -> None:
    def failing(options: object) -> int:
        raise error

    monkeypatch.setattr(status, "status", failing)
    assert desk.run("status") == (error.exit_code, "", f"gpu-scheduler: {error}\n")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("scheduler.py", "scheduler.py"),
        ("/opt/x/scheduler.py", "scheduler.py"),
        ("/opt/gpu_scheduler/__main__.py", "gpu-scheduler"),
        ("/usr/bin/gpu-scheduler", "gpu-scheduler"),
    ],
)
def test_errors_begin_with_the_name_of_the_program(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    assert desk.store
    monkeypatch.setattr("sys.argv", [path])
    for words in (("why", 9), ("cancel", 9), ("status", "--bogus")):
        assert desk.run(*words)[2].startswith(f"{name}: "), words


def test_ctrl_c_exits_with_130(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "status", interrupted)
    assert desk.run("status") == (130, "", "")


def test_an_unexpected_exception_keeps_its_traceback(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(status, "status", broken)
    with pytest.raises(ZeroDivisionError):
        desk.run("status")


def test_errors_contain_no_control_characters(desk: Desk) -> None:
    code, out, _ = desk.run("--state-file", "x\x1b[2J\nfake.json", "status")
    assert code == 0
    assert "\x1b" not in out
    code, _, err = desk.run("--state-file", "x\x1b[2J\nfake.json", "stop")
    assert code == 1
    assert "\x1b" not in err
    assert r"x\x1b[2J" in err


def test_help_and_version_exit_with_0_and_usage_errors_with_2(desk: Desk) -> None:
    assert desk.run("--version") == (0, f"gpu-scheduler {__version__}\n", "")
    code, out, err = desk.run("stop", "--help")
    assert (code, err) == (0, "")
    assert "Stop the scheduler; running jobs continue" in out
    code, out, err = desk.run("nonsense")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    ["attach 1", "logs 1", "cancel 1", "cancel --all", "retry 1", "hold 1", "release 1", "stop",
     "priority 1 5"],
)  # fmt: skip
def test_commands_report_the_folder_of_a_missing_store_and_create_nothing(desk: Desk, words: str) -> None:
    code, out, err = desk.run(*words.split(), "--state-file", "other.json")
    assert (code, out) == (1, "")
    assert f"no scheduler store in {desk.path}/other.d" in err
    assert not list(desk.path.iterdir())


@pytest.mark.parametrize("words", ["status", "status --all -v", "status --failed", "screens"])
def test_read_only_commands_report_that_no_scheduler_has_run_yet(desk: Desk, words: str) -> None:
    code, out, err = desk.run(*words.split(), "--state-file", "other.json")
    assert (code, err) == (0, "")
    assert out == (
        f"nothing has run here yet; there is no store in {desk.path}/other.d\n"
        "run `start` to create a store, or name the state file of an existing store with --state-file\n"
    )
    assert not list(desk.path.iterdir())


def test_status_before_the_first_start_counts_the_lines_that_wait(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.path)
    (desk.path / "jobs.txt").write_text("# mine\n\npython a.py\n  # indented\npython b.py")
    assert "\n2 lines in jobs.txt: jobs for the first `start`\nrun `start`" in desk.run("status")[1]


def test_status_json_before_the_first_start_has_the_usual_keys(desk: Desk) -> None:
    code, out, err = desk.run("status", "--json", "--state-file", "other.json")
    assert (code, err) == (0, "")
    empty = json.loads(out)
    assert desk.store
    usual = json.loads(desk.run("status", "--json")[1])
    assert empty.keys() == usual.keys()
    assert {key: value for key, value in empty.items() if value and key != "now"} == {
        "scheduler": {
            "pid": None,
            "state_file": f"{desk.path}/other.json",
            "data_dir": f"{desk.path}/other.d",
        }
    }
    code, out, err = desk.run("screens", "--json", "--state-file", "other.json")
    assert (code, err) == (0, "")
    empty, usual = json.loads(out), json.loads(desk.run("screens", "--json")[1])
    assert {**empty, "now": 0} == {**usual, "now": 0} == {
        "now": 0, "sessions": [], "without_session": 0, "notes": [],
    }  # fmt: skip


def test_the_data_dir_option_selects_a_folder_elsewhere(desk: Desk) -> None:
    job_id = desk.job()
    desk.data_dir.folder.rename(desk.path / "elsewhere")
    assert desk.run("cancel", job_id)[0] == 1
    code, out, _ = desk.run("status", "-v", "--data-dir", "elsewhere")
    assert code == 0
    assert f"Data dir    {desk.path}/elsewhere" in out
    assert f"{job_id}" in out


def test_reports_a_store_that_is_not_a_database(desk: Desk) -> None:
    desk.data_dir.create()
    desk.data_dir.database.write_text(
        "no database at all, but long enough to be read as a page of one\n" * 50
    )
    code, _, err = desk.run("status")
    assert code == 1
    assert "scheduler.db" in err
    assert "Traceback" not in err


def test_a_closed_pipe_is_not_an_error(desk: Desk) -> None:
    with desk.store.db.transaction():
        for number in range(400):
            desk.job(f"echo {number} {'x' * 400}")
    # After a short write, an unbuffered stdout drops the remaining output and thus the broken pipe error.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "status", "--json"],
        env={**env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("words", "never"),
    [
        ("--version", ("rich", "sqlite3", "json", "subprocess")),
        (
            "status --json",
            (*HEAVY, "rich", "gpu_scheduler.daemon.main_loop", "gpu_scheduler.show.status_text"),
        ),
        ("status", (*HEAVY, "logging")),
        ("cancel 1", (*(name for name in HEAVY if name != ROUNDS), "rich")),
        ("hold 2", (*(name for name in HEAVY if name != ROUNDS), "rich")),
        ("screens", HEAVY),
        ("show 1", (*HEAVY, *CHECKS, "rich")),
        ("why 1", (*CHECKS, "rich")),
        ("lint none.txt", (*HEAVY, "rich")),
        ("start --gpus 0", (*HEAVY, "rich", "sqlite3", "gpu_scheduler.daemon.main_loop")),
    ],
)
def test_each_command_imports_only_the_modules_that_it_needs(
    desk: Desk, words: str, never: tuple[str, ...]
) -> None:
    desk.job()
    assert imported_by(words).isdisjoint(never)


@pytest.mark.parametrize(
    ("words", "never"),
    [
        ("cancel 1", (*HEAVY, "rich")),
        ("pause 0", (*HEAVY, "logging", "gpu_scheduler.store.records", "gpu_scheduler.core.text.formatting")),
    ],
)
def test_a_command_imports_no_rounds_while_a_scheduler_runs_them(
    desk: Desk, words: str, never: tuple[str, ...]
) -> None:
    desk.job()
    with desk.scheduler():
        assert imported_by(words).isdisjoint(never)


def imported_by(words: str) -> set[str]:
    """Runs a command in a new process. Returns the names of the modules that it has imported."""
    code = (
        f"import sys; from gpu_scheduler.cli import main; main({words.split()!r});"
        " print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    loaded = set(done.stderr.split())
    assert "gpu_scheduler.cli.parser" in loaded
    return loaded


def test_python_m_runs_the_same_program(tmp_path: Path) -> None:
    done = program("cancel", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gpu-scheduler: no scheduler store in {tmp_path}")


def test_start_rejects_invalid_options_before_creating_anything(desk: Desk) -> None:
    for words, told in (
        ("--simulate 3x", "--simulate '3x'"),
        ("--simulate 2 --gpu-probe nvml", "cannot be combined"),
        ("--conda-sh nowhere.sh", "--conda-sh nowhere.sh"),
    ):
        code, out, err = desk.run("start", *words.split())
        assert (code, out) == (2, "")
        assert told in err
        assert len(err.splitlines()) == 1
    assert list(desk.path.iterdir()) == []


def test_every_command_has_a_function() -> None:
    from importlib import import_module

    for name, command in COMMANDS.items():
        assert callable(getattr(import_module(f"gpu_scheduler.cli.{command.module}"), function_name(name)))
