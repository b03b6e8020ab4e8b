"""How far running jobs are and when they will finish, as `eta`, `status`, `show` and `why` show it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests import changes
from tests.cli.desk import Desk
from tests.progress.training import trainer_checkpoint

#: A bar that has worked 1:36:00 on 53 of 100 steps; the rest takes 1:25:08.
BAR = (
    "\r  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|          | 1/100 [01:48<2:59:24, 108.7s/it]"
    "\r 53%|█████     | 53/100 [1:36:00<1:25:08,  0.01it/s]"
)


def running(desk: Desk, output: str = "", **values: Any) -> tuple[int, Path]:
    """Records a running job without a process. Returns its id and its log."""
    job = desk.job(**values)
    attempt = desk.attempt(job)
    log = desk.path / f"job_{job}.log"
    log.write_text(output)
    desk.folder(attempt).mkdir(parents=True, exist_ok=True)
    desk.writer.record_log(attempt.id, str(log), None)
    desk.record(changes.run(attempt.id))
    desk.folders.clear()
    return job, log


def progress_of(desk: Desk, job: int) -> dict[str, object]:
    """Returns the progress of a job in the JSON of `eta`."""
    shown = json.loads(desk.run("eta", job, "--json")[1])
    found: dict[str, object] = shown["jobs"][0]["progress"]
    return found


def test_shows_percent_eta_and_finish_of_running_jobs(desk: Desk) -> None:
    first, _ = running(desk, BAR, name="bert")
    second, _ = running(desk, "loading\n", text="python other.py")
    code, out, err = desk.run("eta")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["Job", "Done", "Time", "ETA", "Finish", "What"]
    assert re.fullmatch(rf" *{first} +53% +0:0\d +1h25m +\S*( ?\w\w\w )?\d\d:\d\d +bert.*", rows[0])
    assert re.fullmatch(rf" *{second} +\? +0:0\d +\? +\? +python other.py", rows[1])
    assert desk.run("eta", "bert")[1].splitlines()[1] == rows[0]


def test_the_other_commands_show_it_too(desk: Desk) -> None:
    job, _ = running(desk, BAR)
    assert "53% ETA 1h25m; 53%|" in desk.run("status")[1]
    shown = json.loads(desk.run("status", "--json")[1])["jobs"][0]["progress"]
    assert (shown["percent"], shown["current"], shown["total"], shown["unit"]) == (53.0, 53.0, 100.0, "step")
    assert 5000 < shown["eta_s"] < 5200
    for command in ("show", "why"):
        assert re.search(r"53% \(step 53 of 100\), ETA 1h25m, at .*\d\d:\d\d", desk.run(command, job)[1])
    assert json.loads(desk.run("show", job, "--json")[1])["job"]["progress"]["percent"] == 53.0


def test_the_report_of_the_job_counts_first(desk: Desk) -> None:
    job, _ = running(desk, BAR)
    attempt = desk.store.attempts(job)[0]
    (desk.folder(attempt) / "progress").write_text('{"step": 75, "total": 300}\n')
    assert progress_of(desk, job)["percent"] == 25.0


def test_checkpoints_count_from_the_first_attempt_on(desk: Desk) -> None:
    job, _ = running(desk, command="python train.py --output_dir out --max_steps 300")
    created = desk.store.attempts(job)[0].created_at
    trainer_checkpoint(desk.path / "out/checkpoint-250", created - 60)
    assert desk.run("eta", job)[0] == 1
    trainer_checkpoint(desk.path / "out/checkpoint-150", created + 1)
    shown = progress_of(desk, job)
    assert (shown["percent"], shown["unit"]) == (50.0, "checkpoint")
    assert shown["checkpoint"] == {
        "path": str(desk.path / "out/checkpoint-150"), "step": 150.0, "saved_at": created + 1,
    }  # fmt: skip


def test_exits_with_1_if_nothing_is_known_of_the_job(desk: Desk) -> None:
    unknown, _ = running(desk, "loading\n")
    code, out, err = desk.run("eta", unknown)
    assert (code, out) == (1, "")
    assert f"nothing shows how far job {unknown} is" in err
    assert "$GPU_SCHEDULER_PROGRESS" in err
    code, out, _ = desk.run("eta", unknown, "--json")
    assert (code, json.loads(out)["jobs"][0]["progress"]) == (1, None)
    queued = desk.job()
    code, out, err = desk.run("eta", queued)
    assert (code, out) == (1, "")
    assert f"job {queued} is queued; only a running job has progress" in err
    assert desk.run("eta", 99)[0] == 1


@pytest.mark.parametrize("has_store", [True, False])
def test_without_running_jobs_there_is_nothing_to_show(desk: Desk, has_store: bool) -> None:
    assert not has_store or desk.job()
    assert desk.run("eta") == (0, "No job is running.\n", "")
    assert json.loads(desk.run("eta", "--json")[1])["jobs"] == []


def test_a_log_that_cannot_be_read_shows_nothing(desk: Desk) -> None:
    job, log = running(desk, BAR)
    log.unlink()
    os.mkfifo(log)
    assert desk.run("eta", job)[0] == 1
    assert desk.run("status")[0] == 0
