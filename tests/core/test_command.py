"""The command.sh and environment of an attempt, compared with golden files and run in real bash."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.command.build import AttemptCommand, build_command, find_conda_sh, ports_for
from gpu_scheduler.core.command.shell_words import format_cuda_ids, rewrite_arguments, rewrite_command
from gpu_scheduler.core.model.job_spec import CudaMode, JobSpec
from tests.fakes.conda import plant, plant_hook

GOLDEN = Path(__file__).parents[1] / "golden"
FAKE_CONDA = Path(__file__).parents[1] / "fakes" / "conda.sh"
TOKEN = "0123456789abcdef0123456789abcdef"
#: A PATH without conda and torchrun.
PROGRAMS = os.environ["PATH"]
BASH = "/bin/bash" if os.path.exists("/bin/bash") else "/usr/bin/bash"
CSV = JobSpec("csv", "0,t.py", "/work", script="/data/t.py", arguments=("--lr", "0.1", "--name", "it's; x"))
SHELL = JobSpec("command", "…", "/my work", command="cd 'a b' && python t.py --cuda 0 | tee $HOME/log")


def build_test_command(
    spec: JobSpec,
    base: Mapping[str, str] | None = None,
    conda_sh: str | None = None,
    gpus: tuple[int, ...] = (0, 2),
    extra: Mapping[str, str] | None = None,
    port: int | None = None,
) -> AttemptCommand:
    """Builds the command of attempt 1 of job 7."""
    base = {"PATH": PROGRAMS} if base is None else base
    return build_command(spec, gpus, base, TOKEN, 7, 1, conda_sh, "physical", extra, port)


def run_command(
    command: AttemptCommand, *, reports: bool = True, mode: tuple[str, ...] = ("-p",)
) -> tuple[int, str, str, str]:
    """Runs a command in real bash. Returns its exit code, output, errors and report (descriptor 3)."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "command.sh"
        script.write_bytes(command.command_sh.encode("utf-8", "surrogateescape"))
        report = Path(folder) / "report"
        report.touch()
        redirect = f"3>{shlex.quote(str(report))}" if reports else "3>&-"
        shell = f"exec {BASH} {' '.join(mode)} {shlex.quote(str(script))} {redirect}"
        ended = subprocess.run([BASH, "-c", shell], env=command.env, capture_output=True, check=False)
        out, err = (text.decode("utf-8", "surrogateescape") for text in (ended.stdout, ended.stderr))
        return ended.returncode, out, err, report.read_text()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("csv", build_test_command(CSV)),
        (
            "csv_conda",
            build_test_command(
                replace(CSV, conda="ml-3.11", env=(("SEED", "1"), ("A", "b c"))), conda_sh="/opt/conda.sh"
            ),
        ),
        ("csv_base", build_test_command(CSV, conda_sh="/opt/con da.sh")),
        ("csv_venv", build_test_command(replace(CSV, venv="/my env"), conda_sh="/opt/conda.sh")),
        ("csv_no_conda", build_test_command(replace(CSV, conda="ml"))),
        ("torchrun", build_test_command(replace(CSV, torchrun=2))),
        (
            "torchrun_conda",
            build_test_command(replace(CSV, torchrun=1, conda="ml", cuda="add"), conda_sh="/opt/conda.sh"),
        ),
        ("shell", build_test_command(SHELL, conda_sh="/opt/conda.sh")),
        ("shell_conda", build_test_command(replace(SHELL, conda="/envs/x"), conda_sh="/opt/conda.sh")),
        (
            "shell_add_refused",
            build_test_command(replace(SHELL, cuda="add", command="python t.py | tee log")),
        ),
    ],
)
def test_command_sh_matches_the_golden_file(name: str, command: AttemptCommand) -> None:
    path = GOLDEN / f"command_{name}.sh"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(command.command_sh)
    assert command.command_sh == path.read_text(), "set WRITE_GOLDEN=1 to rewrite the golden file"


@pytest.mark.parametrize("options", ["set -e", "set -u", "set -eu -o pipefail", "set -C; set -f; IFS=0123"])
def test_a_command_starts_regardless_of_the_shell_options_that_its_activation_sets(options: str) -> None:
    command = build_test_command(JobSpec("command", "x", "/", command="echo begun"))
    left = replace(command, command_sh=f"{options}\n{command.command_sh}")
    assert run_command(left) == (0, "begun\n", "", ".")


# Arguments

ANYTHING = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30)
DUMP = "import json, sys; out = sys.argv.pop(1); json.dump(sys.argv[1:], open(out, 'w'))"


@settings(deadline=None, max_examples=25)
@given(
    arguments=st.lists(
        ANYTHING | st.sampled_from(["$(touch x)", "`id`", "'", '"', "\\", "*", "~", "-n", ""]), max_size=6
    )
)
def test_arguments_reach_the_script_unchanged(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script, out = Path(folder) / "it's a $(script).py", Path(folder) / "out"
        script.write_text(DUMP)
        (Path(folder) / "python").symlink_to(sys.executable)
        spec = JobSpec("csv", "x", folder, script=str(script), arguments=(str(out), *arguments), cuda="off")
        code, _, errors, report = run_command(build_test_command(spec, {"PATH": f"{folder}:{PROGRAMS}"}))
        assert (code, errors, report) == (0, "", ".")
        assert json.loads(out.read_text()) == arguments
        assert {path.name for path in Path(folder).iterdir()} == {script.name, "out", "python"}


@settings(deadline=None, max_examples=15)
@given(text=ANYTHING.filter(lambda text: "\n" not in text))
def test_commands_reach_bash_unchanged(text: str) -> None:
    command = f"printf '%s' {shlex.quote(text)}"
    assert run_command(build_test_command(JobSpec("command", "x", "/", command=command))) == (
        0,
        text,
        "",
        ".",
    )


GIVEN = {"MASTER_PORT": "12345", "PET_MASTER_PORT": "12345", "GPU_SCHEDULER_PORT": "12345"}


@pytest.mark.parametrize(
    ("base", "own", "expected"),
    [
        pytest.param({}, (), GIVEN, id="no port is given"),
        pytest.param({"MASTER_PORT": "7"}, (), {"MASTER_PORT": "7"}, id="the environment gives one"),
        pytest.param({"PET_MASTER_PORT": "7"}, (), {"PET_MASTER_PORT": "7"}, id="to torchrun alone"),
        pytest.param({}, (("MASTER_PORT", "8"),), {"MASTER_PORT": "8"}, id="the job gives one"),
        pytest.param(dict.fromkeys(GIVEN, "9"), (), GIVEN, id="the scheduler's port of a surrounding job"),
        pytest.param(
            {**dict.fromkeys(GIVEN, "9"), "MASTER_PORT": "7"}, (), {"MASTER_PORT": "7"},
            id="the surrounding job chose another port",
        ),
    ],
)  # fmt: skip
def test_a_job_gets_a_port_unless_somebody_chose_one(
    base: dict[str, str], own: tuple[tuple[str, str], ...], expected: dict[str, str]
) -> None:
    env = build_test_command(replace(SHELL, env=own), {"PATH": PROGRAMS, **base}, port=12345).env
    names = (*GIVEN, "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    assert {name: env[name] for name in names if name in env} == expected
    without = build_test_command(replace(SHELL, env=own), {"PATH": PROGRAMS}).env
    assert "MASTER_PORT" not in without or own


@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.sampled_from([1024, 9000, 32768]))
def test_ports_are_below_those_that_the_kernel_gives_to_programs(token: str, ephemeral: int) -> None:
    ports = list(ports_for(token, ephemeral))
    assert all(1024 <= port < ephemeral and port != 29500 for port in ports)
    assert len(set(ports)) == len(ports)
    assert ports or ephemeral == 1024


def test_runs_a_script_with_python3_if_python_is_missing(tmp_path: Path) -> None:
    for name, words in (("python3", "three"), ("python", "two")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {words} $*\n")
        program.chmod(0o755)
        script = tmp_path / "t.py"
        script.touch()
        spec = JobSpec("csv", "x", str(tmp_path), script=str(script), arguments=("a",), cuda="off")
        assert run_command(build_test_command(spec, {"PATH": str(tmp_path)}))[1] == f"{words} -u {script} a\n"
        if name == "python3":
            (tmp_path / "empty").mkdir()
            bare = replace(spec, env=(("PATH", str(tmp_path / "empty")),))
            code, _, _, report = run_command(build_test_command(bare))
            assert (code, report) == (
                1,
                "!python_missing neither python nor python3 is on the PATH of the job",
            )


def write_program(folder: Path, name: str, text: str) -> None:
    """Writes an executable shell script into `folder`."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_torchrun_runs_one_process_for_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    flags = "--standalone --nnodes=1 --nproc_per_node=2"
    arguments = ("--cuda", "9", "a b")
    spec = JobSpec("csv", "x", "/", script=str(tmp_path / "t.py"), arguments=arguments, torchrun=2)
    base = {"PATH": f"{tmp_path}:{PROGRAMS}"}
    write_program(tmp_path, "python", 'echo python "$@"; [ "$1" != -c ]')
    report = run_command(build_test_command(spec, base))[3]
    assert report == "!torchrun_missing torchrun is not on the PATH of the job, and its python has no torch"
    write_program(tmp_path, "python", '[ "$1" = -c ] || echo python "$@"')
    rest = f"{flags} {tmp_path}/t.py --cuda 0,2 a b\n"
    assert run_command(build_test_command(spec, base)) == (
        0,
        f"python -u -m torch.distributed.run {rest}",
        "",
        ".",
    )
    write_program(tmp_path, "torchrun", 'echo torchrun "$@"')
    assert run_command(build_test_command(spec, base)) == (0, f"torchrun {rest}", "", ".")
    assert build_test_command(spec, base).display_text == f"torchrun {rest[:-4]}'a b'"


@pytest.mark.parametrize(
    ("mode", "arguments"), [(None, ""), ("add", " --cuda 0,2"), ("rewrite", ""), ("off", "")]
)
def test_the_script_under_torchrun_gets_the_cuda_option_only_on_request(
    mode: CudaMode | None, arguments: str
) -> None:
    spec = JobSpec("csv", "x", "/", script="/t.py", torchrun=2, cuda=mode)
    assert (
        build_test_command(spec).display_text
        == f"torchrun --standalone --nnodes=1 --nproc_per_node=2 /t.py{arguments}"
    )


# Checks that precede the job's own command


def test_reports_a_missing_script() -> None:
    code, out, errors, report = run_command(build_test_command(replace(CSV, cwd="/")))
    assert (code, out, report) == (1, "", "!script_missing script /data/t.py does not exist")
    assert errors == "script /data/t.py does not exist\n"


def test_reports_a_missing_working_folder() -> None:
    report = run_command(build_test_command(SHELL))[3]
    assert report == "!cwd_unreachable working folder /my work cannot be entered"


def test_command_sh_runs_by_hand_without_descriptor_3() -> None:
    command = build_test_command(
        JobSpec("command", "x", "/", command="echo $CUDA_VISIBLE_DEVICES; ls /proc/$$/fd; :")
    )
    code, out, errors, _ = run_command(command, reports=False, mode=())
    assert (code, errors) == (0, "")
    assert out.split() == ["0,2", "0", "1", "2"]


def test_the_job_does_not_inherit_descriptor_3() -> None:
    assert run_command(build_test_command(JobSpec("command", "x", "/", command="ls /proc/$$/fd; :")))[
        1
    ].split() == ["0", "1", "2"]


def test_activates_a_venv_and_reports_a_missing_venv(tmp_path: Path) -> None:
    spec = JobSpec(
        "command", "x", "/", command="echo $VIRTUAL_ENV; command -v python", venv=str(tmp_path / "v")
    )
    report = run_command(build_test_command(spec))[3]
    assert report == (
        f"!environment_missing virtual environment {tmp_path}/v does not exist (no bin/activate in it)"
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    code, out, errors, _ = run_command(build_test_command(spec, {"PATH": PROGRAMS, "VIRTUAL_ENV": "/other"}))
    assert (code, errors) == (0, "")
    assert out == f"{tmp_path}/v\n{tmp_path}/v/bin/python\n"


@pytest.fixture
def conda(tmp_path: Path) -> dict[str, str]:
    """Returns an environment in which conda.sh finds an installation with base, ml and other."""
    root = plant(tmp_path / "conda", "ml", "other")
    return {"PATH": PROGRAMS, "FAKE_CONDA_ROOT": str(root), "SHELLOPTS": "errexit:nounset"}


@pytest.mark.parametrize(
    ("kind", "named", "active"), [("command", "ml", "ml"), ("command", None, ""), ("csv", None, "base")]
)
def test_activates_the_expected_conda_environment(
    conda: dict[str, str], tmp_path: Path, kind: str, named: str | None, active: str
) -> None:
    root = conda["FAKE_CONDA_ROOT"]
    if kind == "csv":
        (tmp_path / "t.py").write_text(
            "import os; print(os.environ['CONDA_DEFAULT_ENV'], os.environ['CONDA_PREFIX'])"
        )
        spec = JobSpec("csv", "x", "/", script=str(tmp_path / "t.py"))
    else:
        spec = JobSpec("command", "x", "/", command="echo $CONDA_DEFAULT_ENV $CONDA_PREFIX", conda=named)
    code, out, errors, report = run_command(build_test_command(spec, conda, conda_sh=str(FAKE_CONDA)))
    assert (code, errors, report) == (0, "", ".")
    prefix = {"ml": f"{root}/envs/ml", "base": root, "": ""}[active]
    assert out.split() == [word for word in (active, prefix) if word]


def test_conda_activation_replaces_the_environment_active_in_the_scheduler(conda: dict[str, str]) -> None:
    base = {**conda, "CONDA_PREFIX": "/old/envs/x", "CONDA_DEFAULT_ENV": "x", "CONDA_SHLVL": "2"}
    base |= {"CONDA_PREFIX_1": "/old", "VIRTUAL_ENV": "/v", "CONDA_ENVS_PATH": "/mine"}
    base["PATH"] = f"/v/bin:/old/envs/x/bin:/old/bin:{PROGRAMS}"
    spec = JobSpec("command", "x", "/", command="env", conda="other")
    out = run_command(build_test_command(spec, base, conda_sh=str(FAKE_CONDA)))[1]
    env = dict(line.partition("=")[::2] for line in out.splitlines())
    root = conda["FAKE_CONDA_ROOT"]
    assert env["PATH"] == f"{root}/envs/other/bin:{root}/condabin:{PROGRAMS}"
    assert (env["CONDA_SHLVL"], env["CONDA_ENVS_PATH"]) == ("1", "/mine")
    assert "VIRTUAL_ENV" not in env
    assert "CONDA_PREFIX_1" not in env


def test_an_unknown_conda_environment_is_reported_with_a_list_of_the_existing_ones(
    conda: dict[str, str],
) -> None:
    spec = JobSpec("command", "x", "/", command="echo ran", conda="nope")
    code, out, errors, report = run_command(build_test_command(spec, conda, conda_sh=str(FAKE_CONDA)))
    assert (code, out) == (1, "")
    assert report == (
        "!environment_missing conda environment nope does not exist; environments: base, ml, other"
    )
    assert "EnvironmentNameNotFound" in errors


def test_reports_a_conda_environment_that_cannot_be_activated(conda: dict[str, str]) -> None:
    plant_hook(Path(conda["FAKE_CONDA_ROOT"], "envs", "ml"), "activate", "x.sh", "unset CONDA_PREFIX")
    spec = JobSpec("command", "x", "/", command="echo ran", conda="ml")
    report = run_command(build_test_command(spec, conda, conda_sh=str(FAKE_CONDA)))[3]
    assert report == "!environment_broken conda environment ml could not be activated; see the log of the job"


def test_reports_a_missing_conda_sh_file(conda: dict[str, str]) -> None:
    spec = JobSpec("command", "x", "/", command="echo ran", conda="ml")
    assert (
        run_command(build_test_command(spec, conda, conda_sh="/no/conda.sh"))[3]
        == "!environment_broken conda cannot be set up from /no/conda.sh"
    )


# The environment


def test_an_attempt_gets_exactly_the_expected_variables() -> None:
    base = {
        **{
            "HOME": "/h",
            "PATH": "/v/bin:/usr/bin",
            "HF_HOME": "/hf",
            "LD_LIBRARY_PATH": "/l",
            "VIRTUAL_ENV": "/v",
        },
        **{
            "STY": "1.x",
            "WINDOW": "0",
            "TERMCAP": "x",
            "PYTHONHOME": "/p",
            "SLURM_JOB_ID": "5",
            "COLUMNS": "80",
        },
        **{"GPU_SCHEDULER_TOKEN": "outer", "GPU_SCHEDULER_SIM": "/old", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    }
    spec = replace(
        SHELL,
        env=(("SEED", "1"), ("HF_HOME", "/mine"), ("GPU_SCHEDULER_JOB", "99"), ("CUDA_VISIBLE_DEVICES", "7")),
    )
    env = build_test_command(spec, base, extra={"GPU_SCHEDULER_SIM": "/sim"}).env
    assert env == {
        "HOME": "/h",
        "PATH": "/v/bin:/usr/bin",
        "HF_HOME": "/mine",
        "LD_LIBRARY_PATH": "/l",
        "VIRTUAL_ENV": "/v",
        "SEED": "1",
        "CUDA_VISIBLE_DEVICES": "0,2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPU_SCHEDULER_SIM": "/sim",
        "GPU_SCHEDULER_TOKEN": TOKEN,
        "GPU_SCHEDULER_JOB": "7",
        "GPU_SCHEDULER_ATTEMPT": "1",
    }


def test_invalid_variable_names_never_reach_the_shell_text() -> None:
    command = build_test_command(replace(SHELL, env=(("A;touch /tmp/x", "1"),)))
    assert "touch" not in command.command_sh
    assert command.env["A;touch /tmp/x"] == "1"


@pytest.mark.parametrize(
    ("env", "files", "found"),
    [
        ({"CONDA_EXE": "/c/bin/conda"}, {"/c"}, "/c"),
        ({"CONDA_PREFIX": "/c/envs/ml"}, {"/c"}, "/c"),
        ({"CONDA_PREFIX": "/c"}, {"/c"}, "/c"),
        ({"PATH": "/bin:/d/condabin"}, {"/d"}, "/d"),
        ({"HOME": "/h"}, {"/h/miniforge3", "/opt/conda"}, "/h/miniforge3"),
        ({"HOME": "/h"}, {"/opt/conda"}, "/opt/conda"),
        ({"CONDA_EXE": "/gone/bin/conda", "PATH": "/bin"}, set(), None),
        ({}, set(), None),
    ],
)
def test_finds_the_conda_sh_file(env: dict[str, str], files: set[str], found: str | None) -> None:
    there = {f"{root}/etc/profile.d/conda.sh" for root in files} | {
        f"{root}/condabin/conda" for root in files
    }
    assert find_conda_sh(env, there.__contains__) == (
        None if found is None else f"{found}/etc/profile.d/conda.sh"
    )


# --cuda


@pytest.mark.parametrize(
    ("arguments", "mode", "expected"),
    [
        ("--lr 1", "add", "--lr 1 --cuda 0,2"),
        ("--cuda 5 --lr 1", "add", "--cuda 0,2 --lr 1"),
        ("--cuda=5 x --cuda 7", "add", "--cuda=0,2 x --cuda 0,2"),
        ("--cuda", "add", "--cuda"),
        ("--cuda --lr 1", "add", "--cuda --lr 1"),
        ("a -- b", "add", "a --cuda 0,2 -- b"),
        ("--lr 1", "rewrite", "--lr 1"),
        ("--cuda 5", "off", "--cuda 5"),
        ("--cudas 5", "rewrite", "--cudas 5"),
    ],
)
def test_rewrites_the_cuda_option_in_the_arguments_of_a_script(
    arguments: str, mode: CudaMode, expected: str
) -> None:
    assert rewrite_arguments(arguments.split(), "0,2", mode) == tuple(expected.split())


@pytest.mark.parametrize(
    ("command", "mode", "expected"),
    [
        ("python t.py", "rewrite", "python t.py"),
        ("python t.py --cuda 5", "rewrite", "python t.py --cuda 0,2"),
        ("python t.py  --cuda   '5 6'  x", "rewrite", "python t.py  --cuda   0,2  x"),
        ('python t.py --cuda="$X" | tee "a b"', "rewrite", 'python t.py --cuda=0,2 | tee "a b"'),
        ("a --cuda 1 && b --cuda 2; c --cuda=3", "rewrite", "a --cuda 0,2 && b --cuda 0,2; c --cuda=0,2"),
        ("echo 'python --cuda 5'", "rewrite", "echo 'python --cuda 5'"),
        ('echo "say \\" --cuda 5" x', "rewrite", 'echo "say \\" --cuda 5" x'),
        ("x=$(python t.py --cuda 5)", "rewrite", "x=$(python t.py --cuda 0,2)"),
        ("python t.py --cuda 2>log", "rewrite", "python t.py --cuda 2>log"),
        ("python t.py --cuda;echo 5", "rewrite", "python t.py --cuda;echo 5"),
        ("python t.py --cuda --lr 5", "rewrite", "python t.py --cuda --lr 5"),
        ("python t.py --cuda 5", "off", "python t.py --cuda 5"),
        ("python t.py", "add", "python t.py --cuda 0,2"),
        ("python t.py --cuda 5 | tee x", "add", "python t.py --cuda 0,2 | tee x"),
        ("cd x && python t.py || exit 3", "add", "cd x && python t.py || exit 3 --cuda 0,2"),
        ("python t.py > 'a|b'", "add", "python t.py > 'a|b' --cuda 0,2"),
        ("python t.py | tee x", "add", None),
        ("(python t.py)", "add", None),
        ("{ python t.py; }", "add", None),
        ("python t.py;", "add", None),
        ("for i in 1 2; do python t.py; done", "add", None),
        ("cat <<< x", "add", None),
        ("echo 'unclosed", "rewrite", "echo 'unclosed"),
        ("", "add", None),
    ],
)
def test_rewrites_the_cuda_option_in_a_command(command: str, mode: CudaMode, expected: str | None) -> None:
    assert rewrite_command(command, "0,2", mode) == expected


@settings(deadline=None, max_examples=60)
@given(
    words=st.lists(
        ANYTHING.map(shlex.quote) | st.sampled_from(["--cuda 5", "--cuda=5", "|", "&&", ";"]), max_size=8
    )
)
def test_rewriting_the_cuda_option_changes_nothing_else(words: list[str]) -> None:
    text = " ".join(words)
    expected = " ".join(
        {"--cuda 5": "--cuda 0,2", "--cuda=5": "--cuda=0,2"}.get(word, word) for word in words
    )
    assert rewrite_command(text, "0,2", "rewrite") == expected


def test_formats_physical_and_visible_gpu_ids() -> None:
    assert format_cuda_ids((3, 5), "physical") == "3,5"
    assert format_cuda_ids((3, 5), "visible") == "0,1"
    assert "--cuda 0,1" in build_test_command(replace(CSV, cuda_ids="visible")).display_text
