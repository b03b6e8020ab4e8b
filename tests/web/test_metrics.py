"""Tests of /metrics: its numbers are those of events and of `status`, and the pages name real metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gpu_scheduler.core.model.gpu import Suspicion
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.status import StatusQuery, status
from gpu_scheduler.store.attempt_history import skip_gpu_time
from gpu_scheduler.web.metrics import QueueState, families
from gpu_scheduler.web.operations import EventFeed
from tests import changes
from tests.cli.desk import Desk
from tests.web.conftest import READER, Api

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Samples:
    """Returns the value of each sample of a page, by its name without `gpu_scheduler_` and its labels."""
    return {
        (one.name.removeprefix("gpu_scheduler_"), frozenset(one.labels.items())): one.value
        for family in parse(text)
        for one in family.samples
    }


def scrape(api: Api, **given: Any) -> Samples:
    reply = api(**given).get("/metrics")
    assert reply.status_code == 200, reply.text
    return read(reply.text)


def labelled(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Returns the values above 0 of a metric by one of its labels."""
    return {dict(labels)[label]: value for (one, labels), value in samples.items() if one == name and value}


def plain(samples: Samples, name: str) -> float:
    return samples[name, frozenset()]


class Run:
    """Runs attempts on a store at times that the test chooses, in seconds from the first submission."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.began = desk.store.db.value("SELECT max(created_at) FROM job")

    def record(self, at: float, *actions: act.Action) -> dict[int, int]:
        return self._desk.writer.record(actions, Now(self.began + at, 1000 + at, "boot"))

    def attempt(self, job: int, gpus: tuple[str, ...], start: float, end: float, outcome: Outcome) -> None:
        """Starts a job, whose first instruction comes after 0.25 s, and ends it."""
        number = self.record(start, act.Start(job, gpus, 1000, whole=True))[job]
        self.end(number, start, end, outcome)

    def end(self, number: int, start: float, end: float, outcome: Outcome) -> None:
        self.record(start + 0.25, changes.run(number))
        times = {"started_at": self.began + start + 0.25, "ended_at": self.began + end}
        if outcome is Outcome.FAILED:
            self.record(end, changes.fail(number, **times))
        else:
            self.record(end, changes.end(number, outcome, **times))
        self.record(end, *changes.leave(number))


def replayed(desk: Desk) -> tuple[Counter[str], dict[str, list[float]]]:
    """Returns the outcomes of all attempts, and their waits, run times and hand-overs, from the events."""
    feed, outcomes = EventFeed(Location(), 0), Counter[str]()
    found: dict[str, list[float]] = {"queue_wait": [], "run_time": [], "handover": []}
    queued: dict[int, float] = {}
    free: dict[int, float] = {}
    begun: dict[int, float | None] = {}
    for one in iter(lambda: feed.read() or None, None):
        for event in one:
            data = event.data
            if event.kind == "starting":
                found["queue_wait"].append(event.at - queued[event.job_id])
                ends = [free.pop(gpu) for gpu in data["gpus"] if gpu in free]
                is_next = bool(ends) and queued[event.job_id] <= max(ends)
                begun[event.job_id] = max(ends) if is_next else None
            elif event.kind == "running" and (end := begun[event.job_id]) is not None:
                found["handover"].append(event.at - end)
            elif "outcome" in data and "attempt" in data:
                outcomes[data["outcome"]] += 1
                found["run_time"].append(data["seconds"])
                free |= dict.fromkeys(data["gpus"], event.at)
            if event.kind == "queued":
                queued[event.job_id] = event.at
    return outcomes, found


def run_jobs(desk: Desk) -> None:
    """Runs jobs with every kind of end, one after the other and beside each other."""
    jobs = [desk.job(name="secret-name") for _ in range(8)]
    desk.store.db.write("UPDATE job SET created_at = ?1, queued_at = ?1, submitted_at = ?1", 1000.0)
    desk.store.db.write("UPDATE event SET at = ?", 1000.0)
    run = Run(desk)
    both = ("SIM-0", "SIM-1")
    run.attempt(jobs[0], ("SIM-0",), 0.5, 60, Outcome.COMPLETED)
    run.attempt(jobs[1], ("SIM-1",), 0.75, 61, Outcome.TIMED_OUT)
    run.attempt(jobs[2], both, 62, 600, Outcome.COMPLETED)  # handed over by the end at 61
    run.attempt(jobs[3], ("SIM-1",), 601, 700, Outcome.FAILED)  # it is queued again
    run.attempt(jobs[4], ("SIM-0",), 602, 4000, Outcome.CANCELLED)
    run.attempt(jobs[3], ("SIM-1",), 900, 1000, Outcome.COMPLETED)  # nobody waited at 700
    run.attempt(jobs[5], ("SIM-1",), 1000.5, 1001, Outcome.COMPLETED)
    number = run.record(1002, act.Start(jobs[6], ("SIM-1",), 1000, whole=True))[jobs[6]]
    run.record(1002.25, changes.run(number))  # it goes on


@pytest.mark.parametrize("in_two_readings", [False, True])
def test_the_totals_are_those_of_the_events(api: Api, desk: Desk, in_two_readings: bool) -> None:
    assert desk.store
    client = api()
    if in_two_readings:
        client.get("/metrics")
    run_jobs(desk)
    outcomes, times = replayed(desk)
    assert outcomes == {"completed": 4, "timed_out": 1, "failed": 1, "cancelled": 1}
    samples = read(client.get("/metrics").text)
    assert labelled(samples, "attempts_total", "outcome") == outcomes
    # The hand-over of an attempt is known after its end.
    assert len(times["handover"]) == 6
    times["handover"].pop()
    for name, values in times.items():
        assert plain(samples, f"{name}_seconds_count") == len(values)
        assert plain(samples, f"{name}_seconds_sum") == pytest.approx(sum(values))
        buckets = {
            float(dict(labels)["le"]): value
            for (one, labels), value in samples.items()
            if one == f"{name}_seconds_bucket"
        }
        assert buckets == {bound: sum(value <= bound for value in values) for bound in buckets}


def test_neither_a_new_server_nor_clear_nor_a_second_scrape_changes_the_totals(api: Api, desk: Desk) -> None:
    run_jobs(desk)
    client = api()

    def totals() -> str:
        text = client.get("/metrics").text
        return "\n".join(re.findall(r"^gpu_scheduler_(?:attempts|.*_seconds_(?:sum|bucket)).*$", text, re.M))

    first = totals()
    assert 'attempts_total{outcome="completed"} 4.0' in first
    assert totals() == first
    desk.record(act.ClearFinished())
    assert totals() == first
    client = api()
    assert totals() == first


def test_start_fresh_begins_the_totals_anew(api: Api, desk: Desk) -> None:
    run_jobs(desk)
    client = api()
    client.get("/metrics")
    for table in ("misplaced_process", "allocation", "attempt"):
        desk.store.db.write(f"DELETE FROM {table}")
    again = desk.job()
    desk.store.db.write("UPDATE job SET state = 'finished' WHERE id <> ?", again)
    desk.record(changes.end(desk.attempt(again).id, Outcome.ENDED))
    assert labelled(read(client.get("/metrics").text), "attempts_total", "outcome") == {"ended": 1}


def test_a_failed_launch_and_a_watched_process_have_no_run_or_hand_over(api: Api, desk: Desk) -> None:
    first, second = desk.job(), desk.job()
    row = desk.attempt(first)
    desk.record(changes.end(row.id, Outcome.NOT_STARTED), *changes.leave(row.id))
    row = desk.attempt(second)
    desk.store.db.write("UPDATE attempt SET watched_pid = 1, started_at = 5.0 WHERE id = ?", row.id)
    samples = scrape(api)
    assert labelled(samples, "attempts_total", "outcome") == {"not_started": 1}
    counts = [plain(samples, f"{name}_seconds_count") for name in ("queue_wait", "run_time", "handover")]
    assert counts == [1, 0, 0]


@pytest.mark.parametrize("is_up", [True, False])
def test_the_jobs_wait_as_their_views_say(
    api: Api, desk: Desk, is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("show.status", "web.metrics"):  # a scheduler of its own would run rounds
        monkeypatch.setattr(f"gpu_scheduler.{module}.scheduler_pid_of", lambda _: 1 if is_up else None)
    jobs = [desk.job() for _ in range(5)]
    parent = desk.job(hold=True)
    desk.job_after(parent)
    keys = [desk.job(vram=mib) for mib in (1, 2)]
    specs = [desk.store.db.value("SELECT spec_key FROM job WHERE id = ?", key) for key in keys]
    reasons = [WaitReason(WaitKind.NO_FREE_GPU), WaitReason(WaitKind.GPUS_TOO_SMALL)]
    desk.record(*(act.SetWaitReason(*pair) for pair in zip(specs, reasons, strict=True)))
    desk.writer.set_line_waits({jobs[0]: WaitReason(WaitKind.LINE_REMOVED)})
    ended = desk.attempt(jobs[1])
    stop = StopRequest("preempted", 5.0, next_state=JobState.QUEUED)
    desk.record(changes.ask_to_stop(jobs[1], stop), changes.end(ended.id, Outcome.PREEMPTED))
    failed = desk.attempt(jobs[2], "SIM-1")
    desk.record(changes.end(failed.id, Outcome.NOT_STARTED), *changes.leave(failed.id))
    desk.store.db.write("INSERT INTO reservation VALUES (?, 'SIM-1', 5.0, 1)", jobs[3])
    desk.attempt(jobs[4], "SIM-1")

    views = status(Location(), StatusQuery()).jobs
    waiting = [one.wait for one in views if one.record.state in (JobState.QUEUED, JobState.HELD)]
    samples = scrape(api)
    found = labelled(samples, "waiting_jobs", "wait_kind")
    assert found == Counter(one.kind.value for one in waiting if one is not None)
    assert set(found) > {"gpus too small", "held", "parents", "line removed", "processes left"}
    assert set(found) >= ({"no free gpu", "reserved"} if is_up else {"no scheduler"})
    assert (plain(samples, "up"), plain(samples, "running_jobs")) == (is_up, 1)


def test_the_gpus_are_those_of_status(api: Api, desk: Desk) -> None:
    desk.attempt(desk.job(), "SIM-1", vram=6000)
    desk.record(changes.pause("SIM-0"))
    suspicion = Suspicion((1,), 5.0).to_json()
    desk.store.db.write("UPDATE gpu SET suspicion = ?, load_percent = 25 WHERE idx = 1", suspicion)
    desk.store.db.write("UPDATE gpu SET used_mib = NULL WHERE idx = 0")
    (_, view) = status(Location(), StatusQuery()).gpus
    samples = scrape(api)

    def of(name: str) -> dict[str, float]:
        return {
            dict(labels)["gpu"]: value for (one, labels), value in samples.items() if one == f"gpu_{name}"
        }

    assert of("memory_total_bytes") == {"0": 24576 * MIB, "1": 24576 * MIB}
    assert of("memory_used_bytes") == {"1": 512 * MIB}
    assert view.allocated_mib is not None
    assert of("memory_allocated_bytes") == {"0": 0, "1": view.allocated_mib * MIB}
    assert of("share_allocated_ratio") == {"0": 0, "1": view.share / 1000}
    assert of("load_ratio")["1"] == 0.25
    assert (of("paused"), of("suspect")) == ({"0": 1, "1": 0}, {"0": 0, "1": 1})
    assert set(of("faulty").values()) == {0}
    assert all(0 <= age < 120 for age in of("sample_age_seconds").values())


def test_the_gpu_time_is_that_of_the_last_week(api: Api, desk: Desk) -> None:
    now = desk.store.db.value("SELECT max(sampled_at) FROM gpu")
    skip_gpu_time(desk.store, now)
    desk.record(act.RecordGpuTime(90.5, 7.25, now))
    samples = scrape(api)
    assert plain(samples, "week_delivered_gpu_seconds") == 90.5
    assert plain(samples, "week_reserved_idle_gpu_seconds") == 7.25


def test_a_queue_without_a_store_has_metrics(api: Api) -> None:
    samples = scrape(api)
    assert plain(samples, "up") == 0
    assert labelled(samples, "attempts_total", "outcome") == {}


def test_labels_name_no_job_and_every_parser_reads_the_page(api: Api, desk: Desk) -> None:
    run_jobs(desk)
    reply = api(READER).get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert "secret-name" not in reply.text
    assert str(desk.path) not in reply.text
    labels = {name for _, pairs in read(reply.text) for name, _ in pairs}
    assert labels == {"gpu", "uuid", "outcome", "wait_kind", "le"}
    newer = {"Accept": "application/openmetrics-text; version=1.0.0"}
    text = api().get("/metrics", headers=newer).text
    found = list(open_metrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    assert {one.name for one in found} == {one.name for one in families(QueueState())}
    for one in found:
        assert re.fullmatch(r"gpu_scheduler_[a-z_]+", one.name)
        assert one.documentation
        assert (one.type == "gauge") or one.name.endswith("_seconds") or one.type == "counter"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, which Prometheus brings")
def test_promtool_finds_nothing_to_complain_about(api: Api, desk: Desk) -> None:
    run_jobs(desk)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=api().get("/metrics").text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_damaged_store_is_a_problem(api: Api, desk: Desk) -> None:
    assert desk.store
    client = api()
    client.get("/metrics")
    desk.close()
    desk.data_dir.database.write_bytes(b"no database" * 1000)
    reply = client.get("/metrics")
    assert (reply.status_code, reply.headers["content-type"]) == (503, "application/problem+json")


def test_without_the_package_the_answer_is_the_command_that_installs_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "gpu_scheduler.web.metrics", raising=False)
    reply = api().get("/metrics")
    assert (reply.status_code, reply.headers["content-type"]) == (501, "application/problem+json")
    assert '`pip install "gpu-job-scheduler[metrics]"`' in reply.json()["detail"]


def test_nothing_imports_the_package_before_a_scrape() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None; import gpu_scheduler.web.app,"
        " gpu_scheduler.web.server, gpu_scheduler.daemon.service, gpu_scheduler.show.status;"
        " assert 'gpu_scheduler.web.metrics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# The pages that name metrics.


def names() -> Mapping[str, str]:
    """Returns the type of each metric by its name in queries; that of a histogram without its suffix."""
    suffix = {"counter": "_total"}
    return {f"{one.name}{suffix.get(one.type, '')}": one.type for one in families(QueueState())}


def test_the_dashboard_and_the_page_name_only_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "examples/grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    known = names()
    for text in (json.dumps(dashboard), (ROOT / "docs/metrics.md").read_text()):
        used = set(re.findall(r"\bgpu_scheduler_[a-z_]+\b", text)) - {"gpu_scheduler_state"}
        bases = {re.sub(r"_(bucket|sum|count)$", "", one) for one in used}
        assert bases <= set(known), bases - set(known)


def test_the_page_has_a_row_for_every_metric() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(gpu_scheduler_[a-z_]+)(?:\{[a-z_, ]+\})?` \| (\w+) \|", page, re.M))
    assert rows == names()
