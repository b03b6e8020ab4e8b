"""Tests of the health checks of limits, the clock, programs and GPUs, with good and bad values."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from gpu_scheduler.health import doctor

ROOT = Path(__file__).parents[2]
CONDA = ROOT / "tests" / "fakes" / "conda.sh"


def numbers(folder: Path, **values: int) -> Path:
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_checks_the_inotify_limits(tmp_path: Path) -> None:
    assert doctor.inotify(numbers(tmp_path, max_user_instances=128, max_user_watches=8192)).grade == "ok"
    few = doctor.inotify(numbers(tmp_path, max_user_watches=64))
    assert (few.grade, few.remedy) == ("warn", "sudo sysctl fs.inotify.max_user_watches=65536")
    assert doctor.inotify(tmp_path / "none").grade == "ok"


def test_warns_if_no_inotify_instance_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*args: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("inotify_simple.INotify", none_left)
    found = doctor.inotify(numbers(tmp_path, max_user_instances=128, max_user_watches=8192))
    assert (found.grade, found.remedy) == ("warn", "sudo sysctl fs.inotify.max_user_instances=512")


def test_checks_the_free_ptys(tmp_path: Path) -> None:
    assert doctor.ptys(numbers(tmp_path, max=4096, nr=10)).grade == "ok"
    assert doctor.ptys(numbers(tmp_path, nr=4090)).grade == "warn"
    assert doctor.ptys(tmp_path / "none").grade == "ok"


def test_checks_the_clock(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    now = time.time()
    assert doctor.clock(now, [tmp_path / "a", tmp_path / "none"]).grade == "ok"
    assert doctor.clock(now - 3600, [tmp_path / "a"]).grade == "warn"
    assert doctor.clock(1000.0, []).grade == "warn"


def test_checks_the_packages() -> None:
    assert doctor.packages().grade == "ok"
    missing = doctor.packages({"none_such": "none-such"})
    assert missing.grade == "bad"
    assert "none-such" in missing.message
    assert "pip install" in missing.remedy


def test_checks_exactly_the_packages_declared_in_pyproject() -> None:
    declared = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("\n]")[0]
    names = set(re.findall(r'^    "([A-Za-z_-]+)', declared, re.MULTILINE))
    expected = names if sys.version_info >= (3, 12) else names - {"setuptools"}
    assert set(doctor.PACKAGES.values()) == expected


def test_warns_a_user_who_runs_as_root() -> None:
    assert [doctor.user(uid).grade for uid in (0, 1000)] == ["warn", "ok"]


def test_checks_conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CONDA_ROOT", str(tmp_path))
    for name in ("one", "two"):
        (tmp_path / "envs" / name).mkdir(parents=True)
    (found,) = doctor.conda(str(CONDA), is_named=True)
    assert found.grade == "ok"
    assert found.message.endswith("environments: base, one, two")
    assert [one.grade for one in doctor.conda(None, is_named=False)] == ["ok"]
    assert [one.grade for one in doctor.conda(str(tmp_path / "none.sh"), is_named=True)] == ["bad"]
    (tmp_path / "broken.sh").write_text("conda() { echo 'it is broken' >&2; return 1; }\n")
    (found,) = doctor.conda(str(tmp_path / "broken.sh"), is_named=False)
    assert (found.grade, "it is broken" in found.message) == ("bad", True)


def test_checks_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(doctor.probe("auto", "2:80G", None))
    assert [(one.name, one.grade) for one in found] == [("GPU 0", "ok"), ("GPU 1", "ok")]
    assert "of 81920 MiB" in found[0].message
    assert [one.grade for one in doctor.probe("auto", "2", "1")] == ["warn", "ok", "ok"]
    assert next(doctor.probe("auto", "2", "7")).grade == "bad"
    monkeypatch.setenv("PATH", os.devnull)
    (none,) = doctor.probe("gputil", None, None)
    assert none.grade == "bad"
    assert none.remedy


def test_reports_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.PROBE_TIMEOUT_S <= 5
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setenv("PATH", f"{ROOT / 'tests' / 'fakes'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", str(tmp_path))
    (tmp_path / "hang").touch()
    try:
        (found,) = doctor.probe("gputil", None, None)
    finally:
        (tmp_path / "hang").unlink()
    assert found.grade == "bad"
    assert "within 0.3 s" in found.message


def test_checks_the_driver(tmp_path: Path) -> None:
    assert doctor.driver(tmp_path / "none").grade == "warn"
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    (tmp_path / "version").write_text(text)
    assert doctor.driver(tmp_path / "version").message == "NVIDIA 550.54.15"
