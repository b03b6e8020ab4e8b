"""The `doctor` command. The tests in tests/health test its checks."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.finding import Finding, bad, ok, warn
from gpu_scheduler.core.scheduling.facts import EngineState
from gpu_scheduler.show import doctor as app
from gpu_scheduler.store.pending_groups import set_engine_state
from tests.cli.desk import Desk


def findings(monkeypatch: pytest.MonkeyPatch, *found: Finding) -> None:
    monkeypatch.setattr("gpu_scheduler.show.doctor.doctor", lambda *asked: iter(found))


def doctor(desk: Desk, *options: str) -> tuple[str, dict[str, str]]:
    """Returns what `doctor` prints on stderr, and the message of each check."""
    _, out, err = desk.run("doctor", *options, "--json")
    return err, {one["check"]: one["message"] for one in json.loads(out)["checks"]}


def test_doctor_prints_each_check_with_its_remedy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = bad("driver", "broken", "do that")
    findings(monkeypatch, ok("user", "fine"), warn("store", "odd \x1b", "do this"), broken)
    assert desk.run("doctor") == (
        1,
        "ok    user                  fine\n"
        "warn  store                 odd \\x1b\n"
        "                            do this\n"
        "bad   driver                broken\n"
        "                            do that\n"
        "\n1 warning, 1 bad\n",
        "",
    )
    findings(monkeypatch, ok("user", "fine"), warn("store", "odd", "do this"))
    assert desk.run("doctor")[0] == 0


def test_the_json_of_doctor_lists_each_check_with_its_grade_and_remedy(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings(monkeypatch, warn("store", "odd", "do this"))
    code, out, _ = desk.run("doctor", "--json")
    assert code == 0
    assert json.loads(out) == {
        "ok": True,
        "checks": [{"check": "store", "grade": "warn", "message": "odd", "remedy": "do this"}],
    }


def test_doctor_runs_every_check_without_a_store_and_creates_nothing(desk: Desk) -> None:
    desk.path.chmod(0o700)
    words = ("--simulate", "2", "--log-dir", "logs", "--json")
    told = json.loads(desk.run("doctor", *words)[1])
    names = [one["check"] for one in told["checks"]]
    expected = {
        "Python", "packages", "user", "Screen", "conda", "GPU 0", "GPU 1", "log folder", "store",
        "file system", "database", "state file", "jobs file", "llm_config", "scheduler", "logind", "inotify",
        "ptys", "clock", "lock folder", "GPU claims",
    }  # fmt: skip
    assert expected <= set(names)
    assert len(names) == len(set(names))
    assert list(desk.path.iterdir()) == []


def test_doctor_names_the_running_scheduler(desk: Desk) -> None:
    with desk.scheduler() as pid:
        told = json.loads(desk.run("doctor", "--simulate", "1", "--json")[1])
    says = {one["check"]: one["message"] for one in told["checks"]}
    assert says["scheduler"] == f"running, pid {pid}"
    assert "intact" in says["database"]


@pytest.mark.parametrize("options", [(), ("--gpu-probe", "nvml"), ("--simulate", "1")])
def test_doctor_checks_the_simulated_gpus_of_the_running_scheduler_unless_an_option_chooses(
    desk: Desk, options: tuple[str, ...]
) -> None:
    desk.store.record_options(StartOptions(simulate="2:8G"))
    with desk.scheduler():
        err, says = doctor(desk, *options)
    is_followed = not options
    assert ("simulates GPUs (--simulate 2:8G)" in err) == is_followed
    assert ("Simulated 8 GiB" in says.get("GPU 1", "")) == is_followed
    assert "simulates" not in doctor(desk)[0]  # no scheduler is running


def test_doctor_checks_the_given_options_of_start(desk: Desk) -> None:
    (desk.path / "lines").write_text("true\n")
    asked = ("--jobs-file", "lines", "--llm-config", "none.json", "--conda-sh", "none.sh", "--simulate", "1")
    code, out, _ = desk.run("doctor", *asked)
    assert code == 1
    assert f"{desk.path}/lines" in out
    assert "none.json" in out
    assert "bad   conda" in out


def test_doctor_shows_progress_only_on_a_terminal(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("gpu_scheduler.health.doctor.probe", lambda *asked: iter(()))
    options = StartOptions(jobs_file="", simulate="1")
    assert list(app.doctor(options, said.append))
    assert said == ["running conda", "reading the GPUs (at most 5 s)"]
    findings(monkeypatch, ok("user", "fine"))
    assert desk.run("doctor")[2] == ""


@pytest.fixture
def on_slurm(desk: Desk) -> Desk:
    """A queue whose last `start` used Slurm, on a machine where each of its programs accepts everything."""
    folder = desk.path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        (folder / name).write_text("#!/bin/sh\necho 1\n")
        (folder / name).chmod(0o755)
    desk.path.chmod(0o700)
    (desk.path / "shared").mkdir(mode=0o700)
    desk.store.record_options(StartOptions(slurm="gpu", slurm_dir=str(desk.path / "shared")))
    return desk


def slurm_finding(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Returns the grade and the message of the finding about Slurm."""
    monkeypatch.setenv("PATH", f"{desk.path}/bin:/usr/bin:/bin")
    out = desk.run("doctor", "--simulate", "1", "--log-dir", "logs", "--json")[1]
    [found] = [one for one in json.loads(out)["checks"] if one["check"] == "Slurm"]
    return found["grade"], found["message"]


def test_doctor_checks_slurm_if_the_last_start_used_it(
    on_slurm: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = on_slurm.path / "shared"
    assert slurm_finding(on_slurm, monkeypatch) == ("ok", f"partition gpu, shared folder {shared}")
    set_engine_state(on_slurm.store, "slurm", EngineState("squeue did not answer within 20 s"))
    assert slurm_finding(on_slurm, monkeypatch) == ("warn", "squeue did not answer within 20 s")
    (on_slurm.path / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Connection refused'; exit 1\n")
    assert slurm_finding(on_slurm, monkeypatch) == ("warn", "Connection refused")
    shared.rmdir()
    assert slurm_finding(on_slurm, monkeypatch)[0] == "bad"


def test_doctor_is_silent_about_slurm_if_nobody_uses_it(desk: Desk) -> None:
    assert desk.store.gpus()
    assert "Slurm" not in desk.run("doctor", "--simulate", "1", "--log-dir", "logs")[1]
