"""Tests the root of a clone: the entry script, the examples, the example files and the setup script."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_scheduler.core.jobsfile.job_line import ParsedJob, parse_line
from gpu_scheduler.core.scheduling.needs import ResourceSpec, parse_llm_config, resolve
from gpu_scheduler.gpus.probes.simulated import SimulatedProbe
from gpu_scheduler.system import simulated_usage

ROOT = Path(__file__).parents[2]

#: An interpreter without site packages.
BARE = [sys.executable, "-I", "-S"]

CLI = "import sys\ndef main():\n    print('ran', sys.argv[1:], sys.executable)\n    return 7\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Creates a clone with a .venv that has the packages. Its command line only prints that it ran."""
    clone = tmp_path / "a clone"
    (clone / "gpu_scheduler" / "cli").mkdir(parents=True)
    (clone / "gpu_scheduler" / "__init__.py").touch()
    (clone / "gpu_scheduler" / "cli" / "__init__.py").write_text(CLI)
    for name in ("scheduler.py", "Makefile"):
        shutil.copy2(ROOT / name, clone)
    venv_with(clone, f'exec {shlex.quote(sys.executable)} "$@"')
    return clone


def venv_with(clone: Path, line: str) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\necho again >&2\n{line}\n")
    python.chmod(0o755)


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, env=env)


def test_the_entry_script_is_executable() -> None:
    entry = ROOT / "scheduler.py"
    assert stat.S_IMODE(entry.stat().st_mode) & 0o555 == 0o555  # the umask decides who may write
    assert entry.read_text().startswith("#!/usr/bin/env python3\n")


def test_the_entry_script_runs_directly_if_the_packages_are_installed(clone: Path) -> None:
    done = run(sys.executable, clone / "scheduler.py", "status", "--json")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.startswith("ran ['status', '--json']")


def test_the_entry_script_reruns_itself_in_the_virtual_environment(clone: Path) -> None:
    done = run(*BARE, clone / "scheduler.py", "add", "a b.py", "--args", "--x '1'")
    assert (done.returncode, done.stderr) == (7, "again\n")
    assert done.stdout.startswith("""ran ['add', 'a b.py', '--args', "--x '1'"]""")


def test_the_entry_script_works_through_nested_symbolic_links(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "inner").symlink_to(clone / "scheduler.py")
    (tmp_path / "sched").symlink_to("bin/inner")
    for command in ([*BARE], [sys.executable]):
        done = run(*command, tmp_path / "sched", "status")
        assert (done.returncode, done.stdout.split("]")[0]) == (7, "ran ['status'")


def test_the_entry_script_reruns_itself_only_once(clone: Path) -> None:
    venv_with(clone, f'exec {shlex.quote(sys.executable)} -I -S "$@"')
    done = run(*BARE, clone / "scheduler.py", "status")
    assert done.returncode == 2
    again, told = done.stderr.splitlines()
    assert again == "again"
    assert "missing packages: GPUtil" in told


def test_the_entry_script_prints_the_install_command_if_there_is_no_virtual_environment(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    done = run(*BARE, clone / "scheduler.py", "status")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run `make install` in" in done.stderr
    assert "`pip install .`" in done.stderr


def test_ctrl_c_while_the_entry_script_imports_the_package_ends_it_silently(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "scheduler.py", tmp_path)
    (tmp_path / "gpu_scheduler").mkdir()
    (tmp_path / "gpu_scheduler" / "__init__.py").touch()
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "gpu_scheduler" / "cli.py").write_text(interrupt)
    done = run(sys.executable, tmp_path / "scheduler.py", "gpus")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("python", [BARE, [sys.executable, "-S"]])
@pytest.mark.parametrize("empty_folder", [False, True])
def test_the_entry_script_without_the_package_explains_how_to_get_the_package(
    tmp_path: Path, python: list[str], empty_folder: bool
) -> None:
    shutil.copy2(ROOT / "scheduler.py", tmp_path)
    if empty_folder:
        (tmp_path / "gpu_scheduler").mkdir()  # Python treats this folder as an empty namespace package.
    done = run(*python, tmp_path / "scheduler.py", "status", PYTHONPATH="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("scheduler.py: this file does not work alone: the package gpu_scheduler is")
    assert "git clone" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *["gpu_scheduler"] * empty_folder, "scheduler.py"
    ]  # fmt: skip


def test_the_entry_script_suggests_make_only_inside_a_clone(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    (clone / "Makefile").unlink()
    done = run(*BARE, clone / "scheduler.py", "status")
    assert done.returncode == 2
    assert done.stderr.startswith("scheduler.py: missing packages: GPUtil")
    assert "pip install" in done.stderr
    assert "make install" not in done.stderr


def test_an_internal_import_error_is_not_reported_as_a_missing_package(clone: Path) -> None:
    (clone / "gpu_scheduler" / "cli" / "__init__.py").write_text("import gpu_scheduler.nothing\n")
    done = run(sys.executable, clone / "scheduler.py", "status")
    assert done.returncode == 1
    assert "No module named 'gpu_scheduler.nothing'" in done.stderr
    assert "make install" not in done.stderr


def test_python_m_gpu_scheduler_runs_the_same_program_as_the_entry_script(clone: Path) -> None:
    shutil.copy2(ROOT / "gpu_scheduler" / "__main__.py", clone / "gpu_scheduler")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "x"], cwd=clone, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split("]")[0]) == (7, "ran ['x'")


def test_the_example_llm_config_contains_the_expected_models() -> None:
    text = (ROOT / "llm_config.json").read_text()
    config = parse_llm_config(text)
    assert config.default.share == 1000
    assert {name: need.share for name, need in config.models.items()} == {
        "qwen2.5-3b-inst": 500,
        "qwen2.5-7b-inst": 1000,
        "qwen2.5-32b-inst": 1000,
        "qwen2.5-vl-3b-inst": 1000,
        "qwen2.5-vl-7b-inst": 1000,
        "qwen2.5-vl-32b-inst": 1000,
    }
    assert json.loads(text)["default_requirement"] == 1.0


@pytest.mark.parametrize("name", ["train", "eval", "inference"])
def test_examples_use_and_release_simulated_memory(name: str, tmp_path: Path) -> None:
    probe = SimulatedProbe([24576, 24576], str(tmp_path))
    with subprocess.Popen(
        [
            "python3",
            ROOT / "examples" / f"{name}.py",
            "--llm",
            "qwen2.5-7b-inst",
            "--cuda",
            "1",
            "--mode",
            "m",
        ],
        env={**os.environ, simulated_usage.FOLDER_VARIABLE: str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        used: set[int | None] = set()
        end = time.monotonic() + 20
        while job.poll() is None:
            used.add(probe.sample()[1].used_mib)
            assert time.monotonic() < end, f"still running; used {used}"
            time.sleep(0.02)
        said = job.stdout.read() if job.stdout else ""
    assert job.returncode == 0
    assert "llm = qwen2.5-7b-inst" in said
    assert 16000 in used
    assert [gpu.used_mib for gpu in probe.sample()] == [0, 0]


def test_outside_a_simulation_the_examples_only_print(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != simulated_usage.FOLDER_VARIABLE}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "eval.py", "--samples", "4", "--step", "0"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
    assert "accuracy on test" in done.stdout


NEEDS = re.compile(r"# needs ([0-9]+) GPUs$")


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_every_line_of_the_example_file_can_run_if_there_are_enough_gpus(gpus: int) -> None:
    known = frozenset(range(gpus))
    config = parse_llm_config((ROOT / "llm_config.json").read_text())
    for line in (ROOT / "jobs.txt.example").read_text().splitlines():
        needs = NEEDS.search(line)
        parsed = parse_line(line, str(ROOT), "/home/somebody", known)
        if parsed is None or (needs is not None and int(needs[1]) > gpus):
            continue
        assert isinstance(parsed, ParsedJob), f"{line}: {parsed}"
        allowed = known if parsed.spec.allowed is None else known & set(parsed.spec.allowed)
        assert resolve(ResourceSpec.of(parsed.spec), config).count <= len(allowed), line
        if parsed.spec.script is not None:
            assert Path(parsed.spec.script).is_file()


def test_the_example_file_shows_every_form_without_duplicates() -> None:
    text = (ROOT / "jobs.txt.example").read_text()
    jobs = [parse_line(line, "/", "/") for line in text.splitlines()]
    specs = [job.spec for job in jobs if isinstance(job, ParsedJob)]
    assert {spec.kind for spec in specs} == {"csv", "command"}
    assert len({spec.identity for spec in specs}) == len(specs)
    shown = {re.split("[=:]", word.strip("[]"))[0] for word in text.split()}
    wanted = "gpus share allowed name priority conda venv cwd env cuda cuda-ids hold cancel"
    assert set(wanted.split()) <= shown


@pytest.fixture
def machine(clone: Path, tmp_path: Path) -> Path:
    """Creates a folder for PATH.

    It simulates a machine without apt and screen, and a user other than root.
    """
    (clone / "tools").mkdir()
    for name in ("setup.sh", "apt.sh"):
        shutil.copy2(ROOT / "tools" / name, clone / "tools")
    (clone / "pyproject.toml").write_text("[project]\n")
    pip = 'case "$*" in *"pip install"*) echo "$*" >>pip; exit 0;; esac'
    venv_with(clone, f'{pip}; exec {shlex.quote(sys.executable)} "$@"')
    machine = tmp_path / "machine"
    machine.mkdir()
    for program in ("bash", "dirname", "cat", "cksum", "touch", "chmod", "env", "sh", "mkdir", "rm"):
        found = shutil.which(program)
        assert found is not None
        (machine / program).symlink_to(found)
    fake(machine, "id", "echo 1000")
    fake(machine, "sleep", "exit 0")
    return machine


def fake(machine: Path, name: str, line: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{line}\n")
    (machine / name).chmod(0o755)


def set_up(clone: Path, machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(machine / "bash", clone / "tools" / "setup.sh", *arguments, PATH=str(machine))


def test_setup_prints_the_install_command_for_a_program_that_it_cannot_install(
    clone: Path, machine: Path
) -> None:
    done = set_up(clone, machine, "screen")
    assert done.returncode == 1
    assert "run: sudo apt-get install screen" in done.stderr
    done = set_up(clone, machine, "--optional", "screen")
    assert done.returncode == 0
    assert "run: sudo apt-get install screen" in done.stderr


def test_setup_asks_for_all_missing_packages_at_once_and_makes_nothing_before(
    clone: Path, machine: Path
) -> None:
    shutil.rmtree(clone / ".venv")
    fake(machine, "python3", "case $* in *ensurepip*) exit 1;; *print*) echo python3.11-venv;; esac")
    done = set_up(clone, machine, "screen", "--optional", "tmux")
    assert (done.returncode, (clone / ".venv").exists()) == (1, False)
    assert done.stderr.splitlines() == [
        "setup: missing: python3.11-venv screen tmux; run: sudo apt-get install python3.11-venv screen tmux"
    ]
    (machine / "python3").unlink()
    assert "sudo apt-get install python3-venv screen" in set_up(clone, machine, "screen").stderr


#: A package manager that must update its lists before it can install a program.
APT_GET = """case $2 in
    update) touch updated ;;
    install) [ -e updated ] || exit 100; touch screen; chmod +x screen ;;
esac"""


def test_setup_as_root_runs_apt_update_before_apt_install(clone: Path, machine: Path) -> None:
    fake(machine, "id", "echo 0")
    fake(machine, "apt-get", f"cd {shlex.quote(str(machine))}\n{APT_GET}")
    done = set_up(clone, machine, "screen")
    assert (done.returncode, (machine / "screen").exists()) == (0, True), done.stderr


def test_setup_waits_while_another_program_holds_a_lock_of_apt(clone: Path, machine: Path) -> None:
    fake(machine, "id", "echo 0")
    locked = "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend.' >&2; exit 100"
    twice = f"echo >>tries; [ $(cat tries | wc -l) -gt 2 ] || {{ {locked}; }}"
    (machine / "wc").symlink_to(str(shutil.which("wc")))
    fake(machine, "apt-get", f"cd {shlex.quote(str(machine))}\n{twice}\n{APT_GET}")
    done = set_up(clone, machine, "screen")
    assert (done.returncode, (machine / "screen").exists()) == (0, True), done.stderr
    assert done.stderr.count("waiting for another program that uses apt") == 1
    (machine / "screen").unlink()
    fake(machine, "apt-get", locked)
    done = set_up(clone, machine, "screen")
    assert done.returncode == 1
    assert "E: Could not get lock" in done.stderr


def test_setup_installs_the_developer_tools_only_if_asked_to(clone: Path, machine: Path) -> None:
    for option in ((), ("--dev",), (), ("--dev",)):
        assert set_up(clone, machine, *option).returncode == 0
    asked = [line.split()[-1] for line in (clone / "pip").read_text().splitlines()]
    assert asked == [".", ".[dev]"]


def test_setup_reinstalls_the_package_only_if_pyproject_changed(clone: Path, machine: Path) -> None:
    first, second = set_up(clone, machine), set_up(clone, machine)
    (clone / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    third = set_up(clone, machine)
    installed = ["installing the package" in done.stderr for done in (first, second, third)]
    assert [done.returncode for done in (first, second, third)] == [0, 0, 0]
    assert installed == [True, False, True]


def test_setup_never_removes_an_environment_made_by_the_user(clone: Path, machine: Path) -> None:
    venv_with(clone, "exit 1")
    done = set_up(clone, machine)
    assert done.returncode == 1
    assert "was not made by this" in done.stderr
    assert (clone / ".venv" / "bin" / "python").exists()
