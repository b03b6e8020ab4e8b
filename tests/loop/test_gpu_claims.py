"""GPU claims as the scheduler requests and sees them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu_scheduler.runner.spec import read_spec
from tests.loop.rig import Rig


def requested(rig: Rig, job_id: int) -> object:
    return read_spec(rig.attempt_folder(job_id))["gpu_claims"]


@pytest.mark.parametrize(
    ("values", "mib"),
    [({}, None), ({"share": 500}, 12_288), ({"vram": 6000}, 6000), ({"share": 500, "exclusive": True}, None)],
)
def test_the_spec_of_an_attempt_names_the_claim_of_its_need(
    tmp_path: Path, values: dict[str, object], mib: int | None
) -> None:
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job("true", **values)
    rig.tick_until_ended(job)
    assert requested(rig, job) == {
        "folder": str(rig.claim_folder.path),
        "gpus": [{"name": "U0", "mib": mib, "total_mib": 24_576}],
    }


def test_a_claim_is_at_most_what_the_claims_of_other_attempts_leave(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    first = rig.add_job("until [ -e go ]; do sleep 0.01; done", share=100, vram=20_000)
    rig.runner_pid(first)
    second = rig.add_job("true", share=500)
    rig.tick_until(lambda: rig.job(second).state == "finished")
    assert requested(rig, second) == {
        "folder": str(rig.claim_folder.path),
        "gpus": [{"name": "U0", "mib": 4576, "total_mib": 24_576}],
    }
    (tmp_path / "go").touch()
    rig.tick_until_ended(first)


def test_a_job_knows_the_lock_folder(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    job = rig.add_job('printf %s "$GPU_SCHEDULER_LOCK_DIR" > out')
    assert rig.tick_until_ended(job).exit_code == 0
    assert (tmp_path / "out").read_text() == os.environ["GPU_SCHEDULER_LOCK_DIR"]


def test_a_lock_folder_that_disappears_is_made_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.prepare()
    shutil.rmtree(rig.claim_folder.shared)
    job = rig.add_job("true")
    assert rig.tick_until_ended(job).exit_code == 0
    assert rig.claim_folder.path.is_dir()


def test_a_job_does_not_start_without_a_usable_lock_folder(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.shared.touch()
    job = rig.add_job("true")
    ended = rig.tick_until_ended(job)
    assert ended.outcome == "failed"
    assert "is not a folder" in str(ended.reason)
