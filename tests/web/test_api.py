"""Tests of the routes: the short routes, /api/v1, keys, pages, rights and errors."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import ANSWER_TIMEOUT_S
from gpu_scheduler.store.data_dir import DataDir, Host
from gpu_scheduler.store.taken_items import TakenItem, add_item
from gpu_scheduler.system.simulated_usage import FOLDER_VARIABLE
from gpu_scheduler.web import app as app_module
from gpu_scheduler.web import operations
from gpu_scheduler.web.guard import Caller
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for
from tests.web.conftest import LOG_READER, READER, Api

JOB = {"model_script": "train_lora.py", "gpu_memory_mb": 16000, "num_gpus": 1, "priority": 100}


@pytest.fixture(autouse=True)
def _script(desk: Desk) -> None:
    (desk.path / "train_lora.py").write_text("print('trained')\n")


def finish(desk: Desk, job: int, outcome: Outcome) -> None:
    row = desk.attempt(job)
    desk.record(changes.end(row.id, outcome))


# The short routes.


def test_a_post_queues_a_script_with_its_memory_and_priority(api: Api, desk: Desk) -> None:
    assert desk.store
    reply = api().post("/jobs", json=JOB)
    assert reply.status_code == 200
    body = reply.json()
    assert {key: body[key] for key in ("job_id", "status", "assigned_gpus", "priority")} == {
        "job_id": "1", "status": "queued", "assigned_gpus": [], "priority": 100,
    }  # fmt: skip
    job = desk.store.job(1)
    assert job is not None
    assert (job.spec.vram, job.spec.gpus, job.priority, job.spec.preempt) == (16000, 1, 100, False)
    assert (job.source, job.spec.cwd) == ("api:local", str(desk.path))
    assert job.text.endswith(" -u train_lora.py")


def test_every_post_is_a_new_job_with_defaults(api: Api) -> None:
    client = api()
    short = {"model_script": "train_lora.py", "gpu_memory_mb": 1}
    assert [client.post("/jobs", json=short).json()["job_id"] for _ in range(2)] == ["1", "2"]
    assert client.get("/jobs/2").json()["priority"] == 200


@pytest.mark.parametrize(("may_preempt", "preempts"), [(True, True), (False, False)])
def test_priority_0_preempts_unless_the_server_forbids_it(
    api: Api, desk: Desk, may_preempt: bool, preempts: bool
) -> None:
    api(may_preempt=may_preempt).post("/jobs", json={**JOB, "priority": 0})
    job = desk.store.job(1)
    assert job is not None
    assert job.spec.preempt is preempts


def test_a_job_that_fits_no_gpu_is_infeasible_and_says_why(api: Api, desk: Desk) -> None:
    assert desk.store
    body = api().post("/jobs", json={**JOB, "gpu_memory_mb": 90_000}).json()
    assert (body["status"], body["state"]) == ("queued", "infeasible")
    assert "too small" in body["reason"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.COMPLETED, "completed"), (Outcome.FAILED, "failed"), (Outcome.CANCELLED, "failed")],
)
def test_the_status_of_a_finished_job(api: Api, desk: Desk, outcome: Outcome, status: str) -> None:
    job = desk.job()
    finish(desk, job, outcome)
    body = api().get(f"/jobs/{job}").json()
    assert (body["status"], body["state"], body["outcome"]) == (status, "finished", outcome.value)


def test_the_status_of_open_jobs(api: Api, desk: Desk) -> None:
    held, queued = desk.job(hold=True), desk.job()
    starting = desk.job()
    desk.attempt(starting, "SIM-1")
    client = api()
    found = {job: client.get(f"/jobs/{job}").json() for job in (held, queued, starting)}
    assert [one["status"] for one in found.values()] == ["queued", "queued", "running"]
    assert [one["assigned_gpus"] for one in found.values()] == [[], [], [1]]


def test_a_preempted_job_is_queued_without_gpus(api: Api, desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    stop = StopRequest("preempted", 5.0, next_state=JobState.QUEUED)
    desk.record(changes.ask_to_stop(job, stop), changes.end(row.id, Outcome.PREEMPTED))
    body = api().get(f"/jobs/{job}").json()
    assert (body["status"], body["assigned_gpus"]) == ("queued", [])


@pytest.mark.parametrize(
    "job", ["99", "abc", "0", "1e3", "9" * 30, "%2e%2e", "-1", "\N{FULLWIDTH DIGIT ONE}"]
)
def test_an_unknown_job_is_a_404_with_detail_alone(api: Api, desk: Desk, job: str) -> None:
    assert desk.store
    reply = api().get(f"/jobs/{job}")
    assert (reply.status_code, reply.json()) == (404, {"detail": "Job not found"})


def test_the_queue_lists_50_waiting_jobs_in_queue_order(api: Api, desk: Desk) -> None:
    for number in range(60):
        desk.job(priority=100 if number == 59 else None)
    desk.attempt(1)
    body = api().get("/queue").json()
    assert (body["queue_length"], body["running"], len(body["jobs"])) == (59, 1, 50)
    assert [one["job_id"] for one in body["jobs"][:3]] == ["60", "2", "3"]


def test_the_gpus_are_those_that_the_driver_reports(
    api: Api, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(desk.path / "sim"))
    monkeypatch.setattr("gpu_scheduler.web.app.simulation_of_scheduler", lambda *_: ("simulated", "2:24G"))
    assert api().get("/gpus").json() == [
        {"index": index, "free_mb": 24576, "total_mb": 24576, "used_mb": 0} for index in range(2)
    ]


def test_without_a_driver_the_gpus_are_unavailable(api: Api) -> None:
    reply = api().get("/gpus")
    assert reply.status_code == 503
    assert "install the NVIDIA driver" in reply.json()["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_memory_mb": "16000"}, {"gpu_memory_mb": True}, {"gpu_memory_mb": 0}, {"gpu_memory_mb": -1},
        {"num_gpus": 0}, {"num_gpus": 1.5}, {"priority": 10**9}, {"priority": None}, {"colour": "red"},
        {"model_script": ""}, {"model_script": 3}, {"model_script": "no.py"}, {"model_script": "a\nb.py"},
    ],
)  # fmt: skip
def test_wrong_values_are_refused_and_queue_nothing(api: Api, desk: Desk, wrong: dict[str, Any]) -> None:
    assert desk.store
    reply = api().post("/jobs", json={**JOB, **wrong})
    assert reply.status_code == 422
    assert desk.store.job(1) is None


def test_nan_is_no_number(api: Api) -> None:
    text = json.dumps(JOB).replace("16000", "NaN")
    reply = api().post("/jobs", content=text, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422


def test_the_error_of_a_missing_script_is_that_of_submit(api: Api, desk: Desk) -> None:
    said = api().post("/jobs", json={**JOB, "model_script": "no.py"}).json()["detail"]
    assert desk.run("submit", "no.py")[2] == f"gpu-scheduler: {said}\n"


# Keys.


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        ("/jobs", JOB, {**JOB, "priority": 5}),
        ("/api/v1/jobs", {"command": "true"}, {"command": "false"}),
    ],
)
def test_a_key_makes_a_submission_happen_once(
    api: Api, desk: Desk, path: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    client, key = api(), {"Idempotency-Key": "a-1"}
    first = client.post(path, json=body, headers=key)
    again = client.post(path, json=body, headers=key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    reused = client.post(path, json=other, headers=key)
    assert reused.status_code == 409
    assert "another request" in reused.json()["detail"]
    assert client.post(path, json=body, headers={"Idempotency-Key": "a-2"}).json() != first.json()
    assert api(Caller("other")).post(path, json=body, headers=key).json() != first.json()
    assert desk.store.job(4) is None


def test_a_key_answers_after_its_job_was_cleared_and_its_script_was_deleted(api: Api, desk: Desk) -> None:
    client, key = api(), {"Idempotency-Key": "a"}
    first = client.post("/jobs", json=JOB, headers=key).json()
    finish(desk, 1, Outcome.COMPLETED)
    desk.store.db.connection.execute("UPDATE job SET cleared_at = 1.0")
    (desk.path / "train_lora.py").unlink()
    assert client.post("/jobs", json=JOB, headers=key).json() == first


def test_a_key_is_forgotten_after_a_day(api: Api, desk: Desk) -> None:
    client, key = api(), {"Idempotency-Key": "a"}
    client.post("/jobs", json=JOB, headers=key)
    desk.store.db.connection.execute("UPDATE submission_key SET made_at = made_at - 86401")
    assert client.post("/jobs", json=JOB, headers=key).json()["job_id"] == "2"
    assert desk.store.db.rows("SELECT count(*) AS n FROM submission_key")[0]["n"] == 1


def test_equal_keys_at_once_make_one_job(api: Api, desk: Desk) -> None:
    client, key = api(), {"Idempotency-Key": "a"}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: client.post("/jobs", json=JOB, headers=key).json(), range(16)))
    assert {one["job_id"] for one in replies} == {"1"}
    assert desk.store.job(2) is None


@pytest.mark.parametrize("key", ["", "a b", "ü", "x" * 201])
def test_a_wrong_key_is_refused(api: Api, key: str) -> None:
    reply = api().post("/jobs", json=JOB, headers={b"Idempotency-Key": key.encode()})
    assert reply.status_code == 422


# /api/v1.


def test_a_submission_takes_what_submit_takes(api: Api, desk: Desk) -> None:
    folder = desk.path / "work"
    folder.mkdir()
    reply = api(Caller("nb")).post("/api/v1/jobs", json={
        "command": ["python", "-c", "print({lr})"], "cwd": "work", "env": {"SEED": "1"},
        "attributes": {"name": "sweep", "vram": "2G", "hold": True}, "grid": ["lr=0.1,0.01"],
    })  # fmt: skip
    assert reply.json()["ids"] == [1, 2]
    job = desk.store.job(2)
    assert job is not None
    assert (job.name, job.spec.vram, job.spec.cwd) == ("sweep/lr=0.01", 2048, str(folder))
    assert (job.state, dict(job.spec.env), job.source) == (JobState.HELD, {"SEED": "1"}, "api:nb")
    row = desk.store.db.row("SELECT environment FROM job WHERE id = 2")
    assert row is not None
    assert row["environment"] is None, "the job inherits nothing from the server"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "either a script or a command"),
        ({"command": "true", "script": "train_lora.py"}, "either a script or a command"),
        ({"command": "a\nb"}, "line break"),
        ({"command": "true", "attributes": {"colour": "red"}}, "colour is no attribute"),
        ({"command": "true", "attributes": {"vram": "much"}}, "vram"),
        ({"command": "true", "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "is set by the scheduler"),
        ({"command": "true", "env": {"A=B": "x"}}, "contains no `=`"),
        ({"command": "true", "attributes": {"after": "77"}}, "no job 77"),
        ({"command": "true", "grid": ["lr=1,2"]}, "lr is not used"),
        ({"command": "x" * 90_000 + "{n}", "grid": ["n=1..5000"]}, "jobs are too long"),
        (
            {"command": "{n}", "grid": [f"n={','.join(map(str, range(10_001)))}"], "zip": True},
            "at most 10,000",
        ),
    ],
)
def test_a_wrong_submission_names_the_problem(api: Api, desk: Desk, body: dict[str, Any], said: str) -> None:
    assert desk.store
    reply = api().post("/api/v1/jobs", json=body)
    assert (reply.status_code, reply.headers["Content-Type"]) == (422, "application/problem+json")
    assert said in reply.json()["detail"]
    assert desk.store.job(1) is None


def test_a_preview_queues_nothing(api: Api, desk: Desk) -> None:
    assert desk.store
    body = api().post("/api/v1/preview", json={"command": "echo {a}", "grid": ["a=1,2"]}).json()
    assert [one["command"] for one in body["jobs"]] == ["echo 1", "echo 2"]
    assert desk.store.job(1) is None


def test_pages_follow_their_cursor_and_filters(api: Api, desk: Desk) -> None:
    for number in range(7):
        desk.job(name=f"train/{number}" if number % 2 else None)
    finish(desk, 2, Outcome.FAILED)
    client = api()
    ids, cursor = [], None
    while True:
        query = {"limit": 3} | ({} if cursor is None else {"cursor": cursor})
        body = client.get("/api/v1/jobs", params=query).json()
        ids.append([one["id"] for one in body["jobs"]])
        cursor = body["next"]
        if cursor is None:
            break
    assert ids == [[7, 6, 5], [4, 3, 2], [1]]

    def found(**query: str) -> list[int]:
        return [one["id"] for one in client.get("/api/v1/jobs", params=query).json()["jobs"]]

    assert found(state="finished") == [2]
    assert found(outcome="failed") == [2]
    assert found(name="train") == [6, 4, 2]
    assert found(name="train", state="queued") == [6, 4]
    assert found(source="cli") == [7, 6, 5, 4, 3, 2, 1]
    assert found(source="api:x") == []


def test_the_queue_is_read_in_its_order_and_searched(api: Api, desk: Desk) -> None:
    first, last, other = (desk.job(text) for text in ("echo Alpha", "echo beta", "echo gamma"))
    desk.run("priority", str(last), "5")
    client = api()
    query: dict[str, str | int] = {"order": "queue", "state": "queued", "limit": 2}
    page = client.get("/api/v1/jobs", params=query).json()
    assert [one["id"] for one in page["jobs"]] == [last, first]
    rest = client.get("/api/v1/jobs", params={**query, "cursor": page["next"]}).json()
    assert ([one["id"] for one in rest["jobs"]], rest["next"]) == ([other], None)
    for text, found in (("alpha", [first]), (str(other), [other]), ("%", []), ("ECHO B", [last])):
        answer = client.get("/api/v1/jobs", params={"search": text}).json()
        assert [one["id"] for one in answer["jobs"]] == found
    reader = client.get("/api/v1/jobs", params={"search": "alpha"}, headers={"Reader": "yes"}).json()
    assert reader["jobs"] == []  # arguments are hidden from a reader, also from its searches


def test_the_jobs_that_ended_last_come_first(api: Api, desk: Desk) -> None:
    first, second = desk.job("true"), desk.job("true")
    finish(desk, second, Outcome.COMPLETED)
    finish(desk, first, Outcome.FAILED)
    page = api().get("/api/v1/jobs", params={"order": "finished", "state": "finished", "limit": 1}).json()
    assert [one["id"] for one in page["jobs"]] == [first]
    rest = api().get("/api/v1/jobs", params={"order": "finished", "cursor": page["next"]}).json()
    assert [one["id"] for one in rest["jobs"]] == [second]


def test_reports_are_those_of_the_command_line(api: Api, desk: Desk) -> None:
    job = desk.job("false")
    client = api()
    shown = json.loads(desk.run("show", job, "--json")[1])
    assert {**client.get(f"/api/v1/jobs/{job}").json(), "now": 0} == {**shown, "now": 0}
    why = json.loads(desk.run("why", job, "--json")[1])
    assert {**client.get(f"/api/v1/jobs/{job}/why").json(), "now": 0} == {**why, "now": 0}
    status = json.loads(desk.run("status", "--json")[1])
    assert client.get("/api/v1/jobs").json()["jobs"] == status["jobs"]
    assert client.get("/api/v1/gpus").json()["gpus"] == status["gpus"]
    health = client.get("/api/v1/health").json()
    assert {key: health[key] for key in ("scheduler", "counts")} == {
        key: status[key] for key in ("scheduler", "counts")
    }
    for name in ("eta", "plan"):
        assert client.get(f"/api/v1/{name}").json().keys() == json.loads(desk.run(name, "--json")[1]).keys()


def test_changes_are_answered_by_a_scheduler(api: Api, desk: Desk) -> None:
    jobs = [desk.job(name=f"g/{number}") for number in range(3)]
    client = api()
    with desk.scheduler():
        held = client.post("/api/v1/hold", json={"jobs": ["g"]})
        again = client.post("/api/v1/hold", json={"jobs": jobs})
        high = client.post("/api/v1/priority", json={"jobs": ["1-2"], "priority": 5})
        client.post("/api/v1/release", json={"jobs": [3]})
        gone = client.post("/api/v1/cancel", json={"jobs": ["g"]})
    assert held.status_code == 200
    assert held.headers["X-Scheduler"] == "up"
    assert [(one["job"], one["code"]) for one in held.json()["answers"]] == [(job, "held") for job in jobs]
    assert again.status_code == 409
    assert "is already held" in again.json()["detail"]
    assert [one["text"] for one in high.json()["answers"]] == ["priority=5 set"] * 2
    assert [one["code"] for one in gone.json()["answers"]] == ["cancelled"] * 3
    assert [row["by"] for row in desk.store.db.rows("SELECT DISTINCT by FROM request")] == ["api:local"]


def test_an_unanswered_change_can_be_asked_for_later(
    api: Api, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.job()
    client = api()
    with desk.scheduler("deaf"):
        monkeypatch.setattr("gpu_scheduler.show.store_access.ANSWER_TIMEOUT_S", 0.1)
        reply = client.post("/api/v1/hold", json={"jobs": [1]})
    assert reply.status_code == 202
    request = reply.json()["answers"][0]["request"]
    assert client.get(f"/api/v1/requests/{request}").json()["answered"] is False
    with desk.scheduler():
        desk.data_dir.ring_doorbell()
        wait_for(lambda: client.get(f"/api/v1/requests/{request}").json()["answered"], "the answer")
    answer = client.get(f"/api/v1/requests/{request}").json()
    assert (answer["code"], answer["text"]) == ("held", "held")
    assert client.get("/api/v1/requests/999").status_code == 404


def test_changes_of_many_jobs_wait_for_the_scheduler_at_the_same_time(api: Api, desk: Desk) -> None:
    jobs = [desk.job(f"run {number}") for number in range(20)]
    with desk.scheduler("deaf"):
        began = time.monotonic()
        reply = api().post("/api/v1/set", json={"jobs": jobs, "set": ["priority=5"]})
    assert (reply.status_code, len(reply.json()["answers"])) == (202, 20)
    # One after another, they would wait for 40 s at least.
    assert time.monotonic() - began < len(jobs) * ANSWER_TIMEOUT_S
    for verb, rest in (("set", {"set": ["priority=5"]}), ("preempt", {}), ("resume", {})):
        reply = api().post(f"/api/v1/{verb}", json={"jobs": list(range(1, 22)), **rest})
        assert (reply.status_code, "at most 20" in reply.json()["detail"]) == (422, True)


def test_gpus_are_paused_and_resumed(api: Api, desk: Desk) -> None:
    assert desk.store
    with desk.scheduler():
        paused = api().post("/api/v1/gpus/pause", json={"gpus": [0]})
        wrong = api().post("/api/v1/gpus/pause", json={"gpus": [9]})
    assert [(one["gpu"], one["code"]) for one in paused.json()["answers"]] == [(0, "paused")]
    assert wrong.status_code == 409
    assert "not managed" in wrong.json()["detail"]


def test_a_running_job_is_preempted(api: Api, desk: Desk) -> None:
    job = desk.run_job("sleep 60")
    with desk.scheduler():
        reply = api().post("/api/v1/preempt", json={"jobs": [job], "grace_s": 5.0})
        assert reply.json()["answers"][0]["code"] in ("ended", "pending"), reply.json()
        desk.wait_until_processes_end()


# Rights.


def test_a_reader_sees_neither_arguments_nor_environment_nor_logs(api: Api, desk: Desk) -> None:
    job = desk.run_job("echo geheim-log geheim-argument; exit 3", env=(("X", "geheim-env"),))
    desk.wait_until_processes_end()
    client = api(READER)
    for path in (f"jobs/{job}", "jobs", "health", "plan", "eta", "gpus"):
        reply = client.get(f"/api/v1/{path}")
        assert reply.status_code == 200
        assert "geheim" not in reply.text, path
        assert f"job_{job}.log" not in reply.text, path
    assert "geheim" not in client.get("/queue").text
    for path in ("why", "log", "log/stream"):
        assert client.get(f"/api/v1/jobs/{job}/{path}").status_code == 403
    assert "geheim-log" in api(LOG_READER).get(f"/api/v1/jobs/{job}/log").text
    assert "geheim" not in api(LOG_READER).get(f"/api/v1/jobs/{job}").text


def test_a_reader_does_not_see_why_a_job_is_tried_again(api: Api, desk: Desk) -> None:
    """The reason quotes the last line of the log."""
    job = desk.job()
    row = desk.attempt(job)
    desk.record(changes.fail(row.id, "ValueError: geheim\n"))
    paths = ("/queue", f"/jobs/{job}", "/api/v1/jobs", f"/api/v1/jobs/{job}")
    assert ["geheim" in api().get(path).text for path in paths] == [True] * 4
    assert ["geheim" in api(READER).get(path).text for path in paths] == [False] * 4


def test_a_page_of_one_caller_is_not_shown_to_another_with_fewer_rights(api: Api, desk: Desk) -> None:
    desk.job("run.sh geheim")
    client = api()
    assert "geheim" in client.get("/api/v1/jobs").text
    assert "geheim" not in client.get("/api/v1/jobs", headers={"Reader": "yes"}).text


# Pages.


def test_equal_queries_are_made_once_while_the_store_is_unchanged(
    api: Api, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.job()
    made, real = [], operations.queue

    def queue(context: operations.Context) -> operations.Json:
        made.append(context)
        return real(context)

    monkeypatch.setattr(operations, "queue", queue)
    monkeypatch.setattr("gpu_scheduler.web.app._PAGE_AGE_S", 60.0)
    client = api()
    barrier = threading.Barrier(8)

    def read(_: int) -> int:
        barrier.wait()
        length: int = client.get("/queue").json()["queue_length"]
        return length

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {1}
    assert len(made) == 1
    desk.job()
    assert client.get("/queue").json()["queue_length"] == 2
    assert len(made) == 2


def test_pages_of_the_past_need_no_memory(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Pages(app_module._Pages):
        def __init__(self, context: operations.Context) -> None:
            super().__init__(context)
            made.append(self)

    monkeypatch.setattr(app_module, "_Pages", Pages)
    monkeypatch.setattr(app_module, "_PAGE_AGE_S", 0.0)
    client = api()
    for number in range(1, 20):
        client.get(f"/api/v1/jobs/{number}")
        client.get(f"/api/v1/jobs?source={number}")
    assert (len(made[0]._pages), len(made[0]._making)) == (1, 0)


# Errors.


@pytest.mark.parametrize("body", [{"env": {"\ud800": "1"}}, {"attributes": {"\ud800": "1"}}, {"\ud800": 1}])
def test_text_that_utf_8_cannot_encode_is_refused(api: Api, body: dict[str, Any]) -> None:
    text = json.dumps({"command": "true", **body})
    reply = api().post("/api/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422


def test_an_answer_contains_no_control_characters(api: Api) -> None:
    client = api()
    client.post("/api/v1/jobs", json={"command": "echo '\x1b[2J \x9b2J \u202e'"})
    reply = client.get("/api/v1/jobs")
    assert reply.content.isascii()
    assert reply.text.isprintable()
    assert "\x9b2J \u202e" in reply.json()["jobs"][0]["command"]


@pytest.mark.parametrize("route", ["/jobs", "/api/v1/jobs"])
def test_an_answer_names_only_some_of_many_wrong_values(api: Api, route: str) -> None:
    reply = api().post(route, json={f"wrong{number}": 1 for number in range(1000)})
    assert (reply.status_code, len(reply.content) < 10_000) == (422, True)


def test_the_job_of_a_redis_item_whose_id_has_a_space_and_a_slash(api: Api, desk: Desk) -> None:
    job = desk.job()
    add_item(desk.store, TakenItem("a b/c", "f", job, "0", "{}"))
    assert api().get("/jobs/redis:a%20b/c").json()["job_id"] == "a b/c"
    assert api().get("/jobs/redis:a%20b/d").status_code == 404


@pytest.mark.parametrize("path", ["/queue/", "/jobs/", "/api/v1/jobs/"])
def test_a_path_with_another_end_is_unknown(api: Api, path: str) -> None:
    assert api().get(path, follow_redirects=False).status_code == 404


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS"])
def test_a_method_that_a_route_lacks_is_refused_with_those_that_it_has(api: Api, method: str) -> None:
    reply = api().request(method, "/api/v1/jobs")
    assert (reply.status_code, reply.headers["Allow"]) == (405, "GET, POST")


def test_an_unknown_route_is_a_problem(api: Api) -> None:
    reply = api().get("/api/v1/nothing")
    assert (reply.status_code, reply.headers["Content-Type"]) == (404, "application/problem+json")
    assert api().get("/docs").status_code == 404


def test_a_damaged_store_is_unavailable_with_the_sentence_of_status(api: Api, desk: Desk) -> None:
    desk.job()
    desk.store.close()
    desk.data_dir.database.with_name("scheduler.db-wal").unlink(missing_ok=True)
    desk.data_dir.database.write_bytes(b"not a database at all" * 500)
    reply = api().get("/api/v1/jobs")
    assert reply.status_code == 503
    assert desk.run("status")[2] == f"gpu-scheduler: {reply.json()['detail']}\n"


def test_a_store_of_another_host_is_unavailable(
    api: Api, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.job()
    monkeypatch.setattr(DataDir, "other_host", lambda self: Host("elsewhere", "id", None))
    reply = api().get("/queue")
    assert (reply.status_code, "belongs to host elsewhere" in reply.json()["detail"]) == (503, True)


def test_before_the_first_start_there_are_no_jobs(api: Api) -> None:
    client = api()
    assert client.get("/queue").json() == {"queue_length": 0, "running": 0, "jobs": []}
    assert client.get("/api/v1/jobs").json() == {"jobs": [], "next": None}
    assert client.get("/api/v1/jobs/1").status_code == 404
    assert client.get("/queue").headers["X-Scheduler"] == "down"


# Logs.


@pytest.fixture
def logged(desk: Desk) -> tuple[int, bytes]:
    """A finished job and the bytes of its log."""
    job = desk.run_job("printf 'one\\ntwo\\nthree \\303\\274\\n'")
    desk.wait_until_processes_end()
    return job, (desk.path / f"job_{job}.log").read_bytes()


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-3", 0, 4), ("bytes=2-", 2, None), ("bytes=-5", -5, None), ("bytes=3-100000", 3, None),
        ("bytes=0-0", 0, 1),
    ],
)  # fmt: skip
def test_a_range_of_a_log(
    api: Api, logged: tuple[int, bytes], header: str, start: int, end: int | None
) -> None:
    job, log = logged
    reply = api().get(f"/api/v1/jobs/{job}/log", headers={"Range": header})
    assert (reply.status_code, reply.content) == (206, log[start:end])
    at, total = reply.headers["Content-Range"].removeprefix("bytes ").split("/")
    assert total == str(len(log))
    first, last = map(int, at.split("-"))
    assert log[first : last + 1] == reply.content


@pytest.mark.parametrize("header", [None, "lines=1-2", "bytes=a-b", "bytes=5-2", "bytes=0-1,3-4", "bytes=-"])
def test_a_range_that_is_not_understood_is_ignored(
    api: Api, logged: tuple[int, bytes], header: str | None
) -> None:
    job, log = logged
    reply = api().get(f"/api/v1/jobs/{job}/log", headers={} if header is None else {"Range": header})
    assert (reply.status_code, reply.content) == (200, log)
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_a_range_behind_the_end_is_refused(api: Api, logged: tuple[int, bytes]) -> None:
    job, log = logged
    reply = api().get(f"/api/v1/jobs/{job}/log", headers={"Range": "bytes=100000-"})
    assert (reply.status_code, reply.headers["Content-Range"]) == (416, f"bytes */{len(log)}")


def test_a_log_that_is_a_link_or_no_file_is_not_served(
    api: Api, desk: Desk, logged: tuple[int, bytes]
) -> None:
    job, _ = logged
    secret = desk.path / "secret"
    secret.write_text("geheim")
    log = desk.path / f"job_{job}.log"
    log.unlink()
    log.symlink_to(secret)
    reply = api().get(f"/api/v1/jobs/{job}/log")
    assert (reply.status_code, "geheim" in reply.text) == (404, False)
    log.unlink()
    log.mkdir()
    assert api().get(f"/api/v1/jobs/{job}/log").status_code == 404


def test_a_job_without_a_log_has_none(api: Api, desk: Desk) -> None:
    job = desk.job()
    reply = api().get(f"/api/v1/jobs/{job}/log")
    assert (reply.status_code, "was never started" in reply.json()["detail"]) == (404, True)


def test_the_version_of_a_store_changes_with_each_commit(desk: Desk) -> None:
    assert operations.store_version(Location().resolve().database) == ()
    versions = {operations.store_version(Location().resolve().database)}
    for _ in range(20):
        desk.job()
        versions.add(operations.store_version(Location().resolve().database))
    assert len(versions) == 21


def test_the_store_holds_the_key_and_the_job_in_one_transaction(
    api: Api, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.store

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gpu_scheduler.control.submit.record_submission", fail)
    assert api().post("/jobs", json=JOB, headers={"Idempotency-Key": "a"}).status_code in (409, 503)
    assert desk.store.job(1) is None
    assert Path(desk.data_dir.database).exists()
