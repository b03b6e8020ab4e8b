"""A job's environment if the scheduler was started inside an active venv or conda environment.

These tests use real bash, and a fake conda that follows the rules of the real one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.command.build import build_command
from gpu_scheduler.core.model.job_spec import JobSpec
from tests.core.test_command import CSV, TOKEN, run_command, write_program
from tests.fakes.conda import plant, plant_hook, plant_variables

FAKE_CONDA = Path(__file__).parents[1] / "fakes" / "conda.sh"
ENV = JobSpec("command", "env", "/", command="env -0")


@dataclass(frozen=True)
class Installation:
    """A conda installation that provides shells in which its environments were activated in turn."""

    root: Path

    @property
    def plain(self) -> dict[str, str]:
        """The variables of a shell without an active environment."""
        return {"PATH": "/usr/bin:/bin", "FAKE_CONDA_ROOT": str(self.root)}

    def prefix_of(self, name: str) -> Path:
        return self.root if name == "base" else self.root / "envs" / name

    def shell(self, *activated: str, **variables: str) -> dict[str, str]:
        """Returns the variables of a shell after these activations."""
        script = f". '{FAKE_CONDA}'\n" + "".join(f"conda activate {name}\n" for name in activated) + "env -0"
        env = {**self.plain, **variables}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
        return parse_variables(done.stdout)

    def job(self, spec: JobSpec, base: Mapping[str, str]) -> tuple[int, str, str, str]:
        """Runs a job under a scheduler with the variables `base`.

        Returns the job's exit code, output, errors and launch report.
        """
        return run_command(build_command(spec, (0,), base, TOKEN, 7, 1, str(FAKE_CONDA), "physical"))

    def variables(self, spec: JobSpec | str, base: Mapping[str, str]) -> dict[str, str]:
        """Returns a job's variables, without those that the scheduler sets for every job.

        If `spec` is a string, the job is a command in the conda environment of that name.
        """
        code, out, errors, report = self.job(env_job(conda=spec) if isinstance(spec, str) else spec, base)
        assert (code, errors, report) == (0, "", ".")
        ours = ("GPU_SCHEDULER_", "CUDA_")
        return {name: value for name, value in parse_variables(out).items() if not name.startswith(ours)}


def env_job(**values: Any) -> JobSpec:
    return replace(ENV, **values)


def make_venv(folder: Path, text: str = "") -> Path:
    """Creates a folder with an `activate` script that sets variables as that of a real venv does."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(
        f"{text}export VIRTUAL_ENV='{folder}'; export PATH='{folder}/bin':$PATH"
    )
    return folder


def parse_variables(text: str) -> dict[str, str]:
    pairs = (line.partition("=")[::2] for line in text.split("\0") if line)
    return {name: value for name, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}


@pytest.fixture
def conda(tmp_path: Path) -> Installation:
    """A conda installation with environments base, ml and other.

    The hooks of base and ml set, change and unset variables.
    """
    root = plant(tmp_path / "conda", "ml", "other")
    for name, prefix in (("base", root), ("ml", root / "envs" / "ml")):
        on = f"export HOOK_{name}=1 KEPT_{name}=$HF_HOME HF_HOME=/hub-{name}"
        off = f'export HF_HOME="$KEPT_{name}"; unset HOOK_{name} KEPT_{name}'
        plant_hook(prefix, "activate", "a.sh", on)
        plant_hook(prefix, "deactivate", "a.sh", off)
        plant_variables(prefix, {f"STATE_{name}": name, "LR": f"of {name}"})
    return Installation(root)


OUTSIDE = {"HF_HOME": "/hub", "LR": "0.1", "MINE": "x"}


@pytest.mark.parametrize(
    ("activated", "name"),
    [
        (("base",), "other"), (("base",), "base"), (("ml",), "base"), (("base", "ml"), "other"),
        (("base", "ml"), "ml"), (("base", "ml", "other"), "base"),
    ],
    ids=str,
)  # fmt: skip
def test_a_job_inherits_nothing_from_the_environments_active_in_the_scheduler(
    conda: Installation, activated: tuple[str, ...], name: str
) -> None:
    clean = conda.variables(name, {**conda.plain, **OUTSIDE})
    found = conda.variables(name, conda.shell(*activated, **OUTSIDE))
    assert found == clean | {"PATH": found["PATH"]}
    without = [part for part in found["PATH"].split(":") if part != f"{conda.root}/condabin"]
    assert without == [f"{conda.prefix_of(name)}/bin", "/usr/bin", "/bin"]


def test_a_job_with_a_venv_deactivates_the_active_conda_environments(
    conda: Installation, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "v")
    found = conda.variables(env_job(venv=str(venv)), conda.shell("base", "ml", **OUTSIDE))
    path = f"{venv}/bin:{conda.root}/condabin:/usr/bin:/bin"
    assert found == {**conda.plain, **OUTSIDE, "VIRTUAL_ENV": str(venv), "PATH": path}


def test_a_job_with_a_conda_environment_deactivates_the_active_venv_and_conda_environment(
    conda: Installation, tmp_path: Path
) -> None:
    base = conda.shell("ml", **OUTSIDE)
    base |= {"VIRTUAL_ENV": str(tmp_path / "v"), "VIRTUAL_ENV_PROMPT": "(v) "}
    found = conda.variables("other", {**base, "PATH": f"{tmp_path}/v/bin:{base['PATH']}"})
    clean = conda.variables("other", {**conda.plain, **OUTSIDE})
    assert found == clean | {"PATH": found["PATH"]}
    assert str(tmp_path / "v") not in found["PATH"]


def test_a_job_without_its_own_environment_uses_the_schedulers_environment(conda: Installation) -> None:
    base = conda.shell("base", "ml", **OUTSIDE)
    assert conda.variables(env_job(), base) == base


def test_missing_or_damaged_active_environments_do_not_prevent_activation(conda: Installation) -> None:
    plain = {**conda.plain, **OUTSIDE}
    clean = conda.variables("other", plain)
    assert conda.variables(str(conda.prefix_of("other")), conda.shell("ml", **OUTSIDE)).keys() == clean.keys()
    gone = {"CONDA_PREFIX": "/gone/envs/x", "CONDA_SHLVL": "1", "CONDA_DEFAULT_ENV": "x"}
    gone["PATH"] = f"/gone/envs/x/bin:{conda.root}/condabin:/usr/bin:/bin"
    found = conda.variables("other", {**plain, **gone})
    assert found == clean | {"PATH": found["PATH"]}
    for damage in ({"CONDA_SHLVL": "2"}, {"CONDA_SHLVL": "?"}):
        code, out, errors, report = conda.job(env_job(conda="other"), {**plain, **gone, **damage})
        assert (code, report) == (0, ".")
        found = parse_variables(out)
        assert (found["CONDA_PREFIX"], found["CONDA_SHLVL"]) == (str(conda.prefix_of("other")), "1")
        assert "CONDA_PREFIX_1" not in found
        warning = "conda environment /gone/envs/x cannot be deactivated; its variables may remain\n"
        assert errors.endswith(warning if damage["CONDA_SHLVL"] == "2" else "")


def test_variables_set_by_the_line_or_the_scheduler_override_those_of_the_environment(
    conda: Installation,
) -> None:
    plant_variables(conda.prefix_of("other"), {"CUDA_VISIBLE_DEVICES": "5", "SEED": "0", "DEPTH": "9"})
    spec = env_job(conda="other", env=(("SEED", "1"), ("LR", "0.5"), ("PATH", "/mine:/usr/bin:/bin")))
    code, out, _, report = conda.job(spec, conda.shell("ml"))
    assert (code, report) == (0, ".")
    found = parse_variables(out)
    wanted = {"CUDA_VISIBLE_DEVICES": "0", "SEED": "1", "LR": "0.5", "DEPTH": "9"}
    assert {name: found[name] for name in wanted} == wanted
    assert found["PATH"].split(":")[0] == f"{conda.prefix_of('other')}/bin"
    assert "/mine" in found["PATH"].split(":")


def test_reports_the_environment_and_the_hook_that_ended_the_shell(
    conda: Installation, tmp_path: Path
) -> None:
    bad = plant_hook(conda.prefix_of("other"), "activate", "it's bad.sh", "leave() { exit 5; }\nleave")
    report = conda.job(env_job(conda="other"), conda.plain)[3]
    assert (
        report == f"!environment_broken conda environment other: its hook {bad} ended the shell (exit code 5)"
    )
    bad.write_text("( exit 4 )\nexport GOT=$(echo x; exit 3)\n")
    assert conda.variables("other", conda.plain)["GOT"] == "x"
    off = plant_hook(conda.prefix_of("ml"), "deactivate", "b.sh", "false\nexit")
    base = conda.shell("base", "ml")
    report = conda.job(env_job(conda="base"), base)[3]
    assert report == f"!environment_broken conda environment ml: its hook {off} ended the shell (exit code 1)"
    venv = make_venv(tmp_path / "v", "exit 7\n")
    report = conda.job(env_job(venv=str(venv)), conda.plain)[3]
    assert report == (
        f"!environment_broken virtual environment {venv}: its hook {venv}/bin/activate"
        " ended the shell (exit code 7)"
    )


@pytest.mark.parametrize("torchrun", [None, 2])
def test_a_launch_fails_if_the_jobs_environment_has_no_python(
    conda: Installation, tmp_path: Path, torchrun: int | None
) -> None:
    for name in ("python", "python3", "torchrun"):
        write_program(tmp_path, name, f"echo a {name} of no environment")
    base = {**conda.plain, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = tmp_path / "t.py"
    script.write_text("import sys; print(sys.executable)")
    plant(conda.root, "bare", python=False)
    csv = JobSpec("csv", "x", "/", script=str(script), cuda="off", torchrun=torchrun)
    code, out, _, report = conda.job(replace(csv, conda="bare"), base)
    assert (code, out) == (1, "")
    assert (
        report == "!python_missing conda environment bare has no python (neither bin/python nor bin/python3)"
    )
    venv = make_venv(tmp_path / "v")
    report = conda.job(replace(csv, venv=str(venv)), base)[3]
    assert (
        report
        == f"!python_missing virtual environment {venv} has no python (neither bin/python nor bin/python3)"
    )
    if torchrun is None:
        (conda.prefix_of("bare") / "bin" / "python3").symlink_to(sys.executable)
        assert conda.job(replace(csv, conda="bare"), base)[3] == "."
    else:
        report = conda.job(replace(csv, conda="other"), {**base, "PYTHONPATH": ""})[3]
        assert report in ("!torchrun_missing conda environment other has neither torchrun nor torch", ".")
        write_program(conda.prefix_of("other") / "bin", "torchrun", "echo its own")
        assert conda.job(replace(csv, conda="other"), base)[1] == "its own\n"


@pytest.mark.parametrize(
    ("spec", "base", "conda_sh", "report"),
    [
        (CSV, {}, "/c.sh", "conda base"),
        (CSV, {"CONDA_DEFAULT_ENV": "ml"}, "/c.sh", "conda base"),
        (replace(CSV, conda="ml"), {}, "/c.sh", "conda ml"),
        (CSV, {}, None, "none named"),
        (replace(CSV, venv="/v"), {"VIRTUAL_ENV": "/w"}, None, "venv /v"),
        (ENV, {}, "/c.sh", "none named"),
        (ENV, {"CONDA_DEFAULT_ENV": "ml"}, "/c.sh", "none named, so the job uses the active one (conda ml)"),
        (ENV, {"CONDA_DEFAULT_ENV": "ml", "VIRTUAL_ENV": "/v"}, None,
         "none named, so the job uses the active one (venv /v)"),
    ],
)  # fmt: skip
def test_the_environment_label_names_the_jobs_venv_or_conda_environment(
    spec: JobSpec, base: dict[str, str], conda_sh: str | None, report: str
) -> None:
    assert build_command(spec, (0,), base, TOKEN, 7, 1, conda_sh, "physical").environment_label == report
