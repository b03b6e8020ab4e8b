"""If the output, the folder or the locale is unusable, commands either work or print a one-line error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress.harness import environment

ROOT = Path(__file__).parents[2]
FULL = "cannot write to standard output: No space left on device\n"


def shell(folder: Path | str, command: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a bash command in which `g` runs the program, with the interpreter's default buffering."""
    env = environment() | {"PYTHONPATH": str(ROOT)} | more
    env.pop("PYTHONUNBUFFERED", None)
    ours = f'g() {{ "{sys.executable}" -m gpu_scheduler "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", ours + command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip


START = "start --simulate 1 --drain --log-dir logs"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["--help", "completion bash", "add --output-file - -- echo x", "status"])
def test_commands_report_a_full_disk_under_their_output(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"g {command} >/dev/full")
    assert (done.returncode, done.stderr.decode()) == (1, f"gpu-scheduler: {FULL}")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("submit -- echo x", "job 2 submitted: echo x"),
        ("cancel 1", "job 1: "),
        ("add -- echo x", "echo x\n"),
        ("hold 1", "job 1: "),
    ],
)
def test_a_command_that_did_its_work_succeeds_and_says_it_on_stderr(
    tmp_path: Path, command: str, result: str
) -> None:
    shell(tmp_path, "g submit -- true")
    done = shell(tmp_path, f"g {command} >/dev/full")
    assert (done.returncode, result in done.stderr.decode()) == (0, True), done.stderr
    assert FULL in done.stderr.decode()


def test_commands_work_with_a_closed_output(tmp_path: Path) -> None:
    for command in ("g completion bash >&-", "g status >&- 2>&- <&-"):
        done = shell(tmp_path, command)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("streams", [">&- 2>&- <&-", ">/dev/full", ">&- 2>/dev/full"])
def test_start_works_without_output(tmp_path: Path, streams: str) -> None:
    (tmp_path / "jobs.txt").write_text("ls -l /proc/self/fd > fds; echo hello\n")
    done = shell(tmp_path, f"g {START} {streams}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "drained: 1 of 1 jobs completed" in (tmp_path / "gpu_scheduler.log").read_text()


@pytest.mark.parametrize("command", ["start --simulate 1", "status", "add -- echo x", "doctor"])
def test_commands_report_a_deleted_working_directory(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f'mkdir gone; cd gone; rmdir "$PWD"; g {command}')
    told = "gpu-scheduler: the working directory has been deleted; change to an existing directory\n"
    assert (done.returncode, done.stderr.decode()) == (1, told)


def test_commands_do_not_crash_in_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(folder)
    done = shell(folder, f"echo 'echo hi' > jobs.txt; g {START}")
    assert done.returncode == 2
    assert b"the path is not valid UTF-8, so the store cannot record it; rename it\n" in done.stderr
    assert b"Traceback" not in done.stderr
    assert os.listdir(folder) == ["jobs.txt"]
    for command in ("status", "status --json", "lint", "doctor", "stop"):
        assert b"Traceback" not in shell(folder, f"g {command}").stderr


@pytest.mark.parametrize(("place", "charset"), [("zh_CN", "GBK"), ("ja_JP", "EUC-JP")])
def test_commands_work_in_a_locale_that_is_not_utf8(tmp_path: Path, place: str, charset: str) -> None:
    made = subprocess.run(
        ["bash", "-c", f"localedef -i {place} -f {charset} {tmp_path}/{place}.{charset}"],
        capture_output=True, check=False,
    )  # fmt: skip
    locale = {"LOCPATH": str(tmp_path), "LC_ALL": f"{place}.{charset}"}
    seen = shell(
        tmp_path, f'"{sys.executable}" -c "import sys; print(sys.getfilesystemencoding())"', **locale
    )
    if made.returncode or seen.stdout.decode().strip() == "utf-8":
        pytest.skip(f"no locale of {charset} can be made here")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "jobs.txt").write_text("echo 中—é > said\n", "utf-8")
    done = shell(tmp_path / "work", f"g {START}", **locale)
    assert (done.returncode, b"Traceback" in done.stderr + done.stdout) == (0, False)
    assert (tmp_path / "work" / "said").read_text("utf-8") == "中—é\n"
    status = shell(tmp_path / "work", "g status --json", **locale)
    assert json.loads(status.stdout)["jobs"]


@pytest.mark.parametrize("command", ["lint", "lint - < jobs.txt", "status"])
def test_commands_work_with_little_memory(tmp_path: Path, command: str) -> None:
    (tmp_path / "jobs.txt").write_text("echo hi\n")
    done = shell(tmp_path, f"ulimit -v 200000; g {command}")
    assert (done.returncode, done.stderr) == (0, b"")
