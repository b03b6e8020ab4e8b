"""GPU claims as the scheduler requests and sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import gettempdir

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.core.model.reasons import ReasonKind
from gpu_scheduler.daemon.main_loop import Wakeups
from gpu_scheduler.runner.folder import read_spec
from gpu_scheduler.runner.locks import Refusal, Wanted, claim_gpus, release
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.system.gpu_claims import claims_of, read_gpu_locks
from gpu_scheduler.system.safe_file import name_of_user
from tests.claim_holder import claim_holder, holder_words
from tests.loop.rig import Rig
from tests.reasons import words
from tests.waiting import wait_for


def reason_of(rig: Rig) -> str:
    [reason] = wait_reasons(rig.store).values()
    return wait_text(reason)


def wait_reason(obstacle: str, need: str = "1 idle GPU") -> str:
    return f"needs {need}, 0 free (GPU 0: {obstacle})"


def pids_on(rig: Rig) -> list[int]:
    """Returns the processes that claim the first GPU."""
    return [lock.pid for lock in read_gpu_locks(rig.claim_folder.path, "U0")]


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


def test_a_claim_is_at_most_what_the_claims_of_earlier_attempts_leave(tmp_path: Path) -> None:
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


def test_an_attempt_for_which_no_memory_is_left_keeps_other_programs_from_the_whole_gpu(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, gpus=1)
    go = {name: f"until [ -e {name} ]; do sleep 0.01; done" for name in ("others", "last")}
    others = [rig.add_job(go["others"], share=100, vram=24_000), rig.add_job(go["others"], share=500)]
    pids = [rig.runner_pid(job) for job in others]
    wait_for(lambda: sorted(pids_on(rig)) == sorted(pids), "the claims of the first two jobs")
    last = rig.add_job(go["last"], share=400)
    pid = rig.runner_pid(last)
    assert requested(rig, last) == {
        "folder": str(rig.claim_folder.path),
        "gpus": [{"name": "U0", "mib": 1, "total_mib": 25_576}],
    }
    wait_for(lambda: sorted(pids_on(rig)) == sorted([*pids, pid]), "the claim of the last job")
    (tmp_path / "others").touch()
    rig.tick_until(lambda: all(rig.job(job).state == "finished" for job in others))
    locks = read_gpu_locks(rig.claim_folder.path, "U0")
    assert [(claim.mib, claim.pid) for claim in claims_of(locks, 24_576)] == [(0, pid)]
    refusal = claim_gpus(str(rig.claim_folder.path), [Wanted("U0", None, 24_576)])
    assert isinstance(refusal, Refusal)
    assert refusal.pid == pid
    release(claim_all_memory(rig))
    (tmp_path / "last").touch()
    rig.tick_until_ended(last)


def claim_all_memory(rig: Rig) -> list[int]:
    """Claims all the memory of the first GPU, but nothing beyond it."""
    descriptors = claim_gpus(str(rig.claim_folder.path), [Wanted("U0", 24_576, 24_576)])
    assert isinstance(descriptors, list)
    return descriptors


def test_of_two_attempts_that_start_in_one_round_the_earlier_claims_what_it_declares(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    first, second = rig.add_job("true", share=100, vram=20_000), rig.add_job("true", share=500)
    rig.tick_until(lambda: all(rig.job(job).state == "finished" for job in (first, second)))
    claims = [read_spec(rig.attempt_folder(job))["gpu_claims"]["gpus"] for job in (first, second)]
    assert [gpu["mib"] for [gpu] in claims] == [20_000, 4576]


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


def test_a_job_does_not_start_without_a_usable_lock_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.shared.symlink_to(tmp_path / "none")
    job = rig.add_job("true")
    ended = rig.tick_until_ended(job)
    assert ended.reason is not None
    assert ended.reason.kind is ReasonKind.LAUNCH_FAILED
    text = f"is in {gettempdir()}, which the system empties; set GPU_SCHEDULER_LOCK_DIR to"
    assert text in caplog.text


def test_a_job_waits_while_another_program_claims_the_gpu(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.prepare()
    with claim_holder(rig.claim_folder.path, "U0") as process:
        job = rig.add_job("true")
        facts = rig.tick()
        assert facts.gpus[0].claims == (GpuClaim(None, process.pid, name_of_user(os.getuid())),)
        assert reason_of(rig) == wait_reason(f"claimed by {holder_words(process.pid)}")
        process.kill()
        process.wait()
    assert rig.tick_until_ended(job).exit_code == 0


def test_a_job_uses_the_memory_that_other_programs_leave(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.prepare()
    with claim_holder(rig.claim_folder.path, "U0", 16_000) as process:
        small = rig.add_job("true", vram=8000)
        assert rig.tick_until_ended(small).exit_code == 0
        rig.add_job("true", share=500)
        rig.tick()
        text = f"16000 MiB claimed by {holder_words(process.pid)}"
        assert reason_of(rig) == wait_reason(text, "0.5 of a GPU")


def test_the_claims_of_our_own_jobs_are_no_foreign_claims_even_after_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    first = rig.add_job("until [ -e go ]; do sleep 0.01; done", share=500)
    pid = rig.runner_pid(first)
    wait_for(lambda: pids_on(rig) == [pid], "the claim of the first job")
    restarted = Rig(tmp_path, gpus=1)
    assert rig.tick().gpus[0].claims == restarted.tick().gpus[0].claims == ()
    second = restarted.add_job("true", share=500)
    restarted.tick_until(lambda: restarted.job(second).state == "finished")
    (tmp_path / "go").touch()
    restarted.tick_until_ended(first)


def test_a_job_waits_for_the_job_of_another_scheduler(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (Rig(folder, gpus=1) for folder in folders)
    first = one.add_job("until [ -e go ]; do sleep 0.01; done", vram=20_000)
    pid = one.runner_pid(first)
    wait_for(lambda: pids_on(one) == [pid], "the claim of the first job")
    second = two.add_job("true", vram=20_000)
    two.tick()
    holder = f"job {first} of {folders[0]}, pid {pid}, user {name_of_user(os.getuid())}"
    claimed = f"20000 MiB claimed by {holder}"
    assert reason_of(two) == wait_reason(claimed, "19.5 GiB of a GPU")
    (folders[0] / "go").touch()
    one.tick_until_ended(first)
    assert two.tick_until_ended(second).exit_code == 0


def test_a_job_waits_while_a_lock_file_cannot_be_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    rig.claim_folder.prepare()
    file = rig.claim_folder.path / "U0"
    file.symlink_to("other")
    job = rig.add_job("true")
    rig.tick()
    problem = f"{file} is a symbolic link; its owner or root must remove it while no program uses this GPU"
    assert reason_of(rig) == wait_reason(f"cannot be claimed, because {problem}")
    file.unlink()
    assert rig.tick_until_ended(job).exit_code == 0


class Overtaken(DirectExecutor):
    """An executor before whose first launch another program claims the GPU."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack
        self.other: subprocess.Popen[str] | None = None

    def launch(self, attempt: AttemptRef) -> None:
        """Lets the other program claim the GPU, then launches the attempt."""
        if self.other is None:
            folder = Path(read_spec(attempt.folder)["gpu_claims"]["folder"])
            self.other = self._stack.enter_context(claim_holder(folder, "U0"))
        super().launch(attempt)


def test_a_job_whose_gpu_another_program_claims_first_waits_and_loses_no_launch(tmp_path: Path) -> None:
    with ExitStack() as stack:
        executor = Overtaken(stack)
        rig = Rig(tmp_path, gpus=1, executor=executor)
        job = rig.add_job("touch ran")
        rig.tick_until(lambda: rig.store.attempts(job) and rig.job(job).state == "queued", "the lost claim")
        other = executor.other
        assert other is not None
        [attempt] = rig.store.attempts(job)
        lost = f"GPU 0 was claimed by pid {other.pid} first; next try in 1 s, not counted as a failure"
        assert (attempt.outcome, words(attempt.reason)) == ("not_started", lost)
        assert words(rig.job(job).reason) == lost
        rig.tick_until(lambda: wait_reasons(rig.store), "the wait for the claim")
        assert reason_of(rig) == wait_reason(f"claimed by {holder_words(other.pid)}")
        assert not (tmp_path / "ran").exists()
        other.kill()
        assert rig.tick_until_ended(job).exit_code == 0
        assert [one.outcome for one in rig.store.attempts(job)] == ["not_started", "completed"]
        assert rig.job(job).launch_failures == 0


def test_the_end_of_a_claim_wakes_the_scheduler(tmp_path: Path) -> None:
    wakeups = Wakeups()
    with claim_holder(tmp_path, "U0") as process:
        assert not wakeups.watch_claims({process.pid})
        assert wakeups.wait(0.05) == set()
        process.kill()
        assert wakeups.wait(60) == {"claim"}
        assert read_gpu_locks(tmp_path, "U0") == ()
        assert wakeups.wait(0.05) == set()
        wakeups.watch_claims(())
    wakeups.close()


def test_the_claims_are_read_again_once_if_a_claiming_process_cannot_be_watched(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    wakeups = Wakeups()
    assert wakeups.watch_claims({ended.pid})
    assert not wakeups.watch_claims({ended.pid})
    wakeups.close()
