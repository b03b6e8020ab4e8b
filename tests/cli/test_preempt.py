"""The command `preempt`, with and without a scheduler. Running jobs are real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import observe, request_stop
from gpu_scheduler.control import preempt as app
from gpu_scheduler.control import requests as control
from gpu_scheduler.control.preempt import PreemptEnd, PreemptReport, PreemptWait
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.show.location import Location
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for

#: Saves a checkpoint when it gets a signal, and ends with exit code 0. It uses the one from which it resumes.
SAVING = (
    ": $GPU_SCHEDULER_CHECKPOINT\n"
    "save() {{ mkdir -p out/checkpoint-150; echo '{{}}' > out/checkpoint-150/trainer_state.json; exit 0; }}\n"
    "trap save {signal}; echo up; while :; do sleep 0.02; done"
)
#: Ignores SIGTERM and ends with exit code 7 once the file `go` exists.
STUBBORN = "trap '' TERM; echo up; until [ -e go ]; do sleep 0.02; done; exit 7"
CHECKPOINTS = "out/checkpoint-*"


Start = Callable[..., int]


@pytest.fixture(params=[True, False], ids=["scheduler", "no scheduler"])
def up(request: pytest.FixtureRequest) -> bool:
    """Whether a scheduler is running."""
    return bool(request.param)


@pytest.fixture
def start(desk: Desk, up: bool) -> Iterator[Start]:
    """Starts a job, waits until it has printed "up", and then starts the scheduler."""
    with ExitStack() as stack:

        def run(script: str, **values: Any) -> int:
            job = start_job(desk, script, **values)
            if up:
                stack.enter_context(desk.scheduler())
            return job

        yield run


def start_job(desk: Desk, script: str, **values: Any) -> int:
    """Starts a job and waits until it has printed "up"."""
    job = desk.run_job(script, **values)
    wait_for(lambda: "up" in log(desk, job), "output")
    return job


def log(desk: Desk, job: int) -> str:
    return (desk.path / f"job_{job}.log").read_text()


def recorded(desk: Desk, job: int) -> tuple[str, str | None, str | None]:
    """Returns the recorded state, the outcome and the reason for which the job is held."""
    row = desk.store.job(job)
    assert row is not None
    return row.state, row.outcome, row.held_by


def until_recorded(desk: Desk, job: int, expected: tuple[str, str | None, str | None], *, up: bool) -> None:
    """Waits until a scheduler, which is started unless one is up, has recorded this end."""
    with nullcontext() if up else desk.scheduler():
        wait_for(lambda: recorded(desk, job) == expected, f"{expected}")


def location(desk: Desk) -> Location:
    return Location(str(desk.data_dir.state_file), runs_rounds=True)


@contextmanager
def preempting(
    desk: Desk, job: int, timeout_s: float, *, force: bool = False
) -> Iterator[list[PreemptReport]]:
    """Preempts a job in a thread while the context runs. The list then contains the report."""
    reports: list[PreemptReport] = []
    waits = threading.Event()

    def run() -> None:
        reports.append(
            app.preempt(location(desk), job, timeout_s, force=force, on_wait=lambda _: waits.set())
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert waits.wait(60)
        verbs = "SELECT count(*) FROM request WHERE verb = 'preempt'"
        wait_for(lambda: desk.store.db.rows(verbs)[0][0] > 0, "the request")
        yield reports
    finally:
        thread.join(60)
    assert reports


@pytest.mark.parametrize("name", ["TERM", "USR1", "INT"])
def test_a_job_saves_a_checkpoint_and_is_held(desk: Desk, start: Start, up: bool, name: str) -> None:
    spec = {} if name == "TERM" else {"preempt_signal": name}
    job = start(SAVING.format(signal=name), checkpoints=CHECKPOINTS, **spec)
    code, out, err = desk.run("preempt", job)
    assert (code, err) == (0, "")
    assert out.startswith(f"sending SIG{name} to job {job} (pid ")
    assert out.partition("\n")[2] == (
        "waiting up to 60 s for it to save its work and end; otherwise it continues\n"
        f"job {job} preempted\n"
        "  latest checkpoint: out/checkpoint-150 (step 150, saved at its end)\n"
        f"  `resume --job {job}` continues it\n"
    )
    assert recorded(desk, job) == ("held", None, "preempted")


def test_says_that_there_is_no_checkpoint(desk: Desk, start: Start, up: bool) -> None:
    job = start("trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done")
    code, out, err = desk.run("preempt", job)
    assert (code, err) == (0, "")
    assert out.endswith(
        f"job {job} preempted\n"
        "  no complete checkpoint: its command has no --output_dir, and it has no attribute checkpoints=\n"
        f"  `retry {job}` starts it from its beginning, and `resume --job {job} --from PATH` continues from"
        " one that you name\n"
    )


def test_says_what_the_newest_checkpoint_lacks(desk: Desk, start: Start, up: bool) -> None:
    script = (
        "mkdir -p out/checkpoint-150; echo '{}' > out/checkpoint-150/trainer_state.json;"
        " touch -d '2 minutes ago' out/checkpoint-150/trainer_state.json out/checkpoint-150; exec sleep 300"
    )
    job = start(f"echo up; {script}", checkpoints=CHECKPOINTS)
    # The job has begun long ago, so that the checkpoint is its own.
    with desk.store.db.transaction() as db:
        db.execute("UPDATE attempt SET started_at = 1, created_at = 1")
    wait_for(lambda: (desk.path / "out/checkpoint-150").exists(), "the checkpoint")
    _, out, _ = desk.run("preempt", job)
    assert "  latest checkpoint: out/checkpoint-150 (step 150, saved 2 min" in out
    assert " before its end; what came after is lost)\n" in out


def test_says_that_the_command_has_no_place_for_the_checkpoint(desk: Desk, start: Start) -> None:
    script = SAVING.format(signal="TERM").replace("$GPU_SCHEDULER_CHECKPOINT", "")
    job = start(script, checkpoints=CHECKPOINTS)
    _, out, _ = desk.run("preempt", job)
    assert out.endswith(f"  `resume --job {job}` says what its command needs to continue from it\n")


def test_says_how_many_steps_are_lost(desk: Desk, start: Start) -> None:
    save = "mkdir -p out/checkpoint-150; echo '{}' > out/checkpoint-150/trainer_state.json"
    job = start(f"{save}; echo Step 154/300; echo up; exec sleep 300", checkpoints=CHECKPOINTS)
    _, out, _ = desk.run("preempt", job)
    assert "  latest checkpoint: out/checkpoint-150 (step 150, saved " in out
    assert " before its end; 4 steps after it are lost)\n" in out


def test_a_job_that_does_not_end_in_time_continues(desk: Desk, start: Start, up: bool) -> None:
    job = start(STUBBORN)
    code, out, err = desk.run("preempt", job, "--timeout", "0.3")
    assert code == 1
    assert "waiting up to 0.3 s for it to save its work and end; otherwise it continues\n" in out
    assert err == (
        f"gpu-scheduler: job {job} did not end in time, so its preemption was withdrawn and it continues;"
        " it may still end, if it is saving its work\n"
        f"`preempt {job} --timeout 0.6` waits longer, and `preempt {job} --force` ends it with SIGKILL after"
        " the timeout\n"
    )
    assert desk.requests() == []
    if up:
        wait_for(lambda: desk.state(job) == "running", "the state running")
    (desk.path / "go").touch()
    until_recorded(desk, job, ("finished", Outcome.FAILED, None), up=up)


@pytest.mark.parametrize(
    ("progress", "end"),
    [
        ("Step 50/100", ("held", None, "preempted")),
        ("Step 100/100", ("finished", Outcome.COMPLETED, None)),
        ("no progress", ("finished", Outcome.COMPLETED, None)),
    ],
)
def test_a_job_that_saves_too_slowly_completes_only_at_n_of_n(
    desk: Desk, start: Start, up: bool, progress: str, end: tuple[str, str | None, str | None]
) -> None:
    job = start(f"trap '' TERM; echo {progress}; echo up; until [ -e go ]; do sleep 0.02; done")
    assert desk.run("preempt", job, "--timeout", "0.2")[0] == 1
    (desk.path / "go").touch()
    until_recorded(desk, job, end, up=up)


def test_the_next_scheduler_does_not_repeat_a_withdrawn_preemption(desk: Desk) -> None:
    job = start_job(desk, "trap 'echo asked' TERM; echo up; until [ -e go ]; do sleep 0.02; done")
    for _ in range(2):
        assert desk.run("preempt", job, "--timeout", "0.2")[0] == 1
    asked = log(desk, job).count("asked")
    with desk.scheduler():
        assert desk.run("hold", desk.job())[0] == 0  # one request, and thus one round
        assert desk.state(job) == "running"
    assert log(desk, job).count("asked") == asked == 2
    (desk.path / "go").touch()


def test_force_ends_a_job_that_does_not_end_in_time(desk: Desk, start: Start) -> None:
    job = start(STUBBORN)
    code, out, err = desk.run("preempt", job, "--timeout", "0.2", "--force")
    assert (code, err) == (0, "")
    assert "; then it gets SIGKILL\n" in out
    assert f"job {job} preempted\n" in out
    assert recorded(desk, job) == ("held", None, "preempted")


def test_a_forced_preemption_follows_a_withdrawn_one(desk: Desk, start: Start) -> None:
    job = start(STUBBORN)
    assert desk.run("preempt", job, "--timeout", "0.2")[0] == 1
    code, out, _ = desk.run("preempt", job, "--timeout", "0.2", "--force")
    assert code == 0
    assert f"job {job} preempted\n" in out
    assert recorded(desk, job) == ("held", None, "preempted")


def test_two_preemptions_at_once_are_withdrawn_together(desk: Desk, start: Start, up: bool) -> None:
    job = start(STUBBORN)
    with preempting(desk, job, 60) as first:
        wait_for(lambda: list(desk.path.rglob("runs/*/*/stop")), "the first preemption")
        assert desk.run("preempt", job, "--timeout", "0.3")[0] == 1
    assert first[0].end is PreemptEnd.WITHDRAWN
    (desk.path / "go").touch()
    until_recorded(desk, job, ("finished", Outcome.FAILED, None), up=up)


def test_a_preemption_that_may_be_withdrawn_does_not_shorten_one_that_ends_with_sigkill(
    desk: Desk, start: Start
) -> None:
    job = start(STUBBORN)
    with preempting(desk, job, 2, force=True) as first:
        wait_for(lambda: desk.state(job) == "stopping", "the first preemption")
        code, out, _ = desk.run("preempt", job, "--timeout", "0")
    assert code == 0
    assert " is being preempted already\nwaiting up to 2 s for it to save its work and end; then" in out
    assert f"job {job} preempted\n" in out
    assert (first[0].end, first[0].outcome) == (PreemptEnd.ENDED, Outcome.PREEMPTED)
    assert recorded(desk, job) == ("held", None, "preempted")


def test_a_job_that_ended_by_itself_keeps_its_outcome(desk: Desk, start: Start) -> None:
    job = start(STUBBORN)

    def end_the_job(wait: PreemptWait) -> None:
        (desk.path / "go").touch()
        desk.wait_until_processes_end()

    report = app.preempt(location(desk), job, 60, on_wait=end_the_job)
    assert (report.end, report.outcome, report.exit_code) == (PreemptEnd.ENDED, Outcome.FAILED, 7)
    assert recorded(desk, job) == ("finished", Outcome.FAILED, None)


def test_a_cancel_ends_a_job_that_is_being_preempted(desk: Desk, start: Start) -> None:
    job = start(STUBBORN)
    with preempting(desk, job, 60) as reports:
        assert desk.run("cancel", job, "--grace", "0.2")[0] == 0
    assert (reports[0].end, reports[0].outcome) == (PreemptEnd.ENDED, Outcome.CANCELLED)
    assert recorded(desk, job) == ("finished", Outcome.CANCELLED, None)


def test_the_rounds_of_a_preemption_carry_out_the_requests_of_other_commands(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other, queued = start_job(desk, STUBBORN), start_job(desk, STUBBORN), desk.job()
    monkeypatch.setattr(control, "ANSWER_TIMEOUT_S", 600.0)
    with preempting(desk, job, 60) as reports:
        wait_for(lambda: desk.state(job) == "stopping", "the preemption")
        assert desk.run("hold", queued) == (0, f"job {queued}: held\n", "")
        assert desk.run("cancel", other, "--grace", "0.2") == (0, f"job {other}: cancelled\n", "")
        assert recorded(desk, other) == ("finished", Outcome.CANCELLED, None)
        assert reports == []  # the preemption has not ended, so it has run all rounds
        (desk.path / "go").touch()
    assert reports[0].end is PreemptEnd.ENDED


def test_a_cancel_that_a_simultaneous_preemption_replaces_is_repeated(desk: Desk) -> None:
    job = start_job(desk, STUBBORN)
    attempt = desk.store.attempts(job)[0]
    folder = desk.folder(attempt)
    preemption = StopRequest("preempted", 60, "withdraw", "one")

    def replace_the_cancel() -> None:
        wait_for(lambda: (folder / "stop").exists(), "the cancel")
        (folder / "stop").unlink()
        request_stop(folder, attempt.token, preemption)

    thread = threading.Thread(target=replace_the_cancel)
    thread.start()
    assert desk.run("cancel", job, "--grace", "0.5") == (0, f"job {job}: cancelled\n", "")
    thread.join()


@pytest.mark.parametrize("grace_s", [0, 60])
def test_a_forced_preemption_that_a_simultaneous_one_replaces_is_repeated(desk: Desk, grace_s: float) -> None:
    job = start_job(desk, STUBBORN)
    attempt = desk.store.attempts(job)[0]
    folder = desk.folder(attempt)
    runner = observe(folder, attempt.token).pid
    assert runner is not None
    os.kill(runner, signal.SIGSTOP)  # so that it does not read the first request before it is replaced
    with preempting(desk, job, 0.5, force=True) as forced:
        wait_for(lambda: (folder / "stop").exists(), "the forced preemption")
        (folder / "stop").unlink()
        request_stop(folder, attempt.token, StopRequest("preempted", grace_s, "withdraw", "one"))
        os.kill(runner, signal.SIGCONT)
    assert (forced[0].end, forced[0].outcome) == (PreemptEnd.ENDED, Outcome.PREEMPTED)
    assert recorded(desk, job) == ("held", None, "preempted")


def test_goes_on_by_observation_if_the_scheduler_dies(desk: Desk) -> None:
    job = start_job(desk, STUBBORN)
    with desk.scheduler() as pid, preempting(desk, job, 1) as reports:
        os.kill(pid, signal.SIGKILL)
    assert reports[0].end is PreemptEnd.WITHDRAWN
    (desk.path / "go").touch()
    until_recorded(desk, job, ("finished", Outcome.FAILED, None), up=False)


def test_asks_the_job_itself_if_the_scheduler_dies_before_it_answers(desk: Desk) -> None:
    job = start_job(desk, SAVING.format(signal="TERM"), checkpoints=CHECKPOINTS)
    with desk.scheduler("deaf") as pid, preempting(desk, job, 60) as reports:
        os.kill(pid, signal.SIGKILL)
    assert (reports[0].end, reports[0].outcome) == (PreemptEnd.ENDED, Outcome.PREEMPTED)
    assert recorded(desk, job) == ("held", None, "preempted")


def test_refuses_a_job_that_does_not_run_and_names_the_remedy(desk: Desk, start: Start) -> None:
    needs = "preempt needs a job that is starting or running"
    queued, held, finished = desk.job(), desk.job("echo b", hold=True), desk.job("echo c")
    desk.record(changes.finish(finished, Outcome.COMPLETED))
    for job, why in (
        (
            queued,
            f"is queued; {needs}; `hold {queued}` keeps it from starting",
        ),
        (held, f"is held; {needs}"),
        (finished, "is already finished (completed)"),
    ):
        assert desk.run("preempt", job) == (1, "", f"gpu-scheduler: job {job} {why}\n")
    assert desk.run("preempt", 99)[0] == 1
    assert desk.requests() == []


def test_refuses_a_job_that_is_being_cancelled(desk: Desk) -> None:
    job = start_job(desk, STUBBORN)
    with desk.scheduler():
        assert desk.run("cancel", job, "--grace", "30")[0] == 0
        refused = f"gpu-scheduler: job {job} is already being cancelled\n"
        assert desk.run("preempt", job) == (1, "", refused)
        assert desk.run("cancel", job, "--grace", "0")[0] == 0


def test_ctrl_c_ends_only_the_wait(
    desk: Desk, start: Start, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, sleep = start(STUBBORN), time.sleep

    def interrupt(seconds: float) -> None:
        sleep(0.01)  # the scheduler in this process gets its turn
        if not up or desk.store.db.rows("SELECT 1 FROM request"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        code, _, err = desk.run("preempt", job, "--timeout", "30")
    assert code == 130
    assert err == (
        f"gpu-scheduler: no longer waiting; the request stays: job {job} has up to 30 s to end, otherwise it"
        f" continues\n`status` shows its state\n"
    )
    assert desk.run("cancel", job, "--grace", "0.2")[0] == 0


def test_the_job_can_be_given_by_name(desk: Desk, tmp_path: Path) -> None:
    job = start_job(desk, STUBBORN, name="exp02")
    code, out, _ = desk.run("preempt", "exp02", "--timeout", "0.1", "--force")
    assert code == 0
    assert f"job {job} preempted\n" in out
