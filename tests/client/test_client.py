"""The client gives the same answers on the store and over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_scheduler import Client
from gpu_scheduler.client import Job
from gpu_scheduler.errors import ClientError, SchedulerError
from tests.client.desk import Desk
from tests.waiting import wait_for


def last_line(job: Job) -> str:
    """Returns the last line that a job printed; the scheduler adds one to its log."""
    return job.log(tail=2).splitlines()[0]


def test_a_script_runs_with_its_arguments_and_environment(desk: Desk) -> None:
    (desk.folder / "train.sh").write_text('echo "lr $2 seed $SEED in $PWD"; echo über; exit 0\n')
    (desk.folder / "sub").mkdir()
    desk.world.start()
    client = desk.client()
    job = client.submit(
        "../train.sh", "--lr", 0.1, name="bert", vram="2G", env={"SEED": 7}, cwd=str(desk.folder / "sub")
    )
    result = job.result(timeout=60)
    assert (result.outcome, result.exit_code, result.ok) == ("completed", 0, True)
    assert f"lr 0.1 seed 7 in {desk.folder / 'sub'}\nüber\n" in job.log()
    assert job.log(tail=2).startswith("über\n--- completed")
    assert job.log(tail=0) == ""
    assert (job.status(), job.name) == ("completed", "bert")
    assert client.job("bert") == job == client.job(job.id)
    assert [one.id for one in client.jobs(state=["finished"], name="bert")] == [job.id]
    assert client.jobs(state=["queued"]) == []


def test_a_grid_is_one_submission_whose_jobs_come_back_as_they_end(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    jobs = client.map(command="sleep {t}; echo did {text}", grid={"t": [1.5, 0.1], "text": ["a,b", "1..3"]})
    assert len(jobs) == 4
    order = list(client.as_completed(jobs, timeout=60))
    assert sorted(one.id for one in order) == [one.id for one in jobs]
    assert {one.id for one in order[:2]} == {one.id for one in jobs[2:]}
    assert [last_line(one) for one in jobs] == ["did a,b", "did 1..3"] * 2
    zipped = client.map(command="echo {a} {b}", grid={"a": [1, 2], "b": [3, 4]}, zip=True)
    assert client.wait(zipped, 60)
    assert [last_line(one) for one in zipped] == ["1 3", "2 4"]


def test_a_failed_job_gives_its_exit_code_and_reason(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    job = client.submit(command=["bash", "-c", "echo boom >&2; exit 3"])
    result = job.result(60)
    assert (result.outcome, result.exit_code, result.ok) == ("failed", 3, False)
    assert result.reason is not None
    assert job.why()
    child = client.submit(command="true", after=[job])
    assert child.result(60).outcome == "skipped"
    assert client.retry(job)[0]["result"] == "carried_out"
    wait_for(lambda: job.status() == "failed" and job.info()["attempts"] == 2, "the second attempt")


def test_jobs_are_steered_and_the_answers_tell_how(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    job = client.submit(command="sleep 600", hold=True, exclusive=False, name=None)
    assert job.status() == "held"
    assert client.priority(job, to=7)[0]["result"] == "carried_out"
    assert job.info()["priority"] == 7
    assert client.release(job.id)[0]["result"] == "carried_out"
    wait_for(lambda: job.status() == "running", "start")
    assert [one["jobs"] for one in client.gpus() if one["jobs"]] == [[job.id]]
    assert not job.wait(timeout=0.2)
    with pytest.raises(ClientError, match="not ended after") as late:
        job.result(timeout=0.1)
    assert late.value.status == 408
    assert job.cancel()["result"] == "carried_out"
    assert job.result(60).outcome == "cancelled"
    with pytest.raises(ClientError) as refused:
        client.hold(job)
    assert refused.value.status == 409
    assert client.health()["scheduler"]["pid"]
    assert client.plan()["now"] > 0


def test_follow_yields_the_log_while_it_grows(desk: Desk) -> None:
    desk.world.start()
    job = desk.client().submit(command="echo one; while [ ! -e go ]; do sleep 0.05; done; echo two")
    seen = ""
    for text in job.follow():
        seen += text
        if "one\n" in seen:
            (desk.folder / "go").touch()
    assert "\none\ntwo\n--- completed" in seen
    assert job.status() == "completed"
    assert "".join(job.follow()) == seen == job.log()


@pytest.mark.parametrize("desk", ["store"], indirect=True)
def test_follow_of_a_silent_job_lets_its_caller_stop(desk: Desk) -> None:
    desk.world.start()
    job = desk.client().submit(command="echo one; sleep 600")
    seen, silent = "", 0
    for text in job.follow():  # without the empty texts, the test ends by its timeout
        seen, silent = seen + text, 0 if text else silent + 1
        if "one\n" in seen and silent == 3:
            break
    assert ("one\n" in seen, silent) == (True, 3)  # the stream went on until here
    assert job.status() == "running"


def test_events_continue_after_the_given_one(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    ids = [client.submit(command="true").id for _ in range(2)]
    assert client.wait(ids, 60)
    seen = []
    for event in client.events(after=0):
        seen.append(event)
        if event["event"] == "finished" and event["job"] == ids[1]:
            break
    assert [one["id"] for one in seen] == list(range(seen[0]["id"], seen[-1]["id"] + 1))
    middle = seen[len(seen) // 2]["id"]
    assert next(client.events(after=middle))["id"] == middle + 1
    assert next(client.events()) == {"event": "reset"}
    assert next(client.events(after=10**9)) == {"event": "reset"}


#: Calls that are refused, with the status and a part of the text of the error.
ERRORS: Sequence[tuple[Callable[[Client], object], int, str]] = [
    (lambda client: client.submit("no_such.py"), 422, "no_such.py"),
    (lambda client: client.submit(), 422, "either a script or a command"),
    (lambda client: client.submit(command="echo a\necho b"), 422, "line break"),
    (lambda client: client.submit(command="true", memory=3), 422, "memory"),
    (lambda client: client.submit(command="true", after=[99]), 422, "99"),
    (lambda client: client.submit(command="true", env={"CUDA_VISIBLE_DEVICES": "0"}), 422, "CUDA_VIS"),
    (lambda client: client.map(command="true", grid={"lr": [1]}), 422, "lr"),
    (lambda client: client.map(command="{a}", grid={"a": ["'\""]}), 422, "quotes"),
    (lambda client: client.job(99), 404, "99"),
    (lambda client: client.job("nobody"), 404, "nobody"),
    (lambda client: client.wait([99]), 404, "99"),
    (lambda client: client.cancel("nobody"), 404, "nobody"),
    (lambda client: client.cancel(), 422, "jobs"),
    (lambda client: client.jobs(state=["lost"]), 422, "tate"),
]  # fmt: skip


def test_errors_are_one_class(desk: Desk) -> None:
    client = desk.client()
    client.submit(command="true", hold=True)
    for call, status, text in ERRORS:
        with pytest.raises(SchedulerError) as raised:
            call(client)
        assert isinstance(raised.value, ClientError)
        assert raised.value.status == status, text
        assert text in str(raised.value)
    assert len(client.jobs()) == 1


def test_an_empty_queue_answers(desk: Desk) -> None:
    client = desk.client()
    assert client.jobs() == []
    assert client.gpus() == []
    assert client.wait([], 0)
    assert next(client.events()) == {"event": "reset"}


def test_a_wait_outlives_the_server_and_the_scheduler(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    jobs = client.map(command="while [ ! -e go{i} ]; do sleep 0.05; done", grid={"i": [1, 2]})
    ended: list[int] = []
    waiting = threading.Thread(
        target=lambda: ended.extend(one.id for one in client.as_completed(jobs, timeout=90))
    )
    waiting.start()
    (desk.folder / "go1").touch()
    wait_for(lambda: ended == [jobs[0].id], "the end of the first job")
    desk.kill_server()
    desk.world.end_scheduler(9)
    (desk.folder / "go2").touch()
    wait_for(lambda: not _is_running(desk, jobs[1].id), "the end of the second job's processes")
    assert len(ended) == 1
    desk.world.start()
    desk.start_server()
    waiting.join(90)
    assert ended == [one.id for one in jobs]


def _is_running(desk: Desk, job_id: int) -> bool:
    return bool(desk.world.jobs()[job_id]["state"] != "finished")


def test_threads_share_a_client(desk: Desk) -> None:
    """A notebook runs cells in threads. Signals and the umask belong to the whole process."""
    desk.world.start()
    client = desk.client()
    umask = Path("/proc/self/status").read_text().split("Umask:")[1].split()[0]
    outcomes, problems = [], []

    def work() -> None:
        try:
            outcomes.append(client.submit(command="true").result(60).outcome)
            for _ in range(20):
                client.jobs()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(90)
    assert (problems, outcomes) == ([], ["completed"] * 6)
    assert Path("/proc/self/status").read_text().split("Umask:")[1].split()[0] == umask


def test_a_job_that_a_scheduler_may_retry_has_not_ended(desk: Desk) -> None:
    desk.world.start(module="tests.e2e.short_waits")
    job = desk.client().submit(command="[ -e tried ] || { touch tried; exit 1; }", fail_retries=1)
    assert job.result(60).ok
    assert job.info()["attempts"] == 2


def test_an_end_without_a_scheduler_counts_at_once(desk: Desk) -> None:
    desk.world.start()
    client = desk.client()
    job = client.submit(command="while [ ! -e go ]; do sleep 0.05; done")
    wait_for(lambda: job.status() == "running", "start")
    desk.world.end_scheduler()
    (desk.folder / "go").touch()
    wait_for(lambda: job.status() == "completed", "end")
    began = time.monotonic()
    assert job.result(60).ok
    assert time.monotonic() - began < 5


def test_the_package_offers_the_client() -> None:
    import gpu_scheduler

    assert Client is gpu_scheduler.client.Client
    assert issubclass(ClientError, gpu_scheduler.SchedulerError)
    with pytest.raises(AttributeError, match="nothing"):
        gpu_scheduler.nothing  # type: ignore[attr-defined]  # noqa: B018
