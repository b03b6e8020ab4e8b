"""Events as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.event import (
    AttemptDetails,
    AttemptEnded,
    AttemptStarted,
    Event,
    EventDetails,
    EventKind,
    GpusChanged,
    JobEnded,
    JobsForgotten,
    MisplacedProcess,
    Overuse,
)
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.show.events import detail, format_seconds, message_of, to_json
from tests.views.event_data import end, start

INFO, WARNING, DEBUG = logging.INFO, logging.WARNING, logging.DEBUG
NEVER = WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(9, 1000, alone=True), gpus=2, managed=2)


def log_line(event: Event, dispatched: tuple[int, int] | None = None) -> tuple[int, str]:
    message = message_of(event, dispatched=dispatched)
    return message.level, message.full_text


OVER_SHARE = {"attempt": 1, "gpu": 0, "observed": 16_000, "declared": 6144, "share": 250}


def of_share(share: int, budgets: list[int | None] | None, **values: Any) -> dict[str, Any]:
    return end(**{"declared": None, "share": share, "budgets": budgets, "load": None, **values})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (start(vram=18432), "[0] (1/3 dispatched, declared 18432 MiB/gpu) — CMD"),
        (start(vram=18432, gpus=[0, 2]), "[0, 2] (1/3 dispatched, declared 18432 MiB/gpu) — CMD"),
        (start(share=500), "[0] (1/3 dispatched, share 0.5) — CMD"),
        (start(share=500, vram=9000), "[0] (1/3 dispatched, share 0.5, declared 9000 MiB/gpu) — CMD"),
        (start(share=1000, exclusive=True), "[0] (1/3 dispatched, alone) — CMD"),
        (start(share=0, exclusive=True), "[0] (1/3 dispatched, alone) — CMD"),
        (start(share=1000), "[0] (1/3 dispatched, share 1) — CMD"),
        (start(vram=9000, exclusive=True), "[0] (1/3 dispatched, declared 9000 MiB/gpu, alone) — CMD"),
        (start(vram=9000, learned=True), "[0] (1/3 dispatched, learned 9000 MiB/gpu) — CMD"),
        (start(vram=9000, assumed=True), "[0] (1/3 dispatched, default 9000 MiB/gpu) — CMD"),
        (start(vram=9000, attempt=2), "[0] (1/3 dispatched, declared 9000 MiB/gpu, attempt 2) — CMD"),
    ],
)
def test_a_start_message_contains_the_gpus_the_job_count_and_the_allocation(
    data: dict[str, Any], expected: str
) -> None:
    event = Event(9, 0.0, "starting", 1, data=data, command="CMD")
    assert log_line(event, dispatched=(1, 3)) == (INFO, f"job 1 starts on gpu {expected}")


def test_a_start_message_omits_unknown_job_counts() -> None:
    event = Event(9, 0.0, "starting", 1, data=start(share=500), command="CMD")
    assert log_line(event)[1] == "job 1 starts on gpu [0] (share 0.5) — CMD"


def test_the_messages_of_a_job_without_a_gpu_say_nothing_about_memory() -> None:
    begun = Event(9, 0.0, "starting", 1, data=start(gpus=[]), command="CMD")
    assert log_line(begun)[1] == "job 1 starts without a GPU — CMD"
    assert log_line(begun, dispatched=(1, 3))[1] == "job 1 starts without a GPU (1/3 dispatched) — CMD"
    ended = end(gpus=[], peaks=[], declared=None, load=None)
    assert log_line(Event(9, 0.0, "finished", 1, data=ended))[1] == "job 1 finished [OK] in 1774s"


HEAD = "job 1 finished [OK] in 1774s — "


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (end(), "peak vram gpu0:17910 MiB | declared 18432 MiB → within ±10% | avg gpu util 96%"),
        (
            end(peaks=[5038], declared=12288),
            "peak vram gpu0:5038 MiB | declared 12288 MiB → over-declared (-59%); lowering it frees packing"
            " headroom | avg gpu util 96%",
        ),
        (
            end(peaks=[12034], declared=8192, load=None),
            "peak vram gpu0:12034 MiB | declared 8192 MiB → under-declared (+47%)",
        ),
        (
            end(gpus=[1, 3], peaks=[8000, None], load=None),
            "peak vram gpu1:8000 MiB, gpu3:n/a | declared 18432 MiB",
        ),
        (end(peaks=[None], load=None), "peak vram n/a | declared 18432 MiB"),
        (
            end(peaks=[900], declared=None, load=0.0),
            "peak vram gpu0:900 MiB | no declaration | avg gpu util 0%",
        ),
    ],
)
def test_the_message_of_a_completed_job_contains_its_peaks_accuracy_and_load(
    data: dict[str, Any], expected: str
) -> None:
    assert log_line(Event(9, 0.0, "finished", 1, data=data)) == (INFO, HEAD + expected)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # A share counts as a declaration unless it is the default.
        (of_share(500, [20_480]), "declared share 0.5"),
        (of_share(1000, [24_576]), "declared share 1"),
        (of_share(500, [None]), "declared share 0.5"),
        (of_share(500, None), "no declaration"),
        (of_share(1000, None), "no declaration"),
        (of_share(0, None), "no declaration"),
        # A share is judged only for overuse, even if the job failed.
        (of_share(250, [6144]), "declared share 0.25 (6144 MiB) → under-declared (+192%)"),
        (of_share(250, [6144], peaks=[6144]), "declared share 0.25"),
        (of_share(250, [6144], peaks=[100]), "declared share 0.25"),
        (
            of_share(250, [6144, 20_480], gpus=[1, 3], peaks=[6000, 26_624], outcome="failed"),
            "declared share 0.25 (20480 MiB) → under-declared (+30%)",
        ),
        # If a job declares both a share and memory, only its memory is judged.
        (end(share=250, budgets=[18432]), "declared 18432 MiB → within ±10%"),
        (
            end(declared=8000, budgets=[8000], learned=True),
            "learned 8000 MiB → under-declared (+124%)",
        ),
    ],
)
def test_the_end_message_of_an_attempt_shows_the_declaration_and_its_accuracy(
    data: dict[str, Any], expected: str
) -> None:
    _, text = log_line(Event(9, 0.0, "finished", 1, data=data))
    assert text.partition(" (log: ")[0].split(" | ")[1] == expected


USE = "peak vram n/a | no declaration"


@pytest.mark.parametrize(
    ("kind", "reason", "changes", "expected"),
    [
        (
            "finished", "exit code 1: ValueError: bad", {"outcome": "failed"},
            (WARNING, f"job 1 finished [FAILED] in 3.2s — exit code 1: ValueError: bad | {USE}"
             " (log: /logs/1.log)"),
        ),
        (
            "finished", None, {"outcome": "timed_out"},
            (WARNING, f"job 1 finished [TIMED OUT] in 3.2s — {USE} (log: /logs/1.log)"),
        ),
        (
            "finished", None, {"outcome": "cancelled", "log": None},
            (INFO, f"job 1 finished [CANCELLED] in 3.2s — {USE}"),
        ),
        (
            "finished", None, {"survivors": [7, 8]},
            (WARNING, f"job 1 finished [OK] in 3.2s — {USE} | left processes that do not end: 7, 8"),
        ),
        (
            "finished", "could not be started: no script", {"outcome": "not_started"},
            (WARNING, "job 1 finished [NOT STARTED] — could not be started: no script (log: /logs/1.log)"),
        ),
        (
            "queued", "no script; try 2 of 5 in 5 s", {"outcome": "not_started", "log": None},
            (WARNING, "job 1 not started, queued again — no script; try 2 of 5 in 5 s"),
        ),
        (
            "queued", "OOM; OOM retry 1 of 3 with 11.2 GiB per GPU", {"outcome": "failed", "log": None},
            (WARNING, "job 1 failed in 3.2s, queued again — OOM; OOM retry 1 of 3 with 11.2 GiB per GPU"
             f" | {USE}"),
        ),
        (
            "held", "its runner was killed; `retry 1` runs it again", {"outcome": "interrupted", "log": None},
            (WARNING, "job 1 interrupted in 3.2s, held — its runner was killed; `retry 1` runs it again"
             f" | {USE}"),
        ),
    ],
)  # fmt: skip
def test_the_end_message_of_an_attempt_shows_the_outcome_the_reason_and_the_log(
    kind: str, reason: str | None, changes: dict[str, Any], expected: tuple[int, str]
) -> None:
    data = end(**{"seconds": 3.21, "peaks": [None], "declared": None, "load": None} | changes)
    assert log_line(Event(9, 0.0, kind, 1, reason, data)) == expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            Event(9, 0.0, "exceeded", 3, None, {"attempt": 1, "gpu": 0, "observed": 12034, "declared": 8192}),
            (WARNING, "job 3 EXCEEDS declared VRAM on gpu 0: 12034 MiB used, 8192 MiB declared (+47%);"
             " neighbors may OOM"),
        ),
        (
            Event(9, 0.0, "exceeded", 3, None, OVER_SHARE),
            (WARNING, "job 3 EXCEEDS declared share 0.25 (6144 MiB) on gpu 0: 16000 MiB used (+160%);"
             " neighbors may OOM"),
        ),
        (
            Event(9, 0.0, "relaunched", 3, None, {"attempt": 2}),
            (WARNING, "job 3 is launched again: no runner claimed attempt 2 in time"),
        ),
        (
            Event(9, 0.0, "runner_lost", 3, None, {"attempt": 2}),
            (WARNING, "job 3 lost the runner of attempt 2, which left no result"),
        ),
        (
            Event(9, 0.0, "runner_killed", 3, None, {"attempt": 2}),
            (WARNING, "job 3 did not end in time; the runner of attempt 2 is killed"),
        ),
        (
            Event(9, 0.0, "infeasible", 3, reason=NEVER),
            (WARNING, "job 3 waits, infeasible: needs 9 idle GPUs, but only 2 are managed"),
        ),
        (Event(9, 0.0, "paused", data={"gpus": [2]}), (INFO, "GPU 2 paused")),
        (Event(9, 0.0, "resumed", data={"gpus": [2]}), (INFO, "GPU 2 resumed")),
        (
            Event(9, 0.0, "paused", data={"gpus": [2], "cause": "state_file_edited"}),
            (INFO, "GPU 2 paused by an edit to the state file"),
        ),
        (
            Event(9, 0.0, "restored", 3, data={"attempt": 2}),
            (INFO, "job 3 restored from the folder of attempt 2"),
        ),
        (Event(9, 0.0, "stopping", 3), (INFO, "job 3 is being stopped")),
        (Event(9, 0.0, "held", 3, "held by the user"), (INFO, "job 3 held: held by the user")),
        (Event(9, 0.0, "queued", 3, "released"), (INFO, "job 3 queued: released")),
        (
            Event(9, 0.0, "finished", 3, "line removed", {"outcome": "cancelled"}),
            (INFO, "job 3 cancelled: line removed"),
        ),
        # These events are routine or are reported in other ways. They are shown only if all events are
        # requested.
        (Event(9, 0.0, "running", 3), (DEBUG, "job 3 running")),
        (Event(9, 0.0, "queued", 3, command="CMD", is_new_job=True), (DEBUG, "job 3 queued: CMD")),
        (
            Event(9, 0.0, "held", 3, "held by its line", command="CMD", is_new_job=True),
            (DEBUG, "job 3 held: CMD (held by its line)"),
        ),
        (Event(9, 0.0, "forgotten", 0, None, {"jobs": 12}), (DEBUG, "12 jobs forgotten")),
        # This event was recorded by a later version.
        (Event(9, 0.0, "dreamt", 3, "of sheep", {"sheep": 2}), (INFO, "job 3 dreamt: of sheep")),
        # These events were recorded by another version, with other keys.
        (Event(9, 0.0, "starting", 3, command="CMD"), (INFO, "job 3 starting")),
        (Event(9, 0.0, "exceeded", 3, None, {"mib": 7}), (INFO, "job 3 exceeded")),
        (Event(9, 0.0, "relaunched", 3), (INFO, "job 3 relaunched")),
        (Event(9, 0.0, "paused", 0, "by hand"), (DEBUG, "by hand")),
        (
            Event(9, 0.0, "finished", 3, "why", {"attempt": 1, "outcome": "failed"}),
            (INFO, "job 3 failed: why"),
        ),
    ],
)  # fmt: skip
def test_events_other_than_starts_and_ends_have_the_expected_level_and_text(
    event: Event, expected: tuple[int, str]
) -> None:
    assert log_line(event) == expected


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_an_event_without_some_of_its_keys_still_has_a_message(draw: st.DataObject) -> None:
    every = {**start(), **end(), **OVER_SHARE, "pid": 7, "allocated": [1], "jobs": 3}
    keys = draw.draw(st.sets(st.sampled_from(sorted(every))))
    kind = draw.draw(st.sampled_from([*(one.value for one in EventKind), "dreamt"]))
    event = Event(9, 0.0, kind, draw.draw(st.integers(0, 1)), None, {key: every[key] for key in keys})
    _, text = log_line(event)
    assert text
    assert "None" not in text
    detail(event)
    assert json.loads(to_json(event))["event"] == kind


@pytest.mark.parametrize("kind", list(EventKind))
def test_every_kind_of_event_has_a_message(kind: EventKind) -> None:
    every = {**start(), **OVER_SHARE, "pid": 7, "allocated": [1], "jobs": 3}
    event = Event(9, 0.0, kind.value, 3, "why", every)
    text = log_line(event)[1]
    assert text.startswith("job 3 ")
    assert "{" not in text


def test_the_message_about_a_misplaced_process_names_both_gpus() -> None:
    event = Event(9, 0.0, "misplaced_process", 3, None, {"attempt": 1, "gpu": 2, "pid": 77, "allocated": [0]})
    level, text = log_line(event)
    assert level == WARNING
    assert text.startswith(
        "job 3 was given GPU 0 but uses GPU 2 (process 77): it probably sets CUDA_VISIBLE_DE"
    )
    two = replace(event, data={**event.data, "allocated": [0, 1]})
    assert "was given GPUs 0,1 but" in log_line(two)[1]


def test_an_event_message_is_one_line_without_control_characters() -> None:
    event = Event(9, 0.0, "starting", 1, data=start(), command="echo 'a\nb' \x1b[2J")
    assert log_line(event)[1].endswith(r"— echo 'a\nb' \x1b[2J")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (1774.4, "1774s")]
)
def test_formats_run_times(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


def test_the_json_of_an_event_contains_all_its_data_in_ascii() -> None:
    event = Event(9, 1000.1239, "starting", 1, data=start(vram=9000), command="echo é")
    text = to_json(event)
    assert text.isascii()
    assert "\n" not in text
    value = json.loads(text)
    at = datetime.fromisoformat(value.pop("at"))
    assert at.utcoffset() is not None
    assert at.timestamp() == pytest.approx(1000.123, abs=0.0011)
    assert value == {
        "id": 9, "event": "starting", "job": 1, "command": "echo é", "attempt": 1, "gpus": [0], "share": 0,
        "vram": 9000, "exclusive": False, "learned": False, "assumed": False,
        "resumed_from": None, "resumed_step": None, "watched_pid": None, "engine": None,
    }  # fmt: skip
    value = json.loads(to_json(Event(10, 0.0, "paused", 0, None, {"gpus": [2]}, "")))
    assert (value["event"], value["job"], value["gpus"]) == ("paused", None, [2])
    assert "command" not in value
    assert "reason" not in value


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Event(1, 0.0, "queued", 3, "released"), "released"),
        (Event(1, 0.0, "running", 3), None),
        (
            Event(1, 0.0, "misplaced_process", 3, None, {"attempt": 1, "gpu": 2, "pid": 77}),
            "pid 77 on GPU 2",
        ),
        (Event(1, 0.0, "runner_lost", 3, None, {"attempt": 1}), "attempt 1"),
        (Event(1, 0.0, "window_closed", 3, None, {"attempt": 1}), "attempt 1"),
        (
            Event(1, 0.0, "infeasible", 3, reason=NEVER),
            "needs 9 idle GPUs, but only 2 are managed",
        ),
        (Event(1, 0.0, "infeasible", 3, WaitReason.from_json('{"kind": "new"}')), '{"kind": "new"}'),
        (
            Event(1, 0.0, "exceeded", 3, None, {"attempt": 1, "gpu": 0, "observed": 200, "declared": 100}),
            "gpu 0: 200 MiB used, 100 MiB declared (+100%)",
        ),
        (
            Event(1, 0.0, "exceeded", 3, None, OVER_SHARE),
            "gpu 0: 16000 MiB used, share 0.25 (6144 MiB) declared (+160%)",
        ),
    ],
)
def test_formats_the_additional_details_of_an_event(event: Event, expected: str | None) -> None:
    assert detail(event) == expected


def test_the_documentation_lists_exactly_the_keys_of_each_kind_of_event() -> None:
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    table = text.partition("| event | keys |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", table, flags=re.MULTILINE)
    documented = {
        title: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", keys))) - {"reason"}
        for title, keys in rows
    }
    types: dict[str, type[EventDetails]] = {
        "`starting`": AttemptStarted,
        "`finished`, `queued` or `held` at an attempt's end": AttemptEnded,
        "`finished` without an attempt": JobEnded,
        "`exceeded`": Overuse,
        "`misplaced_process`": MisplacedProcess,
        "`relaunched`, `runner_lost`, `runner_killed`, `window_closed`,"
        " `preemption_withdrawn`": AttemptDetails,
        "`paused`, `resumed`": GpusChanged,
        "`restored`": AttemptDetails,
        "`forgotten`": JobsForgotten,
    }
    for title, type_ in types.items():
        assert documented[title] == set(type_.__struct_fields__), title
