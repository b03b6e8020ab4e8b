"""Tests `service` with programs that note how they are called."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from gpu_scheduler.config import NOTIFY_VARIABLE
from gpu_scheduler.health import sessions
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.system.safe_file import replace_file
from gpu_scheduler.unit import service
from gpu_scheduler.unit.service import user_name
from gpu_scheduler.unit.unit_file import read_unit, unit_name
from tests.cli.desk import Desk
from tests.unit.fake_systemd import FakeSystemd


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    made = FakeSystemd(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service, "SYSTEMD_RUNTIME", tmp_path)
    monkeypatch.setattr(sessions.read_settings, "__defaults__", (5.0, tmp_path))
    monkeypatch.setattr(service, "_ANSWER_S", 5.0)
    monkeypatch.setattr(service, "_CHANGE_S", 5.0)
    return made


def files(desk: Desk) -> dict[str, str]:
    """Returns the installed files, by suffix."""
    folder = desk.path / "config" / "systemd" / "user"
    return {path.suffix: path.read_text() for path in folder.glob("*")}


def test_install_writes_enables_and_starts_a_unit(desk: Desk, systemd: FakeSystemd) -> None:
    code, out, _ = desk.run("service", "install", "--simulate", "1", "--poll", "2")
    name = unit_name(str(desk.data_dir.state_file))
    assert (code, out) == (0, f"{name} runs, and starts at every boot\n")
    assert systemd.changes() == [
        f"loginctl enable-linger {user_name()}", "systemctl --user daemon-reload",
        f"systemctl --user enable {name}", f"systemctl --user restart {name}",
    ]  # fmt: skip
    unit = read_unit(files(desk)[".service"])
    assert unit is not None
    assert unit.words == ("--simulate", "1", "--poll", "2", "--recover")
    assert (unit.folder, unit.lingers) == (str(desk.path), True)
    assert os.path.isabs(unit.program[0])
    assert files(desk)[".env"] == ""
    code, out, _ = desk.run("service", "install", "--simulate", "1", "--poll", "2")
    assert (code, out) == (0, f"{name} is already running with these options\n")
    assert systemd.changes() == []


def test_secrets_are_only_in_the_private_file(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")
    monkeypatch.setenv("TOKEN", "s3cret $HOME")
    words = ["--simulate", "1", "--notify", "json://me:s3cret@h", "--keep-env", "TOKEN"]
    assert desk.run("service", "install", *words)[0] == 0
    found = files(desk)
    assert "s3cret" not in found[".service"]
    assert f'{NOTIFY_VARIABLE}="json://me:s3cret@h"\n' in found[".env"]
    assert 'TOKEN="s3cret \\$HOME"\n' in found[".env"]
    [path] = (desk.path / "config" / "systemd" / "user").glob("*.env")
    assert path.stat().st_mode & 0o777 == 0o600
    unit = read_unit(found[".service"])
    assert unit is not None
    assert "--notify" in unit.words


@pytest.mark.parametrize("how", ["it is out of order", "hang"])
@pytest.mark.parametrize("verb", ["daemon-reload", "enable", "restart"])
def test_an_install_that_fails_leaves_what_was_there(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, verb: str, how: str
) -> None:
    if how == "hang":
        monkeypatch.setattr(service, "_CHANGE_S", 0.5)
        monkeypatch.setattr(service, "_ANSWER_S", 0.5)
    systemd.fail("systemctl", verb, how)
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert code == 1
    assert (how if how != "hang" else "did not answer") in err
    assert files(desk) == {}
    assert not systemd.has("enabled")
    assert not systemd.has("lingers")
    systemd.repair()
    monkeypatch.setattr(service, "_CHANGE_S", 5.0)
    monkeypatch.setattr(service, "_ANSWER_S", 5.0)
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    before = files(desk)
    for limit in ("_CHANGE_S", "_ANSWER_S") if how == "hang" else ():
        monkeypatch.setattr(service, limit, 0.5)
    systemd.fail("systemctl", verb, how)
    assert desk.run("service", "install", "--simulate", "2", "--yes")[0] == 1
    assert files(desk) == before
    assert systemd.has("enabled")
    assert systemd.has("lingers")


def test_other_options_are_shown_and_need_a_yes(desk: Desk, systemd: FakeSystemd) -> None:
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    before = files(desk)
    code, _, err = desk.run("service", "install", "--simulate", "2")
    assert code == 1
    assert '"--simulate" "1"' in err
    assert '"--simulate" "2"' in err
    assert "--yes replaces it" in err
    assert files(desk) == before
    assert desk.run("service", "install", "--simulate", "2", "--yes")[0] == 0
    assert '"--simulate" "2"' in files(desk)[".service"]


def test_a_full_disk_leaves_no_half_of_a_unit(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = replace_file, [1]

    def fails(path: Path, data: bytes, *, synced: bool = False) -> None:
        if left:
            left.pop()
            write(path, data, synced=synced)
        else:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(service, "replace_file", fails)
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert (code, "No space left on device" in err) == (1, True)
    assert files(desk) == {}


def test_without_permission_to_linger_the_line_for_the_administrator_is_printed(
    desk: Desk, systemd: FakeSystemd
) -> None:
    systemd.fail("loginctl", "enable-linger", "Access denied")
    code, out, _ = desk.run("service", "install", "--simulate", "1")
    assert code == 0
    assert f"sudo loginctl enable-linger {user_name()}" in " ".join(out.split())
    unit = read_unit(files(desk)[".service"])
    assert unit is not None
    assert not unit.lingers


def test_status_says_whether_it_runs_and_fits(desk: Desk, systemd: FakeSystemd, tmp_path: Path) -> None:
    code, out, _ = desk.run("service", "status")
    assert (code, out) == (4, "not installed; `service install` installs it\n")
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    code, out, _ = desk.run("service", "status")
    assert code == 0
    assert "running, pid 4242" in out
    assert "the last line" in out
    (systemd.path / "active").unlink()
    [path] = (tmp_path / "config" / "systemd" / "user").glob("*.service")
    path.write_text(path.read_text().replace(f"WorkingDirectory={desk.path}", "WorkingDirectory=/no/folder"))
    code, out, _ = desk.run("service", "status")
    assert code == 3
    assert "last exit code 2 (wrong options)" in out
    assert "/no/folder does not exist" in out
    assert "/no/folder does not exist" in desk.run("doctor", "--simulate", "1")[1]


def test_uninstall_stops_and_removes_it_and_only_its_own_lingering(desk: Desk, systemd: FakeSystemd) -> None:
    assert desk.run("service", "uninstall")[0] == 1
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    for verb in ("disable", "daemon-reload"):
        systemd.fail("systemctl", verb)
        assert desk.run("service", "uninstall")[0] == 1
        systemd.repair()
        assert set(files(desk)) == {".service", ".env"}
        if verb == "daemon-reload":
            assert systemd.has("enabled")
            assert systemd.has("active")
    systemd.changes()
    code, out, _ = desk.run("service", "uninstall")
    assert (code, "running jobs go on" in out) == (0, True)
    assert files(desk) == {}
    assert systemd.changes()[0].startswith("systemctl --user disable --now gpu-scheduler-")
    assert not systemd.has("lingers")
    (systemd.path / "lingers").touch()
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    assert desk.run("service", "uninstall")[0] == 0
    assert systemd.has("lingers")


def test_restart_shows_both_versions(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.run("service", "restart")[0] == 1
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    monkeypatch.setattr("gpu_scheduler.cli.service_commands.VERSION", "9.9")
    assert "version" in desk.run("service", "status")[1]
    code, out, _ = desk.run("service", "restart")
    assert (code, "9.9 now" in out) == (0, True)
    assert "9.9" in files(desk)[".service"]
    assert "problem" not in desk.run("service", "status")[1]


def test_a_scheduler_outside_is_named_or_replaced(desk: Desk, systemd: FakeSystemd) -> None:
    with desk.scheduler() as pid:
        code, _, err = desk.run("service", "install", "--simulate", "1")
        assert (code, f"pid {pid}" in err, "--replace" in err) == (1, True, True)
        assert files(desk) == {}
        assert desk.run("service", "install", "--simulate", "1", "--replace")[0] == 0
    assert systemd.has("active")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drain"], "--drain is for one start"),
        (["--daemon"], "--daemon is for one start"),
        (["--user", "root"], "only --system has it"),
        (["--system"], "--system needs"),
        (["--system", "--user", "root"], "add --as-root"),
        (["--system", "--user", "no-such-account"], "there is no such account"),
        (["--keep-env", "NO_SUCH_VARIABLE"], "there is no such variable here"),
        (["--open-metrics"], "works only with --serve"),
        (["--simulate", "x"], "--simulate"),
        (["--conda-sh", "/nowhere"], "no such file"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    desk: Desk, systemd: FakeSystemd, words: list[str], said: str
) -> None:
    code, _, err = desk.run("service", "install", *words)
    assert code == 2
    assert said in err
    assert (files(desk), systemd.changes()) == ({}, [])


def test_without_a_user_manager_the_remedy_is_named(desk: Desk, systemd: FakeSystemd) -> None:
    systemd.fail("systemctl", "daemon-reload", "Failed to connect to bus: No medium found")
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert code == 1
    assert "this shell has no user manager" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_unit_of_the_system_is_checked_as_its_account(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SYSTEM_FOLDER", desk.path / "system")
    words = ("service", "install", "--system", "--simulate", "1")
    code, _, err = desk.run(*words, "--user", "nobody")
    assert (code, "as nobody: " in err) == (2, True)
    assert desk.run(*words, "--user", "root", "--as-root")[0] == 0
    [path] = (desk.path / "system").glob("*.service")
    assert "User=root\n" in path.read_text()
    assert systemd.changes()[0] == "systemctl daemon-reload"


def test_without_systemd_there_is_a_line_for_the_crontab(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SYSTEMD_RUNTIME", desk.path / "nothing")
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert code == 1
    assert "service install --cron" in err
    assert f"@reboot cd {desk.path} && " in err
    table = systemd.path / "table"
    table.write_text("# mine\n0 * * * * true\n")
    systemd.fail("crontab", "write")
    assert desk.run("service", "install", "--cron", "--simulate", "1")[0] == 1
    assert (table.read_text(), files(desk)) == ("# mine\n0 * * * * true\n", {})
    systemd.repair()
    assert desk.run("service", "install", "--cron", "--simulate", "1")[0] == 0
    assert table.read_text().startswith("# mine\n0 * * * * true\n# gpu-scheduler-")
    assert "has this line already" in desk.run("service", "install", "--cron", "--simulate", "1")[1]
    code, out, _ = desk.run("service", "status")
    assert (code, out.startswith("installed in the crontab, not running")) == (3, True)
    systemd.fail("crontab", "list", "cron is broken")
    assert desk.run("service", "uninstall", "--cron")[0] == 1
    systemd.repair()
    assert desk.run("service", "uninstall", "--cron")[0] == 0
    assert (table.read_text(), files(desk)) == ("# mine\n0 * * * * true\n", {})
    assert desk.run("service", "uninstall", "--cron")[0] == 1


def test_a_program_that_is_missing_is_named(
    desk: Desk, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    (systemd.path / "systemctl").unlink()
    monkeypatch.setenv("PATH", str(systemd.path))
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert (code, "systemctl cannot be started" in err) == (1, True)
    assert files(desk) == {}


def test_print_writes_nothing(desk: Desk, systemd: FakeSystemd) -> None:
    code, out, _ = desk.run("service", "print", "--simulate", "1")
    assert (code, out.startswith("[Unit]\n")) == (0, True)
    assert "@reboot" in desk.run("service", "print", "--cron", "--simulate", "1")[1]
    assert (files(desk), systemd.changes()) == ({}, [])
    assert shutil.which("systemctl") == str(systemd.path / "systemctl")


def test_every_command_of_the_page_works(desk: Desk, systemd: FakeSystemd) -> None:
    """Each block of docs/service.md is run in order, with simulated GPUs; the last one leaves nothing."""
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    lines = re.findall(r"^gpu-scheduler (service .*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        more = ["--simulate", "1", "--yes"] if "service install" in line else []
        words = [*line.split(), *more]
        code, _, err = desk.run(*words)
        assert (line, code, err if code else "") == (line, 0, "")
    assert files(desk) == {}
    assert not systemd.has("enabled")


def test_what_users_have_added_to_a_unit_stays(desk: Desk, systemd: FakeSystemd) -> None:
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    [path] = (desk.path / "config" / "systemd" / "user").glob("*.service")
    edited = path.read_text().replace("[Service]\n", "[Service]\nMemoryMax=8G\nEnvironment=HF_HOME=/data\n")
    path.write_text(edited)
    assert desk.run("service", "status")[0] == 0
    assert desk.run("service", "restart")[0] == 0
    assert path.read_text() == edited
    code, _, err = desk.run("service", "install", "--simulate", "1")
    assert (code, "MemoryMax=8G" in err, path.read_text()) == (1, True, edited)
    assert desk.run("service", "uninstall")[0] == 0


def test_lingering_stays_for_another_queue(desk: Desk, systemd: FakeSystemd) -> None:
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    other = ("--state-file", "other.json")
    assert desk.run("service", "install", "--simulate", "1", *other)[0] == 0
    (systemd.path / "active").touch()
    assert desk.run("service", "uninstall")[0] == 0
    assert systemd.has("lingers")
    assert desk.run("service", "uninstall", *other)[0] == 0
    assert not systemd.has("lingers")


def test_the_unit_and_the_crontab_have_variables_of_their_own(desk: Desk, systemd: FakeSystemd) -> None:
    assert desk.run("service", "install", "--simulate", "1")[0] == 0
    before = files(desk)
    assert desk.run("service", "uninstall", "--cron")[0] == 1
    assert files(desk) == before
    (systemd.path / "table").write_bytes(b"# caf\xe9\n0 * * * * true")
    assert desk.run("service", "install", "--cron", "--simulate", "1")[0] == 0
    assert desk.run("service", "uninstall", "--cron")[0] == 0
    assert (systemd.path / "table").read_bytes() == b"# caf\xe9\n0 * * * * true\n"
    assert files(desk) == before


def test_a_scheduler_is_not_replaced_by_a_unit_that_cannot_be_installed(
    desk: Desk, systemd: FakeSystemd
) -> None:
    with desk.scheduler():
        systemd.fail("systemctl", "enable")
        assert desk.run("service", "install", "--simulate", "1", "--replace")[0] == 1
        assert scheduler_pid(desk.data_dir.lock) is not None
        desk.run("stop")


def test_the_action_comes_first(desk: Desk, systemd: FakeSystemd) -> None:
    code, _, err = desk.run("service", "--poll", "2", "install")
    assert (code, "directly after `service`" in err) == (2, True)
