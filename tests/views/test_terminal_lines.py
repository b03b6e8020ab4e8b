"""The lines that `start` prints on a terminal."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.daemon.log_output import Terminal, format_event, format_message
from gpu_scheduler.show.events import message_of
from gpu_scheduler.show.layout import display_width
from tests.views.event_data import end, start

AT = time.mktime((2026, 11, 22, 7, 5, 9, 0, 0, -1))
SPEC = JobSpec(
    "csv", "0,/a/train.py,,--lr 1,", "/", script="/a/train.py", arguments=("--lr", "1", "two words")
)
START = start(share=500)
END = end(seconds=3.2, peaks=[700], declared=None, share=500, load=None)
FAILED, TIMED_OUT, INTERRUPTED = ({**END, "outcome": one} for one in ("failed", "timed_out", "interrupted"))
USED = " — peak vram gpu0:700 MiB | "
NEVER = WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(9, 1000, alone=True), gpus=2, managed=2)


def shown(event: Event, terminal: Terminal | None = None) -> str:
    return format_event(event, message_of(event, dispatched=(1, 3)), AT, terminal or Terminal(200))


def event(kind: str, reason: str | None = None, /, **data: Any) -> Event:
    return Event(9, 0.0, kind, 3, reason, data, "CMD", "bert")


@pytest.mark.parametrize(
    ("happened", "mark", "colour", "begins"),
    [
        (event("starting", **START), "▶", "36", "starts on gpu [0] (1/3 dispatched, share 0.5)"),
        (event("finished", **END), "✓", "32", f"finished [OK] in 3.2s{USED}"),
        (event("finished", **{**END, "survivors": [7]}), "✓", "33", "finished [OK] in 3.2s"),
        (event("finished", "why", **FAILED), "✗", "31", "finished [FAILED] in 3.2s — why |"),
        (event("finished", **TIMED_OUT), "✗", "31", "finished [TIMED OUT] in 3.2s"),
        (event("finished", **{**END, "outcome": "cancelled"}), "✗", "33", "finished [CANCELLED] in 3.2s"),
        (event("finished", outcome="skipped"), "✗", "33", "skipped"),
        (event("queued", "OOM", **FAILED), "↻", "33", "failed in 3.2s, queued again — OOM |"),
        (event("held", "why", **INTERRUPTED), "✗", "31", "interrupted in 3.2s, held — why |"),
        (event("held", "by the user"), "·", "", "held: by the user"),
        (Event(9, 0.0, "infeasible", 3, name="bert", reason=NEVER), "·", "33", "waits, infeasible: needs"),
        (event("runner_lost", attempt=2), "!", "33", "lost the runner of attempt 2"),
    ],
)  # fmt: skip
def test_a_terminal_line_has_the_time_the_mark_the_job_title_and_the_message(
    happened: Event, mark: str, colour: str, begins: str
) -> None:
    assert shown(happened).startswith(f"07:05:09  {mark} job 3 bert: {begins}")
    coloured = shown(happened, Terminal(200, colours=True))
    head = f"\x1b[{colour}m{mark} job 3 bert: \x1b[0m" if colour else f"{mark} job 3 bert: "
    assert coloured.startswith(f"\x1b[2m07:05:09\x1b[0m  {head}{begins}")


@pytest.mark.parametrize("hidden", ["/logs/1.log", "CMD", "2026"])
def test_a_terminal_line_omits_details_that_only_the_main_log_contains(hidden: str) -> None:
    assert hidden not in shown(event("finished", "why", **FAILED))
    assert hidden not in shown(event("starting", **START))


@pytest.mark.parametrize(
    ("name", "command", "spec", "title"),
    [
        ("bert", "CMD", "{}", "bert"),
        (None, "python3 train.py", "{}", "python3 train.py"),
        (None, SPEC.text, SPEC.to_json(), "train.py --lr 1 'two words'"),
        (None, "echo \x1b[2J", "{}", "echo \\x1b[2J"),
        (None, "", "{}", ""),
    ],
)
def test_a_terminal_line_shows_the_name_or_command_of_the_job(
    name: str | None, command: str, spec: str, title: str
) -> None:
    found = shown(Event(9, 0.0, "stopping", 3, None, {}, command, name, spec))
    assert found == f"07:05:09    job 3{' ' if title else ''}{title}: is being stopped"


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_a_long_title_leaves_room_for_the_message(columns: int) -> None:
    long = Event(9, 0.0, "starting", 3, None, START, f"python3 train.py {'--option value ' * 20}--seed 7")
    rows = shown(long, Terminal(columns)).split("\n")
    assert len(rows) == (1 if columns >= 80 else len(rows)) <= 3
    assert all(len(row) <= columns for row in rows)
    assert "…" in rows[0]


def test_a_message_about_a_job_has_at_most_three_rows() -> None:
    why = f"exit code 1: {'memory ' * 100}"
    rows = shown(event("finished", why, **FAILED), Terminal(80)).split("\n")
    assert len(rows) == 3
    assert all(len(row) <= 80 for row in rows)
    assert all(row.startswith(" " * 12 + "memory") for row in rows[1:])
    assert rows[2].endswith("…")


def test_lines_with_wide_characters_fit_the_terminal() -> None:
    rows = format_message(logging.WARNING, "模型 训练 任务 " * 9, AT, Terminal(40)).split("\n")
    assert len(rows) > 2
    assert all(display_width(row) <= 40 for row in rows)


def test_formats_the_terminal_line_of_an_event_without_a_job() -> None:
    assert shown(Event(9, 0.0, "paused", data={"gpus": [0, 2]})) == "07:05:09    GPU 0, 2 paused"


@pytest.mark.parametrize(
    ("level", "line"),
    [
        (logging.INFO, "07:05:09    4 GPUs"),
        (logging.WARNING, "07:05:09  \x1b[33m! 4 GPUs\x1b[0m"),
        (logging.ERROR, "07:05:09  \x1b[31m! 4 GPUs\x1b[0m"),
    ],
)
def test_the_level_determines_the_colour_of_a_message(level: int, line: str) -> None:
    found = format_message(level, "4 GPUs", AT, Terminal(80, True))
    assert found.replace("\x1b[2m07:05:09\x1b[0m", "07:05:09") == line


def test_a_message_keeps_its_line_breaks_and_complete_paths() -> None:
    path = f"/{'x' * 100}"
    rows = format_message(logging.WARNING, f"one {path} two\nthree\x07", AT, Terminal(60)).split("\n")
    assert rows == ["07:05:09  ! one", f"{' ' * 12}{path}", f"{' ' * 12}two", f"{' ' * 12}three\\x07"]


def test_uses_ascii_marks_if_the_encoding_lacks_the_usual_ones() -> None:
    old = Terminal(200, encoding="ascii")
    assert shown(event("finished", **END), old).startswith(
        "07:05:09  + job 3 bert: finished [OK] in 3.2s - peak"
    )
    assert shown(event("starting", **START), old).startswith("07:05:09  > ")
    assert shown(event("held"), old) == "07:05:09  . job 3 bert: held"
    assert shown(event("held"), Terminal(200, encoding="latin-1")) == "07:05:09  · job 3 bert: held"
    assert shown(event("held"), Terminal(200, encoding="no such one")) == "07:05:09  . job 3 bert: held"
