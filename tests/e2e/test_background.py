"""Tests `start --daemon`: the caller's output, what the scheduler inherits, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests.e2e.world import CONDA, World, make_conda
from tests.fakes.conda import plant_hook, plant_variables
from tests.processes import children_of, exists, has_terminal
from tests.waiting import wait_for

START = ("start", "--daemon", "--simulate", "2", "--log-dir", "logs")


@pytest.fixture
def daemons(world: World) -> Iterator[World]:
    """Provides a world whose background scheduler is ended after the test."""
    world.is_warm = False
    yield world
    pid = up(world)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: up(world) is None, "the end of the scheduler")


def up(world: World) -> int | None:
    """Returns the pid of the scheduler that holds the lock."""
    return scheduler_pid(DataDir.of(str(world.folder / world.state)).lock)


def test_the_daemon_runs_without_a_terminal_until_it_is_stopped(daemons: World) -> None:
    world = daemons
    world.append("[share=0.5] env > env; readlink /proc/self/fd/* > fds; echo hello", "[share=0.5] sleep 60")
    world.env |= {"MY_OWN": "kept"}
    out = world.run_ok(*START)
    pid = up(world)
    assert pid is not None
    last = out.splitlines()[-1]
    assert last == (
        f"the scheduler is running in the background (pid {pid}); its log is {world.folder}/gpu_scheduler.log"
    )
    assert os.getsid(pid) == pid
    assert not has_terminal(pid)
    assert os.readlink(f"/proc/{pid}/cwd") == str(world.folder)
    world.wait_finished(1)
    assert "MY_OWN=kept" in (world.folder / "env").read_text().splitlines()
    assert "gpu_scheduler.log" not in (world.folder / "fds").read_text()
    # As usual, a second start is refused, and its error appears on the caller's terminal.
    again = world.cli(*START)
    assert (again.returncode, again.stdout) == (1, "")
    assert f"(pid {pid}); end it with `stop`" in again.stderr
    assert up(world) == pid
    assert "has ended" in world.run_ok("stop", "--jobs")
    assert up(world) is None
    log = (world.folder / "gpu_scheduler.log").read_text()
    assert "scheduler up" in log
    assert "scheduler ends (requested)" in log


def test_jobs_do_not_inherit_the_conda_environment_of_start(daemons: World) -> None:
    world = daemons
    make_conda(world.folder, "ml", "other")
    root = world.folder / "conda"
    plant_hook(root, "activate", "a.sh", "export HOOK=base")
    plant_hook(root, "deactivate", "a.sh", "unset HOOK")
    plant_variables(root / "envs" / "ml", {"STATE": "ml"})
    (world.folder / "t.py").write_text("import json, os; json.dump(dict(os.environ), open('csv', 'w'))")
    world.append("0,t.py,other,,", "[share=0.1] env > command")
    command = f"{sys.executable} -m gpu_scheduler {' '.join(START)} --state-file {world.state}"
    script = f". '{CONDA}'; conda activate base; conda activate ml; {command} --conda-sh '{CONDA}'"
    started = subprocess.run(["bash", "-c", script], cwd=world.folder, env=world.env, capture_output=True,
                             text=True, timeout=60, check=False)  # fmt: skip
    assert started.returncode == 0, started.stderr
    jobs = world.wait_finished(1, 2)
    assert {job["outcome"] for job in jobs.values()} == {"completed"}, jobs
    seen = json.loads((world.folder / "csv").read_text())
    assert (seen["CONDA_DEFAULT_ENV"], seen["CONDA_SHLVL"]) == ("other", "1")
    assert not {"HOOK", "STATE", "CONDA_PREFIX_1"} & set(seen)
    assert {"STATE=ml", "CONDA_SHLVL=2"} <= set((world.folder / "command").read_text().splitlines())
    headers = {job: Path(jobs[job]["log"]).read_text().splitlines()[2] for job in jobs}
    folder = f"; folder: {world.folder}"
    assert headers[1] == f"# environment: conda other{folder}"
    assert headers[2] == f"# environment: none named, so the job uses the active one (conda ml){folder}"


def test_the_daemon_outlives_the_callers_session_and_keeps_none_of_its_descriptors(
    daemons: World,
) -> None:
    world = daemons
    command = f"{sys.executable} -m gpu_scheduler {' '.join(START)} --state-file {world.state}"
    read, write = os.pipe()
    os.set_inheritable(write, True)
    caller = subprocess.Popen(
        ["bash", "-c", f"{command} && kill -HUP 0; sleep 60"],
        cwd=world.folder, env=world.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(write,),
    )  # fmt: skip
    os.close(write)
    assert caller.stdout is not None
    with caller.stdout as out:
        # The caller's output ends before the scheduler does.
        assert b"scheduler is running in the background" in out.read()
    assert caller.wait(60) == -signal.SIGHUP
    assert os.read(read, 1) == b""
    os.close(read)
    world.append("[share=0.5] echo after")
    world.wait_finished(1)
    assert up(world) is not None
    world.run_ok("stop")


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--simulate", "x"), 2, "--simulate 'x'"),
        (("--gpu-probe", "gputil"), 4, "cannot read the GPUs"),
        (("--simulate", "2", "--gpus", "3"), 2, "2 GPUs found"),
    ],
)
def test_startup_errors_of_the_daemon_reach_the_caller_with_their_exit_code(
    daemons: World, words: tuple[str, ...], code: int, part: str
) -> None:
    daemons.env["PATH"] = f"{daemons.folder}:{daemons.env['PATH']}"
    nothing = daemons.folder / "nvidia-smi"
    nothing.write_text("#!/bin/sh\nexit 9\n")
    nothing.chmod(0o755)
    done = daemons.cli("start", "--daemon", *words)
    assert done.returncode == code, done.stderr
    assert part in done.stderr
    assert "scheduler up" not in done.stdout
    assert up(daemons) is None


def test_ctrl_c_during_startup_also_ends_the_daemon(daemons: World) -> None:
    program = daemons.folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncd {daemons.folder}; touch asked; while [ ! -e over ]; do sleep 0.1; done\n"
    )
    program.chmod(0o755)
    daemons.env["PATH"] = f"{daemons.folder}:{daemons.env['PATH']}"
    caller = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "start", "--daemon", "--gpu-probe", "gputil"],
        cwd=daemons.folder, env=daemons.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for((daemons.folder / "asked").exists, "a driver query that hangs")
    (scheduler,) = children_of(caller.pid)
    caller.send_signal(signal.SIGINT)
    output = caller.communicate(timeout=60)[0]
    (daemons.folder / "over").touch()
    assert output == b""
    assert caller.returncode == 130
    assert not exists(scheduler)


def test_a_fifo_in_place_of_the_main_log_does_not_block_the_scheduler(daemons: World) -> None:
    os.mkfifo(daemons.folder / "gpu_scheduler.log")
    daemons.append("[share=0.5] exit 0")
    assert "scheduler is running in the background" in daemons.run_ok(*START)
    daemons.wait_finished(1)
    daemons.run_ok("stop")


def test_a_background_scheduler_with_drain_ends_by_itself(daemons: World) -> None:
    world = daemons
    world.append("[share=0.5] exit 3")
    world.run_ok(*START, "--drain")
    log = world.folder / "gpu_scheduler.log"
    wait_for(lambda: "exit code 3" in log.read_text() and up(world) is None, "the end of the drain")


def test_an_internal_error_is_logged_to_the_main_log(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from gpu_scheduler.daemon import service\n"
        "def serve(up):\n"
        "    logging.basicConfig(filename='main.log')\n"
        "    up()\n"
        "    print('nobody reads this')\n"
        "    raise ZeroDivisionError('a fault')\n"
        "sys.exit(service.run_in_background(serve, lambda pid: print('pid', pid), Path('main.log')))\n"
    )
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert re.fullmatch(r"pid \d+\n", done.stdout)
    assert done.stderr == ""
    log = tmp_path / "main.log"
    wait_for(lambda: log.exists() and log.read_text().count("ZeroDivisionError: a fault") == 2, "the fault")
    assert "ends because of an internal error" in log.read_text()
