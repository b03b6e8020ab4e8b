"""The `status` command shows the store and the attempt folders, with or without a running scheduler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.config import StartOptions
from gpu_scheduler.control.job_requests import cancel
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.requests import open_requests
from tests import changes
from tests.cli.desk import Desk
from tests.cli.terminal import Terminal
from tests.reasons import worded
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def report(desk: Desk, *words: str) -> dict[str, Any]:
    code, out, err = desk.run("status", "--json", *words)
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def jobs(desk: Desk, *words: str) -> dict[int, dict[str, Any]]:
    return {job["id"]: job for job in report(desk, *words)["jobs"]}


def test_status_shows_the_scheduler_and_the_data_dir(desk: Desk) -> None:
    assert desk.store
    where = {"state_file": f"{desk.path}/gpu_scheduler_state.json",
             "data_dir": f"{desk.path}/gpu_scheduler_state.d"}  # fmt: skip
    assert report(desk)["scheduler"] == {"pid": None, **where}
    assert "Scheduler not running" in desk.run("status")[1]
    with desk.scheduler("deaf") as pid:
        assert report(desk)["scheduler"] == {"pid": pid, **where}
        out = desk.run("status")[1]
        assert f"scheduler pid {pid}" in out
        assert not any(place in out for place in where.values())
        verbose = desk.run("status", "-v")[1]
        assert all(place in verbose for place in where.values())


def test_status_lists_gpus_with_their_jobs(desk: Desk) -> None:
    job = desk.job()
    desk.attempt(job, "SIM-1")
    first, second = report(desk)["gpus"]
    assert (first["index"], first["state"], first["allocated"], first["jobs"]) == (0, "available", 0.0, [])
    assert (second["index"], second["allocated"], second["jobs"]) == (1, 0.5, [job])
    assert (second["memory_used_mib"], second["memory_total_mib"]) == (512, 24576)


def test_status_lists_queued_jobs_in_scheduling_order(desk: Desk) -> None:
    late = desk.job("echo late", priority=300)
    normal = desk.job("echo normal")
    first = desk.job("echo first", priority=0)
    second = desk.job("echo second", priority=0)
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET position = 100 WHERE id = ?", (first,))
    assert list(jobs(desk)) == [second, first, normal, late]


def test_status_shows_a_reason_for_every_waiting_job(desk: Desk) -> None:
    plain, big = desk.job("echo plain"), desk.job("echo big", gpus=9)
    held, gone = desk.job("echo held", hold=True), desk.job("echo gone", share=100)
    big_ask = ResourceSpec(gpus=9, is_command=True).key()
    nine = Need(9, 1000, alone=True)
    never = WaitReason(WaitKind.TOO_FEW_GPUS, need=nine, gpus=2, managed=2)
    desk.record(act.SetWaitReason(big_ask, never))
    desk.writer.set_line_waits({gone: WaitReason(WaitKind.LINE_REMOVED, due_at=0.0)})
    seen = jobs(desk)
    assert seen[plain]["reason"] == "no scheduler is running"
    assert seen[big]["reason"] == "infeasible: needs 9 idle GPUs, but only 2 are managed"
    assert [job["infeasible"] for job in (seen[plain], seen[big])] == [False, True]
    assert (seen[held]["state"], seen[held]["reason"]) == ("held", "held by the user")
    assert (
        seen[gone]["reason"]
        == "line removed from its jobs file; the job is cancelled unless the line is restored"
    )
    cancel(desk.server, [plain], 1.0)
    assert jobs(desk)[plain]["reason"] == "cancel requested; waiting for the scheduler"
    text = desk.run("status")[1]
    assert "infeasible: needs 9 idle GPUs, but only 2 are managed" in text


def test_status_shows_an_end_that_is_not_recorded_yet(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done; exit 7")
    seen = jobs(desk)[job]
    assert (seen["state"], seen["recorded"], seen["gpus"], seen["attempts"]) == ("running", True, [0], 1)
    assert seen["log"] == f"{desk.path}/job_{job}.log"
    (desk.path / "go").touch()
    row = desk.store.attempts(job)[0]
    wait_for(lambda: observe(desk.folder(row), row.token).result, "the result")
    seen = jobs(desk)[job]
    assert (seen["state"], seen["outcome"], seen["exit_code"]) == ("finished", "failed", 7)
    assert seen["recorded"] is False
    assert desk.state(job) == "running"
    out = desk.run("status")[1]
    assert out.startswith("1 job: 1 failed\n")
    assert re.search(rf"^ *{job}  failed  .*  exit code 7$", out, re.MULTILINE)


def test_status_lists_the_last_twenty_finished_jobs_or_all(desk: Desk) -> None:
    with desk.store.db.transaction():
        ids = [desk.job(f"echo {n}") for n in range(25)]
    desk.record(*(changes.finish(job, Outcome.COMPLETED) for job in ids))
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET finished_at = 1000 + id")
    assert list(jobs(desk)) == ids[:4:-1]
    assert list(jobs(desk, "--all")) == ids[::-1]
    assert "… and 5 more finished (status --all)" in desk.run("status")[1]
    assert "(status --all)" not in desk.run("status", "--all")[1]


def test_the_first_line_of_status_counts_jobs_by_outcome(desk: Desk) -> None:
    ids = [desk.job(f"echo {n}") for n in range(6)]
    ends = (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED)
    desk.record(*(changes.finish(job, outcome) for job, outcome in zip(ids, ends, strict=False)))
    first = desk.run("status")[1].splitlines()[0]
    assert first == "6 jobs: 2 completed, 1 failed, 1 cancelled, 2 queued"
    first = desk.run("status", "--failed")[1].splitlines()[0]
    assert first == "1 job: 1 failed"


def test_status_shows_malformed_lines_and_unreadable_files(desk: Desk) -> None:
    path, text = f"{desk.path}/jobs.txt", "1.5,a.py,\x1b[31menv"
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file VALUES (?, ?, 'Permission denied')", (path, str(desk.path)))
        db.execute(
            "INSERT INTO line (path, position, number, text, raw, problem, accepted_form) VALUES"
            " (?, 0, 3, ?, ?, 'the priority is no number', 'a whole number')",
            (path, text, text),
        )
    shown = report(desk)
    assert shown["malformed"] == [
        {"file": path, "line": 3, "text": text, "reason": "the priority is no number",
         "accepted": "a whole number"}
    ]  # fmt: skip
    assert shown["jobs_files"] == [{"file": path, "problem": "Permission denied"}]
    text = desk.run("status")[1]
    problem = "the priority is no number (accepted: a whole number)"
    assert f"Malformed: jobs.txt:3: {problem}: 1.5,a.py,\\x1b[31menv\n" in text
    assert "Jobs file   jobs.txt: Permission denied\n" in text
    assert path not in text


def test_status_escapes_control_characters_in_the_users_text(desk: Desk) -> None:
    desk.job("echo \x1b]0;owned\x07 \x9b31m", name=None)
    out = desk.run("status")[1]
    assert r"echo \x1b]0;owned\x07 \x9b31m" in out
    assert not any(c in out for c in "\x1b\x07\x9b")


def test_the_status_of_twenty_thousand_queued_jobs_is_short(desk: Desk) -> None:
    with desk.store.db.transaction():
        for n in range(20_000):
            desk.job(f"echo {n}")
    code, out, _ = desk.run("status")
    assert code == 0
    assert out.startswith("20,000 jobs: 20,000 queued\n")
    assert " 1,000 jobs wait, no scheduler is running: 1-1000 (echo …)\n" in out
    assert "… and 19,000 more queued (status --all)" in out
    assert len(out.splitlines()) < 80
    assert len(report(desk)["jobs"]) == 20_000


def test_status_reads_one_snapshot_and_writes_nothing(desk: Desk) -> None:
    desk.attempt(desk.job())
    with desk.store.snapshot():
        before = state_counts(desk.store)
        code = (
            "import sys\n"
            "from gpu_scheduler.store.store import Store\n"
            "from gpu_scheduler.store.data_dir import DataDir\n"
            "from gpu_scheduler.store.requests import add_request\n"
            "add_request(Store(DataDir.of(sys.argv[1])), 'stop')"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, str(desk.data_dir.state_file)], env=env, check=True)
        assert open_requests(desk.store) == []
        assert state_counts(desk.store) == before
    assert len(open_requests(desk.store)) == 1
    version = desk.store.db.row("PRAGMA data_version")
    report(desk)
    desk.run("status")
    after = desk.store.db.row("PRAGMA data_version")
    assert version is not None
    assert after is not None
    assert tuple(version) == tuple(after)


Terminals = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Terminals]:
    """Provides a function that creates terminals. Ends the commands on them after the test."""
    made: list[Terminal] = []

    def make(*words: str, **values: Any) -> Terminal:
        made.append(Terminal("status", *words, **values))
        return made[-1]

    yield make
    for each in made:
        each.close()


ENTER, LEAVE, DRAWN = "\x1b[?1049h", "\x1b[?1049l", "\x1b[J"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)


def test_status_truncates_lines_to_the_width_of_the_terminal(desk: Desk, terminal: Terminals) -> None:
    job = desk.job("python " + "x" * 300 + " --last 3")
    desk.record(changes.finish(job, Outcome.CANCELLED, worded("y" * 200)))
    assert desk.state(job) == JobState.FINISHED
    code, said = terminal(size=(40, 70)).end()
    lines = plain(said).splitlines()
    assert code == 0
    assert max(map(len, lines)) == 70
    assert any(re.search("python x+…x*.--last 3  y+…$", line) for line in lines)
    assert "\x1b[33mcancelled\x1b[0m" in said
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, said = terminal(size=(40, 70), **env).end()
        assert (code, "\x1b" in said) == (0, False)
        assert "cancelled" in said


def test_status_does_not_scroll_a_small_terminal(desk: Desk, terminal: Terminals) -> None:
    with desk.store.db.transaction():
        ids = [desk.job(f"echo {n}") for n in range(60)]
    desk.record(*(changes.finish(job, Outcome.COMPLETED) for job in ids[:50]))
    _, said = terminal(size=(24, 80)).end()
    assert len(said.splitlines()) == 23
    assert "10 jobs wait, no scheduler is running: 51-60 (echo …)" in plain(said)
    assert "more finished (status --all)" in said
    _, said = terminal("--all", size=(24, 80)).end()
    assert len(said.splitlines()) > 60


def test_status_shows_the_last_output_line_of_running_jobs(desk: Desk) -> None:
    script = r"printf ' 10%%|#\r 20%%|##'; while [ ! -e go ]; do sleep 0.01; done"
    job = desk.run_job(script)
    log = desk.path / f"job_{job}.log"
    wait_for(lambda: "20%" in log.read_text(), "the output")
    row = rf"^ *{job}  running  0  .*  20%( ETA \d+s)?; 20%\|##$"
    assert re.search(row, desk.run("status")[1], re.MULTILINE)
    log.write_text("loss 0.1\nto https://me:word@host/x\n")
    out = desk.run("status")[1]
    assert "word" not in out
    assert out.rstrip().endswith("to https://me:(hidden)@host/x")
    log.write_text("x" * 9000 + "\n\x1b]0;owned\x07loss \x1b[1m0.1\x08\x1b[0m")
    out = desk.run("status")[1]
    assert out.rstrip().endswith(r"  loss 0.1\x08")
    assert "owned" not in out
    (desk.path / "go").touch()
    desk.wait_until_processes_end()


def test_status_shows_jobs_with_the_same_wait_reason_in_one_row(desk: Desk) -> None:
    with desk.scheduler("deaf"):
        ids = [desk.job(f"echo {n}", share=500) for n in range(3)]
        row = desk.store.job(ids[0])
        assert row is not None
        desk.record(act.SetWaitReason(row.spec_key, WaitReason(WaitKind.NO_FREE_GPU, need=Need(1, 500))))
        out = desk.run("status")[1]
        assert f"     3 jobs wait for half a GPU: {ids[0]}-{ids[-1]} (echo …)\n" in out
        assert desk.run("status", "--all")[1].count("needs 0.5 of a GPU, 0 free") == 3


def test_watch_redraws_in_place_and_restores_the_terminal(desk: Desk, terminal: Terminals) -> None:
    first = desk.job("echo first")
    shown = terminal("--watch", "0.1")
    said = shown.until(DRAWN)
    assert said.index(ENTER) < said.index("1 job: ")
    assert re.search(r"[0-9]{2}:[0-9]{2}:[0-9]{2}", said)
    at = len(shown.read())
    desk.record(changes.finish(first, Outcome.COMPLETED))
    frame = shown.until("1 completed", at)
    assert ENTER not in frame
    shown.press(b"\x03")
    code, said = shown.end()
    assert code == 0
    assert said.count(ENTER) == said.count(LEAVE) == 1
    assert said.endswith(f"\x1b[?25h{LEAVE}")
    assert shown.after == shown.before


def test_watch_in_the_background_leaves_the_terminal_alone(desk: Desk, terminal: Terminals) -> None:
    """A change of the terminal would stop the process with SIGTTOU."""
    desk.job("echo first")
    shown = terminal("--watch", "0.1", in_background=True)
    shown.until(DRAWN)
    shown.press(b"q\n")
    shown.until("1 job: ", len(shown.read()))
    shown.process.send_signal(signal.SIGTERM)
    assert shown.end()[0] == -signal.SIGTERM
    assert shown.after == shown.before


def test_watch_follows_the_size_of_the_terminal(desk: Desk, terminal: Terminals) -> None:
    desk.job("python " + "x" * 300)
    shown = terminal("--watch", "3600", size=(24, 80))
    shown.until(DRAWN)
    at = len(shown.read())
    shown.resize(8, 50)
    frame = shown.until(DRAWN, at).partition(DRAWN)[0]
    lines = plain(frame).splitlines()
    assert len(lines) <= 8
    assert max(map(len, lines)) == 49
    shown.process.send_signal(signal.SIGTERM)
    code, said = shown.end()
    assert code == -signal.SIGTERM
    assert said.endswith(LEAVE)
    assert shown.after == shown.before


def test_watch_continues_while_the_store_is_missing(desk: Desk, terminal: Terminals) -> None:
    desk.job("echo hello")
    shown = terminal("--watch", "0.1")
    shown.until(DRAWN)
    desk.data_dir.folder.rename(desk.path / "away")
    shown.until("nothing has run here yet")
    at = len(shown.read())
    (desk.path / "away").rename(desk.data_dir.folder)
    shown.until("1 job: ", at)
    shown.press(b"q")
    code, said = shown.end()
    assert (code, said.endswith(LEAVE)) == (0, True)


def test_watch_needs_a_terminal(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("status", "--watch")
    assert (code, out) == (2, "")
    assert "the output is not a terminal; leave out --watch or use `status --json`" in err
    assert desk.run("status", "--watch", "2", "--json")[0] == 2
    assert desk.run("status", "--watch", "0")[0] == 2


def test_watch_refuses_a_dumb_terminal(desk: Desk) -> None:
    assert desk.store
    shown = Terminal("status", "--watch", TERM="dumb")
    code, said = shown.end()
    assert (code, said) == (2, "")


def test_status_shows_allocated_and_used_memory(desk: Desk) -> None:
    job = desk.run_job("while [ ! -e go ]; do sleep 0.01; done")
    this = desk.store.attempts(job)[0].id
    with desk.store.db.transaction() as db:
        db.execute("UPDATE allocation SET share = 0, vram = 18432, gpu = 'SIM-1', budget_mib = 18432")
    shown = jobs(desk)[job]
    assert (shown["vram_declared"], shown["peaks"], shown["warnings"]) == (18432, {}, [])
    desk.record(changes.measure(this, 5.0, ("SIM-1", 17910, 96.0)))
    assert jobs(desk)[job]["peaks"] == {"1": 17910}
    assert [gpu["memory_allocated_mib"] for gpu in report(desk)["gpus"]] == [0, 18432]
    out = desk.run("status")[1]
    assert " 0.75   18.0 GiB " in out
    assert "memory 17910 of 18432 MiB\n" in desk.run("status", "-v")[1]
    desk.record(changes.measure(this, 6.0, ("SIM-1", 21000, 96.0)))
    assert report(desk)["gpus"][1]["memory_allocated_mib"] == 23100
    desk.store.record_options(StartOptions(spike_buffer=0.0))
    assert report(desk)["gpus"][1]["memory_allocated_mib"] == 21000
    [warning] = jobs(desk)[job]["warnings"]
    assert warning.startswith(f"job {job} declared 18432 MiB but used 21000 MiB on GPU 1: ")
    assert warning in desk.run("status")[1]
    (desk.path / "go").touch()
    desk.wait_until_processes_end()
