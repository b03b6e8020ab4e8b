"""`status`: what the record and the folders say, whoever is up."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from gpu_scheduler.core import actions as act
from gpu_scheduler.core.linewait import LineWait
from gpu_scheduler.core.needs import Ask
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.runner.protocol import observe
from gpu_scheduler.store.started import Started, note
from tests.cli.desk import Desk
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def report(desk: Desk, *words: str) -> dict[str, Any]:
    code, out, err = desk.run("status", "--json", *words)
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def jobs(desk: Desk, *words: str) -> dict[int, dict[str, Any]]:
    return {job["id"]: job for job in report(desk, *words)["jobs"]}


def test_whether_a_scheduler_is_up_and_where_the_record_lies(desk: Desk) -> None:
    assert desk.store
    where = {"state_file": f"{desk.path}/gpu_scheduler_state.json",
             "data_dir": f"{desk.path}/gpu_scheduler_state.d"}  # fmt: skip
    assert report(desk)["scheduler"] == {"pid": None, "host": None, **where}
    assert "Scheduler   not running" in desk.run("status")[1]
    with desk.scheduler("deaf") as pid:
        assert report(desk)["scheduler"] == {"pid": pid, "host": None, **where}
        out = desk.run("status")[1]
        assert f"Scheduler   running, pid {pid}" in out
        assert all(place in out for place in where.values())


def test_gpus_with_their_holders(desk: Desk) -> None:
    job = desk.job()
    desk.attempt(job, "SIM-1")
    first, second = report(desk)["gpus"]
    assert (first["index"], first["state"], first["allocated"], first["jobs"]) == (0, "available", 0.0, [])
    assert (second["index"], second["allocated"], second["jobs"]) == (1, 0.5, [job])
    assert (second["memory_used_mib"], second["memory_total_mib"]) == (512, 24576)


def test_queued_jobs_come_in_the_order_in_which_they_are_tried(desk: Desk) -> None:
    late = desk.job("echo late", priority=300)
    normal = desk.job("echo normal")
    first = desk.job("echo first", priority=0)
    second = desk.job("echo second", priority=0)
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET place = 100 WHERE id = ?", (first,))
    assert list(jobs(desk)) == [second, first, normal, late]


def test_every_waiting_job_says_why(desk: Desk) -> None:
    plain, big = desk.job("echo plain"), desk.job("echo big", gpus=9)
    held, gone = desk.job("echo held", hold=True), desk.job("echo gone", share=100)
    big_ask = Ask(gpus=9, command=True).key()
    desk.record(act.Wait(big_ask, "infeasible: needs 9 idle GPUs, 2 managed", True))
    desk.recorder.set_line_waits({gone: LineWait("gone", due=0.0)})
    seen = jobs(desk)
    assert seen[plain]["reason"] == "no scheduler is running"
    assert seen[big]["reason"] == "infeasible: needs 9 idle GPUs, 2 managed"
    assert [job["infeasible"] for job in (seen[plain], seen[big])] == [False, True]
    assert (seen[held]["state"], seen[held]["reason"]) == ("held", "held by its line")
    assert seen[gone]["reason"] == "line gone from its jobs file; cancelled unless it comes back"
    desk.run("cancel", plain)
    assert jobs(desk)[plain]["reason"] == "cancel is asked for; waits for the scheduler"
    text = desk.run("status")[1]
    assert "infeasible: needs 9 idle GPUs, 2 managed" in text


def test_an_end_that_is_not_recorded_yet_is_marked(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done; exit 7")
    seen = jobs(desk)[job]
    assert (seen["state"], seen["recorded"], seen["gpus"], seen["attempts"]) == ("running", True, [0], 1)
    assert seen["log"] == f"{desk.path}/job_{job}.log"
    (desk.path / "go").touch()
    row = desk.store.attempts(job)[0]
    wait_for(lambda: observe(desk.folder(row), row["token"]).result, "the result")
    seen = jobs(desk)[job]
    assert (seen["state"], seen["outcome"], seen["exit_code"]) == ("finished", "failed", 7)
    assert seen["recorded"] is False
    assert desk.state(job) == "running"
    assert "failed, exit code 7 (not recorded yet)" in desk.run("status")[1]


def test_the_last_twenty_finished_jobs_or_all(desk: Desk) -> None:
    with desk.store.db.transaction():
        ids = [desk.job(f"echo {n}") for n in range(25)]
    desk.record(*(act.Finish(job, Outcome.COMPLETED, "") for job in ids))
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET finished_at = 1000 + id")
    assert list(jobs(desk)) == ids[:4:-1]
    assert list(jobs(desk, "--all")) == ids[::-1]
    assert "and 5 more (--all)" in desk.run("status")[1]
    assert "more (--all)" not in desk.run("status", "--all")[1]


def test_malformed_lines_and_unreadable_files_are_shown(desk: Desk) -> None:
    path = f"{desk.path}/jobs.txt"
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file VALUES (?, ?, 'Permission denied')", (path, str(desk.path)))
        db.execute(
            "INSERT INTO line (path, position, number, text, raw, problem, accepted) VALUES"
            " (?, 0, 3, 'x', 'high,a.py,\x1b[31menv', 'the priority is no number', 'a whole number')",
            (path,),
        )
    shown = report(desk)
    assert shown["malformed"] == [
        {"file": path, "line": 3, "text": "high,a.py,\x1b[31menv", "reason": "the priority is no number",
         "accepted": "a whole number"}
    ]  # fmt: skip
    assert shown["jobs_files"] == [{"file": path, "problem": "Permission denied"}]
    text = desk.run("status")[1]
    assert f"{path}:3: high,a.py,\\x1b[31menv" in text
    assert "accepted: a whole number" in text
    assert "Permission denied" in text


def test_no_text_of_a_user_reaches_the_terminal_raw(desk: Desk) -> None:
    desk.job("echo \x1b]0;owned\x07 \x9b31m", name=None)
    out = desk.run("status")[1]
    assert r"echo \x1b]0;owned\x07 \x9b31m" in out
    assert not any(c in out for c in "\x1b\x07\x9b")


def test_twenty_thousand_queued_jobs_are_short(desk: Desk) -> None:
    with desk.store.db.transaction():
        for n in range(20_000):
            desk.job(f"echo {n}")
    code, out, _ = desk.run("status")
    assert code == 0
    assert "Queued (20,000)" in out
    assert "and 19,980 more (--all)" in out
    assert len(out.splitlines()) < 80
    assert len(report(desk)["jobs"]) == 20_000


def test_a_look_is_one_moment_and_writes_nothing(desk: Desk) -> None:
    desk.attempt(desk.job())
    with desk.store.one_moment():
        before = desk.store.counts()
        code = (
            "import sys\n"
            "from gpu_scheduler.store.store import Store\n"
            "from gpu_scheduler.store.home import Home\n"
            "Store(Home.of(sys.argv[1])).wish('stop')"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, str(desk.home.state_file)], env=env, check=True)
        assert desk.store.open_wishes() == []
        assert desk.store.counts() == before
    assert len(desk.store.open_wishes()) == 1
    version = desk.store.db.row("PRAGMA data_version")
    report(desk)
    desk.run("status")
    after = desk.store.db.row("PRAGMA data_version")
    assert version is not None
    assert after is not None
    assert tuple(version) == tuple(after)


def test_on_a_terminal_rows_are_cut_to_its_width(desk: Desk) -> None:
    job = desk.job("python " + "x" * 300)
    desk.record(act.Finish(job, Outcome.CANCELLED, "y" * 200))
    assert desk.state(job) == JobState.FINISHED
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 70, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpu_scheduler", "status"]
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs)
    os.close(theirs)
    read = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        read += chunk
    os.close(ours)
    assert process.wait(30) == 0
    lines = read.decode().replace("\r", "").splitlines()
    assert [len(line) for line in lines if "python xxx" in line] == [70]
    assert any("y" * 200 in line for line in lines)


def test_memory_that_is_booked_and_used(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done")
    this = desk.store.attempts(job)[0]["id"]
    with desk.store.db.transaction() as db:
        db.execute(
            """UPDATE attempt SET share = 0, vram = 18432, gpus = '["SIM-1"]', budgets = '{"SIM-1": 18432}'"""
        )
    shown = jobs(desk)[job]
    assert (shown["vram_declared"], shown["peaks"], shown["warnings"]) == (18432, {}, [])
    desk.record(act.NoteUse(job, this, 5.0, (("SIM-1", 17910, 96.0),)))
    assert jobs(desk)[job]["peaks"] == {"1": 17910}
    assert [gpu["memory_booked_mib"] for gpu in report(desk)["gpus"]] == [0, 18432]
    out = desk.run("status")[1]
    assert "memory 17910 of 18432 MiB\n" in out
    assert " 0.75  18.0 GiB " in out
    desk.record(
        act.NoteUse(job, this, 6.0, (("SIM-1", 21000, 96.0),)),
        act.NoteExceeded(job, this, "SIM-1", 21000, 18432),
    )
    assert report(desk)["gpus"][1]["memory_booked_mib"] == 23100
    note(desk.store, Started(spike=0.0))
    assert report(desk)["gpus"][1]["memory_booked_mib"] == 21000
    [warning] = jobs(desk)[job]["warnings"]
    assert warning.startswith(f"job {job} declared 18432 MiB and was seen to use 21000 MiB on GPU 1: ")
    assert warning in desk.run("status")[1]
    (desk.path / "go").touch()
    desk.wait_until_gone()
