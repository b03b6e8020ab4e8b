"""Tests the texts of units, of their variables and of crontab lines, with the real systemd and shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.errors import UsageError
from gpu_scheduler.unit.unit_file import (
    Unit,
    cron_line,
    read_unit,
    unit_name,
    unit_text,
    variables_text,
    with_cron_line,
)

UNIT = Unit(
    "/home/ann/q/gpu_scheduler_state.json", "/home/ann/q", ("/usr/bin/python3", "/opt/scheduler.py"),
    ("--screen", "--recover"), "/usr/bin:/bin", "/home/ann/.config/systemd/user/gpu-scheduler-1.env",
    version="1.2",
)  # fmt: skip
GOLDEN = """\
[Unit]
Description=GPU Job Scheduler of /home/ann/q/gpu_scheduler_state.json
StartLimitIntervalSec=0

[Service]
Type=exec
WorkingDirectory=/home/ann/q
Environment="PATH=/usr/bin:/bin"
EnvironmentFile=/home/ann/.config/systemd/user/gpu-scheduler-1.env
ExecStart="/usr/bin/python3" "/opt/scheduler.py" "start" "--screen" "--recover"
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
KillMode=process
OOMPolicy=continue
TimeoutStopSec=30

[Install]
WantedBy=default.target

[X-GPU-Scheduler]
Version=1.2
ProgramWords=2
Lingers=no
"""
#: Characters with a meaning for systemd, a shell or cron, and others.
CHARACTERS = st.sampled_from("ab /\\\"'%$;#~*{}=-\n\té\u202e\u2028\x85😀")
WORDS = st.text(CHARACTERS, max_size=12)
PATHS = WORDS.map(lambda text: "/" + text)


def test_the_text_of_a_unit() -> None:
    assert unit_text(UNIT) == GOLDEN
    of_system = unit_text(replace(UNIT, user="ann", lingers=True))
    changes = {("TimeoutStopSec=30\n", "TimeoutStopSec=30\nUser=ann\n"), ("default", "multi-user"),
               ("Lingers=no", "Lingers=yes")}  # fmt: skip
    expected = GOLDEN
    for old, new in changes:
        expected = expected.replace(old, new)
    assert of_system == expected


@settings(max_examples=300)
@example("/a", "/b%%", ["a$$b", "$HOME", "%h", "\\n", '"', "", ";", "a\nb"])
@given(PATHS, PATHS, st.lists(WORDS, max_size=4))
def test_a_unit_is_read_as_it_was_written_or_refused(folder: str, state: str, words: list[str]) -> None:
    unit = replace(UNIT, folder=folder, state_file=state, words=tuple(words), path=state)
    try:
        text = unit_text(unit)
    except UsageError:
        assert (
            any(one in folder + state for one in "\n\t")
            or folder != folder.strip()
            or state != state.strip()
            or folder.endswith("\\")
            or state.endswith("\\")
        )
        return
    assert read_unit(text) == unit


@pytest.mark.parametrize("text", ["", "[Unit]\nDescription=mine\n", "ExecStart=/bin/true\n"])
def test_a_unit_of_others_is_not_ours(text: str) -> None:
    assert read_unit(text) is None


def test_state_files_have_units_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    names = {unit_name(str(tmp_path / name)) for name in ("a.json", "b.json", "link/a.json")}
    assert len(names) == 2
    assert all(len(name) == len("gpu-scheduler-.service") + 8 for name in names)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("user", [None, "root"])
def test_systemd_finds_nothing_wrong(tmp_path: Path, user: str | None) -> None:
    folder = tmp_path / "a %d 'é \"b"
    folder.mkdir()
    words = ("--jobs-file", "a\tb $HOME ${HOME} %h \\x", ";", "é")
    unit = replace(UNIT, folder=str(folder), program=("/bin/sh", "-c"), words=words, user=user)
    path = tmp_path / "gpu-scheduler-12345678.service"
    path.write_text(unit_text(unit))
    manager = ["--user"] if user is None else []

    def errors() -> str:
        return subprocess.run(
            ["systemd-analyze", *manager, "verify", str(path)], capture_output=True, text=True, timeout=60,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        ).stderr  # fmt: skip

    assert errors() == ""
    path.write_text(path.read_text().replace("KillMode", "KilMode"))
    assert "KilMode" in errors()  # so no output above means something


@settings(max_examples=60, deadline=None)
@given(WORDS, PATHS)
def test_a_shell_reads_the_variables(tmp_path_factory: pytest.TempPathFactory, one: str, two: str) -> None:
    path = tmp_path_factory.mktemp("variables") / "file"
    path.write_text(variables_text({"ONE": one, "TWO": two}))
    command = f'. {path} && printf \'%s\\0\' "$ONE" "$TWO"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [one, two, ""]


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=3))
def test_cron_and_its_shell_run_the_words(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    folder = tmp_path_factory.mktemp("cron it's 100%")
    (folder / "v").write_text(variables_text({"WORD": "a b", "PATH": os.environ["PATH"]}))
    script = folder / "print"
    script.write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$WORD" "$@" > out\n')
    script.chmod(0o755)
    unit = replace(UNIT, folder=str(folder), program=(str(script),), words=tuple(words),
                   variables_file=str(folder / "v"))  # fmt: skip
    try:
        line = cron_line(unit)
    except UsageError:
        assert any({*"\n\\"} & {*word} for word in words)
        return
    command = line.removeprefix("@reboot ").replace("\\%", "%")  # as cron does
    assert "%" not in line.replace("\\%", "")
    subprocess.run(["sh", "-c", command], check=True)
    assert (folder / "out").read_text().split("\0") == [str(folder), "a b", "start", "--daemon", *words, ""]


@given(st.text(st.sampled_from("ab #:\n"), max_size=30))
def test_the_rest_of_a_crontab_stays(table: str) -> None:
    with_one = with_cron_line(table, "unit", "@reboot one")
    assert with_cron_line(with_one, "unit", "@reboot one") == with_one
    other = with_cron_line(with_one, "unit", "@reboot two")
    assert ("one" in other, "two" in other) == (False, True)
    removed = with_cron_line(other, "unit", None)
    assert removed in (table, f"{table}\n")


def test_a_crontab_with_one_mark_is_left_alone() -> None:
    with pytest.raises(UsageError, match="without `# unit: end`"):
        with_cron_line("# unit: begin\n@reboot x\n0 * * * * mine\n", "unit", None)


def test_a_control_character_is_named() -> None:
    with pytest.raises(UsageError, match=r"the option 'a\\x1b', because of its '\\x1b'"):
        unit_text(replace(UNIT, words=("a\x1b",)))
    with pytest.raises(UsageError, match=r"because of its '\$'"):
        unit_text(replace(UNIT, program=("/opt/$x/python",)))
    with pytest.raises(UsageError, match="the variable NAME with"):
        variables_text({"NAME": "a\0b"})
