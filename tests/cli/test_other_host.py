"""Commands refuse a store that belongs to another host. The error names that host and the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import Host, read_host, this_host, write_host
from tests import changes
from tests.cli.desk import Desk

ELSEWHERE = Host("gpu-other", "0" * 32)


@pytest.fixture
def there(desk: Desk) -> Desk:
    """Provides another host's store with job 1, which waits, and job 2, which is recorded as running."""
    desk.job("echo waits")
    row = desk.attempt(desk.job("sleep 100"))
    desk.record(changes.run(row.id))
    write_host(desk.data_dir.host_file, ELSEWHERE)
    return desk


@pytest.mark.parametrize(
    "words",
    [
        ["cancel", "1"], ["cancel", "--all"], ["retry", "1"], ["hold", "1"], ["release", "1"], ["pause", "0"],
        ["resume", "all"], ["stop"], ["stop", "--jobs"], ["attach", "2"], ["logs", "2"], ["logs", "2", "-f"],
        ["events"], ["events", "-f"], ["calibrate"], ["status"],
        ["status", "--json"], ["show", "1"], ["why", "1"], ["screens"],
        ["start", "--simulate", "1", "--drain", "--jobs-file", ""],
    ],
)  # fmt: skip
def test_every_command_that_opens_the_store_of_another_host_is_refused(there: Desk, words: list[str]) -> None:
    code, out, err = there.run(*words)
    assert (code, out) == (1, "")
    assert f"the store of {there.data_dir.state_file} belongs to host gpu-other" in err
    assert f"this is host {this_host().name}" in err
    assert "start --take-over" in err
    assert len(err.splitlines()) == 2
    assert there.requests() == []
    assert read_host(there.data_dir.host_file) == ELSEWHERE


def test_add_and_lint_work_without_the_store_of_another_host(there: Desk) -> None:
    (there.path / "t.py").touch()
    assert there.run("add", "t.py", "--gpus", "9")[0] == 0
    assert there.run("lint")[0] == 0


def start(desk: Desk, *options: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `start --drain` in a separate process, which first runs the Python code `before`."""
    program = f"import sys\n{before}\nfrom gpu_scheduler.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, "start", "--simulate", "1", "--drain", "--log-dir", "logs", *options],
        cwd=desk.path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_start_with_take_over_continues_on_this_host(there: Desk) -> None:
    (there.path / "jobs.txt").write_text("")
    done = start(there, "--take-over")
    assert read_host(there.data_dir.host_file) == this_host()
    assert there.state(1) == "finished"
    # Nobody knows how a job on that host ended, so it is held and never counts as a success.
    assert there.state(2) == "held", done.stdout + done.stderr
    assert done.returncode == 3
    assert there.run("cancel", "2")[0] == 0


def test_the_store_for_a_network_folder_is_on_this_host(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.path / "local"))
    (desk.path / "jobs.txt").write_text("[share=0.5] echo hello\n")
    net = (
        "from gpu_scheduler.store import data_dir\n"
        f"folder = {str(desk.data_dir.folder)!r}\n"
        "data_dir.kind_of = lambda path: 'nfs4' if str(path).startswith(folder) else 'ext4'"
    )
    owner = desk.data_dir.state_file.with_suffix(".host")
    assert start(desk, "--gpus", "9", before=net).returncode == 2
    assert not owner.exists()  # no store was created
    done = start(desk, before=net)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not desk.data_dir.folder.exists()
    local = desk.path / "local" / "gpu_scheduler"
    [folder] = [one for one in local.iterdir() if one.name != "schedulers"]
    assert (folder / "scheduler.db").exists()
    assert (folder / "runs" / "1").exists()
    assert f"data directory {folder}" in done.stdout + done.stderr
    assert read_host(owner) == this_host(str(folder))
    # Another host uses the same network folder and has its own disk.
    write_host(owner, ELSEWHERE)
    refused = start(desk, before=net)
    assert (refused.returncode, "belongs to host gpu-other" in refused.stderr) == (1, True)
    assert start(desk, "--take-over", before=net).returncode == 0
    assert start(desk, before=net).returncode == 0
    refused = start(desk, before=net.replace("'ext4'", "'fuse.sshfs'"))
    assert refused.returncode == 1
    assert "--data-dir /local/folder" in refused.stderr


def test_doctor_names_the_other_host_and_the_remedy(there: Desk) -> None:
    there.path.chmod(0o700)
    code, out, _ = there.run("doctor", "--simulate", "1", "--json")
    found = {one["check"]: one for one in json.loads(out)["checks"]}
    assert code == 1
    assert found["scheduler"]["grade"] == "bad"
    assert "belongs to host gpu-other" in found["scheduler"]["message"]
    assert found["scheduler"]["remedy"].endswith("`start --take-over`")
    assert (found["database"]["grade"], found["database"]["remedy"]) == ("warn", "run `doctor` on gpu-other")
