"""Tests, with real runners, that the store has each job's true outcome even if a process is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.executors import DirectExecutor, LaunchError
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.plan import next_deadline
from gpu_scheduler.runner.folder import START
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.requests import add_request
from tests.fakes.conda import plant
from tests.loop.rig import SETTINGS, Rig
from tests.reasons import words
from tests.waiting import wait_for

CONDA = str(Path(__file__).resolve().parents[1] / "fakes" / "conda.sh")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("code", [0, 7])
def test_a_job_runs_once_and_its_exit_code_is_recorded(rig: Rig, code: int) -> None:
    job = rig.add_job(f"echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER >> ran; exit {code}")
    row = rig.tick_until_ended(job)
    assert (row.outcome, row.exit_code) == ("completed" if code == 0 else "failed", code)
    assert (rig.folder / "ran").read_text() == "0 PCI_BUS_ID\n"
    log = Path(rig.store.attempts(job)[0].log or "")
    assert log.parent == rig.folder / "logs"
    assert f"exit code {code}" in log.read_text()


def test_starts_and_ends_are_saved_durably_before_the_loop_acts_on_them(rig: Rig) -> None:
    statements: list[str] = []
    rig.store.db.connection.set_trace_callback(statements.append)
    rig.tick_until_ended(rig.add_job("exit 7"))
    rig.store.db.connection.set_trace_callback(None)
    safety, unsynced = "", []
    for text in statements:
        if text.startswith("PRAGMA synchronous="):
            safety = text.partition("=")[2]
        elif safety == "NORMAL" and text.startswith(("INSERT", "UPDATE")):
            unsynced.append(text)
    assert safety
    assert any("SET log = " in text for text in unsynced)
    assert not [text for text in unsynced if "INTO attempt" in text or "outcome = " in text]
    durable = ("INTO attempt", "UPDATE attempt SET state = 'ended'")
    # A statement is reported again for each step of a trigger that it fires.
    assert len({text for text in statements if any(part in text for part in durable)}) == 2


def test_a_round_in_which_nothing_has_changed_asks_the_store_four_questions(rig: Rig) -> None:
    job = rig.add_job("sleep 60")
    rig.tick_until(lambda: rig.job(job).state == "running", "the start")
    statements: list[str] = []
    rig.store.db.connection.set_trace_callback(statements.append)
    assert rig.loop.tick() is not None
    rig.store.db.connection.set_trace_callback(None)
    # Which tables have anything new, the GPUs, the open attempts, and the GPU time.
    assert len([text for text in statements if text.startswith("SELECT")]) == 4, statements


def test_a_new_scheduler_reads_results_written_before_its_start(rig: Rig) -> None:
    jobs = [rig.add_job(f"sleep 0.2; exit {code}", share=250) for code in (0, 9)]
    rig.tick()
    folders = [rig.attempt_folder(job) for job in jobs]
    wait_for(lambda: all((folder / "result").exists() for folder in folders), "the results of both jobs")
    again = Rig(rig.folder)
    assert [again.tick_until_ended(job).exit_code for job in jobs] == [0, 9]
    assert [len(again.store.attempts(job)) for job in jobs] == [1, 1]


def test_a_job_whose_runner_was_killed_is_interrupted_and_leaves_no_process(rig: Rig) -> None:
    job = rig.add_job("echo start >> ran; setsid sleep 60 & sleep 60")
    runner = rig.runner_pid(job)
    token, folder = rig.store.attempts(job)[0].token, rig.attempt_folder(job)
    wait_for(lambda: (rig.folder / "ran").exists(), "the job's first line")
    os.kill(runner, signal.SIGKILL)
    row = rig.tick_until_ended(job)
    assert (row.state, row.held_by) == ("held", "interrupted")
    assert processes_of({token: folder}) == {}
    assert (rig.folder / "ran").read_text() == "start\n"
    add_request(rig.store, "retry", str(job))
    rig.runner_pid(job)
    add_request(rig.store, "cancel", str(job), grace_s=1)
    assert rig.tick_until_ended(job).outcome == "cancelled"
    assert [a.outcome for a in rig.store.attempts(job)] == ["interrupted", "cancelled"]


def killing_start(folder: Path, deaths: int) -> str:
    """Makes a start file whose runners, up to `deaths` of them, kill themselves before they write a claim."""
    path = folder / "killing_start.py"
    path.write_text(
        "import os, sys\n"
        f"marks = {str(folder / 'deaths')!r}\n"
        "n = len(os.listdir(marks)) if os.path.isdir(marks) else 0\n"
        f"if n < {deaths}:\n"
        "    os.makedirs(marks, exist_ok=True)\n"
        "    open(f'{marks}/{n}', 'w').close()\n"
        "    os.kill(os.getpid(), 9)\n"
        f"start = {START!r}\n"
        "names = {'__file__': start, '__name__': '__main__'}\n"
        "exec(compile(open(start).read(), start, 'exec'), names)\n"
    )
    return str(path)


def test_relaunches_an_attempt_whose_runner_was_killed_before_its_claim(tmp_path: Path) -> None:
    settings = replace(SETTINGS, launch_deadline_s=0.3)
    rig = Rig(
        tmp_path, executor=DirectExecutor(sys.executable, killing_start(tmp_path, 1)), settings=settings
    )
    job = rig.add_job("echo x >> ran")
    assert rig.tick_until_ended(job).outcome == "completed"
    assert (tmp_path / "ran").read_text() == "x\n"
    [attempt] = rig.store.attempts(job)
    assert attempt.launch_count == 2


def test_a_job_whose_runner_never_starts_fails_with_a_reason_that_says_so(tmp_path: Path) -> None:
    settings = replace(SETTINGS, launch_deadline_s=0.05, max_assign_attempts=2)
    rig = Rig(
        tmp_path, executor=DirectExecutor(sys.executable, killing_start(tmp_path, 99)), settings=settings
    )
    job = rig.add_job("echo x >> ran")
    row = rig.tick_until_ended(job)
    assert (row.outcome, row.exit_code) == ("failed", None)
    assert "did not start in 3 launches" in words(row.reason)
    assert "tried 2 times" in words(row.reason)
    assert not (tmp_path / "ran").exists()
    assert len(list((tmp_path / "deaths").iterdir())) == 6


class Refusing(DirectExecutor):
    """An executor that fails the first `times` launches."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def launch(self, attempt: AttemptRef) -> None:
        """Raises LaunchError the first `times` times; then launches."""
        self.times -= 1
        if self.times >= 0:
            raise LaunchError("fork failed: out of processes")
        super().launch(attempt)


def test_a_failed_launch_is_retried_as_a_new_attempt(tmp_path: Path) -> None:
    rig = Rig(tmp_path, executor=Refusing(2))
    job = rig.add_job("echo x >> ran")
    assert rig.tick_until_ended(job).outcome == "completed"
    assert [a.outcome for a in rig.store.attempts(job)] == ["not_started", "not_started", "completed"]
    assert "out of processes" in words(rig.store.attempts(job)[0].reason)


def test_a_launch_finds_conda_that_was_installed_after_the_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gpus=1)
    env = (("FAKE_CONDA_ROOT", str(tmp_path / "miniconda3")),)
    early = rig.add_job("true", conda="ml", env=env)
    assert "conda was not found" in words(rig.tick_until_ended(early).reason)
    profile = plant(tmp_path / "miniconda3", "ml") / "etc" / "profile.d"
    profile.mkdir(parents=True)
    (profile / "conda.sh").write_text(f'. "{CONDA}"\n')
    late = rig.add_job("echo $CONDA_DEFAULT_ENV > ran", conda="ml", env=env)
    row = rig.tick_until_ended(late)
    assert row.outcome == "completed", words(row.reason)
    assert (tmp_path / "ran").read_text() == "ml\n"


def test_a_job_with_an_unknown_conda_environment_fails_with_a_list_of_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "conda", "alpha", "beta")
    rig = Rig(tmp_path, gpus=1, conda_sh=CONDA)
    script = tmp_path / "s.py"
    script.write_text("import os; open('ran', 'a').write(os.environ.get('CONDA_DEFAULT_ENV', '?') + '\\n')")
    env = (("FAKE_CONDA_ROOT", str(tmp_path / "conda")),)

    def csv(conda: str) -> int:
        spec = JobSpec("csv", "s", str(tmp_path), str(script), conda=conda, env=env, share=1000)
        return rig.store.insert_job(spec, "test")

    bad, good = csv("nosuch"), csv("beta")
    rig.tick_until(lambda: rig.job(good).outcome, "the end of the next job")
    assert rig.job(good).outcome == "completed", words(rig.job(good).reason)
    row = rig.tick_until_ended(bad)
    assert row.outcome == "failed"
    assert "nosuch does not exist" in words(row.reason)
    assert "alpha" in words(row.reason)
    assert "beta" in words(row.reason)
    assert len(rig.store.attempts(bad)) == 3
    assert (tmp_path / "ran").read_text() == "beta\n"


def test_a_job_with_a_missing_script_fails_and_its_reason_names_the_script(rig: Rig) -> None:
    job = rig.store.insert_job(JobSpec("csv", "s", str(rig.folder), str(rig.folder / "none.py")), "test")
    row = rig.tick_until_ended(job)
    assert row.outcome == "failed"
    assert "none.py does not exist" in words(row.reason)


def test_a_cancel_kills_the_job_after_the_grace_period(rig: Rig) -> None:
    polite = rig.add_job(
        "trap 'echo saved >> saved; exit 0' TERM; echo > up1; while :; do sleep 0.05; done", share=500
    )
    stubborn = rig.add_job("trap '' TERM; echo > up2; while :; do sleep 0.05; done", share=500)
    waiting = rig.add_job("echo x >> ran", share=1000, allowed=(0,))
    rig.tick_until(lambda: all((rig.folder / name).exists() for name in ("up1", "up2")), "both jobs to be up")
    for job in (polite, stubborn, waiting):
        add_request(rig.store, "cancel", str(job), grace_s=0.5)
    assert {rig.tick_until_ended(job).outcome for job in (polite, stubborn, waiting)} == {"cancelled"}
    assert (rig.folder / "saved").read_text() == "saved\n"
    assert rig.job(stubborn).signal == signal.SIGKILL
    assert not (rig.folder / "ran").exists()


def test_a_cancel_takes_effect_even_if_the_scheduler_restarts_before_it_stops_the_job(rig: Rig) -> None:
    job = rig.add_job("echo > up; sleep 60")
    rig.runner_pid(job)
    wait_for(lambda: (rig.folder / "up").exists(), "the job")
    add_request(rig.store, "cancel", str(job), grace_s=1)
    assert rig.loop.tick() is None  # The store contains the cancel, but the file `stop` is not written yet.
    assert not (rig.attempt_folder(job) / "stop").exists()
    again = Rig(rig.folder)
    assert again.tick_until_ended(job).outcome == "cancelled"


def test_an_attempt_that_ran_before_a_reboot_is_interrupted(rig: Rig) -> None:
    job = rig.add_job("echo x >> ran")
    rig.loop.recorder.record([act.Start(job, ("U0",), 1000)], rig.clock.now())
    rig.store.db.connection.execute("UPDATE attempt SET boot_id = 'before'")
    row = rig.tick_until_ended(job)
    assert (row.state, row.held_by) == ("held", "interrupted")
    assert "restarted" in words(row.reason)
    assert not (rig.folder / "ran").exists()


def test_jobs_start_in_order_until_their_shares_fill_each_gpu(rig: Rig) -> None:
    code = "echo $GPU_SCHEDULER_JOB $CUDA_VISIBLE_DEVICES >> ran; while [ ! -e go ]; do sleep 0.02; done"
    jobs = [rig.add_job(code, share=500) for _ in range(5)]
    rig.tick_until(
        lambda: (rig.folder / "ran").exists() and len((rig.folder / "ran").read_text().split()) == 8,
        "four jobs to run",
    )
    assert rig.job(jobs[4]).state == "queued"
    assert wait_text(wait_reasons(rig.store)[rig.job(jobs[4]).spec_key]) == "needs 0.5 of a GPU, 0 free"
    (rig.folder / "go").touch()
    for job in jobs:
        assert rig.tick_until_ended(job).outcome == "completed"
    placed = dict(line.split() for line in (rig.folder / "ran").read_text().splitlines())
    assert [placed[str(job)] for job in jobs[:4]] == ["0", "0", "1", "1"]


def test_ignores_a_result_with_the_token_of_another_attempt(rig: Rig) -> None:
    job = rig.add_job("while [ ! -e go ]; do sleep 0.02; done; exit 3")
    rig.runner_pid(job)
    forged = {
        "token": "0" * 32,
        "cause": None,
        "exit_code": 0,
        "signal": None,
        "began": True,
        "ended_at": 1.0,
    }
    (rig.attempt_folder(job) / "result").write_text(
        json.dumps({**forged, "survivors": [], "started_at": 1.0})
    )
    rig.tick()
    assert rig.job(job).state == "running"
    (rig.folder / "go").touch()
    assert rig.tick_until_ended(job).exit_code == 3


def never_claimed(rig: Rig) -> tuple[int, Path]:
    """Opens an attempt in the store but does not launch it. Returns the job's id and the attempt's folder."""
    job = rig.add_job("echo ran >> ran", share=250)
    now = rig.clock.now()
    rig.loop.recorder.record([act.Start(job, ("U0",), 250)], now)
    return job, rig.attempt_folder(job)


def test_cancels_an_attempt_whose_claim_was_truncated_by_a_power_cut(rig: Rig) -> None:
    job, folder = never_claimed(rig)
    folder.mkdir(parents=True)
    (folder / "claim").touch()
    add_request(rig.store, "cancel", str(job), grace_s=0.0)
    row = rig.tick_until_ended(job)
    assert (row.state, row.outcome) == ("finished", "cancelled")
    assert not (rig.folder / "ran").exists()


def test_an_attempt_that_cannot_be_reconciled_does_not_block_other_jobs(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    job, folder = never_claimed(rig)
    folder.parent.mkdir(parents=True)
    folder.touch()
    add_request(rig.store, "cancel", str(job), grace_s=0.0)
    others = [rig.add_job("exit 0"), rig.add_job("exit 0")]
    rig.tick_until(
        lambda: all(rig.job(other).outcome == "completed" for other in others), "the ends of the other jobs"
    )
    facts = rig.tick()
    at = next_deadline(facts, None)
    assert at is not None
    assert facts.now.boot < at <= facts.now.boot + 1.0
    assert rig.job(job).state == "starting"
    assert caplog.text.count(str(folder)) <= 2
    folder.unlink()
    assert rig.tick_until_ended(job).outcome == "cancelled"
    assert not (rig.folder / "ran").exists()
