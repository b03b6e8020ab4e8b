"""The `why` command does not mistake leftovers of other attempts, boots and files for causes."""

from __future__ import annotations

import os
import signal

from msgspec.structs import replace

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import LOST, GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from tests import changes
from tests.cli.desk import Desk
from tests.cli.test_why import checks, why_json
from tests.reasons import worded
from tests.waiting import wait_for


def test_why_omits_an_ended_job_that_has_released_its_gpu(desk: Desk) -> None:
    over, job = desk.job(share=600), desk.job(share=500)
    row = desk.attempt(over)
    end = changes.end(row.id, Outcome.COMPLETED)
    desk.record(end)
    assert f"allocated to job {over}" in checks(desk, job)["GPU 0"][1]
    desk.record(changes.release(row.id))
    assert "not allocated" in checks(desk, job)["GPU 0"][1]
    assert len(desk.store.active_attempts()) == 1  # the GPU's memory may not be free yet


def test_why_shows_no_wait_for_a_retry_after_a_reboot(desk: Desk) -> None:
    job = desk.job()
    desk.record(changes.end(desk.attempt(job).id, Outcome.NOT_STARTED))
    assert checks(desk, job)["retry"][0] == "warn"
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET boot_id = 'an earlier one' WHERE id = ?", (job,))
    assert checks(desk, job)["retry"][:2] == ("ok", "1 failed start; the next try is due")


def test_why_shows_a_gpu_that_was_lost_in_the_last_sample(desk: Desk) -> None:
    job = desk.job(share=500)
    lost = GpuSample("SIM-0", 0, "card", fault=LOST)
    desk.writer.record_gpus([lost, replace(lost, uuid="SIM-1", index=1, fault=None)], None, Clock().now())
    grade, says, _ = checks(desk, job)["GPU 0"]
    assert grade == "warn"
    assert says.startswith("does not accept the job: lost")


def test_why_shows_the_log_end_of_an_interrupted_job_or_that_the_log_is_missing(desk: Desk) -> None:
    job = desk.run_job("echo step 1; echo step 2; exec sleep 60")
    row, log = desk.store.attempts(job)[0], desk.path / f"job_{job}.log"
    wait_for(lambda: "step 2" in log.read_text(), "its output")
    pid = observe(desk.folder(row), row.token).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: observe(desk.folder(row), row.token).claim == "dead", "the runner's end")
    desk.record(changes.end(row.id, Outcome.INTERRUPTED, worded("its runner was killed")))
    assert why_json(desk, job)["log_end"][-2:] == ["step 1", "step 2"]
    assert checks(desk, job)["held"][2] == f"`retry {job}` queues it"
    told = desk.run("why", job)[1]
    assert f"\n\nWhat to do: `retry {job}` queues it\n" in told
    assert "placing" not in told
    assert "placing" in desk.run("why", job, "-v")[1]
    log.unlink()
    assert why_json(desk, job)["log_end"] == []
    assert checks(desk, job)["log"] == ("warn", f"{log} no longer exists", "")


def test_why_omits_malformed_lines_of_other_files(desk: Desk) -> None:
    path, other = (str(desk.path / name) for name in ("jobs.txt", "other.txt"))
    job = desk.store.insert_job(JobSpec("command", "true", str(desk.path), command="true"), f"file:{path}")
    with desk.store.db.transaction() as db:
        for file, job_id, problem in ((path, job, None), (other, None, "two commas")):
            db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, ?)", (file, str(desk.path)))
            db.execute(
                "INSERT INTO line (path, position, number, text, job_id, problem)"
                " VALUES (?, 0, 1, 'x', ?, ?)",
                (file, job_id, problem),
            )
    found = checks(desk, job)
    assert found["line"][1] == f"{path}:1"
    assert {"near it", "jobs file"} & set(found) == set()
