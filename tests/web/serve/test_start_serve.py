"""Tests `start --serve`: the server lives as long as the scheduler, and no longer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests.processes import children_of, exists, parent_of
from tests.redis_queue.conftest import Server
from tests.stress.harness import ROOT
from tests.waiting import wait_for
from tests.web.serve.box import AS_ROOT, Box


def ends_of_pipe(link: str) -> dict[int, list[int]]:
    """Returns the access modes (0: read, 1: write) with which each process has a pipe open, by pid."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(entry) == link:
                flags = (entry.parents[1] / "fdinfo" / entry.name).read_text().split("flags:")[1].split()[0]
                found.setdefault(int(entry.parts[2]), []).append(int(flags, 8) & 3)
        except OSError:
            continue
    return found


def test_only_the_scheduler_can_write_to_the_pipe_of_its_server(box: Box) -> None:
    (box.folder / "jobs.txt").write_text("[share=0.5] touch on; sleep 100\n")
    scheduler = box.start()
    server = box.server_pid()
    assert parent_of(server) == scheduler.pid
    wait_for((box.folder / "on").exists, "a running job")
    ends = ends_of_pipe(os.readlink(f"/proc/{server}/fd/0"))
    assert ends == {scheduler.pid: [0, 1], server: [0]}
    assert os.getsid(server) == server
    assert "serve is running" in box.log()
    assert "whoever may submit jobs runs code as" in box.log()
    assert os.readlink(f"/proc/{server}/cwd") == str(box.folder)
    box.cli("stop", "--jobs")


def test_a_killed_server_comes_back(box: Box) -> None:
    box.start()
    first = box.server_pid()
    os.kill(first, signal.SIGKILL)
    second = wait_for(lambda: pid if (pid := box.server_pid()) != first else 0, "another server")
    assert exists(second)
    assert "serve has ended (signal 9) and is started again in 1 s" in box.log()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_server_ends_with_its_scheduler(box: Box, number: signal.Signals) -> None:
    scheduler = box.start()
    server = box.server_pid()
    stream = box.request("/api/v1/events")
    scheduler.send_signal(number)
    scheduler.wait(30)
    # If the scheduler ends in order, the next one finds the port and the lock free.
    if number == signal.SIGKILL:
        wait_for(lambda: not exists(server), "the end of the server", timeout_s=10)
    assert not exists(server)
    stream.close()
    assert "Traceback" not in box.log() + box.output.read_text()


def test_a_scheduler_that_follows_a_killed_one_gets_a_server(box: Box) -> None:
    scheduler = box.start()
    server = box.server_pid()
    scheduler.kill()
    scheduler.wait()
    box.start()
    wait_for(lambda: box.server_pid() != server, "an answer of the new server")


def companions(pid: int) -> dict[str, int]:
    """Returns the pids of the companions of a scheduler, by command."""
    found: dict[str, int] = {}
    for child in children_of(pid):
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        found |= {name: child for name in ("serve", "redis-agent") if name in words}
    return found


def test_all_companions_of_a_killed_scheduler_end_and_the_next_one_has_its_own(
    box: Box, redis_server: Server
) -> None:
    """systemd kills only the main process of a unit with KillMode=process."""
    scheduler = box.start("--redis", redis_server.url)
    first = wait_for(lambda: found if len(found := companions(scheduler.pid)) == 2 else {}, "both companions")
    scheduler.kill()
    scheduler.wait()
    wait_for(lambda: not any(map(exists, first.values())), "the end of both companions")
    again = box.start("--redis", redis_server.url)
    second = wait_for(lambda: found if len(found := companions(again.pid)) == 2 else {}, "new companions")
    assert not {*first.values()} & {*second.values()}
    wait_for(box.health, "an answer of the new server")


def test_the_server_runs_until_the_queue_is_drained(box: Box) -> None:
    (box.folder / "jobs.txt").write_text("[share=0.5] while [ ! -e over ]; do sleep 0.1; done\n")
    scheduler = box.start("--drain")
    server = box.server_pid()
    (box.folder / "over").touch()
    assert scheduler.wait(60) == 0
    assert not exists(server)


def test_a_scheduler_in_the_background_serves_too(box: Box) -> None:
    done = box.cli("start", "--daemon", "--simulate", "1", "--log-dir", "logs", "--serve",
                   f"127.0.0.1:{box.port}", *AS_ROOT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    server, pid = box.server_pid(), scheduler_pid(box.home.lock)
    assert pid is not None
    assert parent_of(server) == pid
    assert box.cli("stop").returncode == 0
    assert not exists(server)


def test_a_server_that_lacks_its_packages_is_tried_once(box: Box) -> None:
    (box.folder / "sitecustomize.py").write_text("import sys; sys.modules['fastapi'] = None\n")
    box.env["PYTHONPATH"] = f"{box.folder}:{box.env['PYTHONPATH']}"
    box.start()
    text = "serve has ended (exit code 2) and is not started again"
    wait_for(lambda: text in box.log(), "the report")
    assert '`pip install "gpu-job-scheduler[api]"`' in box.log()
    assert box.cli("status").returncode == 0


def test_a_queue_that_is_served_already_is_served_by_the_scheduler_later(box: Box) -> None:
    other = box.serve()
    box.start()
    wait_for(lambda: "serve has ended (exit code 1)" in box.log(), "the report")
    assert f"another server serves this queue already (pid {other.pid})" in box.log()
    other.terminate()
    other.wait()
    wait_for(lambda: box.server_pid() != other.pid, "the server of the scheduler")


def test_a_file_in_the_folder_shadows_no_module_of_the_server(box: Box) -> None:
    (box.folder / "queue.py").write_text("raise SystemExit('shadowed')\n")
    box.start(python=(str(ROOT / "scheduler.py"),))
    box.server_pid()
    assert "shadowed" not in box.log()


@pytest.mark.parametrize(
    "words", [("--as-root",), ("--open-metrics",), ("--allowed-host", "a"), ("--tls-cert", "c")]
)
def test_the_options_of_the_server_need_serve(box: Box, words: tuple[str, ...]) -> None:
    done = box.cli("start", "--simulate", "1", *words)
    assert (done.returncode, done.stderr) == (
        2, f"gpu-scheduler: {words[0]} works only with --serve\n"
    )  # fmt: skip
